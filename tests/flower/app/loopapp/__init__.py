"""Known updates through a real SuperLink."""

"""The compiled loops for CPUs."""

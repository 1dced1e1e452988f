"""Data sets, where they come from, and how records are dealt to clients."""

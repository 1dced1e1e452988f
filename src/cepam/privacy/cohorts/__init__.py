"""User-level privacy with secret client sampling: cohorts, dropouts, adaptive clipping."""

"""Other ways to a private sum, on the same presets and in one table with cepam's (docs/trust.md)."""

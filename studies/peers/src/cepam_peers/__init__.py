"""Other mechanisms for a private sum, on the same presets (docs/benchmarks/index.md)."""

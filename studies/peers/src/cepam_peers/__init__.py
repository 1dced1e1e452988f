"""Other mechanisms for a private sum, on the same presets (docs/benchmarks/secure-aggregation.md)."""

"""Settings of a run: fields, checks, presets, TOML."""

"""Mechanisms: what one round releases, its dominating pair, and how it is written down."""

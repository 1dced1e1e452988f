"""Noise distributions ("laws") and the tables that turn random words into their latent radii.

To add a distribution, subclass `Law` (`laws.py`, docs/laws.md). Internal: the laws that users name are in `cepam`.
"""

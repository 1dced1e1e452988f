"""Noise distributions ("laws") and the tables that turn random words into their latent radii.

Internal: the laws that users name are in `cepam`.
"""

"""Lattices: named and custom ones and their exact geometry.

Internal: the lattices that users name are in `cepam`.
"""

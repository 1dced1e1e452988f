"""Lattices: named and custom ones, their exact geometry, and the automatic choice between them.

Internal: the lattices that users name are in `cepam`.
"""

"""What is added and on which lattice: laws, radius tables, lattices with their geometry, the automatic lattice.

Internal: the laws and lattices that users name are in `cepam`.
"""

"""What is added and on which lattice: laws, radius tables, lattices with their geometry, the automatic lattice."""

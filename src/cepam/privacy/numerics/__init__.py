"""What finite words cost: slack of the arithmetic, and smoothing of sums of lattice points."""

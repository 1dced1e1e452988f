"""The reference loops in NumPy: slow, plain, and the judge of the other backends."""

"""One arithmetic, several loops: the NumPy reference and the compiled kernels give the same integers.

Internal: what users call is in `cepam`.
"""

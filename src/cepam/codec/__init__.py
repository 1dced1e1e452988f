"""The codec: updates and whole models to sealed bytes and back; the wire format; the paper's quantizers.

Internal: what users call is in `cepam`.
"""

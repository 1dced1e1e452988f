"""The loops for GPUs, in Triton."""

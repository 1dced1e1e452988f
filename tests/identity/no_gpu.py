"""A driver for Triton where there is no GPU: it compiles for an H200, or looks up what it would compile."""

from __future__ import annotations

from triton.backends.compiler import GPUTarget


class NoGpu:
    """What Triton asks of a driver before it compiles for an H200."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

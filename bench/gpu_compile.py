"""Compiles a benchmark's kernels in many processes before it runs: Triton's cache on disk then has them all.

Each process runs the benchmark with launches replaced by compilation, and takes its share of the distinct kernels.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zlib
from typing import Any

import torch

MOST_SECONDS = 120


def compile_shares(script: str, processes: int) -> None:
    """Runs the script once for each share and waits for all."""
    shares = [
        subprocess.Popen(
            [sys.executable, script, *sys.argv[1:], "--compile", f"{i}/{processes}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OUT": ""},
        )
        for i in range(processes)
    ]
    deadline = time.monotonic() + MOST_SECONDS
    for share in shares:
        try:
            share.wait(timeout=max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            share.kill()


def compile_only(share: str) -> None:
    """From here on, this process compiles the kernels of its share and launches none."""
    from triton.runtime.jit import JITFunction

    mine, processes = (int(part) for part in share.split("/"))
    run = JITFunction.run

    def compile_mine(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kinds = [_kind(value, plain=p.do_not_specialize) for value, p in zip(args, self.params)] + [
            f"{key}={_kind(value, True)}" for key, value in options.items()
        ]
        name = f"{self.fn.__name__} {kinds}"
        if zlib.crc32(name.encode()) % processes == mine:
            return run(self, *args, grid=grid, warmup=True, **options)
        return None

    JITFunction.run = compile_mine


def _kind(value: Any, exact: bool = False, plain: bool = False) -> str:
    """What a kernel is specialised on."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {value.data_ptr() % 16}"
    if isinstance(value, int) and plain:
        return f"{-(2**31) <= value < 2**31}"
    if isinstance(value, int) and not exact:
        return f"{value == 1} {value % 16 == 0} {-(2**31) <= value < 2**31}"
    return repr(value)

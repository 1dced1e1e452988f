"""Prints, as JSON, which kernels Triton compiles for an H200 and which it does not, with the error; needs no GPU.

Nothing is run: what the interpreter takes and the compiler refuses shows here.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import tempfile
from typing import Any

os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()

import numpy as np
import torch
from no_gpu import NoGpu
from triton.runtime import driver
from triton.runtime.jit import JITFunction

import cepam
from cepam.kernels.format import search
from cepam.kernels.format.plan import Plan, cell_plan, layered_plan
from cepam.kernels.triton import masks as masks_on_gpu
from cepam.kernels.triton import search_encode, search_launch, symbols
from cepam.kernels.triton.batch import Batch
from cepam.kernels.triton.plan import device_keys, device_plan
from cepam.kernels.triton.scalar_launch import ScalarLaunch
from cepam.kernels.triton.vector_launch import VectorLaunch

COMPILE = JITFunction.run
KEY = bytes(32)
MADE: dict[str, set[str]] = collections.defaultdict(set)
REFUSED: dict[str, str] = {}


def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
    """Compile the kernel for such a launch, or note why not."""
    try:
        MADE[kernel.__name__].add(COMPILE(kernel, *args, grid=grid, warmup=True, **options).hash)
    except Exception as refused:
        REFUSED[kernel.__name__] = str(refused)[-2000:]


def launch_waves(lattice: cepam.Lattice, kind: Any, count: int, columns: int) -> None:
    """A wave of blocks, coded and decoded; many coordinates are coded by other kernels than few."""
    plan, x = layered_plan(cepam.Gaussian(0.01), lattice), torch.zeros(1, count)
    batch = Batch(device_plan(plan, "cpu"), device_keys([KEY], "cpu"), x, 8192 // lattice.dimension)
    wave, headers = kind(batch, 0, batch.lanes), torch.zeros(batch.lanes, dtype=torch.int32)
    batch.measure_headers(torch.zeros(3, dtype=torch.int64))
    wave.encode(headers, columns, 16)
    batch.gather(torch.zeros(batch.lanes * 16, dtype=torch.int32), headers + 4, 16)
    flags, starts = torch.tensor([0, columns, 0, 0], dtype=torch.int32), torch.zeros(batch.lanes, dtype=torch.int64)
    wave.decode(torch.zeros(99, dtype=torch.uint8), starts, headers, flags, False)


def launch_symbols(plan: Plan, dtype: Any) -> None:
    """Both ways of symbols of 32 and of 64 bits, some of them in no whole group."""
    h, m = symbols.quantize(plan, KEY, torch.zeros(8195, dtype=dtype))
    trials = h[:1] if plan.n == 1 else h
    symbols.reconstruct(plan, KEY, trials, m, True)
    symbols.reconstruct(plan, KEY, trials, m.to(torch.int64), False)


def launch_sums() -> None:
    """Noise, masks, packing, and the sum."""
    keys, signs = np.zeros((1, 8), np.uint32), np.ones(1, np.uint32)
    noised = masks_on_gpu.noised(layered_plan(cepam.Gaussian(0.18), cepam.Integer(1)), torch.zeros(40), KEY)
    masks_on_gpu.packed(noised, 3, 7, keys, signs)
    masks_on_gpu.check_device = lambda device: None
    masks_on_gpu.unmasked([bytes(36)], 40, 7, keys, signs, "cpu")


def launch_segments() -> None:
    """Segments of the search coder, in both directions: searched, and what is left of them."""
    plan, layout = layered_plan(cepam.Gaussian(0.01), cepam.Integer(1)), search.layout_of(520, 6, 3)
    searched = [bytes([layout.class_byte(False), *bytes(9)])]
    search_launch.decode_segments(plan, [KEY], [searched], 520, torch.float32, "cpu")
    whole = [bytes([search.LAYERED_ONLY]) + bytes(9)]
    search_launch.decode_segments(plan, [KEY], [whole], 520, torch.float64, "cpu")
    for count, dtype in ((8192, torch.float32), (32, torch.float64)):  # the largest parts, and the smallest
        quiet = search_encode.measure_updates(plan, [KEY], torch.zeros(1, count, dtype=dtype))
        search_encode.encode_segments(quiet)
    search_encode.encode_segments(dataclasses.replace(quiet, sums=quiet.sums + (1 << 62)))
    search_launch.FLAT = -1  # as if the blocks had rows
    search_launch.decode_segments(plan, [KEY], [whole], 520, torch.float64, "cpu")


def main() -> None:
    """Launches all there is."""
    driver.set_active(NoGpu())
    JITFunction.run = compile_only
    torch.Tensor.new_empty = torch.Tensor.new_zeros  # no kernel fills anything in
    for count in (8192, 8192 * 4097):
        for columns in (0, 7):
            launch_waves(cepam.Integer(1), ScalarLaunch, count, columns)
    launch_waves(cepam.E8, VectorLaunch, 8192, 0)
    launch_waves(cepam.A2, VectorLaunch, 8192, 0)
    for programs in (symbols.PROGRAMS, 1):  # one tile a program, and several
        symbols.PROGRAMS = programs
        for dtype in (torch.float32, torch.float64):
            for plan in (layered_plan(cepam.Gaussian(0.01), cepam.Integer(1)), cell_plan(cepam.Integer(1), 0.02)):
                launch_symbols(plan, dtype)
    for lattice in (cepam.E8, cepam.D4, cepam.A2, cepam.Integer(3)):
        launch_symbols(layered_plan(cepam.Gaussian(0.01), lattice), torch.float32)
    launch_sums()
    launch_segments()
    print(json.dumps({"made": {name: len(hashes) for name, hashes in MADE.items()}, "refused": REFUSED}))


if __name__ == "__main__":
    main()

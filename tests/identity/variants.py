"""Prints, as JSON, how many kernels Triton would compile for updates of many sizes, places and types; needs no GPU.

Nothing is compiled or run: what Triton would look a kernel up by is noted at each launch.
"""

from __future__ import annotations

import collections
import json
from typing import Any

import torch
import triton
from no_gpu import NoGpu
from triton.runtime import driver
from triton.runtime.jit import JITFunction

import cepam
from cepam.codec.wire import rows_per_block
from cepam.kernels.format.plan import layered_plan
from cepam.kernels.triton import launch as waves
from cepam.kernels.triton.batch import FEW_BLOCKS, Batch
from cepam.kernels.triton.plan import device_keys, device_plan
from cepam.kernels.triton.scalar_launch import ScalarLaunch
from cepam.kernels.triton.vector_launch import VectorLaunch

SEEN: dict[str, set[str]] = collections.defaultdict(set)
UPDATES = [(1, 1, 8, 0), (1, 4096, 4096, 0), (3, 4097, 4096, 1), (16, 8 * 256, 256, 16), (5, 8, 8, 0)]
"""Clients, coordinates, coordinates of a block, first lane: numbers that are 1, divisible by 16, and neither."""


def look_up(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
    """Note the launch's key."""
    _, keys, options_of = kernel.device_caches[0][4](*args, **options)
    SEEN[kernel.__name__].add(str(keys) + str(options_of))


@triton.jit
def grouped_numbers(numbers):  # type: ignore[no-untyped-def]
    """The control: whole numbers in a tuple."""


def launch(wave: Any, columns: int, off: int) -> None:
    """Every kernel of a wave, both ways."""
    batch, lengths = wave.batch, torch.zeros(wave.batch.lanes, dtype=torch.int32)
    batch.measure_headers(torch.zeros(3, dtype=torch.int64))
    headers, data = torch.zeros_like(lengths), torch.zeros(99, dtype=torch.uint8)[off:]
    batch.gather(*wave.encode(headers, columns, 16 + off), 16 + off)
    starts, flags = torch.zeros(batch.lanes, dtype=torch.int64), torch.zeros(2, dtype=torch.int32)
    wave.decode(data, starts, lengths, flags, columns)
    if batch.on.plan.n == 1:
        wave._walk(data, wave._words(16), 7, True)(wave._words(99), off, 8)
    grouped_numbers[(1,)]((batch.lanes, off))


def look_ahead() -> int:
    """How many kernels messages of all kinds would compile that `compile_ahead` did not."""
    for lattice, kind in ((cepam.Integer(1), ScalarLaunch), (cepam.E8, VectorLaunch)):
        plan, per_block = layered_plan(cepam.Gaussian(0.01), lattice), rows_per_block(lattice.dimension)
        on = device_plan(plan, "cpu")
        for many in (False, True):
            waves.compile_ahead(plan, per_block, FEW_BLOCKS if many else 1, "cpu")
            x, keys = torch.zeros(30, 39_700), device_keys([bytes(32)] * 30, "cpu")
            batch = Batch(on, keys, x, per_block, many)
            for way in (waves.MEASURING, *waves.ENCODING.values(), *waves.DECODING.values()):
                waves.Kernels.of(batch).wait_for(way)
            before = sum(map(len, SEEN.values()))
            for columns in (0, 7, 2047) if lattice.dimension == 1 else (0,):
                launch(kind(batch, 0, batch.lanes), columns, 0)
            SEEN.pop("grouped_numbers")
            if sum(map(len, SEEN.values())) > before or not before:
                return sum(map(len, SEEN.values())) - before or -1
    SEEN.clear()
    return 0


def main() -> None:
    """Launches all there is."""
    driver.set_active(NoGpu())
    JITFunction.run = look_up
    # No kernel fills anything in.
    torch.Tensor.new_empty = torch.Tensor.new_zeros
    later = look_ahead()
    for dtype, off in ((torch.float32, 0), (torch.float64, 1), (torch.float32, 3)):
        for lattice, kind in ((cepam.Integer(1), ScalarLaunch), (cepam.E8, VectorLaunch)):
            on = device_plan(layered_plan(cepam.Gaussian(0.01), lattice), "cpu")
            for clients, count, length, begin in UPDATES:
                x = torch.zeros(clients * count + off, dtype=dtype)[off:].reshape(clients, count)
                batch = Batch(on, device_keys([bytes(32)] * clients, "cpu"), x, max(length // lattice.dimension, 8))
                for columns in (0, 7) if lattice.dimension == 1 else (0,):
                    launch(kind(batch, begin, batch.lanes - begin), columns, off)
    print(json.dumps({"later": later} | {name: len(keys) for name, keys in SEEN.items()}))


if __name__ == "__main__":
    main()

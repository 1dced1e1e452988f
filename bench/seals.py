"""Seals of many messages, opened one by one and by threads: which is faster where all blocks go to one GPU.

    PYTHONPATH=src python bench/seals.py

Median milliseconds of fifteen; needs no GPU.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import cepam
from cepam.kernels.dispatch import cores, side_by_side


def median(work: Callable[[], Any]) -> float:
    """Milliseconds of a call."""
    times = []
    for _ in range(16):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return 1e3 * statistics.median(times[1:])


def main() -> None:
    codec = cepam.Codec(cepam.Gaussian(0.01), cepam.Integer(1))
    print(f"| messages | bytes each | one by one, ms | by {cores()} threads | by 16 threads |\n|---|---|---|---|---|")
    for size, clients in ((6422, 30), (6422, 1000), (39_700, 30), (400_000, 30), (1_000_000, 30)):
        x = np.random.default_rng(1).laplace(0, 0.005, (clients, size)).astype(np.float32)
        ats = [cepam.Address(bytes(32), round=1, client=k) for k in range(clients)]
        messages = cepam.encode_many(codec, x, ats)
        times = [median(lambda: [codec.open(message, at) for message, at in zip(messages, ats)])]  # noqa: B023
        times += [median(lambda: side_by_side(n, codec.open, messages, ats)) for n in (cores(), 16)]  # noqa: B023
        cells = " | ".join(f"{each:.2f}" for each in times)
        print(f"| {clients} | {len(messages[0]):,} | {cells} |", flush=True)


if __name__ == "__main__":
    main()

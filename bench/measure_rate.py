"""Bits per coordinate of real messages on `bench/data/test.npz`: header, seal and side information included.

`python bench/measure_rate.py [messages a data set] [lattice, …]`; lattices: Z1, A2, D4, E8. Written to
bench/results/rate_messages.json, one entry per lattice.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

import cepam
from stamp import merge
from symbols import address

SIGMAS = (10.0, 0.2, 0.05, 0.01, 0.003, 0.001, 0.0001, 0.00001)
LONGEST = 40 * 8192


def rate(codec: cepam.Codec, rows: np.ndarray) -> float:
    """8 * len(message) / m over the messages of all rows; the first is decoded back."""
    total = 0
    for number, x in enumerate(rows):
        message = codec.encode(x, address(number))
        total += len(message)
        if number == 0:
            error = codec.decode(message, address(number)).astype(np.float64) - x
            assert 0.9 < error.std() / codec.law.variance() ** 0.5 < 1.1
    return 8 * total / rows.size


def clock(codec: cepam.Codec, x: np.ndarray) -> tuple[float, float]:
    """Best ns per coordinate of encoding and decoding one message."""
    best = [np.inf, np.inf]
    for number in range(30):
        since = time.perf_counter()
        message = codec.encode(x, address(number))
        between = time.perf_counter()
        codec.decode(message, address(number))
        best = [min(best[0], between - since), min(best[1], time.perf_counter() - between)]
    return best[0] / x.size * 1e9, best[1] / x.size * 1e9


def main() -> None:
    rows = np.load(Path(__file__).parent / "data" / "test.npz")
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    for name in sys.argv[2:] or ["Z1"]:
        print(f"{name}: bits per coordinate of whole messages against sigma; ns per coordinate at sigma 0.01\n")
        print("| data | " + " | ".join(f"{s:g}" for s in SIGMAS) + " | encode | decode |")
        print("|---" * (len(SIGMAS) + 3) + "|")
        found = {}
        for data in rows:
            part = rows[data][:: max(len(rows[data]) // count, 1), :LONGEST]
            codecs = [cepam.Codec(cepam.Gaussian(s), name, coder="layered", threads=1) for s in SIGMAS]
            found[data] = [rate(codec, part) for codec in codecs]
            cells = [f"{bits:.3f}" for bits in found[data]]
            cells += [f"{ns:.1f}" for ns in clock(codecs[SIGMAS.index(0.01)], part[0])]
            print(f"| {data} | " + " | ".join(cells) + " |", flush=True)
        merge("rate_messages", name, {"sigmas": SIGMAS, "messages": count, "bits_per_coordinate": found})
        print()


if __name__ == "__main__":
    main()

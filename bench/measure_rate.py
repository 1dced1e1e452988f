"""Bits a coordinate and ns a coordinate of the margin coder on `bench/data/test.npz`, everything included."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from cepam.kernels import margin
from cepam.kernels.stride import find_stride
from quantize import quantize

OVERHEAD = 21
BLOCK = 8192
SIGMAS = (10.0, 0.2, 0.05, 0.01, 0.003, 0.001, 0.0001, 0.00001)


def measure(x: np.ndarray, sigma: float, seed: int, tables: tuple, stride: int | None = None) -> int:
    """Bytes of one message: its blocks, two bytes of length for each but the first, the overhead."""
    out = np.empty(margin.BYTES_A_COORDINATE * BLOCK + 16, np.uint8)
    total = OVERHEAD - 2
    for at in range(0, x.size, BLOCK):
        X, M, B, D = quantize(x[at : at + BLOCK], sigma, seed + at)
        lag = find_stride(X) if stride is None else stride
        size = margin.encode_block(M, B, D, margin.measure_scale(X), lag, *tables, out)
        back = np.empty_like(M)
        margin.decode_block(out[:size].copy(), B, D, *tables, back)
        assert (back == M).all()
        total += size + 2
    return total


def clock(x: np.ndarray, sigma: float, tables: tuple) -> tuple[float, float]:
    """Best ns a coordinate of encoding and decoding one block."""
    X, M, B, D = quantize(np.resize(x, BLOCK), sigma, 5)
    out = np.empty(margin.BYTES_A_COORDINATE * BLOCK + 16, np.uint8)
    scale, lag = margin.measure_scale(X), find_stride(X)
    data = out[: margin.encode_block(M, B, D, scale, lag, *tables, out)].copy()
    best = []
    for call in (
        lambda: margin.encode_block(M, B, D, scale, lag, *tables, out),
        lambda: margin.decode_block(data, B, D, *tables, M),
    ):
        times = []
        for _ in range(30):
            since = time.perf_counter()
            call()
            times.append(time.perf_counter() - since)
        best.append(min(times) / BLOCK * 1e9)
    return best[0], best[1]


def main() -> None:
    rows = np.load(Path(__file__).parent / "data" / "test.npz")
    tables = margin.load_tables()
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    print("bits a coordinate, 21 bytes of header and seal included; ns a coordinate at sigma 0.01\n")
    print("| data | " + " | ".join(f"{s:g}" for s in SIGMAS) + " | encode | decode |")
    print("|---" * (len(SIGMAS) + 3) + "|")
    for name in rows:
        part = rows[name][:: max(len(rows[name]) // count, 1)]
        cells = []
        for sigma in SIGMAS:
            sizes = [measure(x[: 40 * BLOCK], sigma, 10**6 * i, tables) for i, x in enumerate(part)]
            cells.append(f"{8 * sum(sizes) / sum(x[: 40 * BLOCK].size for x in part):.3f}")
        enc, dec = clock(part[0], 0.01, tables)
        print(f"| {name} | " + " | ".join(cells) + f" | {enc:.1f} | {dec:.1f} |", flush=True)


if __name__ == "__main__":
    main()

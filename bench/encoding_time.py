"""What the time and the length of a message tell about the update's norm: `python bench/encoding_time.py`.

One thread, processor time, both norms in turn. Of two norms 1 dB apart, how often does one message tell which it was?
Written to bench/results/encoding_time.json.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import numpy.typing as npt

import cepam
from stamp import save

WEIGHTS, MESSAGES = 39_700, 60
LEVELS = (-30, -25, -20, -15, -10)
DEFAULT = cepam.Codec(cepam.Gaussian(1.0), threads=1, size=WEIGHTS, backend="numba")
PADDED = replace(DEFAULT, padding=256)
Floats = npt.NDArray[np.float64]


def observed(codec: cepam.Codec, updates: list[npt.NDArray[np.float32]]) -> list[tuple[Floats, Floats]]:
    """Seconds and bytes of messages of each update, in turn, under as many addresses."""
    found = np.zeros((len(updates), 2, MESSAGES))
    for number in range(MESSAGES):
        for i, x in enumerate(updates):
            at = cepam.Address(bytes(32), round=number, client=i)
            before = time.thread_time()
            message = codec.encode(x, at)
            found[i, :, number] = time.thread_time() - before, len(message)
    return [(each[0], each[1]) for each in found]


def told_apart(low: Floats, high: Floats) -> float:
    """How often the larger of two observations is that of the larger norm; 0.5: they tell nothing."""
    return float(np.mean(np.sign(high[:, None] - low[None, :]) / 2.0 + 0.5))


def main() -> None:
    """Prints and writes the table."""
    x, rows = np.random.default_rng(1).normal(size=WEIGHTS).astype(np.float32), []
    for name, codec in (
        ("auto", DEFAULT),
        ("auto, padding 256", PADDED),
        ("layered", replace(DEFAULT, coder="layered")),
    ):
        observed(codec, [x * np.float32(0.03)])
        for decibels in LEVELS:
            scale = np.float32(10.0 ** (decibels / 20.0))
            low, high = observed(codec, [x * scale, x * scale * np.float32(10.0**0.05)])
            row = {
                "coder": name, "snr_db": decibels, "milliseconds": 1e3 * float(np.median(low[0])),
                "spread": float(np.std(low[0]) / np.mean(low[0])), "bytes": float(np.mean(low[1])),
                "told apart by time": told_apart(low[0], high[0]), "told apart by length": told_apart(low[1], high[1]),
            }  # fmt: skip
            rows.append(row)
            print(
                "  ".join(f"{key} {value:.3g}" if key != "coder" else value for key, value in row.items()), flush=True
            )
    save("encoding_time", {"weights": WEIGHTS, "messages": MESSAGES, "rows": rows})


if __name__ == "__main__":
    main()

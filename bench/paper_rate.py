"""Bits per coordinate of the paper's own code on the bench gradients: `python bench/paper_rate.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import cepam

CASES = (("early_single", 0.01), ("late_single", 0.01), ("early_single", 0.2), ("early_single", 0.001))


def main() -> None:
    data = np.load(Path(__file__).parent / "data" / "test.npz")
    key = cepam.Key.generate()
    for name, sigma in CASES:
        codec = cepam.Codec(cepam.Gaussian(sigma), cepam.Integer(1), coder="paper", bound=1.0)
        rows = data[name][::8].astype(np.float32)
        sizes = [len(codec.encode(x, cepam.Address(key, round=i, client=0))) for i, x in enumerate(rows)]
        print(f"{name:14} sigma {sigma:g}: {8 * np.mean(sizes) / rows.shape[1]:.2f} bits per coordinate")


if __name__ == "__main__":
    main()

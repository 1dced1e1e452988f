"""Floors for the scalar scheme: H(M | B, D) when the law of an i.i.d. entry is known, and an oracle on
gradients.

The oracle is told |x| of every coordinate and not its sign: it pays one bit where +|x| and -|x| give
different quotients, nothing elsewhere. No coder that knows scales only can be told more; ours also predicts
signs. Written to bench/results/rate_floors.json.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.stats import laplace, norm

from stamp import save

SIGMAS = (0.2, 0.05, 0.01, 0.003, 0.001)
RMS = 6422**-0.5


def draw_edges(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(low, B) in units of sigma: k = 0 for low <= x < low + B."""
    draw = np.random.default_rng(seed)
    R = np.sqrt(draw.chisquare(3, count))
    D = 2 * R * draw.random(count)
    return D - R - 2 * R * (D > R), 2 * R


def entropy(law: object, sigma: float, count: int = 4000) -> float:
    """H(M | B, D) in bits for one entry of `law` (a frozen SciPy distribution)."""
    low, B = draw_edges(count, 1)
    reach = int(np.ceil(12 * RMS / sigma / B.min())) + 2
    total = 0.0
    for a, b in zip(low, B):
        k = np.arange(-min(reach, int(12 * RMS / sigma / b) + 2), min(reach, int(12 * RMS / sigma / b) + 3))
        p = np.diff(law.cdf((a + b * np.append(k, k[-1] + 1)) * sigma))
        p = p[p > 0]
        total -= float((p * np.log2(p)).sum())
    return total / count


def oracle(rows: np.ndarray, sigma: float) -> float:
    """Bits per coordinate of the oracle that knows |x|."""
    size = np.abs(rows.astype(np.float64)).ravel() / sigma
    low, B = draw_edges(size.size, 2)
    return float(np.mean(np.floor((size - low) / B) != np.floor((-size - low) / B)))


def main() -> None:
    rows = np.load(Path(__file__).parent / "data" / "test.npz")
    found = {
        f"{name}, distribution known": [entropy(law, s) for s in SIGMAS]
        for name, law in (("Gaussian", norm(scale=RMS)), ("Laplace", laplace(scale=RMS / 2**0.5)))
    }
    for name in ("early_single", "early_averaged", "late_single", "late_averaged"):
        found[f"{name}, magnitudes known"] = [oracle(rows[name][::8], s) for s in SIGMAS]
    print("| floor | " + " | ".join(f"{s:g}" for s in SIGMAS) + " |\n" + "|---" * (len(SIGMAS) + 1) + "|")
    for name, bits in found.items():
        print(f"| {name} | " + " | ".join(f"{each:.3f}" for each in bits) + " |")
    save("rate_floors", {"sigmas": SIGMAS, "bits_per_coordinate": found})


if __name__ == "__main__":
    main()

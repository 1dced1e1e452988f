"""Noise that reaches the weights at one epsilon: with and without secret draws, independent and correlated.

    python bench/correlated.py

One client of 60,000 records, 31 a pass: batches of 60,000/31, 496 rounds, per-example clip, add-or-remove, delta 1e-5,
momentum 0.9, linear rates. Figures are |A C^-1| times the noise, over |A| and one example's share: the multiplier that
independent noise would need to leave as much. Bands are a carry cut short, the best one.
"""

from __future__ import annotations

import numpy as np

from cepam import L2, Gaussian, privacy

ROUNDS, SLICES, RECORDS, MOMENTUM = 496, 31, 60_000, 0.9
RATES = [min(1.0, 2.0 * (1.0 - t / ROUNDS)) for t in range(ROUNDS)]


def left(link: privacy.Correlation, epsilon: float, draws: bool) -> float:
    """The noise in the weights at epsilon, as a multiplier of independent noise."""
    batch = RECORDS / SLICES
    release = privacy.CorrelatedRelease(
        (privacy.Client(Gaussian(1.0), RECORDS, 1.0, batch),),
        L2(batch),  # one example's share is 1
        privacy.Sampling("poisson" if draws else "all"),
        rounds=ROUNDS,
        adjacency="add-remove",
        clipped="example",
        link=link,
    )
    scale = privacy.calibrate(release, epsilon, 1e-5).clients[0].law.scale
    independent = privacy.weight_noise(privacy.Correlation(), ROUNDS, MOMENTUM, RATES)
    return scale * privacy.weight_noise(link, ROUNDS, MOMENTUM, RATES) / independent


def banded(bands: int) -> privacy.Correlation:
    """The carry, cut after `bands` messages, that leaves least noise."""
    carry = privacy.best_carry(ROUNDS, bands, MOMENTUM, RATES, bands)
    return privacy.Correlation.from_matrix(carry ** np.arange(bands), bands)


def main() -> None:
    carry = privacy.best_carry(ROUNDS, SLICES, MOMENTUM, RATES)
    rows = {
        "secret draws, independent": (privacy.Correlation(), True),
        "nothing secret, independent": (privacy.Correlation(slices=SLICES), False),
        "nothing secret, carry": (privacy.Correlation(carry, SLICES), False),
        **{f"secret draws, {b} bands": (banded(b), True) for b in (4, 16)},
    }
    for name, (link, draws) in rows.items():
        print(f"{name:30} " + " ".join(f"eps {e:g}: {left(link, e, draws):.2f}" for e in (2.0, 8.0)))


if __name__ == "__main__":
    main()

"""Noise that reaches the weights at one epsilon: with and without secret draws, independent and correlated.

    python bench/correlated.py               496 rounds of 31 batches a pass, at two epsilons
    python bench/correlated.py --batches     the 600 rounds of the presets at epsilon 1.99, over batches and slices

One client of 60,000 records, per-example clip, add-or-remove, delta 1e-5, momentum 0.9, linear rates. Figures of the
first are |A C^-1| times the noise, over |A| and one example's share: the multiplier that independent noise would need
to leave as much. Those of the second are the same over the batch, times 2,000, so that batches can be compared. Bands
are the best decay, cut short. Written to bench/results/correlated.json.
"""

from __future__ import annotations

import sys

import numpy as np

from cepam import L2, Gaussian, privacy
from stamp import merge

RECORDS, MOMENTUM = 60_000, 0.9
EPSILONS = (2.0, 8.0)


def rates(rounds: int) -> list[float]:
    """The linear schedule."""
    return [min(1.0, 2.0 * (1.0 - t / rounds)) for t in range(rounds)]


def left(link: privacy.CorrelatedNoise, epsilon: float, rounds: int, batch: float, draws: bool) -> float:
    """The noise in the weights at epsilon, as a multiplier of independent noise."""
    mechanism = privacy.MatrixMechanism(
        (privacy.Client(Gaussian(1.0), RECORDS, 1.0, batch),),
        L2(batch),  # one example's share is 1
        privacy.Sampling("poisson" if draws else "all"),
        rounds=rounds,
        adjacency="add-remove",
        clipped="example",
        link=link,
    )
    scale = privacy.calibrate(mechanism, epsilon, 1e-5).clients[0].law.scale
    independent = privacy.weight_noise(privacy.CorrelatedNoise(), rounds, MOMENTUM, rates(rounds))
    return scale * privacy.weight_noise(link, rounds, MOMENTUM, rates(rounds)) / independent


def banded(bands: int, rounds: int) -> privacy.CorrelatedNoise:
    """The decay, cut after `bands` messages, that leaves least noise."""
    decay = privacy.best_decay(rounds, bands, MOMENTUM, rates(rounds), bands) if bands > 1 else 0.0
    return privacy.CorrelatedNoise.from_matrix(decay ** np.arange(bands), bands)


def carried(slices: int, rounds: int) -> privacy.CorrelatedNoise:
    """The best decay over so many slices."""
    return privacy.CorrelatedNoise(privacy.best_decay(rounds, slices, MOMENTUM, rates(rounds)), slices)


def at_two_epsilons(rounds: int = 496, slices: int = 31) -> None:
    """Prints and writes the noise in the weights at two epsilons."""
    rows = {
        "secret sampling, independent noise": (privacy.CorrelatedNoise(), True),
        "no secret sampling, independent noise": (privacy.CorrelatedNoise(slices=slices), False),
        "no secret sampling, geometric decay": (carried(slices, rounds), False),
        **{f"secret sampling, {b} bands": (banded(b, rounds), True) for b in (4, 16)},
    }
    found = []
    for name, (link, draws) in rows.items():
        multipliers = [left(link, e, rounds, RECORDS / slices, draws) for e in EPSILONS]
        found.append({"what": name, "noise_multipliers": multipliers})
        print(f"{name:38} " + " ".join(f"eps {e:g}: {each:.2f}" for e, each in zip(EPSILONS, multipliers)))
    told = {"rounds": rounds, "slices": slices, "records": RECORDS, "momentum": MOMENTUM, "epsilons": EPSILONS}
    merge("correlated", "two epsilons", {**told, "rows": found})


def over_batches(rounds: int = 600, epsilon: float = 1.99) -> None:
    """Prints and writes the noise in the weights by batch and bands, and of a decay by its slices."""
    found = []
    for batch in (1000, 2000, 4096):
        for bands in (1, 2, 4, 8):
            each = 2000 / batch * left(banded(bands, rounds), epsilon, rounds, batch, True)
            found.append({"sampling": "secret", "batch": batch, "bands": bands, "noise_multiplier": each})
    for slices in (60, 30, 15, 10, 5):
        batch = RECORDS / slices
        each = 2000 / batch * left(carried(slices, rounds), epsilon, rounds, batch, False)
        found.append({"sampling": "none", "batch": batch, "slices": slices, "noise_multiplier": each})
    for row in found:
        print(row)
    merge("correlated", "over batches", {"rounds": rounds, "epsilon": epsilon, "rows": found})


if __name__ == "__main__":
    over_batches() if "--batches" in sys.argv else at_two_epsilons()

"""What Barnes-Wall 16 and Leech 24 would give, from their packing densities: no implementation needed to decide.

Small noise: bits per coordinate above I(X; X + Z), i.e. log2 of a draw's density less that of the ball it is uniform
in, plus what telling the trial H costs beyond the larger cell's saving. Large noise: how often a decision is in doubt,
a sub-vector's surface over its volume times the update's size, relative to the integers. Work: trials per sub-vector.
Written to bench/results/larger_lattices.json.
"""

from __future__ import annotations

import math

from scipy.special import digamma, gammaln

from stamp import save

LATTICES = {"Z1": (1, 1.0), "E8": (8, 0.25367), "Barnes-Wall 16": (16, 0.01471), "Leech 24": (24, 0.00193)}


def small_noise_gap(n: int, p: float) -> float:
    """Bits per coordinate above the mutual information as sigma goes to 0, under an ideal code."""
    normal = 0.5 * math.log2(2 * math.pi * math.e)
    unit_ball = (n / 2 * math.log(math.pi) - gammaln(n / 2 + 1)) / math.log(2)
    log_radius = 0.5 * (digamma(n / 2 + 1) + math.log(2)) / math.log(2)
    trials = (-(1 - p) * math.log2(1 - p) - p * math.log2(p)) / p if p < 1 else 0.0
    return normal - (unit_ball + n * log_radius) / n + (trials + math.log2(p)) / n


def large_noise_doubt(n: int) -> float:
    """Decisions in doubt per coordinate, in units of |x| / sigma: E[1 / r], twice where trials can also be refused."""
    mean_inverse = math.exp(gammaln((n + 1) / 2) - gammaln((n + 2) / 2)) / math.sqrt(2)
    return mean_inverse * (1 if n == 1 else 2)


def main() -> None:
    rows = [
        {
            "lattice": name, "acceptance": p, "trials": 1 / p, "bits_above_information": small_noise_gap(n, p),
            "bits_relative_to_integers": large_noise_doubt(n) / large_noise_doubt(1),
        }
        for name, (n, p) in LATTICES.items()
    ]  # fmt: skip
    for row in rows:
        print(row)
    save("larger_lattices", {"rows": rows})


if __name__ == "__main__":
    main()

"""Lattice-sum smoothing: whether a weighted sum of decoded vectors hides each behind the others."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from cepam.privacy.mechanisms.mechanism import Client

DEVIATION = 4096
"""Steps of the public grid that a standard deviation has at least."""
MISS = 1e-40
"""How far a coordinate's law may be from that of a sum of real numbers, but for a factor of 16."""
SMOOTHING = 2.0**-8
"""The server's own noise over a round's, where messages that may be missing are undone one by one."""
MOST_SPREAD = 7.0
"""How far undoing may spread messages over rounds, so that this noise covers all steps of their grids."""
MOST_WEIGHT = 1 << 22
_TOLERANCE = 2.0**-48


def smoothing_clients(clients: Sequence[Client], hidden: tuple[int, ...]) -> tuple[int, ...]:
    """Those of `hidden`, the client itself first, whose noise hides it.

    All where their weights blend; else those that blend with the client two by two, the client itself at least.
    Guarantee: docs/proofs/finite-precision.md, "Sums of grids"; tests/privacy/test_smoothing.py.
    """
    steps = {j: _step(clients[j]) for j in hidden}
    if blends(tuple(sorted(steps.values()))):
        return hidden
    own = steps[hidden[0]]
    least = least_distance(len(hidden) - 1)
    return tuple(j for j in hidden if _pair_length(own, steps[j]) * least <= 1.0)


def smoothing(noises: Iterable[float]) -> float:
    """The deviation of the noise that a server adds to each sum of messages which it undid one by one.

    `noises` are those of all clients in a round's sum. With gaps a message enters later sums times powers of the decay:
    no common grid is left, so that sums could tell their parts, were it not for this.
    """
    return SMOOTHING * math.hypot(*noises)


def _step(client: Client) -> float:
    """The step that a client's vector has in the sum: its weight times a power of two, a grid that its law fixes."""
    return math.ldexp(client.weight, math.frexp(client.law.scale)[1])


@lru_cache(maxsize=4096)
def _pair_length(one: float, other: float) -> float:
    """The length of (p, q), where two steps are as p to q; infinite where these are not small."""
    whole = _whole((one, other))
    return math.inf if whole is None else math.hypot(*whole)


@lru_cache(maxsize=1024)
def blends(steps: tuple[float, ...]) -> bool:
    """Whether the sum of vectors on grids of these steps tells no more than a sum of real numbers would.

    As whole numbers without a common factor the steps are a vector w; tuples with one sum differ by whole vectors
    orthogonal to w. They lie dense enough if no whole vector but the multiples of w comes nearer to the line through w
    than `least_distance`. False where this cannot be shown.
    """
    counts = Counter(steps)
    whole = _whole(tuple(counts))
    return whole is not None and _distance(whole, tuple(counts.values()), least_distance(len(steps) - 1)) is None


def _whole(steps: tuple[float, ...]) -> tuple[int, ...] | None:
    """Whole numbers without a common factor that are as these steps, to float64's rounding; None beyond 2^22."""
    ratios = []
    for step in steps:
        ratio = step / steps[0]
        near = Fraction(ratio).limit_denominator(MOST_WEIGHT)
        if abs(float(near) / ratio - 1.0) > _TOLERANCE:
            return None
        ratios.append(near)
    common = math.lcm(*(ratio.denominator for ratio in ratios))
    found = tuple(int(ratio * common) for ratio in ratios)
    return found if max(found) <= MOST_WEIGHT else None


def _distance(whole: tuple[int, ...], counts: tuple[int, ...], least: float) -> float | None:
    """The distance of a whole vector from the line through `whole`, below `least` and above zero; None if none is.

    Such a vector is the rounded t w for a t next to k / max(w), so that t w is within twice `least` of whole numbers
    there: every k is tried. Coordinate j counts for `counts[j]` of the same weight.
    """
    largest = max(whole)
    turns = np.arange(1, largest // 2 + 1, dtype=np.int64)
    for weight in sorted(whole):
        left = turns * weight % largest
        turns = turns[np.minimum(left, largest - left) <= 2.0 * least * largest]
    w, many = np.array(whole, dtype=np.float64), np.array(counts, dtype=np.float64)
    for turn in turns.tolist():
        beside = np.array([(turn * weight + largest // 2) % largest - largest // 2 for weight in whole]) / largest
        along = float(many @ (beside * w)) ** 2 / float(many @ w**2)
        far = math.sqrt(max(0.0, float(many @ beside**2) - along))
        if far < least:
            return far
    return None


@lru_cache(maxsize=256)
def least_distance(dimensions: int) -> float:
    """How far whole vectors must be from the line, so that all of them together disturb by `MISS` at most.

    Paper: Banaszczyk 1993, Lemma 1.5: beyond a radius of c √n a lattice has (c √(2πe) e^(-πc²))^n of its Gaussian mass.
    """
    if not dimensions:
        return 0.0
    wanted, low, high = math.log(MISS / 2.0) / dimensions, 1.0 / math.sqrt(2.0 * math.pi), 10.0
    for _ in range(100):
        c = 0.5 * (low + high)
        enough = math.log(c) + 0.5 * math.log(2.0 * math.pi * math.e) - math.pi * c * c <= wanted
        low, high = (low, c) if enough else (c, high)
    return high * math.sqrt(dimensions) / (math.sqrt(2.0 * math.pi) * DEVIATION)

"""The law of the capped search, enumerated with fractions on a space of 16 points: no sampling, no rounding.

A finite stand-in for the Gaussian: Q is a product of two symmetric laws, the bijections are the eight signed
permutations of two coordinates, P is any law. Outcomes of every step are enumerated; the two races are replaced by
their laws, which are elementary: of independent exponential times with rates a_i the first is i with chance
a_i / sum(a).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping
from fractions import Fraction

import pytest

Point = tuple[int, int]
Law = Mapping[Point, Fraction]
Score = Callable[[int, Point], Fraction]

ONE_COORDINATE = {-2: Fraction(1, 8), -1: Fraction(3, 8), 1: Fraction(3, 8), 2: Fraction(1, 8)}
Q: Law = {(a, b): ONE_COORDINATE[a] * ONE_COORDINATE[b] for a in ONE_COORDINATE for b in ONE_COORDINATE}
SIGNS_AND_SWAPS = list(itertools.product((1, -1), (1, -1), (False, True)))
COUNT = len(SIGNS_AND_SWAPS)


def moved(k: int, g: Point) -> Point:
    first, second, swapped = SIGNS_AND_SWAPS[k]
    a, b = first * g[0], second * g[1]
    return (b, a) if swapped else (a, b)


def moved_back(k: int, y: Point) -> Point:
    return next(g for g in Q if moved(k, g) == y)


def law_near(x: tuple[int, int]) -> Law:
    """A law that leans towards x, as N(x, 1) does: rational weights, never zero."""
    weights = {y: Q[y] * Fraction(3) ** (x[0] * y[0]) * Fraction(3, 2) ** (x[1] * y[1]) for y in Q}
    return {y: w / sum(weights.values()) for y, w in weights.items()}


def ratio(p: Law, y: Point) -> Fraction:
    return p[y] / Q[y]


def exact_score(p: Law) -> Score:
    return lambda k, g: ratio(p, moved(k, g))


def wrong_score(p: Law) -> Score:
    """Scores that are off by a factor between 2/3 and 3/2 which depends on k and g."""
    return lambda k, g: ratio(p, moved(k, g)) * (Fraction(3, 2), Fraction(2, 3), Fraction(1))[(k + g[0] + 2 * g[1]) % 3]


def mean_score(score: Score, g: Point) -> Fraction:
    return sum((score(k, g) for k in range(COUNT)), Fraction(0)) / COUNT


def capped(score: Score, k: int, g: Point, c: Fraction) -> Fraction:
    """q_k(g) min(1, c / q(g))."""
    return score(k, g) * min(Fraction(1), c / mean_score(score, g))


def output_law(
    p: Law,
    score: Score,
    c: Fraction,
    scale: Fraction,
    fallback: Law,
    *,
    keep_index: bool = False,
    cap_only: bool = False,
) -> Law:
    """What is sent: Y* of the law `fallback` with chance 1 - f, else the winners of two races.

    `scale` is lambda. `keep_index` sends the permutation of step 1 instead of the second race's, and `cap_only` never
    falls back: mistakes that must show.
    """
    weights = {g: Q[g] * min(mean_score(score, g), c) for g in Q}
    total = sum(weights.values())
    sent: dict[Point, Fraction] = defaultdict(Fraction)
    reached = [Fraction(0)] * COUNT  # step 2, by the index of step 1
    for y, kappa in itertools.product(Q, range(COUNT)):
        chance = fallback[y] / COUNT
        limit = scale * capped(score, kappa, moved_back(kappa, y), c) / ratio(p, y)
        f = Fraction(1) if cap_only else min(Fraction(1), limit)
        sent[y] += chance * (1 - f)
        reached[kappa] += chance * f
    for g in Q:
        won = weights[g] / total
        scores = [score(k, g) for k in range(COUNT)]
        for k in range(COUNT):
            index = reached[k] if keep_index else sum(reached) * scores[k] / sum(scores)
            sent[moved(k, g)] += won * index
    return sent


def largest_scale(p: Law, score: Score, c: Fraction) -> Fraction:
    """The largest lambda that the theorem admits."""
    pairs = itertools.product(range(COUNT), Q)
    return min([Fraction(1)] + [ratio(p, moved(k, g)) / capped(score, k, g, c) for k, g in pairs])


TARGETS = [(0, 0), (1, 0), (1, 1), (-1, 2), (2, 2)]
CAPS = [Fraction(1, 2), Fraction(1), Fraction(3, 2), Fraction(10)]


def test_the_bijections_preserve_the_proposal() -> None:
    for k in range(COUNT):
        assert {moved(k, g) for g in Q} == set(Q)
        assert all(Q[moved(k, g)] == Q[g] for g in Q)


@pytest.mark.parametrize("x", TARGETS)
@pytest.mark.parametrize("c", CAPS, ids=str)
def test_exact_scores_send_the_target_law(x: tuple[int, int], c: Fraction) -> None:
    p = law_near(x)
    assert output_law(p, exact_score(p), c, Fraction(1), p) == p


@pytest.mark.parametrize("x", TARGETS)
@pytest.mark.parametrize("c", CAPS, ids=str)
def test_wrong_scores_send_the_target_law_once_they_are_scaled(x: tuple[int, int], c: Fraction) -> None:
    p = law_near(x)
    score = wrong_score(p)
    assert output_law(p, score, c, largest_scale(p, score, c), p) == p


def test_the_fallback_may_be_a_search_itself() -> None:
    """Y* from the same construction with another cap and other scores: halving rests on this."""
    p = law_near((1, 1))
    score = wrong_score(p)
    inner = output_law(p, score, Fraction(1), largest_scale(p, score, Fraction(1)), p)
    assert output_law(p, exact_score(p), Fraction(3, 2), Fraction(1), inner) == p


@pytest.mark.parametrize("x", [(1, 1), (2, 2)])
def test_a_cap_without_fallback_misses_the_law(x: tuple[int, int]) -> None:
    p = law_near(x)
    assert output_law(p, exact_score(p), Fraction(3, 2), Fraction(1), p, cap_only=True) != p


def test_wrong_scores_without_their_scale_miss_the_law() -> None:
    p = law_near((1, 1))
    assert output_law(p, wrong_score(p), Fraction(3, 2), Fraction(1), p) != p


def test_one_index_for_both_steps_misses_the_law() -> None:
    p = law_near((1, 1))
    assert output_law(p, exact_score(p), Fraction(3, 2), Fraction(1), p, keep_index=True) != p


def test_a_fallback_of_another_law_shows() -> None:
    p = law_near((1, 1))
    assert output_law(p, exact_score(p), Fraction(1, 2), Fraction(1), law_near((1, 0))) != p

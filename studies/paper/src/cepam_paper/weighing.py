"""From intervals to labels: a claim fails only where the interval excludes it, and holds where it excludes the rest.

An interval that contains both the claimed effect and none is inconclusive, whatever its mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cepam_paper.verdict import Estimate, Label

LEAST = 0.4
"""Points of accuracy: the least improvement that the paper names anywhere, taken where a sentence names no size."""
WIDEST = 1.5
"""Points: an interval that reaches farther to either side meets a printed one by its width alone."""
_ORDER = (Label.FAILS, Label.INCONCLUSIVE, Label.UNTESTED, Label.REPAIRED)


def together(labels: Sequence[Label]) -> Label:
    """The label of a claim that says all of these at once."""
    return next((label for label in _ORDER if label in labels), Label.HOLDS)


def improvement(found: Estimate, least: float = LEAST, most: float = math.inf) -> Label:
    """Whether something is better, by `least` to `most`: holds if the interval is above 0 and meets that range.

    Better by more than `most` is better, but not as said: holds after repair.
    """
    if found.high < least:
        return Label.FAILS
    if found.low <= 0:
        return Label.INCONCLUSIVE
    return Label.REPAIRED if found.low > most else Label.HOLDS


def improvements(found: Sequence[Estimate], least: float = LEAST, most: float = math.inf) -> Label:
    """Whether every one of these is an improvement.

    To fail, one of the intervals must exclude the claim at a chance of 0.05 for all of them together (Bonferroni); to
    hold, each must hold by itself, which needs no correction.
    """
    if any(improvement(one.at(0.05 / len(found)), least, most) is Label.FAILS for one in found):
        return Label.FAILS
    labels = [improvement(one, least, most) for one in found]
    return together([Label.INCONCLUSIVE if label is Label.FAILS else label for label in labels])


def alike(found: Sequence[Estimate], within: float) -> Label:
    """Whether all of these differences are within a bound: two one-sided tests at 0.05 each to hold."""
    if any(_outside(one.at(0.05 / len(found)), within) for one in found):
        return Label.FAILS
    close = all(-within < one.at(0.1).low and one.at(0.1).high < within for one in found)
    return Label.HOLDS if close else Label.INCONCLUSIVE


def _outside(found: Estimate, within: float) -> bool:
    return found.low > within or found.high < -within


def reproduced(found: Estimate, low: float, high: float, widest: float) -> Label:
    """Whether a printed interval comes out: ours meets it and is no wider than `widest` to either side."""
    if found.high < low or found.low > high:
        return Label.FAILS
    return Label.HOLDS if found.half <= widest else Label.INCONCLUSIVE


def bends(before: Estimate, after: Estimate) -> Label:
    """Whether something rises, and rises less afterwards."""
    bend = before.less(after)
    if before.high <= 0 or bend.high <= 0:
        return Label.FAILS
    return Label.HOLDS if before.low > 0 and bend.low > 0 else Label.INCONCLUSIVE

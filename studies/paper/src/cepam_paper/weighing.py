"""From intervals to labels: a claim fails only where the interval excludes it, and holds where it excludes the rest.

An interval that contains both the claimed effect and none is inconclusive, whatever its mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cepam_paper.verdict import Estimate, Label

ANY = 0.0
"""The least improvement where a sentence names no size: any gain is what it claims, and only a loss excludes it."""
NO_SIZE = "The sentence names no size. So any gain counts, and only an interval below 0 excludes it."
"""The rule in words, beside every verdict that rests on `ANY`."""
MARGIN = 1.0
"""Points: an accuracy within this of the printed one is taken as reproduced; printed half-widths are 0.31 to 0.70."""
_ORDER = (Label.FAILS, Label.INCONCLUSIVE, Label.UNTESTED, Label.REPAIRED)


def together(labels: Sequence[Label]) -> Label:
    """The label of a claim that says all of these at once."""
    return next((label for label in _ORDER if label in labels), Label.HOLDS)


def improvement(found: Estimate, least: float, most: float = math.inf) -> Label:
    """Whether something is better, by `least` to `most`: holds if the interval is above 0 and meets that range.

    Better by more than `most` is better, but not as said: holds after repair.
    """
    if found.high < least:
        return Label.FAILS
    if found.low <= 0:
        return Label.INCONCLUSIVE
    return Label.REPAIRED if found.low > most else Label.HOLDS


def improvements(found: Sequence[Estimate], least: float, most: float = math.inf) -> Label:
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


def reproduced(found: Sequence[Estimate], printed: Sequence[Estimate], margin: float) -> Label:
    """Whether printed values come out: every difference is shown to be within the margin (`alike`).

    Overlapping intervals are not enough: a wide one overlaps anything.
    """
    return alike([ours.apart(theirs) for ours, theirs in zip(found, printed, strict=True)], margin)


def ratio_of_means(part: Estimate, whole: Estimate, difference: Estimate) -> Estimate:
    """The mean of `part` over that of `whole`, paired by seed, with Fieller's 95 % interval.

    The interval holds every ratio r for which `part` less r times `whole` may have the mean 0. `difference` is `part`
    less `whole`; its width says how far the two vary together. The ends are infinite where `whole` may be 0 itself.
    """
    middle = part.mean / whole.mean
    if not math.isfinite(part.half + whole.half + difference.half) or whole.half >= abs(whole.mean):
        return Estimate(middle, -math.inf, math.inf, whole.seeds)
    # Squares of half-widths and their covariance are all in units of the squared quantile of Student's law.
    together = (part.half**2 + whole.half**2 - difference.half**2) / 2
    leading = whole.mean**2 - whole.half**2
    linear = part.mean * whole.mean - together
    root = math.sqrt(max(linear**2 - leading * (part.mean**2 - part.half**2), 0.0))
    return Estimate(middle, (linear - root) / leading, (linear + root) / leading, whole.seeds)


def mainly(left: Estimate) -> Label:
    """Whether most of something goes away, by the ratio of what is `left`: a ratio of root mean squares.

    The word names no scale. To hold, less than half of the root mean square may be left; to fail, more than half of the
    mean square must be.
    """
    if left.low > math.sqrt(0.5):
        return Label.FAILS
    return Label.HOLDS if left.high < 0.5 else Label.INCONCLUSIVE


def bends(before: Estimate, after: Estimate) -> Label:
    """Whether something rises, and rises less afterwards."""
    bend = before.less(after)
    if before.high <= 0 or bend.high <= 0:
        return Label.FAILS
    return Label.HOLDS if before.low > 0 and bend.low > 0 else Label.INCONCLUSIVE

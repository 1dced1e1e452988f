"""A clip that follows a quantile of the norms, from one noisy bit a client (Andrew et al. 2021).

With its update, clipped to C, a client sends the bit "my norm was at most C", less a half. The server sees both sums in
noise, the update's of z_update clips and the bit's of z_bit halves. One client moves the two by at most (C, 1/2): they
are one Gaussian mechanism of multiplier `joint_multiplier`, whatever C is in which round: the noise is in proportion to
C, and C a function of what was published (docs/proofs/cohorts-and-dropouts.md, "Adaptive clipping").
"""

from __future__ import annotations

import math

from cepam.distributions.laws import check_scale


def joint_multiplier(update: float, bit: float) -> float:
    """z of the one mechanism that update and bit are: 1/z^2 = 1/z_update^2 + 1/z_bit^2.

    `update` is the noise of the sum of updates over the clip, `bit` that of the sum of bits over a half.
    Guarantee: tests/privacy/test_adaptive_clip.py integrates the joint densities.

    Args:
        update: Noise multiplier of the sum of updates.
        bit: Noise of the sum of bits, over a half.

    Returns:
        One noise multiplier.
    """
    check_scale("update", update)
    check_scale("bit", bit)
    return 1.0 / math.hypot(1.0 / update, 1.0 / bit)


def update_multiplier(joint: float, bit: float) -> float:
    """z_update that leaves a total of `joint` with bits of `bit`: what the updates need more for the bits' sake.

    Args:
        joint: Noise multiplier of both together.
        bit: Noise of the sum of bits, over a half.

    Returns:
        The noise multiplier of the updates.

    Raises:
        ValueError: A value is not positive, or `bit` is at most `joint`.
    """
    check_scale("joint", joint)
    check_scale("bit", bit)
    if bit <= joint:
        raise ValueError(f"bit must be over the joint multiplier {joint:g}, or it alone spends it, got {bit!r}")
    return 1.0 / math.sqrt((1.0 / joint - 1.0 / bit) * (1.0 / joint + 1.0 / bit))


def fraction_within(bits: float, expected: float) -> float:
    """The share of norms within the clip, from the noisy sum of bits less a half each, over the expected cohort.

    Args:
        bits: The noisy sum of bits.
        expected: The expected cohort.

    Returns:
        An estimate, which noise may take outside [0, 1].

    Raises:
        ValueError: `bits` is not finite, or `expected` is not positive.
    """
    if not math.isfinite(bits):
        raise ValueError(f"bits must be finite, got {bits!r}")
    check_scale("expected", expected)
    return 0.5 + bits / expected


def next_clip(clip: float, fraction: float, quantile: float = 0.5, rate: float = 0.2) -> float:
    """The clip of the next round: C exp(-rate (fraction - quantile)), post-processing of what was published.

    Paper: Andrew et al. 2021, Algorithm 1. A `fraction` outside [0, 1] is noise, and moves the clip by as much.

    Args:
        clip: This round's clipping norm.
        fraction: From `fraction_within`.
        quantile: The share of norms to keep within the clip.
        rate: The step on a logarithmic scale.

    Returns:
        The next clipping norm.

    Raises:
        ValueError: A value is not finite or out of range.
    """
    check_scale("clip", clip)
    check_scale("rate", rate)
    if not (0.0 < quantile < 1.0):
        raise ValueError(f"quantile must lie in (0, 1), got {quantile!r}")
    if not math.isfinite(fraction):
        raise ValueError(f"fraction must be finite, got {fraction!r}")
    return clip * math.exp(-rate * (fraction - quantile))

"""Whether the weighted sum of two decoded vectors hides each behind the other, though both lie on grids."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cepam.privacy.release import Client

WEIGHT_STEPS = 64
"""The largest terms of a ratio of weights for which two vectors of one sum cannot be told apart."""


def hiding(clients: Sequence[Client], hidden: tuple[int, ...]) -> tuple[int, ...]:
    """Those of `hidden`, the client itself first, whose noise hides it: all, or of an odd pair itself alone."""
    return hidden if len(hidden) != 2 or blends(*(clients[j] for j in hidden)) else hidden[:1]


def blends(one: Client, other: Client) -> bool:
    """Whether the sum of these two tells no more than a sum of real numbers would.

    With weights as p to q, both at most `WEIGHT_STEPS`, the pairs of one sum lie q and p steps of the grid apart: so
    close that the noise given the sum is Gaussian. With odd weights one sum has few pairs or one.
    Guarantee: docs/privacy.md, section 6, "Two vectors"; tests/privacy/test_blending.py.
    """
    if one.law != other.law:
        return False
    ratio = one.weight / other.weight
    near = Fraction(ratio).limit_denominator(WEIGHT_STEPS)
    return 0 < near.numerator <= WEIGHT_STEPS and abs(float(near) / ratio - 1.0) < 2.0**-40

"""How far broadcast weights are off the server's, round by round.

Proofs: docs/paper/theory.md, "Mini-batches and the downlink".

A quantized downlink is off by c steps per coordinate at most: c = 1/2 for the nearest point, `farthest(zone)` with
hysteresis. Its step follows a power of the learning rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cepam.downlink.grid import NEAREST

Floats = npt.NDArray[np.float64]
ROUNDINGS = 3
"""Roundings to float32 of a weight that hysteresis chose: the point that is kept, and the point published for it."""


def downlink_error(step: float, size: int, largest: float, steps_off: float = NEAREST) -> float:
    """A bound on the l2 distance of the broadcast weights to the server's: `steps_off` steps in each coordinate.

    The grid's unit 2^-40 and the rounding of weights up to `largest` to float32 are counted (docs/downlink.md).
    """
    roundings = 1 if steps_off <= NEAREST else ROUNDINGS
    return math.sqrt(size) * (steps_off * step + roundings * (2.0**-41 + largest * 2.0**-24))


def _line(power: float, at: Floats, largest: float) -> tuple[Floats, Floats]:
    """(a, b) with x^power <= a + b x for 0 < x <= largest: the tangent at `at`, or the chord above power 1."""
    if power > 1:
        return np.zeros_like(at), np.full_like(at, largest ** (power - 1))
    return (1 - power) * at**power, power * at ** (power - 1)


@dataclass(frozen=True)
class DownlinkError:
    """A bound on the broadcast's l2 error by the server's learning rate: fixed + ratio · rate^exponent.

    Args:
        fixed: delta_0, what does not fall with the learning rate.
        ratio: kappa.
        exponent: q, at least 0.
    """

    fixed: float = 0.0
    ratio: float = 0.0
    exponent: float = 1.0

    def __post_init__(self) -> None:
        if min(self.fixed, self.ratio, self.exponent) < 0:
            raise ValueError(f"fixed, ratio and exponent must be at least 0, got {self}")

    @classmethod
    def of_rule(
        cls, factor: float, noise: float, exponent: float, first_rate: float, size: int, largest: float,
        steps_off: float = NEAREST, late: float = 1.0,
    ) -> DownlinkError:  # fmt: skip
        """The error of the downlink's own rule for its step (`Broadcast.step_for`).

        Args:
            factor: the step in learning rates times noise.
            noise: standard deviation per coordinate of the noise in the average.
            exponent: the power of the learning rate that the step follows.
            first_rate: the learning rate of the first round.
            size: m.
            largest: the largest absolute weight.
            steps_off: c.
            late: by what factor at most a step's learning rate exceeds that of the round that uses it.
        """
        step = factor * noise * first_rate ** (1 - exponent) * late**exponent
        fixed = downlink_error(0.0, size, largest, steps_off)
        return cls(fixed, math.sqrt(size) * steps_off * step, exponent)

    def at(self, rate: npt.ArrayLike) -> Floats:
        """The bound in a round of this learning rate."""
        return np.asarray(self.fixed + self.ratio * np.asarray(rate, dtype=np.float64) ** self.exponent)

    def line(self, bias: float, smoothness: float, at: Floats, largest: float) -> tuple[Floats, Floats]:
        """(beta^2, lambda) with (bias + L · error)^2 <= beta^2 + lambda · rate for rates up to `largest`.

        Where the exponent is at most 1/2, equality at the rate `at`. Above that, and without a bias and `fixed`, beta
        is 0.
        """
        constant, slope = bias + smoothness * self.fixed, smoothness * self.ratio
        once, twice = _line(self.exponent, at, largest), _line(2 * self.exponent, at, largest)
        beta_square = constant**2 + 2 * constant * slope * once[0] + slope**2 * twice[0]
        return np.asarray(beta_square), np.asarray(2 * constant * slope * once[1] + slope**2 * twice[1])

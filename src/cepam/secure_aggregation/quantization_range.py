"""The quantization range of a sum, from public data, and the bits that it takes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from cepam.distributions.laws import Gaussian, check_scale
from cepam.kernels.format.plan import Floats, layered_plan
from cepam.lattices.lattice import Integer
from cepam.secure_aggregation.mechanism import WORD_BITS, MaskedSumCodec

WRAP_CHANCE = 1e-9
MEMORY = 10
MARGIN = 3.5
HEADROOM = 2.0


def fit(
    law: Gaussian, clients: int, coordinates: int, quantization_range: float, rounds: int = 500, bits: int | None = None
) -> MaskedSumCodec:
    """Fit a codec to sums of updates: bits and gain for a quantization range.

    The noise wraps with probability under 1e-9 over all coordinates and rounds (sub-Gaussian tail); wrapping never
    touches privacy.

    Args:
        law: each client's noise.
        clients: how many clients are in a sum.
        coordinates: the length of an update.
        quantization_range: the largest coordinate of a sum of updates.
        rounds: over how many rounds the noise may not wrap.
        bits: bits per coordinate; None: the fewest whose rounding is at most as wide as one client's noise.

    Returns:
        The codec.

    Raises:
        ValueError: a sum does not fit into 32 bits, or a value is out of range.
    """
    for name, count in (("clients", clients), ("coordinates", coordinates), ("rounds", rounds)):
        if type(count) is not int or count < 1:
            raise ValueError(f"{name} must be a positive integer, got {count!r}")
    if not 0.0 <= quantization_range < math.inf:
        raise ValueError(f"quantization_range must be finite and not negative, got {quantization_range!r}")
    grid, scale = layered_plan(law, Integer(1)).grid, law.scale
    deviations = math.sqrt(2.0 * math.log(2.0 * coordinates * rounds / WRAP_CHANCE))
    # Rounding is at most as wide as the noise scale where bits are chosen here; where they are given it may be wider.
    half = quantization_range + deviations * scale * math.sqrt(clients * (1.0 + 1.0 / 12.0))
    gain = _gain(half, grid)
    if bits is None:
        bits = min(max(1, math.ceil(math.log2(2.0**WORD_BITS * grid / (gain * scale)))), WORD_BITS)
    else:
        for _ in range(8):
            width = 2.0**WORD_BITS / gain * grid / 2.0**bits
            half = quantization_range + deviations * math.sqrt(clients * (scale**2 + width**2 / 12.0))
            gain = _gain(half, grid)
    return MaskedSumCodec(law, coordinates, bits, gain)


def _gain(half: float, grid: float) -> int:
    gain = math.floor(math.ldexp(grid, WORD_BITS - 1) / half)
    if gain < 1:
        raise ValueError(f"a sum of up to {half:.3g} does not fit into 32 bits of the grid {grid:.3g}: lower it")
    return min(gain, (1 << WORD_BITS) - 1)


@dataclass
class QuantizationRange:
    """The public rule for how large the next sum may be: clients times the clip until ten rounds tell better.

    Twice what the largest coordinate released in the last ten rounds has beyond what the noise of so many coordinates
    reaches by itself: √(2 ln 2m) standard deviations, 3.5 at least. Only released sums go in, so what comes out is
    public; sums that turn out larger wrap, which costs accuracy and never privacy.
    """

    law: Gaussian
    clients: int
    clip: float
    _beyond: deque[float] = field(default_factory=lambda: deque(maxlen=MEMORY), repr=False)

    def __post_init__(self) -> None:
        check_scale("clip", self.clip)
        if type(self.clients) is not int or self.clients < 1:
            raise ValueError(f"clients must be a positive integer, got {self.clients!r}")

    @property
    def value(self) -> float:
        """X, a guess from public data of the largest coordinate of the next sum of updates."""
        most = self.clients * self.clip
        return min(most, HEADROOM * max(self._beyond)) if self._beyond else most

    def observe(self, released: Floats) -> None:
        """Count the released sum of a round from now on."""
        largest = float(np.abs(released).max(initial=0.0))
        if not math.isfinite(largest):
            raise ValueError("a released sum must be finite")
        alone = max(MARGIN, math.sqrt(2.0 * math.log(2.0 * max(1, len(released)))))
        self._beyond.append(max(0.0, largest - alone * self.law.scale * math.sqrt(self.clients)))

    def saved(self) -> tuple[float, ...]:
        """What the rule remembers, to be stored beside the model."""
        return tuple(self._beyond)

    def restore(self, beyond: Iterable[float]) -> None:
        """Restore what `saved` gave."""
        self._beyond = deque(beyond, maxlen=MEMORY)

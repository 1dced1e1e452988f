"""Sums by other mechanisms, as uplinks of the engine: the same clients, clips and draws, other noise and other words.

Each is as private as the run it stands beside: where rounding adds to what a record can move, the noise grows with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cepam.distributions.laws import Gaussian
from cepam.fl.aggregation.accounting import after_round
from cepam.fl.aggregation.trusted_server import AggregatorContext, RoundResult, TrustedServerAggregator
from cepam.fl.clients import sampling
from cepam.fl.config.settings import SecAggGraph
from cepam.secure_aggregation import QuantizationRange, Sketch
from cepam_peers.discrete import DiscreteGaussian, IntegerLaw, Skellam

Floats = npt.NDArray[np.float64]
WRAP_CHANCE = 1e-9
LEGACY_LEVELS, LEGACY_RANGE, LEGACY_WIRE_BITS = 2**22, 8.0, 65.0
"""Flower's legacy SecAgg+: its default quantization range and clipping range; what a coordinate took on the wire."""
_NOISE = 64


@dataclass(frozen=True)
class Lattice1:
    """A rival's words: the step of its integers, the deviation of a client's noise, and the bits of a sum."""

    step: float
    noise: float
    bits: int


def deviations_of(coordinates: int) -> float:
    """How far so many sub-Gaussian coordinates stay within, but for a chance of 1e-9."""
    return math.sqrt(2.0 * math.log(2.0 * coordinates / WRAP_CHANCE))


def fitted(scale: float, moved: float, clients: int, coordinates: int, reach: float, bits: int) -> Lattice1:
    """The step and noise with which integers of so many bits hide what noise of deviation `scale` hides unrounded.

    A record moves a client's update by `moved`. Rounded at random, coordinate by coordinate with one coupling, it moves
    the integers by moved² + step √m moved on average, squared: the noise grows by the root of that over moved². The
    average is charged, in the rival's favour. `reach` bounds the sum; the noise wraps with chance under 1e-9.
    """
    deviations = deviations_of(coordinates)
    step, noise = 0.0, scale
    for _ in range(200):
        spread = math.sqrt(clients * (noise**2 + step**2 / 4.0))
        step = 2.0 * (reach + deviations * spread) / 2.0**bits
        noise = scale * math.sqrt(1.0 + step * math.sqrt(coordinates) / moved)
        if noise > 1e6 * scale:
            raise ValueError(f"{bits} bits are too few: noise that covers the rounding needs more bits than it saves")
    return Lattice1(step, noise, bits)


class RotatedIntegers:
    """Distributed discrete Gaussian or Skellam: rotate, round at random, add integer noise, sum modulo 2^bits."""

    def __init__(
        self, law: Literal["ddg", "skellam"], bits: int, row: AggregatorContext, scale: float, moved: float
    ) -> None:
        self.kind, self.bits, self.row, self.scale, self.moved = law, bits, row, scale, moved
        self.clients = row.settings.clients.count
        # The rotation spreads a sum of norm clients · clip over all coordinates.
        padded = 1 << (row.vectors.size - 1).bit_length()
        self.reach = QuantizationRange(
            Gaussian(scale),
            self.clients,
            row.settings.privacy.clipping_norm * deviations_of(padded) / math.sqrt(padded),
        )

    def words(self) -> Lattice1:
        """The next round's step and noise, from public data."""
        found = fitted(self.scale, self.moved, self.clients, self.row.vectors.size, self.reach.value, self.bits)
        self.reach.law = Gaussian(found.noise)
        return found

    def noise(self, words: Lattice1) -> IntegerLaw:
        """One client's integer noise."""
        deviation = words.noise / words.step
        return DiscreteGaussian(deviation) if self.kind == "ddg" else Skellam(deviation**2 / 2.0)

    def total(self, updates: list[npt.NDArray[np.float32]], rng: np.random.Generator) -> tuple[Floats, float]:
        """The sum as the server has it, and bits per coordinate."""
        rotation = Sketch(self.row.vectors.size, 1 << (self.row.vectors.size - 1).bit_length(), rng.bytes(32))
        words, count = self.words(), rotation.size
        law, summed = self.noise(words), np.zeros(rotation.size, dtype=np.int64)
        for update in updates:
            scaled = rotation.apply(update) / words.step
            summed += np.floor(scaled + rng.random(count)).astype(np.int64) + law.draw(rng, count)
        half = 1 << (self.bits - 1)
        opened: Floats = ((summed + half) % (2 * half) - half).astype(np.float64) * words.step
        self.reach.observe(opened)
        return rotation.restore(opened), self.bits * count / self.row.vectors.size


class LegacyQuantization:
    """SecAgg+ as Flower's legacy mod quantizes: Gaussian noise, clip to a range, 2^22 levels, 64-bit words sent."""

    def __init__(self, row: AggregatorContext, scale: float) -> None:
        self.row, self.scale = row, scale

    def total(self, updates: list[npt.NDArray[np.float32]], rng: np.random.Generator) -> tuple[Floats, float]:
        """The sum as the server has it, and bits per coordinate."""
        step = 2.0 * LEGACY_RANGE / LEGACY_LEVELS
        summed = np.zeros(self.row.vectors.size, dtype=np.int64)
        for update in updates:
            noisy = update + self.scale * rng.standard_normal(self.row.vectors.size)
            inside = np.clip(noisy, -LEGACY_RANGE, LEGACY_RANGE) + LEGACY_RANGE
            summed += np.floor(inside / step + rng.random(self.row.vectors.size)).astype(np.int64)
        total: Floats = summed.astype(np.float64) * step - len(updates) * LEGACY_RANGE
        return total, LEGACY_WIRE_BITS


class RivalUplink(TrustedServerAggregator):
    """A run's uplink with a rival's mechanism in it; charged as the noise that it needs was found.

    Where clients drop out the sum is that of the others, as our own is: noise counts on the quorum alone, and a round
    below it is lost.
    """

    def __init__(self, row: AggregatorContext, make: Callable[[AggregatorContext, float, float], Any]) -> None:
        super().__init__(row)
        plan = self.plans[0]
        assert plan.law is not None
        assert plan.clip is not None
        moved = plan.clip.bound / plan.batch if row.settings.training.update == "examples" else 2.0 * plan.clip.bound
        clients, graph = row.settings.clients.count, SecAggGraph.of(row.settings)
        self.quorum = graph.quorum if row.settings.clients.dropout_rate else clients
        self.rival = make(row, plan.law.scale * math.sqrt(clients / self.quorum), moved)

    def collect(self, number: int, clients: list[int], raw: Any) -> RoundResult:
        chosen = self.settings
        silent = sampling.silent(self.row.draws, number, 0, chosen.clients.count, chosen.clients.dropout_rate)
        came = [place for place, k in enumerate(clients) if not silent[k]]
        rows = self.vectors.arrays.fetch(raw)[came]
        if len(came) < self.quorum:
            zero = self.vectors.arrays.put(np.zeros(self.vectors.size, dtype=np.float32))
            return RoundResult(zero, (), clients, 0, {"replies": 0, "bits": 0, "bits_per_coordinate": None})
        seed = int.from_bytes(self.row.draws.random_bytes(number, _NOISE, 0, 16), "little")
        total, bits = self.rival.total(list(rows), np.random.default_rng(seed))
        self.accountant = after_round(self.accountant, self.mechanism, clients)
        clean = np.sum(rows, axis=0, dtype=np.float64)
        signal, noise = float(np.square(clean).sum()), float(np.square(total - clean).sum())
        sent = round(bits * self.row.vectors.size * len(came))
        line = {
            "replies": len(came),
            "snr_db": 10.0 * math.log10(signal / noise) if signal > 0 and noise > 0 else None,
            "bits": sent,
            "bits_per_coordinate": bits,
        }
        mean = self.vectors.arrays.put((total / len(came)).astype(np.float32))
        return RoundResult(mean, [clients[place] for place in came], clients, sent, line)

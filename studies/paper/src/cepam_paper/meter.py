"""Two signal-to-noise ratios of a running simulation: that of the average, and the one the published program takes.

Ours: signal and noise of the average that the server forms, the signal being the clipped updates; 10 log10 of the ratio
of powers, mean over rounds and seeds. The program's: for each client and tensor var(x) / var(x - decoded), x the update
*before* clipping, so that clipping counts as error; the plain mean of these ratios over clients, tensors and rounds;
20 log10 of that. It measures how far one client's decoded tensor is from what it would have sent without any privacy,
and a mean of ratios is led by its largest.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.codec.codec import UpdateCodec
from cepam.fl.clients.local_training import LocalTraining, Rows
from cepam.keys import Address

Floats = npt.NDArray[np.float32]


@dataclass
class Meter:
    """What is measured on the way of every update; `sizes` are the tensors' lengths, `owner` finds a key's row."""

    clients: int
    sizes: tuple[int, ...]
    owner: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    largest_norm: float = 0.0

    def __post_init__(self) -> None:
        self.raw: dict[tuple[int, int], Floats] = {}
        self.held: dict[bytes, Floats] = {}
        self.sums: dict[int, list[Any]] = {}
        self.ratios: list[float] = []
        self.tensor_ratios: dict[int, list[npt.NDArray[np.float64]]] = {}
        self.by_round: dict[int, list[float]] = {}
        self.lock = threading.Lock()

    def see(self, secret: bytes, vector: Floats) -> None:
        """Note the decoded vector of one client beside what it clipped and what it had before."""
        (seed, _), update = self.owner[secret], self.held[secret].astype(np.float64)
        raw = self.raw.get(self.owner[secret])
        ratios = None if raw is None else tensor_ratios(raw, vector, self.sizes)
        with self.lock:
            pair = self.sums.setdefault(seed, [np.zeros(update.size), np.zeros(update.size)])
            pair[0] += update / self.clients
            pair[1] += (vector - update) / self.clients
            self.largest_norm = max(self.largest_norm, float(np.linalg.norm(update)))
            if ratios is not None:
                self.tensor_ratios.setdefault(seed, []).append(ratios)

    def close_round(self) -> None:
        """Note the round's ratios."""
        for signal, noise in self.sums.values():
            if float(noise @ noise) > 0:
                self.ratios.append(float(signal @ signal) / float(noise @ noise))
        for seed, rows in self.tensor_ratios.items():
            # Over clients first, then over tensors, as the program does; the order matters where one is infinite.
            self.by_round.setdefault(seed, []).append(float(np.mean(np.mean(rows, axis=0))))
        for kept in (self.sums, self.held, self.raw, self.tensor_ratios):
            kept.clear()

    def snr_db(self) -> float | None:
        """The mean over rounds and seeds of 10 log10 of signal over noise power; None without any noise."""
        return float(np.mean(10 * np.log10(self.ratios))) if self.ratios else None

    def program_snr_db(self) -> tuple[float | None, ...]:
        """The program's ratio by seed; None for a seed where some tensor came through without any error."""
        means = [float(np.mean(rounds)) for _, rounds in sorted(self.by_round.items())]
        return tuple(20 * float(np.log10(mean)) if np.isfinite(mean) else None for mean in means)


def tensor_ratios(raw: Floats, vector: Floats, sizes: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """var(raw) / var(raw - vector) of every tensor; infinite where nothing is lost, 0 where there was nothing."""
    cuts = np.cumsum(sizes)[:-1]
    pairs = zip(np.split(raw.astype(np.float64), cuts), np.split(vector.astype(np.float64), cuts))
    powers = np.array([(before.var(), (before - after).var()) for before, after in pairs])
    lost = powers[:, 1] > 0
    ratios = np.where(powers[:, 0] > 0, np.inf, 0.0)
    ratios[lost] = powers[lost, 0] / powers[lost, 1]
    return ratios


@dataclass(frozen=True)
class Metered:
    """A channel under the eye of a meter."""

    channel: UpdateCodec
    meter: Meter

    def encode(self, update: Floats, at: Address) -> bytes:
        self.meter.held[at.key.secret] = update
        return self.channel.encode(update, at)

    def decode(self, message: bytes, at: Address) -> Floats:
        vector: Floats = self.channel.decode(message, at)
        self.meter.see(at.key.secret, vector)
        return vector


@dataclass(frozen=True, eq=False)
class WatchedWork(LocalTraining):
    """The clients' half of a round that shows the meter every update before it is clipped."""

    meter: Meter

    @classmethod
    def over(cls, work: LocalTraining, meter: Meter) -> WatchedWork:
        """The same work, watched."""
        return cls(**{each.name: getattr(work, each.name) for each in fields(work)}, meter=meter)

    def updates(self, weights: Any, round: int, rows: Rows, bounds: Floats) -> tuple[Any, Any]:
        raw, losses = super().updates(weights, round, rows, bounds)
        self.meter.raw = {row: np.asarray(one, dtype=np.float32) for row, one in zip(rows, raw)}
        return raw, losses

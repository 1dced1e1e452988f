"""Local DP-SGD: every local step of a client is sampled, clipped and noised before it is used.

The noise of a step is the codec's own: the mean gradient is encoded and decoded at an address whose key the client
keeps to itself, so that it has the exact law on the public grid (docs/proofs/finite-precision.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.clip import L2
from cepam.codec.codec import Codec
from cepam.distributions.laws import Gaussian
from cepam.fl.clients import sampling
from cepam.fl.clients.sampling import Randomness
from cepam.fl.config.settings import Settings
from cepam.fl.models.interface import Network
from cepam.fl.optim import RateSchedule
from cepam.keys import Address
from cepam.privacy.mechanisms.local import LINE

Floats = npt.NDArray[np.float32]
Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class StepPlan:
    """What one client does in a local step, and how many it makes a round; `law` is the noise on the mean gradient."""

    law: Gaussian
    clip: L2
    batch: float
    count: int

    @property
    def multiplier(self) -> float:
        """The noise in clips over the batch."""
        return self.law.scale * self.batch / self.clip.bound

    @cached_property
    def codec(self) -> Codec:
        """What adds the noise."""
        return Codec(self.law, LINE, coder="layered")


@dataclass(frozen=True, eq=False)
class Site:
    """A client at work: its plan, its own number and randomness, its records, and which of drawn ones contribute."""

    plan: StepPlan
    client: int
    draws: Randomness
    records: Index
    kept: Callable[[Index], Index] = lambda drawn: drawn

    def drawn(self, round: int, step: int) -> Index:
        """The records of one step: each by itself with the same probability."""
        sampling_rate = self.plan.batch / len(self.records)
        coins = sampling.of_step(self.draws, round, step, self.client, len(self.records))
        return self.kept(self.records[coins < sampling_rate])

    def noised(self, mean: Floats, round: int, step: int) -> Floats:
        """The mean gradient with its noise; only this client knows the key."""
        at = Address(self.draws.own_key(self.client), round=round, client=self.client, attempt=step)
        return np.asarray(self.plan.codec.decode(self.plan.codec.encode(mean, at), at), dtype=np.float32)


@dataclass(frozen=True, eq=False)
class LocalDpSgd:
    """The local steps of all clients that a round asks, side by side; those with fewer steps are done sooner."""

    settings: Settings
    network: Network
    rates: RateSchedule

    def updates(self, weights: Any, round: int, sites: list[Site]) -> tuple[Floats, Floats]:
        """Each site's update, what its weights have moved by, downhill positive; and its mean training loss.

        `weights` has a row for each site. Momentum starts from zero in every round.
        """
        start = _host(weights).astype(np.float32)
        local, velocity, losses = start.copy(), np.zeros_like(start), np.zeros(len(sites), dtype=np.float32)
        rate = float(self.rates.at(round * self.settings.training.local_steps))
        for step in range(max(site.plan.count for site in sites)):
            alive = [row for row, site in enumerate(sites) if step < site.plan.count]
            slopes, lost = self._step(local, round, step, [sites[row] for row in alive], np.array(alive))
            velocity[alive] = self.settings.training.local_momentum * velocity[alive] + slopes
            local[alive] -= rate * velocity[alive]
            for row, loss in zip(alive, lost):
                losses[row] += loss / sites[row].plan.count
        return start - local, losses

    def _step(self, local: Floats, round: int, step: int, sites: list[Site], of: Index) -> tuple[Floats, list[float]]:
        """The noised mean gradient of each site at its own row of weights, and its mean loss."""
        index, count = sampling.padded([site.drawn(round, step) for site in sites])
        bounds = np.array([site.plan.clip.bound for site in sites], dtype=np.float32)
        seeds = [sampling.mask_of_step(site.draws, round, step, site.client) for site in sites]
        sums, losses = self.network.summed_gradients(local, of, index, count, bounds, np.array(seeds))
        means = [total / np.float32(site.plan.batch) for site, total in zip(sites, _host(sums))]
        noised = [site.noised(mean, round, step) for site, mean in zip(sites, means)]
        mean_losses = [loss / max(1, many) for loss, many in zip(_host(losses).tolist(), count.tolist())]
        return np.stack(noised), mean_losses


def _host(rows: Any) -> Floats:
    """Rows as a NumPy array, wherever they live."""
    return rows if isinstance(rows, np.ndarray) else np.asarray(rows.cpu().numpy())

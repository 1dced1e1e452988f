"""The uplink settings of each node: one for all, or their own; the noise calibrated where a target is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from logging import INFO, getLogger

from cepam.clip import L2
from cepam.distributions.laws import Gaussian
from cepam.flower.dropouts import Aggregator
from cepam.privacy.cohorts.dropouts import UPWARD
from cepam.privacy.composition.account import affordable
from cepam.protocol.accounting import Target, settings_for
from cepam.protocol.options import NodeSettings
from cepam.protocol.settings import UplinkSettings

log = getLogger("flwr").log  # Flower's own log, which `flwr run --stream` shows

PerNode = Mapping[int, NodeSettings] | Callable[[int], NodeSettings | None]


class NodeNoise:
    """The settings of each node: `settings`, with what `nodes` says of it; with a `target` the scale is found once."""

    def __init__(self, settings: UplinkSettings, target: Target | None, nodes: PerNode | None = None) -> None:
        if target is not None and nodes is not None:
            raise ValueError("epsilon finds one noise for all nodes: nodes must not be given with it")
        self._settings, self._target = settings, target
        self._first: UplinkSettings | None = None
        self._rounds = 1
        self._found = False
        self._own = nodes.get if isinstance(nodes, Mapping) else nodes

    @property
    def settings(self) -> UplinkSettings:
        """The settings of all nodes; ValueError while the noise for `epsilon` is not found."""
        if self._target is not None:
            raise ValueError("the noise is found when the first round is configured")
        return self._settings

    @property
    def told(self) -> UplinkSettings:
        """The settings of all nodes; the scale of their noise holds once it is found."""
        return self._settings

    def of(self, node: int) -> UplinkSettings:
        """The settings of this node."""
        differs = self._own(node) if self._own else None
        return self.settings if differs is None else differs.over(self.settings)

    def plan(self, rounds: int) -> None:
        """Plan for so many rounds; a target may say others."""
        self._rounds = rounds
        if self._target is not None and self._target.rounds is None:
            self._target = replace(self._target, rounds=rounds)

    def find(self, sampled: int, aggregator: Aggregator, coordinates: int) -> None:
        """Calibrate the noise to the target, if there is one, once; take coder layered where search has no figure."""
        if self._target is None:
            if not self._found:
                run = aggregator.planned(self._settings, sampled, coordinates).over(self._rounds)
                self._settings = settings_for(self._settings, affordable(run, aggregator.account.delta))
            self._found = True
            return
        self._found, nodes = True, self._target.nodes or sampled
        target, self._target = replace(self._target, nodes=nodes), None
        one = aggregator.planned(self._settings, nodes, coordinates)
        self._settings = target.meet(self._settings, one, aggregator.account.delta)
        log(INFO, "cepam: %s", target.describe(aggregator.planned(self._settings, nodes, coordinates)))

    def follow(self, bound: float | None) -> None:
        """Take `bound`, if any, as the clip from now on, noise and bit in proportion, the noise never in less."""
        if bound is None:
            return
        first = self._first = self._first or self.settings
        by = bound / first.clip.bound
        law = Gaussian(first.law.scale * by * UPWARD)
        self._settings = replace(first, clip=L2(bound), law=law, bit=first.bit * by)

    def summarise(self) -> None:
        """Log what nodes are sent."""
        asks = self._settings
        law = asks.law if self._target is None else f"noise for epsilon {self._target.epsilon:g}"
        log(INFO, "\t├──> cepam: %s, %s, lattice %s", law, asks.clip, asks.lattice)
        log(INFO, "\t│\t├── ClientApps reply with: %s", asks.update)

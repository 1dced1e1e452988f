"""The noise that nodes are asked for: one for all, or their own, calibrated where a target is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from logging import INFO, getLogger

from cepam.clip import L2
from cepam.distributions.laws import Gaussian
from cepam.flower.dropouts import Policy
from cepam.privacy.cohorts.dropouts import UPWARD
from cepam.protocol.accounting import Target
from cepam.protocol.settings import UplinkSettings

log = getLogger("flwr").log  # Flower's own log, which `flwr run --stream` shows

OfNode = Mapping[int, UplinkSettings] | Callable[[int], UplinkSettings | None]


class NodeNoise:
    """What each node is asked for: `settings`, or what `of_node` says; with a `target` the scale is found once."""

    def __init__(self, settings: UplinkSettings, of_node: OfNode | None, target: Target | None) -> None:
        if target is not None and of_node is not None:
            raise ValueError("epsilon finds one noise for all nodes: of_node must not be given with it")
        self._settings, self._target = settings, target
        self._first: UplinkSettings | None = None
        self._of_node = of_node.get if isinstance(of_node, Mapping) else of_node

    @property
    def settings(self) -> UplinkSettings:
        """What nodes are asked for; ValueError while the noise for `epsilon` is not found."""
        if self._target is not None:
            raise ValueError("the noise is found when the first round is configured")
        return self._settings

    def of(self, node: int) -> UplinkSettings:
        """What this node is asked for."""
        own = self._of_node(node) if self._of_node else None
        return self.settings if own is None else replace(own, unit=self._settings.unit)

    def plan(self, rounds: int) -> None:
        """Nothing; a target that does not say its rounds is for so many."""
        if self._target is not None and self._target.rounds is None:
            self._target = replace(self._target, rounds=rounds)

    def find(self, asked: int, policy: Policy, coordinates: int) -> None:
        """Nothing; the noise meets the target, if there is one and it was not found before."""
        if self._target is None:
            return
        nodes = self._target.nodes or asked
        target, self._target = replace(self._target, nodes=nodes), None
        one = policy.planned(self._settings, nodes, coordinates)
        self._settings = target.meet(self._settings, one, policy.account.delta)
        log(INFO, "cepam: %s", target.describe(policy.planned(self._settings, nodes, coordinates)))

    def follow(self, bound: float | None) -> None:
        """Nothing; the clip is `bound`, if any, from now on, noise and bit in proportion, the noise never in less."""
        if bound is None:
            return
        first = self._first = self._first or self.settings
        by = bound / first.clip.bound
        law = Gaussian(first.law.scale * by * UPWARD)
        self._settings = replace(first, clip=L2(bound), law=law, bit=first.bit * by)

    def summarise(self) -> None:
        """Logs what nodes are asked for."""
        asks = self._settings
        law = asks.law if self._target is None else f"noise for epsilon {self._target.epsilon:g}"
        log(INFO, "\t├──> cepam: %s, %s, lattice %s", law, asks.clip, asks.lattice)
        log(INFO, "\t│\t├── ClientApps reply with: %s", asks.update)

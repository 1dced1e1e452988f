"""Client sampling: cohorts that the strategy samples in secret; a clip that follows the norms."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt
from flwr.app import Message
from flwr.serverapp.strategy import Strategy

from cepam.clip import L2, Clip
from cepam.distributions.laws import Gaussian
from cepam.flower.replies import CompensatingAggregator, Opened, RoundMetrics, check_one_model, publishes_average
from cepam.privacy.cohorts.adaptive_clip import fraction_within, next_clip
from cepam.privacy.cohorts.cohort import Cohort
from cepam.protocol.account import Accounting, Reply
from cepam.protocol.models import Arrays, count
from cepam.protocol.server import Shares, share_of
from cepam.protocol.settings import Dropouts, UplinkSettings

if TYPE_CHECKING:
    from cepam.flower.strategy import Budget
    from cepam.privacy import Accountant, Mechanism

One = TypeVar("One")
WORD = 64


@dataclass(frozen=True)
class Poisson:
    """Poisson sampling of clients: each connected node by itself, in secret, afresh each round.

    Args:
        sampling_rate: The probability that a node is sampled, in (0, 1].
        max_cohort: The most nodes of a round. Default: so many that it hardly ever matters.
        max_participations: The most rounds that a node is sampled in, enforced by the server. Needs
            `Accounting(stable_nodes=True)`. Default: no limit.

    Raises:
        ValueError: For a sampling rate outside (0, 1].
    """

    sampling_rate: float
    max_cohort: int | None = None
    max_participations: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.sampling_rate <= 1.0:
            raise ValueError(
                f"sampling_rate must lie in (0, 1], the probability that a node is sampled, got {self.sampling_rate!r}"
            )

    def of(self, nodes: int) -> Cohort:
        """The cohorts of so many nodes.

        Args:
            nodes: How many nodes there are.

        Returns:
            The cohorts, for the accountant.
        """
        return Cohort(nodes, self.sampling_rate * nodes, "poisson", self.max_cohort or 0, self.max_participations)

    def draw(self, nodes: Sequence[One], most: int) -> list[One]:
        """Draw the nodes of one round by the operating system's randomness.

        Args:
            nodes: All nodes.
            most: The most that are drawn; of a larger draw a uniform part is kept.

        Returns:
            The nodes of the round.
        """
        below = int(math.ldexp(self.sampling_rate, WORD))  # the probability is never above the rate
        drawn = [node for node in nodes if secrets.randbits(WORD) < below]
        return drawn if len(drawn) <= most else secrets.SystemRandom().sample(drawn, most)


@dataclass(frozen=True)
class Fixed:
    """Sampling of a fixed number of clients without replacement, in secret, afresh each round.

    Args:
        size: How many different nodes a round has (all, where fewer are connected).
        max_participations: The most rounds that a node is sampled in, enforced by the server. Needs
            `Accounting(stable_nodes=True)`. Default: no limit.

    Raises:
        ValueError: For a size below 1.
    """

    size: int
    max_participations: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or not isinstance(self.size, int) or self.size < 1:
            raise ValueError(f"size must be a positive integer, the nodes of a round, got {self.size!r}")

    def of(self, nodes: int) -> Cohort:
        """The cohorts of so many nodes.

        Args:
            nodes: How many nodes there are.

        Returns:
            The cohorts, for the accountant.
        """
        return Cohort(nodes, min(self.size, nodes), "without", participations=self.max_participations)

    def draw(self, nodes: Sequence[One], most: int) -> list[One]:
        """Draw the nodes of one round by the operating system's randomness.

        Args:
            nodes: All nodes.
            most: How many are drawn; all, where there are fewer.

        Returns:
            The nodes of the round.
        """
        return secrets.SystemRandom().sample(nodes, min(most, len(nodes)))


@dataclass(frozen=True)
class AdaptiveClip:
    """A clip that follows a quantile of the update norms, by one noisy bit per client in the same sealed message.

    Update and bit are charged as one mechanism, which costs sqrt(1 + bit^2) of the noise. The noise stays in proportion
    to the clip. Andrew et al. 2021, Algorithm 1 (docs/proofs/cohorts-and-dropouts.md, "Adaptive clipping").

    Args:
        initial: The clip of the first round.
        quantile: The fraction of updates that the clip should leave as they are. Default 0.5.
        learning_rate: A round moves the clip by a factor of at most e^learning_rate but for the bit's noise. Default
            0.2.
        bit: How far one client's bit moves the sum, in units of the clip. Default 0.1.

    Raises:
        ValueError: For a value outside its range, or a clip that is not l2.
    """

    initial: L2
    quantile: float = 0.5
    learning_rate: float = 0.2
    bit: float = 0.1

    def __post_init__(self) -> None:
        if not isinstance(self.initial, L2):
            raise ValueError(f"an adaptive clip starts from cepam.L2(…), got {self.initial!r}")
        if not 0.0 < self.bit < math.inf:
            raise ValueError(f"bit must be positive, in clips, got {self.bit!r}")
        next_clip(1.0, 0.5, self.quantile, self.learning_rate)

    def after(self, clip: Clip, mean: float) -> float:
        """The clipping norm of the next round.

        Args:
            clip: The clip of this round.
            mean: The published mean of the bits, each `bit` clips up or down.

        Returns:
            The clipping norm.
        """
        share = fraction_within(mean / (2.0 * self.bit * clip.bound), 1.0)
        return next_clip(clip.bound, share, self.quantile, self.learning_rate)


class SamplingAggregator(CompensatingAggregator):
    """A sampled cohort, its noise compensated up to its cap, divided by its expected size: nothing tells who was in it.

    Every round is published, whoever replied, also if nobody was sampled: the round is the subsampled Gaussian
    mechanism (docs/proofs/cohorts-and-dropouts.md). With `adaptive` the clip follows the norms.
    Guarantee: tests/flower/test_cohort.py.
    """

    is_secret = True

    def __init__(self, account: Accounting, kind: Poisson | Fixed, adaptive: AdaptiveClip | None = None) -> None:
        super().__init__(account, average=True, least_replies=1)
        if kind.max_participations is not None and not account.stable_nodes:
            raise ValueError("max_participations needs Accounting(stable_nodes=True): rounds are counted by node id")
        self._kind, self._adaptive = kind, adaptive
        self._cohort: Cohort | None = None
        self._charged_as: UplinkSettings | None = None

    def planned(self, settings: UplinkSettings, nodes: int, coordinates: int) -> Mechanism:
        return self.account.cohort_mechanism(self._kind.of(nodes), settings, coordinates + settings.beside)

    def resume(self, accountant: Accountant, run: str, clip: float | None) -> None:
        """Take up the clip that was charged last, where it follows the norms: no other may leave."""
        self.clip = None if self._adaptive is None else clip

    def noise(self, sampled: Sequence[UplinkSettings]) -> float:
        cohort = self._cohort or self._kind.of(len(sampled))
        return _shares(cohort, sampled[0]).noise

    def choose(self, messages: list[Message], settings: UplinkSettings, taken: Mapping[int, int]) -> list[Message]:
        """The messages to the nodes that are sampled of all those that the strategy names."""
        nodes = [message.metadata.dst_node_id for message in messages]
        if len(set(nodes)) < len(nodes):
            raise ValueError("with sampling the strategy must name every node once, got one that is named twice")
        self._cohort, self._settings, self.is_open = self._now(len(nodes)), settings, True
        self._charged_as = self._charged_as or settings
        limit = self._kind.max_participations
        free = [m for m in messages if limit is None or taken.get(m.metadata.dst_node_id, 0) < limit]
        return self._kind.draw(free, self._cohort.cap)

    def _now(self, nodes: int) -> Cohort:
        """The cohorts of the nodes that are there. Who is away drops out: Poisson's constants change only upward."""
        if isinstance(self._kind, Poisson) and self._cohort is not None:
            nodes = max(nodes, self._cohort.population)
        return self._kind.of(nodes)

    def foreseen(self, sampled: list[Reply], coordinates: int) -> Mechanism | None:
        """What the round costs, whoever replies. Noise is in proportion to the clip: the first one is charged."""
        if not self.is_open or self._cohort is None or self._charged_as is None:
            return None
        return self.account.cohort_mechanism(self._cohort, self._charged_as, coordinates + self._charged_as.beside)

    def begin(self, sampled: list[Reply], models: list[Arrays], step: float | None) -> None:
        check_one_model(models)
        self._sampled, self._model, self._step = sampled, models[0], step

    def mechanism(self, opened: Sequence[Opened]) -> Mechanism | None:
        return self.foreseen(self._sampled, count(self._model)) if self.is_open else None

    @property
    def counted(self) -> list[int]:
        """The nodes whose rounds are counted, where they are limited."""
        return [node for node, _ in self._sampled] if self._kind.max_participations is not None else []

    def figures(self, spending: Budget) -> dict[str, float]:
        """epsilon against an adversary who sees participation, and the clip of the next round where it moves."""
        clip = {} if self.clip is None else {"cepam-clip": self.clip}
        return {"cepam-epsilon-sees-participation": spending.sees_participation, **clip}

    @property
    def shares(self) -> Shares:
        """What clients and server bring, and the divisor."""
        if self._cohort is None:
            raise ValueError("no cohort was drawn")
        return _shares(self._cohort, self._settings)

    def mean(self, tally: RoundMetrics) -> npt.NDArray[np.float64]:
        """The published mean of the updates; the clip of the next round follows the mean of the bits."""
        mean = super().mean(tally)
        if self._adaptive is None:
            return mean
        self.clip = self._adaptive.after(self._settings.clip, float(mean[-1]))
        return mean[:-1]

    def __str__(self) -> str:
        return f"{self._kind}, sampled in secret; noise that does not depend on who replies"


def _shares(cohort: Cohort, settings: UplinkSettings) -> Shares:
    return Shares(((share_of(settings), cohort.cap),), settings.weight * cohort.size)


def check_sampling(
    strategy: Strategy, settings: UplinkSettings, account: Accounting, dropouts: Dropouts, has_own_settings: bool
) -> None:
    """Refuse what does not go with secret sampling of clients."""
    if not isinstance(settings.law, Gaussian) or not isinstance(settings.clip, L2):
        raise ValueError(f"sampling needs Gaussian noise and an l2 clip, got {settings.law!r} and {settings.clip!r}")
    if not publishes_average(strategy, account):
        raise ValueError(
            f"sampling needs a strategy that publishes nothing but the average, got {type(strategy).__name__} "
            "(set Accounting(released='average') if your strategy publishes the average only)"
        )
    if getattr(strategy, "fraction_train", 1.0) != 1.0:
        raise ValueError(
            f"the wrapper samples here: the strategy's fraction_train must be 1.0, got {strategy.fraction_train!r}"
        )
    if dropouts.handling == "charge" or has_own_settings or dropouts.least_replies > 1:
        raise ValueError(
            "sampling needs dropout handling 'compensate', least_replies=1 and one setting for all nodes: nothing "
            "published may tell who was sampled"
        )

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

from cepam.clip import L2, Clip, Unit
from cepam.distributions.laws import Gaussian
from cepam.flower.averaging import publishes_average
from cepam.flower.budget import Budget
from cepam.flower.dropouts import Compensated, Policy, PolicyName, StepOf, check_one_kind, policy_for
from cepam.flower.replies import Opened
from cepam.flower.round_metrics import RoundMetrics
from cepam.privacy.cohorts.adaptive_clip import fraction_within, next_clip
from cepam.privacy.cohorts.cohort import Cohort
from cepam.protocol.accounting import Accounting, Reply
from cepam.protocol.dropouts import Shares, share_of
from cepam.protocol.settings import UplinkSettings
from cepam.protocol.vectors import Arrays, count

if TYPE_CHECKING:
    from cepam.privacy import Accountant, Mechanism

One = TypeVar("One")
WORD = 64


@dataclass(frozen=True)
class Poisson:
    """Each connected node by itself, with chance `rate`; at most `cap` (so many that it hardly ever matters).

    `participations`: the most rounds that a node is asked in, enforced by the server (needs stable node ids).
    """

    rate: float
    cap: int = 0
    participations: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.rate <= 1.0:
            raise ValueError(f"rate must lie in (0, 1], the chance that a node is asked, got {self.rate!r}")

    def of(self, nodes: int) -> Cohort:
        """The cohorts of so many nodes."""
        return Cohort(nodes, self.rate * nodes, "poisson", self.cap, self.participations)

    def draw(self, nodes: Sequence[One], cap: int) -> list[One]:
        """The nodes of one round: at most `cap`, by the operating system's randomness."""
        below = int(math.ldexp(self.rate, WORD))  # the chance is never above the rate
        drawn = [node for node in nodes if secrets.randbits(WORD) < below]
        return drawn if len(drawn) <= cap else secrets.SystemRandom().sample(drawn, cap)


@dataclass(frozen=True)
class Fixed:
    """Exactly `size` different nodes of those connected (all, where they are fewer)."""

    size: int
    participations: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or not isinstance(self.size, int) or self.size < 1:
            raise ValueError(f"size must be a positive integer, the nodes of a round, got {self.size!r}")

    def of(self, nodes: int) -> Cohort:
        """The cohorts of so many nodes."""
        return Cohort(nodes, min(self.size, nodes), "without", participations=self.participations)

    def draw(self, nodes: Sequence[One], cap: int) -> list[One]:
        """The nodes of one round, by the operating system's randomness."""
        return secrets.SystemRandom().sample(nodes, min(cap, len(nodes)))


@dataclass(frozen=True)
class AdaptiveClip:
    """The clip follows the `quantile` of the norms, by one noisy bit a client in the same sealed message.

    A round moves it by a factor of at most e^`rate` but for the bit's noise. `bit` is how far one client's bit moves
    the sum, in clips: update and bit are charged as one mechanism, which costs sqrt(1 + bit^2) of the noise.
    Paper: Andrew et al. 2021, Algorithm 1 (docs/privacy.md, "A clip that follows the norms").
    """

    quantile: float = 0.5
    rate: float = 0.2
    bit: float = 0.1

    def __post_init__(self) -> None:
        if not 0.0 < self.bit < math.inf:
            raise ValueError(f"bit must be positive, in clips, got {self.bit!r}")
        next_clip(1.0, 0.5, self.quantile, self.rate)

    def after(self, clip: Clip, mean: float) -> float:
        """The clip of the next round, from the published mean of the bits, each `bit` clips up or down."""
        share = fraction_within(mean / (2.0 * self.bit * clip.bound), 1.0)
        return next_clip(clip.bound, share, self.quantile, self.rate)


class CohortPolicy(Compensated):
    """A drawn cohort, topped up to its cap and divided by its expected size: nothing published says who was asked.

    Every round that was drawn is published, whoever replied, also if nobody was drawn: the round is the subsampled
    Gaussian mechanism (docs/privacy.md, "Whole clients"). With `adaptive` the clip follows the norms.
    Guarantee: tests/flower/test_cohort.py.
    """

    is_secret = True

    def __init__(self, account: Accounting, kind: Poisson | Fixed, adaptive: AdaptiveClip | None = None) -> None:
        super().__init__(account, average=True, least_replies=1)
        if kind.participations is not None and not account.stable_nodes:
            raise ValueError("participations needs Account(stable_nodes=True): rounds are counted by node id")
        self._kind, self._adaptive = kind, adaptive
        self._cohort: Cohort | None = None
        self._charged_as: UplinkSettings | None = None

    def planned(self, settings: UplinkSettings, nodes: int, coordinates: int) -> Mechanism:
        return self.account.cohort_mechanism(self._kind.of(nodes), settings, coordinates + settings.beside)

    def resume(self, accountant: Accountant, run: str, clip: float | None) -> None:
        """Nothing; a clip that follows the norms is the one that was charged last: no other may leave."""
        self.clip = None if self._adaptive is None else clip

    def noise(self, asked: Sequence[UplinkSettings]) -> float:
        cohort = self._cohort or self._kind.of(len(asked))
        return _shares(cohort, asked[0]).noise

    def choose(self, messages: list[Message], settings: UplinkSettings, taken: Mapping[int, int]) -> list[Message]:
        """The messages to the nodes that are drawn of all those that the strategy asks."""
        nodes = [message.metadata.dst_node_id for message in messages]
        if len(set(nodes)) < len(nodes):
            raise ValueError("with a cohort the wrapped strategy must ask every node once, got one that is asked twice")
        self._cohort, self._settings, self.is_open = self._now(len(nodes)), settings, True
        self._charged_as = self._charged_as or settings
        limit = self._kind.participations
        free = [m for m in messages if limit is None or taken.get(m.metadata.dst_node_id, 0) < limit]
        return self._kind.draw(free, self._cohort.cap)

    def _now(self, nodes: int) -> Cohort:
        """The cohorts of the nodes that are there. Who is away drops out: Poisson's constants change only upward."""
        if isinstance(self._kind, Poisson) and self._cohort is not None:
            nodes = max(nodes, self._cohort.population)
        return self._kind.of(nodes)

    def foreseen(self, asked: list[Reply], coordinates: int) -> Mechanism | None:
        """What the round costs, whoever replies. Noise is in proportion to the clip: the first one is charged."""
        if not self.is_open or self._cohort is None or self._charged_as is None:
            return None
        return self.account.cohort_mechanism(self._cohort, self._charged_as, coordinates + self._charged_as.beside)

    def ask(self, asked: list[Reply], models: list[Arrays], step: StepOf) -> None:
        check_one_kind(asked, models)
        self._asked, self._model, self._step_of = asked, models[0], step

    def mechanism(self, opened: Sequence[Opened]) -> Mechanism | None:
        return self.foreseen(self._asked, count(self._model)) if self.is_open else None

    @property
    def counted(self) -> list[int]:
        """The nodes whose rounds are counted, where they are limited."""
        return [node for node, _ in self._asked] if self._kind.participations is not None else []

    def figures(self, spending: Budget) -> dict[str, float]:
        """epsilon against whoever sees who uploads, and the clip of the next round where it moves."""
        clip = {} if self.clip is None else {"cepam-clip": self.clip}
        return {"cepam-epsilon-sees-uploads": spending.sees_uploads, **clip}

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
        return f"{self._kind}, drawn in secret; noise that does not depend on who replies"


def _shares(cohort: Cohort, settings: UplinkSettings) -> Shares:
    return Shares(((share_of(settings), cohort.cap),), settings.weight * cohort.size)


@dataclass(frozen=True)
class Asking:
    """What was said about who is asked, and about replies that are missing."""

    policy: PolicyName | None
    cohort: Poisson | Fixed | None
    adaptive: AdaptiveClip | None
    own_settings: bool
    least_replies: int

    @property
    def unit(self) -> Unit | None:
        """The unit that a cohort protects."""
        return None if self.cohort is None else "client"

    def bit(self, clip: Clip) -> float:
        """How far a client's bit goes up or down; 0 where none is sent."""
        return 0.0 if self.adaptive is None else self.adaptive.bit * clip.bound

    def policy_for(self, strategy: Strategy, settings: UplinkSettings, account: Accounting) -> Policy:
        """The policy; ValueError for what does not go together."""
        average = publishes_average(strategy, account)
        if self.cohort is not None:
            self._check(strategy, settings, account, average)
            return CohortPolicy(account, self.cohort, self.adaptive)
        if self.adaptive is not None:
            raise ValueError("adaptive goes with cohort: cepam.flower.Poisson(1.0) asks everybody")
        # Nodes with settings of their own may send what cannot be added up.
        name = "charge" if self.policy is None and self.own_settings else self.policy
        return policy_for(name, account, average, self.least_replies, settings.law)

    def _check(self, strategy: Strategy, settings: UplinkSettings, account: Accounting, average: bool) -> None:
        if account.unit != "client":
            raise ValueError("cohort protects whole clients, unit='client': draws of clients hide no single record")
        if not isinstance(settings.law, Gaussian) or not isinstance(settings.clip, L2):
            raise ValueError(f"cohort needs Gaussian noise and an l2 clip, got {settings.law!r} and {settings.clip!r}")
        if not average:
            raise ValueError(
                f"cohort needs a strategy that publishes nothing but the average, got {type(strategy).__name__} "
                "(Account(released='average') says so of one's own)"
            )
        if getattr(strategy, "fraction_train", 1.0) != 1.0:
            raise ValueError(f"cohort is drawn here: fraction_train must be 1.0, got {strategy.fraction_train!r}")
        if self.policy == "charge" or self.own_settings or self.least_replies > 1:
            raise ValueError("cohort needs policy='top-up', no of_node, least_replies=1: nothing tells who was asked")

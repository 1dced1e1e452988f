"""User-level privacy: cohorts sampled from a large population, and what a run costs one client.

    cohort = privacy.Cohort(population=100_000, size=1000)  # Poisson: each client by itself, 1000 in expectation
    users = privacy.CohortMechanism.of(cohort, cepam.L2(1.0), noise_multiplier=1.0, rounds=1000, adjacency="add-remove")
    privacy.epsilon(users, 1e-5)

Nothing here is as long as the population. Draws are fresh and secret each round; an adversary who sees participation
gets `epsilon_seen` instead. Proofs: docs/proofs/cohorts-and-dropouts.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy import optimize, special

from cepam.clip import Adjacency, Clip, Unit
from cepam.distributions.laws import Gaussian, Law, check_scale
from cepam.lattices.lattice import Lattice
from cepam.privacy.cohorts.dropouts import DropoutCompensation
from cepam.privacy.mechanisms.dominating_pairs import GaussianShift
from cepam.privacy.mechanisms.mechanism import Client, Mechanism, Sampling, SubsampledMechanism, check_count

CohortKind = Literal["poisson", "without"]
RARE = 2.0**-100
"""The probability that a client is drawn and not contacted in a round, under a cap that was not given."""

WIDE = 12.0
EVERY_RECORD = Sampling("all")


@dataclass(frozen=True)
class Cohort:
    """The clients of a round, sampled afresh and in secret.

    Args:
        population: How many clients there are.
        size: How many are sampled: in expectation (`poisson`), or exactly (`without`).
        kind: `poisson` samples each client by itself; `without` samples that many different ones.
        cap: Most clients of a Poisson cohort; of a larger one a random `cap` are contacted. By default so many that
            the excess is negligible.
        participations: Most rounds in which one client takes part, where the server enforces it.

    Raises:
        ValueError: A value is out of range, or a fixed cohort has another cap.
    """

    population: int
    size: float
    kind: CohortKind = "poisson"
    cap: int = 0
    participations: int | None = None

    def __post_init__(self) -> None:
        check_count("population", self.population)
        if self.kind not in get_args(CohortKind):
            raise ValueError(f"a cohort's kind must be one of {', '.join(get_args(CohortKind))}, got {self.kind!r}")
        if not (0 < self.size <= self.population):
            raise ValueError(f"size must lie in (0, {self.population}], the population, got {self.size!r}")
        if self.participations is not None:
            check_count("participations", self.participations)
        if self.kind == "without" and (self.size != int(self.size) or self.cap not in (0, int(self.size))):
            raise ValueError(
                f"a cohort of a fixed size is its own cap, a whole number, got {self.size!r}, {self.cap!r}"
            )
        check_count("cap", self.cap, 0)
        object.__setattr__(self, "cap", min(self.cap or self._cap(), self.population))

    @property
    def rate(self) -> float:
        """q, the probability that one given client is drawn in a round."""
        return self.size / self.population

    @property
    def exceeded(self) -> float:
        """At least the probability that a given client is drawn in a round and not asked: q P(others >= cap).

        Rests on: Chernoff's bound for the other clients' draws.
        """
        return self._excess(self.cap)

    def _excess(self, cap: int) -> float:
        others, rate = self.population - 1, self.rate
        if self.kind == "without" or cap > others:
            return 0.0
        share = cap / others
        if share <= rate:
            return rate
        gap = share * math.log(share / rate)
        if share < 1.0:
            gap += (1.0 - share) * (math.log1p(-share) - math.log1p(-rate))
        return rate * math.exp(-others * gap)

    def _cap(self) -> int:
        """The smallest cap that is exceeded with probability at most `RARE`."""
        if self.kind == "without":
            return int(self.size)
        low, high = 0, self.population
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._excess(middle) <= RARE else (middle, high)
        return high


@dataclass(frozen=True)
class CohortMechanism(Mechanism):
    """A run with sampled cohorts: each round publishes the sum of the cohort's decoded vectors over the expected
    cohort.

    It protects whole clients (`unit="client"`): sampling clients is not claimed to hide single records any better.
    The server adds the noise of those who do not reply, so dropouts cost nothing. `of` makes one from a noise
    multiplier.

    Args:
        clients: One client, the kind that all are. Its law is one share of the noise, `DropoutCompensation(total,
            cohort.cap).law`.
        cohort: Who is sampled in a round.
        bit: z_bit of adaptive clipping: each client sends one noisy bit with its update, and both are charged as one
            mechanism. None without it.
        stateful: Whether clients remember the rounds that they took part in.
        clip: As for `Mechanism`; it must be an l2 clip.
        sampling: `all`, since every client uses all of its records.

    Other fields are those of `Mechanism`.

    Raises:
        ValueError: The noise is not Gaussian, the clip is not l2, or clients are unlike.

    Guarantee: a Poisson cohort under add-remove has the shift clip/size, any other twice that
    (tests/privacy/test_cohort.py). Condition: who is sampled stays secret; against an adversary who sees
    participation ask `Accountant.sees_uploads`.
    """

    sampling: Sampling = EVERY_RECORD
    unit: Unit = "client"
    cohort: Cohort = field(kw_only=True)
    bit: float | None = field(default=None, kw_only=True)
    stateful: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unit != "client" or not self.law_is_gaussian or self.clip.norm != "l2":
            raise ValueError("a cohort protects whole clients (unit 'client'), with Gaussian noise and an l2 clip")
        if len(self.clients) != 1 or self.absent or self.nodes is not None:
            raise ValueError("a cohort's release has one kind of client, and says neither absent nor nodes")
        if self.bit is not None:
            check_scale("bit", self.bit)

    @classmethod
    def of(
        cls,
        cohort: Cohort,
        clip: Clip,
        noise_multiplier: float,
        *,
        rounds: int = 1,
        colluders: int = 0,
        adjacency: Adjacency = "replace",
        coordinates: int | None = None,
        bit: float | None = None,
    ) -> CohortMechanism:
        """The release whose sums have noise of `noise_multiplier` clips.

        Args:
            cohort: Who is sampled in a round.
            clip: The l2 clip of a client's update.
            noise_multiplier: Standard deviation of the noise of a round's sum, in units of the clipping norm.
            rounds: Rounds of the run.
            colluders: Clients that pool what they know.
            adjacency: How neighboring data sets differ.
            coordinates: Length of an update; without it the mechanism's rounding is not charged.
            bit: z_bit of adaptive clipping.

        Returns:
            The mechanism.
        """
        check_scale("noise_multiplier", noise_multiplier)
        kind = Client(DropoutCompensation(noise_multiplier * clip.bound, cohort.cap).law, 1, 1.0 / cohort.size)
        return cls(
            (kind,), clip, rounds=rounds, colluders=colluders, adjacency=adjacency, coordinates=coordinates,
            cohort=cohort, bit=bit,
        )  # fmt: skip

    @property
    def compensation(self) -> DropoutCompensation:
        """What clients and server bring."""
        return DropoutCompensation(self.clients[0].law.scale * math.sqrt(self.cohort.cap), self.cohort.cap)

    @property
    def enrolled(self) -> int:
        return self.cohort.population

    @property
    def exceeded(self) -> float:
        return self.cohort.exceeded

    @property
    def confines_records(self) -> bool:
        return self.cohort.rate < 1.0

    @property
    def remembers(self) -> bool:
        """Whether later rounds depend on who was drawn in earlier ones, by clients' states or by counts of rounds."""
        return self.cohort.rate < 1.0 and (self.stateful or self.cohort.participations is not None)

    def sent(self) -> Counter[tuple[Law, Lattice | None]]:
        """All shares, whoever draws them, and one more for the server's own draw.

        Returns:
            A count per law and lattice.
        """
        return Counter({(self.clients[0].law, self.clients[0].lattice): self.cohort.cap + 1})

    def searched(self) -> Counter[Law]:
        """All shares, whoever draws them: the server's own draw is the layered quantizer's.

        Returns:
            A count per law.
        """
        return Counter({self.clients[0].law: self.cohort.cap}) if self.clients[0].may_search else Counter()

    @property
    def equal_shares(self) -> int:
        """The shares that colluders do not know, whoever draws them."""
        return max(0, self.cohort.cap - self.colluders)

    def sampling_rate(self, client: int) -> float:
        """The probability that a given client is drawn: in a fixed cohort more, to colluders who know that they were
        not.

        A fixed cohort whose clients retire is drawn from ever fewer, and where clients have a state the others' tell
        who was drawn: no probability is claimed for either (docs/proofs/cohorts-and-dropouts.md, "Layers that stay on
        the client").

        Args:
            client: Ignored but for its place, 0: all are alike.

        Returns:
            A probability; 1 where no sampling is claimed.
        """
        if self.cohort.kind == "poisson":
            return self.cohort.rate
        if self.remembers:
            return 1.0
        return min(1.0, self.cohort.size / (self.cohort.population - self.colluders))

    def distance(self, client: int) -> float:
        """How far a client moves the sum: in a fixed cohort another takes the place of one that is not drawn.

        Args:
            client: Ignored but for its place, 0: all are alike.

        Returns:
            A distance in l2.
        """
        replaced = self.adjacency == "replace" or self.replaces
        return (2.0 if replaced else 1.0) * self.clip.bound

    @property
    def replaces(self) -> bool:
        """Whether another client takes the place of one that is not drawn: a draw of a fixed size from more."""
        return self.cohort.kind == "without" and self.cohort.rate < 1.0

    def hidden_by(self, client: int, colluders: int | None = None) -> tuple[int, ...]:
        """One entry for each share that colluders do not know: the client's own is always one.

        Args:
            client: Ignored but for its place, 0: all are alike.
            colluders: Other clients that pool what they know; by default those of the mechanism.

        Returns:
            The client's place, once per share.
        """
        taken = self.colluders if colluders is None else colluders
        return (client,) * max(1, self.cohort.cap - taken)

    def noise_against(self, client: int, colluders: int | None = None) -> float:
        return self.clients[client].noise * math.sqrt(len(self.hidden_by(client, colluders)))

    def mu(self, client: int, colluders: int | None = None) -> float:
        """The shift over the noise, of update and bit together: one Gaussian mechanism.

        Args:
            client: Ignored but for its place, 0: all are alike.
            colluders: Other clients that pool what they know; by default those of the mechanism.

        Returns:
            mu of one Gaussian mechanism.
        """
        exact = super().mu(client, colluders)
        if self.bit is None:
            return exact
        known = math.sqrt(self.cohort.cap / len(self.hidden_by(client, colluders)))
        return math.hypot(exact, known * self.distance(client) / self.clip.bound / self.bit)

    def charge(self, client: int, colluders: int | None = None) -> SubsampledMechanism:
        """What one round costs a client, drawn with `sampling_rate`.

        In a fixed cohort a client whose updates are zero is drawn too, in place of another, so that no world is the one
        without a draw: under either adjacency the symmetric pair is charged, which bounds both directions.
        Guarantee: tests/attacks/test_fixed_cohorts.py enumerates populations of 2 to 4.

        Args:
            client: Ignored but for its place, 0: all are alike.
            colluders: Other clients that pool what they know; by default those of the mechanism.

        Returns:
            A mechanism of one round, to be composed.
        """
        if colluders is not None:
            return replace(self, colluders=colluders).charge(client)
        made = super().charge(client)
        return replace(made, adjacency="replace") if self.replaces else made

    def limited(self, client: int) -> tuple[SubsampledMechanism, int] | None:
        """What a client pays without any secret, and how often at most; None where the server sets no limit.

        Args:
            client: Ignored but for its place, 0: all are alike.

        Returns:
            A mechanism of one round and a number of rounds, or None.
        """
        if self.cohort.participations is None:
            return None
        return replace(self.charge(client), sampling_rate=1.0), self.cohort.participations

    def without(self, absent: Iterable[int]) -> CohortMechanism:
        """The same release: the noise does not depend on who replied.

        Args:
            absent: Ignored.

        Returns:
            This mechanism.
        """
        return self

    def alone(self, client: int) -> CohortMechanism:
        return replace(self, colluders=self.cohort.population - 1)

    def with_noise(self, scales: Sequence[float]) -> CohortMechanism:
        """The same release with another share of noise, and the bit's in proportion.

        Args:
            scales: One noise scale, that of every client's share.

        Returns:
            A new mechanism.
        """
        (scale,) = scales
        bit = None if self.bit is None else self.bit * scale / self.clients[0].law.scale
        return replace(self, clients=(replace(self.clients[0], law=Gaussian(scale)),), bit=bit)


def delta_seen(mechanisms: Sequence[CohortMechanism], epsilon: float) -> float:
    """delta at epsilon >= 0 against an adversary who sees participation, without amplification: draws ignore data.

    Given the n rounds in which a client takes part, the run is one Gaussian event of shift sqrt(n) mu; n is binomial.
    Rounds that differ are charged as the worst of them. Guarantee: tests/privacy/test_cohort.py enumerates every draw.
    """
    rounds, sampling_rate = sum(r.rounds for r in mechanisms), max(r.sampling_rate(0) for r in mechanisms)
    mu, limit = max(r.mu(0) for r in mechanisms), _limit(mechanisms)
    middle, spread = (
        rounds * sampling_rate,
        WIDE * math.sqrt(rounds * sampling_rate * (1.0 - sampling_rate)) + 4.0 * WIDE,
    )
    counts = np.arange(max(0, int(middle - spread)), min(rounds, int(middle + spread)) + 1)
    masses = _binomial(counts, rounds, sampling_rate)
    shown = [GaussianShift(mu * math.sqrt(min(int(n), limit or rounds))).profile(epsilon) for n in counts]
    beyond = float(special.bdtrc(counts[-1], rounds, sampling_rate)) if counts[-1] < rounds else 0.0
    below = float(special.bdtr(counts[0] - 1, rounds, sampling_rate)) if counts[0] > 0 else 0.0
    return float(masses @ np.array(shown)) + beyond + below * shown[0]


def epsilon_seen(mechanisms: Sequence[CohortMechanism], delta: float) -> float:
    """The smallest epsilon at delta against an adversary who sees participation; infinite where there is none."""
    if delta_seen(mechanisms, 0.0) <= delta:
        return 0.0
    high = 1.0
    while delta_seen(mechanisms, high) > delta:
        high *= 2.0
        if high > 1e6:
            return math.inf
    root = float(optimize.brentq(lambda at: delta_seen(mechanisms, at) - delta, 0.0, high, xtol=1e-10, rtol=1e-12))
    return root * (1.0 + 1e-9) + 1e-9


def _binomial(counts: npt.NDArray[np.int64], trials: int, probability: float) -> npt.NDArray[np.float64]:
    """The probability of each count of successes; `scipy.stats` has it too, and takes longer to import than an
    answer."""
    ways = special.gammaln(trials + 1) - special.gammaln(counts + 1) - special.gammaln(trials - counts + 1)
    odds = special.xlogy(counts, probability) + special.xlog1py(trials - counts, -probability)
    return np.asarray(np.exp(ways + odds), dtype=np.float64)


def _limit(mechanisms: Sequence[CohortMechanism]) -> int | None:
    limits = {mechanism.cohort.participations for mechanism in mechanisms}
    return limits.pop() if len(limits) == 1 else None

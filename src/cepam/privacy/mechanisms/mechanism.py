"""A mechanism: who sends what, how it is sampled, clipped and noised, and over how many rounds.

Built from the very `Law` and `Clip` objects that the codec and the client used, so what is charged is what was sent.

Trust model: the server is trusted and holds the keys; the adversary sees every model that the server publishes, and may
be up to `colluders` of the other clients, each of whom knows its own decoded vector. Weights are public constants.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import Literal, get_args

import numpy as np
from scipy import optimize

from cepam.clip import Adjacency, Clip, ClippedUnit, Unit
from cepam.distributions.laws import PRIVATE_LAWS, Floats, Gaussian, Laplace, Law
from cepam.lattices.lattice import Lattice, Search
from cepam.privacy.mechanisms.dominating_pairs import GaussianShift, LaplaceShift, Masses, Shift
from cepam.privacy.numerics.smoothing import smoothing_clients

# One subsampled mechanism as charged to one client: a shift, and the probability that a record is sampled.
#
# With probability 1 - p the record is not drawn and nothing about it is released. The pair that dominates the round
# is
#
# - add-or-remove: ((1-p)Q + pP, Q) in one direction and its swap in the other; - replace-one: the symmetric pair
# whose hockey-stick curve is that of ((1-p)Q + pP, Q) at a >= 1 and its mirror image 1 - a + a h(1/a) below
# (`docs/proofs/mechanisms-and-sampling.md`: convex at a = 1, hence a pair, hence it composes).


SamplingKind = Literal["replacement", "without", "poisson", "all"]

LARGEST_EXPONENT = 700.0


def check_probability(name: str, value: float) -> None:
    """Raise ValueError when a probability does not lie in (0, 1]."""
    if not (0.0 < value <= 1.0):
        raise ValueError(f"{name} must lie in (0, 1], got {value!r}")


def check_adjacency(value: str) -> None:
    """Raise ValueError when the adjacency is not one of the two that are accounted for."""
    if value not in get_args(Adjacency):
        raise ValueError(f"adjacency must be one of {', '.join(get_args(Adjacency))}, got {value!r}")


@dataclass(frozen=True)
class Sampling:
    """How a client samples its records, afresh in every round and in secret.

    Args:
        kind: `replacement`: `draws` records, each uniform over all (Paper: tau of them, the tau-1 local steps and
            the final gradient). `without`: `draws` different records. `poisson`: each record by itself. `all`: every
            record in every round; also the honest choice where a sampler or client state survives a round.
        draws: Records per round; with `poisson` in expectation.

    Raises:
        ValueError: An unknown kind, `draws` that are not positive, or not whole where they must be.
    """

    kind: SamplingKind = "replacement"
    draws: float = 1

    def __post_init__(self) -> None:
        if self.kind not in get_args(SamplingKind):
            raise ValueError(f"sampling must be one of {', '.join(get_args(SamplingKind))}, got {self.kind!r}")
        if not (0 < self.draws < math.inf):
            raise ValueError(f"draws must be positive, got {self.draws!r}")
        if self.kind in ("replacement", "without") and self.draws != int(self.draws):
            raise ValueError(f"draws must be a whole number for sampling {self.kind!r}, got {self.draws!r}")

    def sampling_rate(self, records: int) -> float:
        """p, the probability that one given record of `records` is drawn in a round.

        Paper: Theorem 7 has 1 - (1 - 1/n)^(tau - 1). Departs: the final gradient draws too, so the exponent
        is tau; with tau - 1 the bound is violated (tests/privacy/test_subsampled.py enumerates a case).

        Args:
            records: How many the client has.

        Returns:
            A probability.

        Raises:
            ValueError: More are drawn than there are.
        """
        if self.kind == "all":
            return 1.0
        if self.kind == "replacement":
            return -math.expm1(self.draws * math.log1p(-1.0 / records)) if records > 1 else 1.0
        if self.draws > records:
            raise ValueError(f"draws must be at most the {records} records of a client, got {self.draws!r}")
        return self.draws / records


@dataclass(frozen=True)
class SubsampledMechanism:
    """What one round costs a record: a shift if the record is drawn.

    Args:
        shift: How far apart the two worlds are if the record is drawn.
        sampling_rate: Probability that it is drawn.
        adjacency: How neighboring data sets differ.

    Guarantee: dominates the round for every pair of adjacent data sets and every history, so that rounds compose
    adaptively (Zhu, Dong and Wang 2022, Theorem 10); tests/privacy/test_subsampled.py enumerates tiny cases.
    """

    shift: Shift
    sampling_rate: float = 1.0
    adjacency: Adjacency = "replace"

    def __post_init__(self) -> None:
        check_probability("sampling_rate", self.sampling_rate)
        check_adjacency(self.adjacency)

    @property
    def largest_loss(self) -> float:
        """The largest loss of the round (pure DP), amplified by sampling; infinite for Gaussian noise."""
        return amplified(self.shift.largest_loss, self.sampling_rate)

    def profile(self, epsilon: float) -> float:
        """delta of one round at epsilon >= 0, in closed form; the same for both adjacencies.

        Paper: Theorem 7, with its sum over j replaced by the truth: being drawn twice moves one clipped
        vector no further.
        Rests on: Balle, Barthe and Gaboardi 2018, Theorem 2 (advanced joint convexity).

        Args:
            epsilon: Not negative.

        Returns:
            delta.

        Raises:
            ValueError: epsilon is negative.
        """
        if epsilon < 0:
            raise ValueError(f"epsilon must not be negative, got {epsilon!r}")
        return self.sampling_rate * self.shift.profile(unamplified(epsilon, self.sampling_rate))

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon of one round at delta, in closed form up to a root in one unknown.

        Args:
            delta: delta of the guarantee, in [0, 1).

        Returns:
            epsilon; infinite for Gaussian noise at delta 0.
        """
        if self.sampling_rate * self.shift.profile(0.0) <= delta:
            return 0.0
        if delta == 0.0:
            return self.largest_loss
        reach = min(self.shift.loss_exceeded(delta / self.sampling_rate), self.shift.largest_loss)
        root = optimize.brentq(
            lambda before: self.sampling_rate * self.shift.profile(before) - delta,
            0.0,
            reach,
            xtol=1e-13,
            rtol=1e-13,
        )
        return amplified(float(root), self.sampling_rate)

    def masses(self, edges: Floats) -> tuple[Masses, ...]:
        """For each direction to be charged, the probability of the loss in (edges[i], edges[i+1]] under its pair.

        `edges` must be symmetric about an edge at zero; one direction for replace-one, remove and add
        otherwise.

        Args:
            edges: Values of the privacy loss, rising.

        Returns:
            Pairs of arrays of probabilities, one pair per direction.
        """
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            before = unamplified_array(edges, self.sampling_rate)
        drawn, absent = self.shift.masses(before)
        mixed = (1.0 - self.sampling_rate) * absent + self.sampling_rate * drawn
        if self.adjacency == "add-remove":
            return (mixed, absent), (absent[::-1].copy(), mixed[::-1].copy())
        half = (len(edges) - 1) // 2
        upper, lower = mixed.copy(), absent.copy()
        upper[:half], lower[:half] = absent[half:][::-1], mixed[half:][::-1]
        return ((upper, lower),)


def amplified(epsilon: float, sampling_rate: float) -> float:
    """log(1 + p(e^epsilon - 1)), without overflow: what a loss paid only with probability p is worth."""
    if math.isinf(epsilon) or sampling_rate == 1.0:
        return epsilon
    if epsilon > LARGEST_EXPONENT:
        return epsilon + math.log(sampling_rate)
    return math.log1p(sampling_rate * math.expm1(epsilon))


def unamplified(epsilon: float, sampling_rate: float) -> float:
    """The inverse of `amplified` for epsilon >= 0."""
    if sampling_rate == 1.0:
        return epsilon
    if epsilon - math.log(sampling_rate) > LARGEST_EXPONENT:
        return epsilon - math.log(sampling_rate)
    return math.log1p(math.expm1(epsilon) / sampling_rate)


def unamplified_array(loss: Floats, sampling_rate: float) -> Floats:
    """`unamplified` for many losses; minus infinity at and below log(1 - p), the least loss there is."""
    if sampling_rate == 1.0:
        return loss
    inside = np.log1p(np.maximum(np.expm1(loss) / sampling_rate, -1.0))
    return np.where(loss - math.log(sampling_rate) > LARGEST_EXPONENT, loss - math.log(sampling_rate), inside)


def check_count(name: str, value: int, least: int = 1) -> None:
    """Raise ValueError when a count is not an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")


@dataclass(frozen=True)
class Client:
    """One client: the law of the noise that its decoded vector carries, its records, its aggregation weight.

    Args:
        law: the noise that its decoded vector carries.
        records: how many records it holds.
        weight: its weight in the aggregate.
        draws: records that it draws in a round, where they differ from the mechanism's sampling.
        clip: its own clip, in the mechanism's norm; None: the mechanism's.
        lattice: what its codec quantizes on; None: unknown, so the worst is charged.
        searched: whether its codec may take the search coder, whose arithmetic costs more. False only where it never
            does: `Codec(..., coder="layered")`, noise that is no codec's. Other laws and lattices never do either.
    """

    law: Law
    records: int
    weight: float = 1.0
    draws: float | None = None
    clip: Clip | None = None
    lattice: Lattice | None = None
    searched: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.law, tuple(PRIVATE_LAWS.values())):
            known = " or ".join(law.__name__ for law in PRIVATE_LAWS.values())
            raise ValueError(f"no differential privacy is known for the law {self.law!r}: use {known}")
        check_count("records", self.records)
        if not (0 < self.weight < math.inf):
            raise ValueError(f"weight must be positive, got {self.weight!r}")

    @property
    def may_search(self) -> bool:
        """Whether the search coder's arithmetic is charged: wherever `Codec.searches` may be true."""
        line = self.lattice is None or (self.lattice.dimension == 1 and self.lattice.search is Search.CUBIC)
        return self.searched and isinstance(self.law, Gaussian) and line

    @property
    def noise(self) -> float:
        """The standard deviation (Gaussian) or scale (Laplace) of this client's noise in the weighted sum."""
        return self.weight * self.law.scale


@dataclass(frozen=True)
class Mechanism:
    """What a run releases: in each of `rounds` rounds, the weighted sum of the clients' decoded vectors.

    Every client is in every round; for sampled cohorts see `CohortMechanism`. Rounds that differ (fewer replies,
    other noise) are other mechanisms; an `Accountant` composes them.

    Args:
        clients: Every client with its noise, records and weight.
        clip: The clip of an update or of an example's gradient.
        sampling: How a client samples its records in a round.
        rounds: Rounds of the run.
        colluders: Other clients that pool what they know.
        adjacency: How neighboring data sets differ.
        clipped: `update`: the whole update of a client, so that a record moves it by up to twice the bound.
            `example`: each example's gradient, summed over a Poisson batch and divided by the expected batch, so
            that a record moves it by the bound over that batch (twice that under replace).
        coordinates: Length of an update. Needed for Laplace noise under l2 clipping, and to charge the mechanism's
            rounding; without it figures are those of the ideal law.
        absent: Clients that sent nothing in these rounds: their noise is missing.
        nodes: Who sent each vector, where a node may send two or takes part in some rounds only. By default client j
            is the j-th of every mechanism.
        unit: What is protected: a `record`, or a `client`, whose data are replaced, or (add-remove) whose updates
            are zero while its noise stays.
        node_rounds: Rows (node, place, rounds) for rounds that differ only in who took part; `followed_by` makes
            them.

    Raises:
        ValueError: A value is out of range, or clients use several kinds of noise or of norm.

    Trust: the server is trusted; outsiders and other clients are not.
    """

    clients: tuple[Client, ...]
    clip: Clip
    sampling: Sampling
    rounds: int = 1
    colluders: int = 0
    adjacency: Adjacency = "replace"
    clipped: ClippedUnit = "update"
    coordinates: int | None = None
    absent: frozenset[int] = frozenset()
    nodes: tuple[int, ...] | None = None
    unit: Unit = "record"
    node_rounds: tuple[tuple[int, int, int], ...] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not self.clients:
            raise ValueError("a release needs at least one client")
        if len({type(client.law) for client in self.clients}) > 1:
            raise ValueError("all clients of a release must use one family of noise, got several")
        if any(client.clip is not None and client.clip.norm != self.clip.norm for client in self.clients):
            raise ValueError(f"all clients of a release must clip in one norm, {self.clip.norm}, got another")
        check_count("rounds", self.rounds)
        check_count("colluders", self.colluders, 0)
        if self.colluders >= self.enrolled:
            raise ValueError(f"colluders must be fewer than the {self.enrolled} clients, got {self.colluders}")
        check_adjacency(self.adjacency)
        if self.clipped not in get_args(ClippedUnit):
            raise ValueError(f"clipped must be one of {', '.join(get_args(ClippedUnit))}, got {self.clipped!r}")
        if self.clipped == "example" and self.sampling.kind not in ("poisson", "all"):
            raise ValueError(f"per-example clipping is accounted for under poisson draws, got {self.sampling.kind!r}")
        if self.coordinates is not None:
            check_count("coordinates", self.coordinates)
        if not self.absent <= set(range(len(self.clients))):
            raise ValueError(f"absent must name clients 0 to {len(self.clients) - 1}, got {sorted(self.absent)}")
        if self.nodes is not None and len(self.nodes) != len(self.clients):
            raise ValueError(f"nodes must name one of each of {len(self.clients)} vectors, got {len(self.nodes)}")
        self._check_unit()
        for place in {id(client): place for place, client in enumerate(self.clients)}.values():
            self.sampling_rate(place)
        if self.node_rounds is not None:
            self._check_node_rounds(self.node_rounds)

    def _check_unit(self) -> None:
        if self.unit not in get_args(Unit):
            raise ValueError(f"unit must be one of {', '.join(get_args(Unit))}, got {self.unit!r}")
        if self.unit == "client" and self.clipped != "update":
            raise ValueError(f"unit 'client' needs clipped='update', got {self.clipped!r}")
        if self.unit == "client" and self.sampling.kind != "all":
            raise ValueError(
                f"unit 'client' needs sampling 'all' (drawn records do not hide a client), got {self.sampling.kind!r}"
            )

    def _check_node_rounds(self, rows: tuple[tuple[int, int, int], ...]) -> None:
        if type(self) is not Mechanism:
            raise ValueError("node_rounds is for plain releases, whose rounds may differ in who took part")
        seats = Counter(self.seats.values())
        taken: Counter[int] = Counter()
        present: Counter[int] = Counter()
        for node, seat, rounds in rows:
            check_count("rounds of a node", rounds)
            taken[seat] += rounds
            present[node] += rounds
        whole = {seat: many * self.rounds for seat, many in seats.items()}
        if taken != whole or max(present.values(), default=0) > self.rounds:
            raise ValueError(f"node_rounds must fill every place in each of {self.rounds} rounds, and no node two")

    @classmethod
    def uniform(
        cls, clients: int, law: Law, clip: Clip, sampling: Sampling, records: int, *, rounds: int = 1,
        colluders: int = 0, adjacency: Adjacency = "replace", clipped: ClippedUnit = "update",
        coordinates: int | None = None, unit: Unit = "record",
    ) -> Mechanism:  # fmt: skip
        """A release of `clients` equal clients with `records` records each and weights 1/K.

        Args:
            clients: How many there are.
            law: The noise of each client's decoded vector.
            clip: The clip of an update or of an example's gradient.
            sampling: How a client samples its records in a round.
            records: Records of each client.
            rounds: Rounds of the run.
            colluders: Other clients that pool what they know.
            adjacency: How neighboring data sets differ.
            clipped: `update` or `example`.
            coordinates: Length of an update; without it the mechanism's rounding is not charged.
            unit: `record` or `client`.

        Returns:
            The mechanism.
        """
        check_count("clients", clients)
        everyone = (Client(law, records, 1.0 / clients),) * clients
        return cls(everyone, clip, sampling, rounds, colluders, adjacency, clipped, coordinates, unit=unit)

    @property
    def law_is_gaussian(self) -> bool:
        """Whether the noise is Gaussian (else Laplace)."""
        return isinstance(self.clients[0].law, Gaussian)

    @property
    def l2_clipped_laplace(self) -> bool:
        """Whether Laplace noise meets an l2 bound: then no dimension-free pure guarantee exists."""
        return isinstance(self.clients[0].law, Laplace) and self.clip.norm == "l2"

    @property
    def enrolled(self) -> int:
        """How many clients there are."""
        return len(self.clients)

    @property
    def exceeded(self) -> float:
        """The probability that a round is not the one that is charged, as a cohort over its cap is not."""
        return 0.0

    def sent(self) -> Counter[tuple[Law, Lattice | None]]:
        """How many noisy vectors a round has of each law on each lattice.

        Returns:
            A count per law and lattice.
        """
        found: Counter[tuple[Law, Lattice | None]] = Counter()
        for client, times in self._present:
            found[client.law, client.lattice] += times
        return found

    @cached_property
    def _present(self) -> list[tuple[Client, int]]:
        """The clients that sent something, and how often each object stands in the list: a million may be one."""
        places = (
            range(len(self.clients))
            if not self.absent
            else (j for j in range(len(self.clients)) if j not in self.absent)
        )
        objects = {id(client): client for client in self.clients}
        counted = Counter(id(self.clients[j]) for j in places)
        return [(objects[each], times) for each, times in counted.items()]

    def searched(self) -> Counter[Law]:
        """How many of a round's vectors of each law may be of the search coder.

        Returns:
            A count per law.
        """
        found: Counter[Law] = Counter()
        for client, times in self._present:
            if client.may_search:
                found[client.law] += times
        return found

    def layered(self) -> Mechanism:
        """The same release by clients whose codecs never take the search coder.

        Returns:
            A new mechanism.
        """
        made = {id(client): client for client in self.clients}
        made = {key: replace(client, searched=False) for key, client in made.items()}
        return replace(self, clients=tuple(made[id(client)] for client in self.clients))

    @property
    def equal_shares(self) -> int:
        """How many equal Gaussian noises of a round's sum hide a client, besides one of the server; 0 if not known."""
        return 0

    def limited(self, client: int) -> tuple[SubsampledMechanism, int] | None:
        """A charge and how often at most it is made in the whole run, where that is enforced.

        Args:
            client: The place of the client.

        Returns:
            A mechanism of one round and a number of rounds; None where nothing is enforced.
        """
        return None

    @property
    def events(self) -> int:
        """How many times `charge` is made: once a round."""
        return self.rounds

    @property
    def noisings(self) -> int:
        """How often noise is drawn that `sent` tells of: once a round."""
        return self.rounds

    def events_of(self, client: int) -> int:
        """How many times `charge` is made of this client's records.

        Args:
            client: The place of the client.

        Returns:
            A number of rounds, or of steps.
        """
        return self.events

    def once(self) -> Mechanism:
        """What `charge` is made for `events` times: one round.

        Returns:
            A mechanism of one round.
        """
        return self.over(1)

    @property
    def largest_round(self) -> float:
        """How much of `charge`'s shift one round alone can show."""
        return 1.0

    @property
    def confines_records(self) -> bool:
        """Whether the account takes a record to matter in some rounds only, and to leave no trace in the others."""
        return self.sampling.kind != "all"

    def history(self, client: int) -> Hashable:
        """What a client's guarantee depends on besides the other clients: equal histories are charged alike.

        Args:
            client: The place of the client.

        Returns:
            What compares equal for clients that are charged alike.
        """
        return self.clients[client], client in self.absent

    def sampling_of(self, client: int) -> Sampling:
        """How this client draws its records, with its own draws a round where it has them.

        Args:
            client: The place of the client.

        Returns:
            The sampling.
        """
        draws = self.clients[client].draws
        return self.sampling if draws is None else replace(self.sampling, draws=draws)

    def clip_of(self, client: int) -> Clip:
        """The clip of this client: its own, or the release's.

        Args:
            client: The place of the client.

        Returns:
            The clip.
        """
        return self.clients[client].clip or self.clip

    def sampling_rate(self, client: int) -> float:
        """p, the probability that one given record of this client is drawn in a round.

        Args:
            client: The place of the client.

        Returns:
            A probability.
        """
        return self.sampling_of(client).sampling_rate(self.clients[client].records)

    def distance(self, client: int) -> float:
        """How far a drawn record, or the client, moves the client's own vector, in the clip's norm: its `sensitivity`.

        Departs: the paper multiplies by tau'; one clipped vector is sent, so the factor is 1
        (`docs/proofs/mechanisms-and-sampling.md`).

        Args:
            client: The place of the client.

        Returns:
            A distance in the clip's norm.
        """
        if self.unit == "client":
            return (2.0 if self.adjacency == "replace" else 1.0) * self.clip_of(client).bound
        every = self.sampling.kind == "all"
        batch = self.clients[client].records if every else self.sampling_of(client).draws
        return self.clip_of(client).sensitivity(self.adjacency, self.clipped, batch=batch)

    def noise_against(self, client: int, colluders: int | None = None) -> float:
        """The standard deviation of the noise that hides `client`, less that of the loudest `colluders`.

        The noise of the others is shared out among the vectors of one node: a sum of two can be made from the two
        apart, each with half of that noise, so charging each reply by itself charges the round.

        Args:
            client: The place of the client.
            colluders: Other clients that pool what they know; by default those of the mechanism.

        Returns:
            A standard deviation of the weighted sum's noise.
        """
        sent = self.sent_by_node().get(self.node(client), ())
        if len(sent) == 1:
            whole = self._blended_noise(client, self.colluders if colluders is None else colluders)
            if whole is not None:
                return whole
        own, *others = (
            self.clients[j].noise for j in smoothing_clients(self.clients, self.hidden_by(client, colluders))
        )
        return math.hypot(own, *(noise / math.sqrt(max(1, len(sent))) for noise in others))

    def _blended_noise(self, client: int, taken: int) -> float | None:
        """The noise of all whose noise hides `client`, where they blend: one number for all but the loudest `taken`."""
        order, node = self._quietest_first, self.node(client)
        spared = node if order[node] >= len(order) - taken else None
        if (taken, spared) not in self._smoothed:
            hidden = self.hidden_by(client, taken)
            smooth = len(smoothing_clients(self.clients, hidden)) == len(hidden)
            squares = (self.clients[j].noise ** 2 for j in hidden)
            self._smoothed[taken, spared] = math.sqrt(math.fsum(squares)) if smooth else None
        return self._smoothed[taken, spared]

    @cached_property
    def _smoothed(self) -> dict[tuple[int, int | None], float | None]:
        return {}

    @cached_property
    def _quietest_first(self) -> Mapping[int, int]:
        """The nodes that sent something and their places, from the quietest to the loudest."""
        ranked = sorted(self.sent_by_node().items(), key=lambda each: self._loudness(each[1]))
        return {node: place for place, (node, _) in enumerate(ranked)}

    def hidden_by(self, client: int, colluders: int | None = None) -> tuple[int, ...]:
        """The clients whose noise hides `client`: itself and those present, less the loudest `colluders`.

        Args:
            client: The place of the client.
            colluders: Other clients that pool what they know; by default those of the mechanism.

        Returns:
            Places of clients, this one first.
        """
        taken, sent = self.colluders if colluders is None else colluders, self.sent_by_node()
        others = [node for node in self._quietest_first if node != self.node(client)]
        return (client, *(j for node in others[: max(0, len(others) - taken)] for j in sent[node]))

    def _loudness(self, sent: Sequence[int]) -> tuple[float, list[tuple[float, float]]]:
        """The noise that a node sent, and its parts: nodes that sent equal vectors and no others compare equal."""
        parts = sorted((self.clients[j].weight, self.clients[j].law.scale) for j in sent)
        return math.hypot(*(weight * scale for weight, scale in parts)), parts

    def node(self, client: int) -> int:
        """Who sent this client's vector.

        Args:
            client: The place of its vector.

        Returns:
            The node.
        """
        return client if self.nodes is None else self.nodes[client]

    def sent_by_node(self) -> Mapping[int, Sequence[int]]:
        """The places of the vectors that each node sent; nodes that sent none are left out.

        Returns:
            Places of vectors by node.
        """
        return self._sent_by_node

    @cached_property
    def _sent_by_node(self) -> Mapping[int, Sequence[int]]:
        sent: dict[int, list[int]] = {}
        for j in range(len(self.clients)):
            if j not in self.absent:
                sent.setdefault(self.node(j), []).append(j)
        return sent

    @cached_property
    def seats(self) -> Mapping[int, int]:
        """For each node of a round, the first place of the first node that sent equal vectors: both pay the same."""
        first: dict[Hashable, int] = {}
        return {
            node: first.setdefault(self._kind(sent), sent[0]) for node, sent in self.sent_by_node().items()
        }  # fmt: skip

    def _kind(self, sent: Sequence[int]) -> Hashable:
        return frozenset(Counter(self.history(j) for j in sent).items())

    def taken(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """For each node that took part, the places (`seats`) that it took, and how often it is charged for each.

        Returns:
            Pairs of a place and a number of charges, by node.
        """
        if self.node_rounds is None:
            return {node: ((seat, self.events_of(seat)),) for node, seat in self.seats.items()}
        found: dict[int, tuple[tuple[int, int], ...]] = {}
        for node, seat, rounds in self.node_rounds:
            found[node] = (*found.get(node, ()), (seat, rounds))
        return found

    @cached_property
    def shape(self) -> tuple[Hashable, ...]:
        """A round without the names of those who took part: in rounds of one shape equal vectors cost the same.

        Every figure of a round is computed from what this holds: how many nodes sent which vectors, which clients were
        absent, and the other fields. The first entry is the hash of the rest, so that unlike shapes differ at once.
        """
        places = self.sent_by_node().values()
        named = ("clients", "rounds", "absent", "nodes", "node_rounds")
        made = (
            frozenset(Counter(map(self._kind, places)).items()),
            frozenset(Counter(self.clients[j] for j in self.absent).items()),
            self.nodes is None,
            *(getattr(self, each.name) for each in fields(self) if each.name not in named),
        )
        return hash(made), *made

    def mu(self, client: int, colluders: int | None = None) -> float:
        """The shift of the weighted sum over the standard deviation of its noise, as one Gaussian mechanism.

        mu = 2 gamma w_k / sqrt(sum over j not colluding of w_j^2 sigma_j^2) for a clipped update.
        Adjacency: as recorded. Sampling: if drawn. Trust: trusted server.
        Rests on: docs/proofs/mechanisms-and-sampling.md, "One dimension is enough".

        Args:
            client: The place of the client.
            colluders: Other clients that pool what they know; by default those of the mechanism.

        Returns:
            mu of one Gaussian mechanism; 0 for a client that sent nothing.

        Raises:
            ValueError: The noise is not Gaussian.
        """
        if not self.law_is_gaussian:
            raise ValueError("mu is defined for Gaussian noise; Laplace noise is charged by its own gap")
        if client in self.absent:
            return 0.0
        return self.clients[client].weight * self.distance(client) / self.noise_against(client, colluders)

    def charge(self, client: int, colluders: int | None = None) -> SubsampledMechanism:
        """What one of these rounds costs a record of `client`.

        Gaussian: `mu` as above. Laplace under l1 clipping: the client's own noise alone, shift over scale, since a sum
        of Laplace variables is not Laplace; what the server does afterwards is post-processing.

        Args:
            client: The place of the client.
            colluders: Other clients that pool what they know; by default those of the mechanism.

        Returns:
            A mechanism of one round, to be composed.

        Raises:
            ValueError: Laplace noise under l2 clipping, which is accounted for as a whole; or a law without a shift.
        """
        if self.law_is_gaussian:
            return SubsampledMechanism(
                GaussianShift(self.mu(client, colluders)), self.sampling_rate(client), self.adjacency
            )
        if not isinstance(self.clients[client].law, Laplace):
            raise ValueError(f"no shift is known for the law {self.clients[client].law!r}")
        if self.clip.norm == "l2":
            raise ValueError(
                "Laplace noise under l2 clipping has no shift in one dimension: see cepam.privacy.mechanisms.laplace"
            )
        gap = 0.0 if client in self.absent else self.distance(client) / self.clients[client].law.scale
        return SubsampledMechanism(LaplaceShift(gap), self.sampling_rate(client), self.adjacency)

    @cached_property
    def round_charges(self) -> Mapping[int, tuple[SubsampledMechanism, ...]]:
        """What one round costs a record of a node that sent what is at each place of `seats`."""
        return _round_charges(self.once())

    @property
    def foreseeable(self) -> bool:
        """Whether what more rounds cost is known: they are alike, whoever replied."""
        return self.node_rounds is None

    def followed_by(self, later: Mechanism) -> Mechanism | None:
        """The release that stands for this one and `later` together, where their rounds are alike; else None.

        Rounds are alike where they have one `shape`: then they differ in who took part and in nothing else, and each
        node keeps the number of rounds in which it sent each kind of vector. No client's figure changes by it.
        Guarantee: tests/privacy/test_merging.py compares with ledgers that list every round.

        Args:
            later: The mechanism that was released next.

        Returns:
            One mechanism for both, or None.
        """
        if type(self) is not type(later):
            return None
        if type(self) is Mechanism and self.shape != later.shape:
            return None
        others = (each.name for each in fields(self) if each.name != "rounds")
        if self.node_rounds is None and all(getattr(self, name) == getattr(later, name) for name in others):
            return self.over(self.rounds + later.rounds)
        return self._merged(later) if type(self) is Mechanism else None

    def _merged(self, later: Mechanism) -> Mechanism:
        """Both together, of one shape: the places are this release's, and rounds are counted for each node."""
        mine, theirs = self.sent_by_node(), later.sent_by_node()
        places = {self._kind(mine[node]): seat for node, seat in self.seats.items()}
        same = {seat: places[later._kind(theirs[node])] for node, seat in later.seats.items()}
        count: Counter[tuple[int, int]] = Counter()
        for mechanism, seats in ((self, None), (later, same)):
            for node, parts in mechanism.taken().items():
                for seat, rounds in parts:
                    count[node, seat if seats is None else seats[seat]] += rounds
        rows = tuple(sorted((node, seat, rounds) for (node, seat), rounds in count.items()))
        return replace(self, rounds=self.rounds + later.rounds, node_rounds=rows)

    def without(self, absent: Iterable[int]) -> Mechanism:
        """The same rounds in which the named clients sent nothing.

        Args:
            absent: Places of clients.

        Returns:
            A new mechanism, without their noise.
        """
        return self if self.absent == (missing := frozenset(absent)) else replace(self, absent=missing)

    def alone(self, client: int) -> Mechanism:
        """What the same rounds would release of one client by itself.

        Args:
            client: The place of the client.

        Returns:
            A new mechanism of one client, without colluders.
        """
        return replace(self, clients=(self.clients[client],), colluders=0, absent=frozenset(), node_rounds=None)

    def over(self, rounds: int) -> Mechanism:
        """The same release over another number of rounds, with `nodes` in each of them.

        Args:
            rounds: Rounds of the run.

        Returns:
            A new mechanism.
        """
        if rounds == self.rounds and self.node_rounds is None:
            return self
        return replace(self, rounds=rounds, node_rounds=None)

    def with_noise(self, scales: Sequence[float]) -> Mechanism:
        """The same release with other noise scales, one for each client.

        Args:
            scales: A noise scale per client: a standard deviation of Gaussian noise, or b of Laplace noise.

        Returns:
            A new mechanism.

        Raises:
            ValueError: There are more or fewer scales than clients.
        """
        if len(scales) != len(self.clients):
            raise ValueError(f"scales must give one value for each of {len(self.clients)} clients, got {len(scales)}")
        family = type(self.clients[0].law)
        made = tuple(replace(c, law=family(s)) for c, s in zip(self.clients, scales))  # type: ignore[call-arg]
        return replace(self, clients=made)


@lru_cache(maxsize=256)
def _round_charges(mechanism: Mechanism) -> Mapping[int, tuple[SubsampledMechanism, ...]]:
    sent = mechanism.sent_by_node()
    return {
        seat: tuple(mechanism.charge(j) for j in sent[mechanism.node(seat)]) for seat in set(mechanism.seats.values())
    }

"""A client's privacy policy: what it asks of every offer, and what it has already answered."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from cepam.distributions.laws import check_scale
from cepam.secure_aggregation.fields import ByteReader, ByteWriter
from cepam.secure_aggregation.refusal import SecAggRefused
from cepam.secure_aggregation.roster import Roster
from cepam.secure_aggregation.settings import SecAggSettings

MOST_CHARGES = 1 << 16
MOST_COUNT = 2**63 - 1
LEAST_DEGREE = 2


@dataclass(frozen=True)
class ClientPolicy:
    """The least that a node asks for. It comes from the node's own configuration, never from the server.

    `noise`: least deviation of its own noise. `clip`: largest bound. `rounds`: most answers, over all runs together.
    `quorum`: fewest clients in a sum. `honest`: fewest honest clients in any sum that a lying server can open, with
    `colluders` of them colluding, or as many as the server says if that is more. `batch`: where examples are clipped,
    the least number that this node's training divides their sum by; 0 refuses such offers. `records`: the most examples
    whose gradients are in one update, needed with `batch`: the node bounds the whole update by `records` times the clip
    over the batch, whatever its training computed. `chance`: the largest share of records that a round looks at. The
    node's own ledger believes `clip`, `batch` and `chance` here, not the offer's.
    `sparse` allows a sparse graph, on which `quorum` and `honest` hold for a server that tells the truth only.
    `degree`, needed with it: the fewest neighbours that share masks with this node. The node's own accountant charges
    such a round for the neighbours that protect it from a server that lies. `cohort`: the identities that may take
    part; without it, nodes that the server invents count as colluders. Every field has one type: text is no number.
    """

    noise: float
    clip: float
    rounds: int
    quorum: int = 3
    honest: int = 2
    colluders: int = 0
    batch: float = 0.0
    chance: float = 1.0
    sparse: bool = False
    cohort: frozenset[bytes] | None = None
    records: int = 0
    degree: int = 0

    def __post_init__(self) -> None:
        check_scale("noise", self.noise)
        check_scale("clip", self.clip)
        least_of = {"rounds": 1, "quorum": 3, "honest": 1, "colluders": 0, "records": 0, "degree": 0}
        for name, least in least_of.items():
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= MOST_COUNT:
                raise ValueError(f"{name} must be an integer from {least} to {MOST_COUNT}, got {value!r}")
        for name in ("batch", "chance"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or value > MOST_COUNT:
                raise ValueError(f"{name} must be a number up to {MOST_COUNT}, got {value!r}")
        if type(self.sparse) is not bool:
            raise ValueError(f"sparse must be true or false, got {self.sparse!r}")
        if self.sparse != (self.degree >= LEAST_DEGREE):
            raise ValueError(
                f"degree must be at least {LEAST_DEGREE} with sparse = true, the fewest neighbours of this node "
                f"(`sparse_graph` finds a safe number), and 0 without; got {self.degree!r} with sparse {self.sparse!r}"
            )
        known = self.cohort
        if known is not None and not (isinstance(known, frozenset) and all(isinstance(one, bytes) for one in known)):
            raise ValueError(f"cohort must be a frozenset of public keys as bytes, or None, got {type(known).__name__}")
        if not 0.0 <= self.batch < math.inf:
            raise ValueError(f"batch must be finite and not negative, got {self.batch!r}")
        if self.batch and not self.records:
            raise ValueError(
                f"records must be given with batch {self.batch!r}: the most examples whose gradients are in one update "
                "(all records of this node, or fewer where a round draws a few of them)"
            )
        if not 0.0 < self.chance <= 1.0:
            raise ValueError(f"chance must lie in (0, 1], got {self.chance!r}")

    def check(self, offer: SecAggSettings, clients: int) -> None:
        """Nothing; raises `SecAggRefused` for an offer below this floor."""
        for name, fits in (
            ("noise", offer.noise >= self.noise),
            ("clip", offer.clip <= self.clip),
            ("quorum", offer.quorum >= self.quorum),
            ("honest", offer.honest(clients, self.colluders) >= self.honest),
            ("batch", not offer.batch or offer.batch >= self.batch > 0.0),
            ("chance", offer.chance <= self.chance),
            ("sparse", self.sparse or not offer.degree),
            ("degree", not offer.degree or offer.degree >= self.degree),
        ):
            if not fits:
                raise SecAggRefused("terms", f"the offer is below this node's {name}")

    def longest(self, offer: SecAggSettings) -> float:
        """The largest l2 norm of a whole update in a round of this offer, which the node itself enforces."""
        return offer.clip * self.records / offer.batch if offer.batch else offer.clip

    def check_roster(self, roster: Roster) -> None:
        """Nothing; raises `SecAggRefused` where the roster holds an identity that is not pinned."""
        if self.cohort is not None and not all(peer.identity in self.cohort for peer in roster.peers):
            raise SecAggRefused("cohort", "the roster holds an identity that this node does not know")


@dataclass(frozen=True)
class RoundCharge:
    """Rounds of one kind that a node answered: its noise and clip, and the shares that hide it at the worst."""

    noise: float
    clip: float
    batch: float
    chance: float
    shares: int
    rounds: int = 1

    @classmethod
    def of(cls, offer: SecAggSettings, clients: int, policy: ClientPolicy) -> RoundCharge:
        """What an answer to this offer costs, against a server that lies about drop-outs and about the training.

        The node adds the noise and clips whole updates itself. How examples are drawn, clipped and divided its training
        code decides: there the node believes its own terms alone, whatever smaller draw or larger batch a server says.
        """
        clip, batch = (policy.clip, policy.batch) if offer.batch else (offer.clip, 0.0)
        return cls(offer.noise, clip, batch, policy.chance, offer.protecting(clients, policy.colluders))


@dataclass(frozen=True)
class AnsweredRounds:
    """All that a node has answered, in any run: it only grows."""

    charges: tuple[RoundCharge, ...] = ()

    @property
    def rounds(self) -> int:
        """How many rounds in all."""
        return sum(charge.rounds for charge in self.charges)

    def add(self, charge: RoundCharge) -> AnsweredRounds:
        """These and one more answer; equal ones are counted, not listed."""
        for place, known in enumerate(self.charges):
            if replace(known, rounds=1) == replace(charge, rounds=1):
                longer = replace(known, rounds=known.rounds + charge.rounds)
                return AnsweredRounds((*self.charges[:place], longer, *self.charges[place + 1 :]))
        return AnsweredRounds((*self.charges, charge))

    def write(self, writer: ByteWriter) -> None:
        """Nothing; the fields are appended."""
        writer.number(len(self.charges), 4)
        for charge in self.charges:
            for real in (charge.noise, charge.clip, charge.batch, charge.chance):
                writer.real(real)
            writer.number(charge.shares, 4).number(charge.rounds, 8)

    @classmethod
    def read(cls, reader: ByteReader) -> AnsweredRounds:
        """The rounds whose fields come next."""
        return cls(tuple(_read_charge(reader) for _ in range(reader.number(4, most=MOST_CHARGES))))


def _read_charge(reader: ByteReader) -> RoundCharge:
    noise, clip, batch, chance = (reader.real() for _ in range(4))
    return RoundCharge(noise, clip, batch, chance, reader.number(4), reader.number(8, 1))

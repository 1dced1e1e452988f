"""A client's privacy policy: what a node enforces in every mode, whatever a server asks.

A node refuses an offer whose clip is larger, or whose noise is smaller, than its policy allows
(`check_noise_and_clip`), in every mode; it never changes the clip itself.
`protocol/enforcement.py` applies it for a trusted server, `secure_aggregation/settings.py` for secure aggregation,
where training gets the clip that passed.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from dataclasses import dataclass
from functools import lru_cache

from cepam.distributions.laws import check_scale
from cepam.errors import CepamError
from cepam.policy.account import MOST_CHARGES, MOST_COUNT, AnsweredRounds, RoundCharge, Trust, check_count

LEAST_DEGREE = 2
_COUNTS = {
    "rounds": 1, "participants": 1, "quorum": 3, "honest": 1, "colluders": 0, "records": 0, "slices": 1,
    "degree": 0,
}  # fmt: skip
_REALS = ("noise_scale", "clipping_norm", "epsilon", "delta", "divisor", "record_sampling_rate")
REQUIRED = ("noise_scale", "clipping_norm", "rounds")


class PolicyRefused(CepamError):
    """An offer falls below the node's policy, or its limits are spent: nothing leaves."""


@dataclass(frozen=True)
class ClientPolicy:
    """The least that a node asks for, in every mode. It comes from the node's own operator, never from the server.

    Args:
        noise_scale: least scale of this node's own noise, the deviation of a Gaussian or b of a Laplace law.
        clipping_norm: largest clipping norm; with an adaptive clip, of clip and bit together.
        rounds: most answers, over all runs and modes together.
        epsilon: most epsilon for one record by the node's own account, over all runs and modes; None: no limit.
        delta: the delta of that epsilon.
        trust: `secure-aggregation` answers secure aggregation alone; `server` also a server that decodes each update.
        metrics: whether plain numbers may leave: replies to evaluations, and metrics beside an update. No epsilon
            covers them.
        participants: with a trusted server, how many nodes with equal noise and weight, this one included, the operator
            believes to be in every published sum. The default counts the node's own noise alone, and believes nobody.
        quorum: secure aggregation: fewest clients in a sum.
        honest: secure aggregation: fewest honest clients in any sum that a lying server can open.
        colluders: secure aggregation: how many of them collude at least, or as many as the server says if more.
        divisor: where examples are clipped one by one, the least number that training divides their sum by; 0 refuses
            such offers of secure aggregation, and charges whole updates elsewhere.
        records: needed with `divisor`: the most examples whose gradients are in one update. The node bounds the whole
            update by `records` times the clip over the divisor, whatever its training computed.
        record_sampling_rate: largest share of its records that a round looks at, each drawn in secret.
        slices: with correlated noise, into how many fixed slices training splits this node's records, where it looks at
            the slice that is told alone. The default counts every record in every message.
        sparse: allow a sparse graph, on which `quorum` and `honest` hold for a server that tells the truth only.
        degree: needed with it: the fewest neighbours that share masks with this node.
        cohort: the identities that may take part in secure aggregation; without it, nodes that the server invents count
            as colluders.

    Raises:
        ValueError: for a value of another type or out of range. Text is no number.

    The node's own account believes `clipping_norm`, `divisor`, `record_sampling_rate` and `slices` here, not the
    offer's, wherever training code decides.
    """

    noise_scale: float
    clipping_norm: float
    rounds: int
    epsilon: float | None = None
    delta: float = 1e-5
    trust: Trust = "secure-aggregation"
    metrics: bool = False
    participants: int = 1
    quorum: int = 3
    honest: int = 2
    colluders: int = 0
    divisor: float = 0.0
    records: int = 0
    record_sampling_rate: float = 1.0
    slices: int = 1
    sparse: bool = False
    degree: int = 0
    cohort: frozenset[bytes] | None = None

    def __post_init__(self) -> None:
        check_scale("noise_scale", self.noise_scale)
        check_scale("clipping_norm", self.clipping_norm)
        for name, least in _COUNTS.items():
            check_count(name, getattr(self, name), least)
        for name in _REALS:
            value = getattr(self, name)
            if value is None and name == "epsilon":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MOST_COUNT:
                raise ValueError(f"{name} must be a number up to {MOST_COUNT}, got {value!r}")
            object.__setattr__(self, name, float(value))
        for name in ("sparse", "metrics"):
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"{name} must be true or false, got {getattr(self, name)!r}")
        self._check_values()

    def _check_values(self) -> None:
        if self.trust not in ("server", "secure-aggregation"):
            raise ValueError(f"trust must be 'server' or 'secure-aggregation', got {self.trust!r}")
        if self.epsilon is not None and not self.epsilon > 0.0:
            raise ValueError(f"epsilon must be positive, got {self.epsilon!r}")
        if not 0.0 < self.delta < 1.0:
            raise ValueError(f"delta must lie in (0, 1), got {self.delta!r}")
        if self.sparse != (self.degree >= LEAST_DEGREE):
            raise ValueError(
                f"degree must be at least {LEAST_DEGREE} with sparse = true, the fewest neighbours of this node "
                f"(`sparse_graph` finds a safe number), and 0 without; got {self.degree!r} with sparse {self.sparse!r}"
            )
        known = self.cohort
        if known is not None and not (isinstance(known, frozenset) and all(isinstance(one, bytes) for one in known)):
            raise ValueError(f"cohort must be a frozenset of public keys as bytes, or None, got {type(known).__name__}")
        if self.divisor < 0.0:
            raise ValueError(f"divisor must be finite and not negative, got {self.divisor!r}")
        if self.divisor and not self.records:
            raise ValueError(
                f"records must be given with divisor {self.divisor!r}: the most examples whose gradients are in one "
                "update (all records of this node, or fewer where a round draws a few of them)"
            )
        if not 0.0 < self.record_sampling_rate <= 1.0:
            raise ValueError(f"record_sampling_rate must lie in (0, 1], got {self.record_sampling_rate!r}")

    def check_noise_and_clip(self, noise_scale: float, clipping_norm: float) -> None:
        """Check an offer's noise and clip, in any mode.

        Raises:
            PolicyRefused: the noise is below this node's floor, or the clip above its bound.

        Args:
            noise_scale: Noise scale of the offer.
            clipping_norm: Clipping norm of the offer.
        """
        if not noise_scale >= self.noise_scale:
            raise PolicyRefused(
                f"the offer is below this node's noise_scale: it has {noise_scale:.4g}, not {self.noise_scale:.4g}"
            )
        if not clipping_norm <= self.clipping_norm:
            raise PolicyRefused(
                f"the offer is above this node's clipping_norm: it has {clipping_norm:.4g}, "
                f"not {self.clipping_norm:.4g}"
            )

    def check_limits(self, answered: AnsweredRounds, charge: RoundCharge) -> AnsweredRounds:
        """Check that one more answer stays within the node's limits over all runs and modes.

        Args:
            answered: what the node has answered so far.
            charge: what the answer would cost.

        Returns:
            What will have been answered. Write it to the account before anything leaves.

        Raises:
            PolicyRefused: rounds or epsilon would exceed the limit.
        """
        after = answered.add(charge)
        if after.rounds > self.rounds:
            raise PolicyRefused(f"the {self.rounds} rounds that this node allows are spent")
        if len(after.charges) > MOST_CHARGES:
            raise PolicyRefused(f"the account is full: it holds {MOST_CHARGES} different kinds of rounds")
        if self.epsilon is not None:
            try:
                found = self.spent(after)
            except (ValueError, ArithmeticError) as unfit:
                raise PolicyRefused(f"no epsilon is known for this offer: {unfit}") from unfit
            if not found <= self.epsilon:
                raise PolicyRefused(
                    f"this answer would bring epsilon to {found:.4g} at delta {self.delta:g} by this node's own "
                    f"account, above its limit of {self.epsilon:.4g}"
                )
        return after

    def check_correlated_noise(self, charge: RoundCharge, messages: int) -> None:
        """Check that messages with correlated noise cost no more than as many rounds at the floors would.

        A message carries parts of earlier ones, so the floors on noise and clip alone do not bound it. Where the policy
        has an `epsilon`, that does.

        Args:
            charge: what all the messages cost.
            messages: how many there are.

        Raises:
            PolicyRefused: they cost more, and the policy limits no epsilon.
        """
        if self.epsilon is not None:
            return
        floors = _at_floors(self, "server", messages)
        # Shifts, not epsilons: weak floors have no finite epsilon, and the roundings of all messages are in one charge.
        most, found = _squared_shifts(floors) * self.record_sampling_rate**2, _squared_shifts(charge)
        if not found <= most * (1.0 + 1e-9):
            raise PolicyRefused(
                f"in {messages} messages with correlated noise a record counts {math.sqrt(found):.4g} standard "
                f"deviations of the noise, and in as many rounds at this node's floors {math.sqrt(most):.4g}: set "
                "epsilon in its policy to allow more"
            )

    def spent(self, answered: AnsweredRounds) -> float:
        """Return epsilon for one record at `delta` by the node's own account, which the limit `epsilon` bounds.

        It holds however a server chooses its offers by earlier answers (`AnsweredRounds.epsilon`). With
        `record_sampling_rate` below 1 it is by Rényi differential privacy of an order that follows from this policy.

        Args:
            answered: What the node has answered.

        Returns:
            epsilon, infinite where no finite bound is available.
        """
        return answered.epsilon(self.delta, _order(self), self.epsilon or 0.0)

    def largest_epsilon(self) -> dict[Trust, float]:
        """epsilon for one record at `delta` after all rounds that the floors allow, in each mode that is answered.

        Each figure supposes that all rounds were of that mode. The limit `epsilon`, where there is one, ends them
        before.

        Returns:
            epsilon by mode.
        """
        modes: tuple[Trust, ...] = (
            ("secure-aggregation", "server") if self.trust == "server" else ("secure-aggregation",)
        )
        return {trust: self.spent(AnsweredRounds((_at_floors(self, trust, self.rounds),))) for trust in modes}


def _squared_shifts(charge: RoundCharge) -> float:
    """The squares of how far a record moves the releases of a charge, in deviations of their noise, added up.

    As if a record were in every release: what drawing it in secret gains is left out.
    """
    charges = AnsweredRounds((charge,)).accountant().charges(0)
    return math.fsum(times * each.shift.size**2 for each, times in charges)


def _at_floors(policy: ClientPolicy, trust: Trust, rounds: int) -> RoundCharge:
    """Rounds of a mode with the least noise and the largest clip that the policy allows."""
    fewest = policy.participants if trust == "server" else 1 if policy.sparse else policy.honest
    return RoundCharge(
        trust, float(policy.noise_scale), float(policy.clipping_norm), 1, fewest, policy.divisor,
        policy.record_sampling_rate, rounds=rounds, releases=rounds,
    )  # fmt: skip


@lru_cache(maxsize=64)
def _order(policy: ClientPolicy) -> float | None:
    """The Rényi order that suits rounds at the policy's floors; None where records are not drawn."""
    from cepam.privacy.composition.filters import best_order

    if policy.record_sampling_rate == 1.0:
        return None
    once = AnsweredRounds((_at_floors(policy, policy.trust, 1),)).accountant().charges(0)
    return best_order(once, policy.delta, policy.rounds, policy.epsilon)


def read_policy(text: bytes) -> ClientPolicy:
    """The policy in a TOML file: one value for each field of `ClientPolicy`, but the cohort.

    Args:
        text: the file's content.

    Returns:
        The policy.

    Raises:
        ValueError: for a key that is not a field (a misspelt floor would be none), a missing one that is needed, or a
            value of another type or out of range.
    """
    try:
        read = tomllib.loads(text.decode())
    except RecursionError as deep:
        raise ValueError("the file is nested too deeply: it holds one value for each name") from deep
    known = {field.name for field in dataclasses.fields(ClientPolicy)} - {"cohort"}
    if "cohort" in read:
        raise ValueError("the cohort is a file of public keys of its own, which the node's configuration names")
    if odd := sorted(set(read) - known):
        raise ValueError(f"{odd[0]!r} is not a field of a client's policy: {', '.join(sorted(known))}")
    if missing := [name for name in REQUIRED if name not in read]:
        raise ValueError(f"{missing[0]!r} is missing: a client's policy needs {', '.join(REQUIRED)}")
    for name, value in read.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} must be finite, got {value!r}")
    return ClientPolicy(**read)

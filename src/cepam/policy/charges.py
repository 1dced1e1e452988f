"""What a node has answered in any mode, and the epsilon that follows from its own noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from cepam.privacy import Accountant

Trust = Literal["server", "secure-aggregation"]
MOST_CHARGES = 1 << 12
MOST_COUNT = 2**63 - 1
DELTA_SHARE = 0.97
"""What the rounding of the noise leaves of delta; both have shares of their own, which no answer can move."""
SLACK_SHARE = 2e-4
LARGEST_SLACK = 0.01
RECORDS = 1 << 20  # the accountant asks for a number of records; a record's probability alone matters


@dataclass(frozen=True)
class RoundCharge:
    """Rounds of one kind that a node answered.

    `noise_scale` and `clipping_norm` are the law's and the clip's. With `divisor` above zero the clip is that of each
    example, whose sum is divided so; a round looks at a record with probability `record_sampling_rate`. `shares` is how
    many nodes' noise hides this one, itself included. `coordinates` is the length of an update.
    `rounds` counts messages that left; `releases` what they cost: as many, or one for a whole stream of correlated
    noise, whose `noise_scale` then is the one of a single message that costs as much.
    """

    trust: Trust
    noise_scale: float
    clipping_norm: float
    coordinates: int
    shares: int = 1
    divisor: float = 0.0
    record_sampling_rate: float = 1.0
    law: Literal["gaussian", "laplace"] = "gaussian"
    norm_type: Literal["l2", "l1"] = "l2"
    rounds: int = 1
    releases: int = 1

    def __post_init__(self) -> None:
        _check_choice("trust", self.trust, get_args(Trust))
        _check_choice("law", self.law, ("gaussian", "laplace"))
        _check_choice("norm_type", self.norm_type, ("l2", "l1"))
        least = {"coordinates": 1, "shares": 1, "rounds": 1, "releases": 0}
        for name, at_least in least.items():
            check_count(name, getattr(self, name), at_least)
        for name in ("noise_scale", "clipping_norm", "divisor", "record_sampling_rate"):
            value = getattr(self, name)
            if type(value) is not float or not 0.0 <= value < math.inf or (not value and name != "divisor"):
                raise ValueError(f"{name} must be a positive finite number, got {value!r}")
        if self.record_sampling_rate > 1.0:
            raise ValueError(f"record_sampling_rate must lie in (0, 1], got {self.record_sampling_rate!r}")
        if self.divisor and (self.law != "gaussian" or self.norm_type != "l2"):
            raise ValueError("examples are clipped one by one with Gaussian noise and an l2 norm alone")

    def to_fields(self) -> dict[str, Any]:
        """The charge as plain values."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_fields(cls, read: object) -> RoundCharge:
        """The charge of these values; ValueError for anything else."""
        if not isinstance(read, Mapping) or set(read) != {field.name for field in fields(cls)}:
            raise ValueError("a charge has other fields than this version writes")
        return cls(**read)


@dataclass(frozen=True)
class AnsweredRounds:
    """All that a node has answered, in any run and any mode: it only grows."""

    charges: tuple[RoundCharge, ...] = ()

    @property
    def rounds(self) -> int:
        """How many rounds in all."""
        return sum(charge.rounds for charge in self.charges)

    def add(self, charge: RoundCharge) -> AnsweredRounds:
        """These and one more answer; equal ones are counted, not listed."""
        for place, known in enumerate(self.charges):
            if replace(known, rounds=1, releases=1) == replace(charge, rounds=1, releases=1):
                longer = replace(known, rounds=known.rounds + charge.rounds, releases=known.releases + charge.releases)
                return AnsweredRounds((*self.charges[:place], longer, *self.charges[place + 1 :]))
        return AnsweredRounds((*self.charges, charge))

    def accountant(self) -> Accountant:
        """What the node has answered, as the privacy accountant takes it; the node itself is its client 0.

        A charge of secure aggregation is against a server that lies about drop-outs. One for a trusted server is
        against everybody who does not hold the keys, whatever else is published of the decoded vectors.
        """
        from cepam.privacy import Accountant

        accountant = Accountant()
        for charge in self.charges:
            if charge.releases:
                accountant = accountant.add(_mechanism(charge))
        return accountant

    def epsilon(self, delta: float, order: float | None = None, limit: float = 0.0) -> float:
        """Return epsilon for one record by the node's own account, however offers depend on earlier answers.

        It is a privacy filter's (docs/proofs/node-policy.md): a limit on it holds although the server
        chooses noise, clip and law of each round by what the rounds before it released.

        Args:
            delta: the delta of that epsilon.
            order: the Rényi order, fixed before the first answer; None counts no record sampling, and is tighter
                without any.
            limit: the epsilon that the figure is compared with.

        Returns:
            epsilon; 0 where nothing was answered, infinite where the noise's rounding has no share of `delta` left.
        """
        from cepam.privacy.composition.filters import PrivacyFilter

        accountant = self.accountant()
        if not accountant.mechanisms:
            return 0.0
        ideal = PrivacyFilter(order).epsilon(accountant.charges(0), DELTA_SHARE * delta)
        slack = accountant.slack()
        if slack is None:
            return ideal
        found = max(ideal * (1.0 + SLACK_SHARE), slack.epsilon * (1.0 + 1.0 / SLACK_SHARE))
        fits = slack.epsilon <= LARGEST_SLACK and slack.excess(max(found, limit), delta) is None
        return found if fits else math.inf


def _mechanism(charge: RoundCharge) -> Any:
    from cepam.clip import CLIPS
    from cepam.distributions.laws import Gaussian, Laplace
    from cepam.privacy import Client, Mechanism, Sampling

    law = {"gaussian": Gaussian, "laplace": Laplace}[charge.law](charge.noise_scale)
    drawn = charge.record_sampling_rate * RECORDS
    # The accountant divides an example's bound by the expected draws; the update was divided by the divisor.
    bound = charge.clipping_norm * drawn / charge.divisor if charge.divisor else charge.clipping_norm
    return Mechanism(
        # Which coder a round had is not on record: the one whose arithmetic costs the most is charged.
        (Client(law, RECORDS, searched=charge.law == "gaussian"),) * charge.shares,
        CLIPS[charge.norm_type](bound),
        Sampling("poisson", drawn) if charge.record_sampling_rate < 1.0 else Sampling("all"),
        charge.releases,
        clipped="example" if charge.divisor else "update",
        coordinates=charge.coordinates,
        nodes=tuple(range(charge.shares)),
    )


def check_count(name: str, value: object, least: int, most: int = MOST_COUNT) -> None:
    """Raise ValueError for what is no integer within these bounds."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} must be an integer from {least} to {most}, got {value!r}")


def _check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")

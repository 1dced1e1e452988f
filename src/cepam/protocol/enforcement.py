"""A node's policy where the server is trusted: every offer is checked, every message charged before it leaves.

The server holds the keys and can take the noise away: against it the node's figure promises nothing. It is for
everybody else, and counts the node's own noise alone. So it holds whatever the server publishes of the decoded vectors,
each of them by itself included, and whatever it says of other nodes and of sampling (docs/proofs/node-policy.md).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from cepam.clip import L2
from cepam.distributions.laws import Gaussian, Laplace
from cepam.policy import (
    AccountStore,
    AccountUnusable,
    AnsweredRounds,
    ClientPolicy,
    FileAccount,
    PolicyRefused,
    RoundCharge,
)
from cepam.protocol.agreement import Declined
from cepam.protocol.settings import UplinkSettings

MOST_MESSAGES = 10_000
"""The most messages with correlated noise whose cost a node computes; the work grows with their number."""


@dataclass(frozen=True)
class EnforcedPolicy:
    """A policy and the account that it limits.

    Guarantee: no offer makes a node send below its floors or beyond its limits, over all runs and processes
    (tests/attacks/test_node_policy.py).
    """

    policy: ClientPolicy
    account: AccountStore

    @property
    def account_name(self) -> str:
        """What tells this account from another of the node."""
        place = (
            str(self.account.path.resolve()) if isinstance(self.account, FileAccount) else type(self.account).__name__
        )
        return hashlib.sha256(place.encode()).hexdigest()[:32]

    def check(self, settings: UplinkSettings, coordinates: int, begins: bool = True) -> None:
        """Check an offer before training for it.

        Args:
            settings: what the offer asks.
            coordinates: the length of an update.
            begins: with correlated noise: whether this account has not charged the run's messages yet; all of them are
                charged then.

        Raises:
            Declined: the offer is below the policy, or the limits are spent.
        """
        self._charged(settings, coordinates, begins, commit=False)

    def charge(self, settings: UplinkSettings, coordinates: int, begins: bool = True) -> None:
        """Charge one message, on disk, before it leaves; arguments and errors as `check`."""
        self._charged(settings, coordinates, begins, commit=True)

    def _charged(self, settings: UplinkSettings, coordinates: int, begins: bool, commit: bool) -> None:
        try:
            if self.policy.trust != "server":
                raise PolicyRefused("this node answers secure aggregation alone (trust in its policy)")
            # What is released has the norm of both: a loud bit would tell about the update's norm beyond any floor.
            self.policy.check_noise_and_clip(settings.law.scale, math.hypot(settings.clip.bound, settings.bit))
            charge = charge_of(self.policy, settings, coordinates, begins)
            with self.account.hold() as entry:
                after: AnsweredRounds = self.policy.check_limits(entry.answered, charge)
                if commit:
                    self.account.commit(replace(entry, answered=after))
        except (PolicyRefused, AccountUnusable, ValueError, ArithmeticError) as refused:
            raise Declined("policy", str(refused)) from refused


def charge_of(policy: ClientPolicy, settings: UplinkSettings, coordinates: int, begins: bool) -> RoundCharge:
    """What a message costs this node, by its own noise: what the server says of others is not believed.

    Raises:
        PolicyRefused: no figure is known for this noise and clip.
    """
    law, clip = settings.law, settings.clip
    gaussian, norm = isinstance(law, Gaussian), clip.norm
    if not gaussian and not isinstance(law, Laplace):
        raise PolicyRefused(f"a node's account knows Gaussian and Laplace noise, the server asks for {law!r:.80}")
    if not gaussian and norm == "l2":
        raise PolicyRefused("Laplace noise under an l2 clip has no place in a node's account: ask for an l1 clip")
    name: Literal["gaussian", "laplace"] = "gaussian" if gaussian else "laplace"
    shares = policy.participants if gaussian and norm == "l2" else 1
    if settings.correlated_noise is not None:
        most = min(policy.rounds, MOST_MESSAGES)
        if settings.correlated_noise.max_participations > most:
            raise PolicyRefused(
                f"correlated noise over {settings.correlated_noise.max_participations} messages is longer than the "
                f"{most} allowed"
            )
        noise, many = equal_single_noise(policy, settings), settings.correlated_noise.max_participations
        charge = RoundCharge("server", noise, float(clip.bound), coordinates * many)
        policy.check_correlated_noise(charge, many)
        return replace(charge, releases=1 if begins else 0)
    # One more coordinate tells whether the clip held: whole updates are charged with it, examples are not believed.
    examples = bool(policy.divisor) and gaussian and norm == "l2" and not settings.bit
    bound = policy.clipping_norm if examples else math.hypot(clip.bound, settings.bit)
    return RoundCharge(
        "server", float(law.scale), float(bound), coordinates, shares, policy.divisor if examples else 0.0,
        policy.record_sampling_rate if gaussian else 1.0, name, norm,
    )  # fmt: skip


def equal_single_noise(policy: ClientPolicy, settings: UplinkSettings) -> float:
    """The deviation of a single message that costs as much as a whole run of correlated noise, by its own noise."""
    from cepam.privacy import MatrixMechanism

    assert settings.correlated_noise is not None
    asked = settings.correlated_noise
    config = replace(asked, divisor=min(asked.divisor, policy.divisor), slices=min(asked.slices, policy.slices))
    alone: Any = config.client(
        settings.law, max(config.slices, policy.records if config.divisor else 0), searched=settings.codec.searches
    )
    clip = L2(policy.clipping_norm) if config.divisor else settings.clip  # examples are clipped by training code
    mechanism = MatrixMechanism(
        (alone,), clip, rounds=config.max_participations, link=config.link, unit=settings.unit, clipped=config.clipped
    )
    return 2.0 * settings.clip.bound / mechanism.mu(0)

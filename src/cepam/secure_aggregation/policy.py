"""A client's privacy policy applied to an offer of secure aggregation."""

from __future__ import annotations

from cepam.policy import ClientPolicy, RoundCharge
from cepam.secure_aggregation.refusal import SecAggRefused
from cepam.secure_aggregation.roster import Roster
from cepam.secure_aggregation.settings import SecAggSettings


def check_offer(policy: ClientPolicy, offer: SecAggSettings, clients: int) -> None:
    """Check an offer against the node's floors.

    Raises:
        PolicyRefused: the noise or the clip is out of bounds.
        SecAggRefused: another floor is not kept.
    """
    policy.check_noise_and_clip(offer.noise, offer.clip)
    for name, fits in (
        ("quorum", offer.quorum >= policy.quorum),
        ("honest", offer.honest(clients, policy.colluders) >= policy.honest),
        ("divisor", not offer.batch or offer.batch >= policy.divisor > 0.0),
        ("record_sampling_rate", offer.record_sampling_rate <= policy.record_sampling_rate),
        ("sparse", policy.sparse or not offer.degree),
        ("degree", not offer.degree or offer.degree >= policy.degree),
    ):
        if not fits:
            raise SecAggRefused("policy", f"the offer is below this node's {name}")


def check_roster(policy: ClientPolicy, roster: Roster) -> None:
    """Raise `SecAggRefused` where the roster holds an identity that is not pinned."""
    if policy.cohort is not None and not all(peer.identity in policy.cohort for peer in roster.peers):
        raise SecAggRefused("cohort", "the roster holds an identity that this node does not know")


def largest_update(policy: ClientPolicy, offer: SecAggSettings) -> float:
    """The largest l2 norm of a whole update in a round of this offer, which the node itself enforces."""
    return offer.clip * policy.records / offer.batch if offer.batch else offer.clip


def charge_of(policy: ClientPolicy, offer: SecAggSettings, clients: int) -> RoundCharge:
    """What an answer to this offer costs, against a server that lies about drop-outs and about the training.

    The node adds the noise and clips whole updates itself. How examples are drawn, clipped and divided its training
    code decides: there the node believes its own policy alone, whatever smaller draw or larger batch a server says.
    """
    clip, divisor = (policy.clipping_norm, policy.divisor) if offer.batch else (offer.clip, 0.0)
    return RoundCharge(
        "secure-aggregation", offer.noise, float(clip), offer.coordinates, offer.protecting(clients, policy.colluders),
        divisor, policy.record_sampling_rate,
    )  # fmt: skip

"""The paragraph about a guarantee that a data-protection impact assessment can quote."""

from __future__ import annotations

import math
from collections.abc import Mapping

from cepam._internal.page import number
from cepam.clip import Adjacency, Unit
from cepam.privacy.composition.accountant import SEES_PARTICIPATION
from cepam.privacy.reports.warnings import VOID_EPSILON

LIES = "lying server"
"""How the name of a server begins that lies about drop-outs (`cepam.secure_aggregation`)."""

TRUSTED = {
    "server": "The central server is trusted: it can see each participant's update, and there is no guarantee against "
    "it.",
    "secure-aggregation": "By secure aggregation the central server sees sums of updates only, and the guarantee holds "
    "against it too, as long as it follows the protocol.",
    "nobody": "Nobody is trusted: each participant adds its noise before anything leaves it, and the guarantee holds "
    "against the server and all other participants together.",
}
"""What is assumed of the server, by trust."""
UNCOVERED = (
    "Not covered: message lengths; the time that encoding and replies take; training metrics and other statistics that "
    "look at raw data, the choice of the best model among them; settings tuned on the same data; the rounding of sums "
    "before clipping; and the assumption that the pseudorandom numbers look random."
)


def impact_paragraph(
    unit: Unit,
    epsilon: float,
    delta: float,
    rounds: int,
    adjacency: Adjacency,
    trust: str,
    colluders: int = 0,
    observers: Mapping[str, float | None] | None = None,
) -> str:
    """A guarantee in the words of an impact assessment, without symbols that need the rest of the page.

    Args:
        unit: What is protected.
        epsilon: That of all rounds, against whoever sees the published models.
        delta: That of all rounds.
        rounds: How many rounds publish a model.
        adjacency: How neighboring data sets differ.
        trust: A key of `TRUSTED`.
        colluders: Other participants who pool what they know, where the figure holds against them too.
        observers: epsilon by observer, infinite or None for no guarantee. Whoever has more than `epsilon` is named.
    """
    whose = "one record" if unit == "record" else "all records of one participant"
    if not epsilon <= VOID_EPSILON:
        return f"The model has no guarantee of differential privacy for {whose}: no useful bound is available."
    parts = [
        f"The model is trained with differential privacy for {whose}: epsilon {number(epsilon)} at delta "
        f"{number(delta)} over all {rounds:,} rounds ({adjacency} adjacency). Whoever sees every "
        f"published model and knows all other data can raise the odds of a guess about {whose} by a factor of at most "
        f"{number(math.exp(epsilon))} (e^epsilon), except with probability {number(delta)}.",
        *_pooled(colluders if trust != "nobody" else 0),
        TRUSTED[trust],
        *_weaker(observers or {}, epsilon),
        "In a deployment raw data stay where they are.",
        UNCOVERED,
    ]
    return " ".join(parts)


def _pooled(colluders: int) -> list[str]:
    many = "1 other participant" if colluders == 1 else f"{colluders} other participants who pool what they know"
    return [f"It also holds against {many}."] if colluders else []


def _weaker(observers: Mapping[str, float | None], epsilon: float) -> list[str]:
    """A sentence for each kind of observer against whom the guarantee is weaker, or there is none."""
    weaker = {
        who: math.inf if spent is None else spent
        for who, spent in observers.items()
        if spent is None or spent > epsilon * (1.0 + 1e-4)  # less does not show
    }
    weaker.pop("server", None)  # said with the trust
    lying = {who: spent for who, spent in weaker.items() if who.startswith(LIES)}
    others = {who: spent for who, spent in weaker.items() if who not in lying and who != SEES_PARTICIPATION}
    said = []
    if others:
        said.append(f"Other participants: {_figures(others)}.")
    if lying:
        said.append(f"A server that lies about who dropped out: {_figures(lying)}.")
    if SEES_PARTICIPATION in weaker:
        spent = weaker[SEES_PARTICIPATION]
        none = f"There is no guarantee against {SEES_PARTICIPATION}."
        said.append(none if not spent <= VOID_EPSILON else f"Against {SEES_PARTICIPATION}: epsilon {number(spent)}.")
    return said


def _figures(observers: Mapping[str, float]) -> str:
    return ", ".join(
        f"epsilon {number(spent)} ({who})" if spent <= VOID_EPSILON else f"no guarantee ({who})"
        for who, spent in observers.items()
    )

"""A mechanism as a `DpEvent` of dp-accounting, where that library can express it.

For reports and for a second opinion; needs `pip install "cepam[dp-accounting]"`. The event is what the run does to
one client's records, for the add-or-remove relation: Gaussian or Laplace noise in units of the shift, alone, or under
Poisson sampling where each example is clipped and a record that is not drawn leaves nothing. Sampling under
replace-one, sampling with replacement, and sampled updates that are clipped as a whole are not in the vocabulary:
another draw takes a record's place, not a zero.
"""

from __future__ import annotations

from typing import Any

from cepam.distributions.laws import Gaussian, Laplace
from cepam.privacy.composition.accountant import Accountant
from cepam.privacy.matrix.mechanism import MatrixMechanism
from cepam.privacy.mechanisms.laplace import zcdp_rho
from cepam.privacy.mechanisms.mechanism import Mechanism, SubsampledMechanism


def supports(run: Mechanism | Accountant, client: int = 0) -> bool:
    """Whether `to_dp_event` can say what this run does to the client's records.

    Args:
        run: A mechanism, or what was released.
        client: Its number.

    Returns:
        True or False.
    """
    mechanisms = run.mechanisms if isinstance(run, Accountant) else (run,)
    return all(_expressible(mechanism, j) for mechanism in mechanisms for j, _ in _sent(mechanism, client))


def to_dp_event(run: Mechanism | Accountant, client: int = 0) -> Any:
    """Express a run as a `DpEvent` of dp-accounting, for the add-or-remove relation.

    Guarantee: the library's accountant gives our epsilon for it (tests/privacy/test_dp_events.py). The mechanism's own
    rounding is not in an event.

    Args:
        run: A mechanism, or an accountant with all that it charged.
        client: The client whose records the event is about.

    Returns:
        The event; an `UnsupportedDpEvent` where `supports` is false.

    Raises:
        ModuleNotFoundError: If dp-accounting is not installed.
    """
    dp_event = _library()
    if not supports(run, client):
        return dp_event.UnsupportedDpEvent()
    mechanisms = run.mechanisms if isinstance(run, Accountant) else (run,)
    made = [
        dp_event.SelfComposedDpEvent(_event(mechanism, j), times)
        for mechanism in mechanisms
        for j, times in _sent(mechanism, client)
    ]
    if not made:
        return dp_event.NoOpDpEvent()
    return made[0] if len(made) == 1 else dp_event.ComposedDpEvent(made)


def _library() -> Any:
    """The module `dp_accounting.dp_event`."""
    try:
        from dp_accounting import dp_event
    except ModuleNotFoundError as missing:
        if missing.name != "dp_accounting":
            raise
        reason = "to_dp_event needs dp-accounting: pip install 'cepam[dp-accounting]'"
        raise ModuleNotFoundError(reason, name="dp_accounting") from None
    return dp_event


def _sent(mechanism: Mechanism, client: int) -> list[tuple[int, int]]:
    """The places of the vectors that a client sent, and how many times each."""
    if isinstance(mechanism, MatrixMechanism):
        return [(j, mechanism.rounds) for j in mechanism.sent_by_node().get(client, ())]
    taken, sent = mechanism.taken().get(client, ()), mechanism.sent_by_node()
    return [(j, times) for seat, times in taken for j in sent[mechanism.node(seat)]]


def _expressible(mechanism: Mechanism, client: int) -> bool:
    if mechanism.sampling_rate(client) == 1.0 or mechanism.l2_clipped_laplace:
        return True
    return (
        mechanism.sampling.kind == "poisson" and mechanism.clipped == "example" and mechanism.adjacency == "add-remove"
    )


def _event(mechanism: Mechanism, client: int) -> Any:
    dp_event = _library()
    if mechanism.l2_clipped_laplace:
        return dp_event.ZCDpEvent(zcdp_rho(mechanism.over(1), client))
    charge: SubsampledMechanism = mechanism.charge(client)
    events = {Gaussian: dp_event.GaussianDpEvent, Laplace: dp_event.LaplaceDpEvent}
    noise = events[type(mechanism.clients[client].law)]
    event = noise(1.0 / charge.shift.size)
    return event if charge.sampling_rate == 1.0 else dp_event.PoissonSampledDpEvent(charge.sampling_rate, event)

"""What each observer of secure aggregation sees, and the epsilon that follows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cepam.privacy import Accountant, Mechanism, epsilon
from cepam.privacy.composition.losses import FINE, ROUGH

LIES = "lying server"


@dataclass(frozen=True)
class View:
    """An observer, and the shares of noise at least that hide a client from it in every round."""

    observer: str
    shares: int


def views(clients: int, quorum: int, colluders: int = 0, survivors: int | None = None) -> tuple[View, ...]:
    """Each observer's view of rounds in which `survivors` (all, if not given) of `clients` were in the sum.

    A server that lies about drop-outs opens sums of 2 quorum - clients - colluders honest clients at the worst.

    Args:
        clients: Clients of a round.
        quorum: Fewest clients of a sum.
        colluders: Clients that share what they know.
        survivors: Clients in the sum; all by default.

    Returns:
        A view per observer.
    """
    present = clients if survivors is None else survivors
    if colluders < 0 or not clients + colluders < 2 * quorum <= 2 * present <= 2 * clients:
        raise ValueError(
            f"clients, quorum, colluders, survivors must satisfy K + c < 2t and t <= survivors <= K;"
            f" got {clients}, {quorum}, {colluders}, {present}"
        )
    found = [View("outsider", present), View("server", present)]
    if colluders:
        found.append(View(f"server with {colluders} colluders", present - colluders))
    found.append(View(LIES, 2 * quorum - clients))
    if colluders:
        found.append(View(f"{LIES} with {colluders} colluders", 2 * quorum - clients - colluders))
    return tuple(found)


def mechanism_for(view: View, mechanism: Mechanism) -> Mechanism:
    """The release as this observer sees it: a client hidden by `shares` of the noise, its own among them.

    Args:
        view: From `views`.
        mechanism: The release.

    Returns:
        The mechanism to account for.
    """
    if len({(client.law, client.weight) for client in mechanism.clients}) > 1:
        raise ValueError("a sum has clients of one law and one weight")
    if not 1 <= view.shares <= len(mechanism.clients):
        raise ValueError(f"shares must be from 1 to the {len(mechanism.clients)} clients, got {view.shares}")
    return replace(mechanism, colluders=0, absent=frozenset(range(view.shares, len(mechanism.clients))))


def epsilons(
    mechanism: Mechanism, delta: float, quorum: int, colluders: int = 0, survivors: int | None = None
) -> dict[str, float]:
    """Return epsilon at delta for each observer of secure aggregation, by name.

    Args:
        mechanism: what the run releases: clients, noise, clip, sampling, rounds. Its own colluders are not used.
        delta: of the guarantee.
        quorum: the fewest clients in a sum.
        colluders: how many clients help the server.
        survivors: how many clients are in each sum; None: all.

    Returns:
        epsilon by observer.

    Where clients hold unlike records, the worst client's: any of them may be among those whose shares are left.
    """
    many = len(mechanism.clients)
    found = views(many, quorum, colluders, survivors)
    if len(set(mechanism.clients)) == 1:
        return {view.observer: epsilon(mechanism_for(view, mechanism), delta, client=0) for view in found}
    for view in found:
        mechanism_for(view, mechanism)  # refuses unequal noise
    return {view.observer: epsilon(replace(mechanism, colluders=many - view.shares), delta) for view in found}


def run_epsilons(
    released: Accountant, answered: Accountant, delta: float, found: tuple[View, ...], clients: int, rough: bool = False
) -> dict[str, float]:
    """epsilon at delta for each view of a run whose rounds may differ, a bound for all its clients.

    `released` holds the rounds whose shares were asked for, with the survivors present; `answered` every round that
    `clients` were asked in, those present: a server that lies may have opened those that it called lost. `found` are
    `views(clients, …)` with all surviving: what a view has fewer than that is taken away from either. `rough` gives
    a bound in less time.

    Args:
        released: Rounds whose sums were opened or may be.
        answered: Rounds that clients answered.
        delta: At this delta.
        found: From `views`, with all surviving.
        clients: Clients of a round.
        rough: Give a bound in less time.

    Returns:
        epsilon by observer.
    """
    made = {}
    for view in found:
        accountant = answered if view.observer.startswith(LIES) else released
        made[view.observer] = accountant.against(clients - view.shares).epsilon(delta, cells=ROUGH if rough else FINE)
    return made

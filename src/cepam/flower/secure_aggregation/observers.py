"""Epsilon for each observer of secure aggregation: the public, the server, and a server that lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cepam.secure_aggregation.observers import LIES, View, mechanism_for, views

if TYPE_CHECKING:
    from cepam.privacy import Accountant, Mechanism


class Observers:
    """What each observer has been shown by the rounds of this process; earlier ones are on the account alone."""

    def __init__(self, colluders: int, delta: float) -> None:
        self._colluders, self._delta = colluders, delta
        self._accountants: dict[str, Accountant] = {}

    def requested(self, mechanism: Mechanism, quorum: int) -> None:
        """Count a round that these clients were sent: a server that lies may open a round that it calls lost."""
        self._add(mechanism, views(len(mechanism.clients), quorum, self._colluders), lies=True)

    def released(self, mechanism: Mechanism, nodes: int, quorum: int) -> None:
        """Count a round that was charged, of whose `nodes` those of the mechanism were in the sum."""
        self._add(mechanism, views(nodes, quorum, self._colluders, len(mechanism.clients)), lies=False)

    def _add(self, mechanism: Mechanism, found: tuple[View, ...], lies: bool) -> None:
        from cepam.privacy import Accountant

        for view in found:
            if view.observer.startswith(LIES) == lies:
                accountant = self._accountants.get(view.observer, Accountant(identified=False))
                self._accountants[view.observer] = accountant.add(mechanism_for(view, mechanism))

    def epsilons(self) -> dict[str, float]:
        """epsilon so far, by observer."""
        from cepam.privacy import spent

        return {observer: spent(accountant, self._delta) for observer, accountant in self._accountants.items()}

"""epsilon for each observer of a run of sums: whoever sees what is published, the server, and a server that lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cepam.secure.observers import LIES, View, release_to, views

if TYPE_CHECKING:
    from cepam.privacy import Ledger, Release


class Observers:
    """What each observer has been shown by the rounds of this process; earlier ones are on the account alone."""

    def __init__(self, colluders: int, delta: float) -> None:
        self._colluders, self._delta = colluders, delta
        self._ledgers: dict[str, Ledger] = {}

    def asked(self, release: Release, quorum: int) -> None:
        """Nothing; all clients of the release were asked: a server that lies may open a round that it calls lost."""
        self._add(release, views(len(release.clients), quorum, self._colluders), lies=True)

    def released(self, release: Release, nodes: int, quorum: int) -> None:
        """Nothing; a round was charged, of whose `nodes` those in the release were in the sum."""
        self._add(release, views(nodes, quorum, self._colluders, len(release.clients)), lies=False)

    def _add(self, release: Release, found: tuple[View, ...], lies: bool) -> None:
        from cepam.privacy import Ledger

        for view in found:
            if view.observer.startswith(LIES) == lies:
                ledger = self._ledgers.get(view.observer, Ledger(identified=False))
                self._ledgers[view.observer] = ledger.add(release_to(view, release))

    def epsilons(self) -> dict[str, float]:
        """epsilon so far, by observer."""
        from cepam.privacy import spent

        return {observer: spent(ledger, self._delta) for observer, ledger in self._ledgers.items()}

"""Who can take part in secure aggregation: the epochs of a run, each with one roster of signed keys."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from logging import INFO, WARNING, getLogger

from flwr.serverapp import Grid

from cepam.flower.secure_aggregation.faults import Faults
from cepam.flower.secure_aggregation.records import run_bytes
from cepam.flower.secure_aggregation.transport import NodeRefused, Transport
from cepam.protocol.agreement import agree, canonical, new_pair, verify
from cepam.protocol.server import Refused
from cepam.secure_aggregation.messages import HelloReply, HelloRequest
from cepam.secure_aggregation.roster import Roster, RosterEntry, hello_transcript

log = getLogger("flwr").log  # Flower's own log, which `flwr run --stream` shows

ROUNDS_TO_RETRY = 5
LONGEST_WAIT = 64


class Membership:
    """Keeps the roster of the epoch, and starts a new one where a node's state cannot go on.

    A new epoch starts for a node that is new, that lost its secrets (it says so by refusing a position), or that did
    not answer some rounds ago (ever later ones, if it never does). One node starts an epoch ever more rarely: at once,
    then 2, 4, 8, … and at most `LONGEST_WAIT` rounds after the last that it started. `position` counts the rounds of
    the epoch. `faults` says who is left out because charged rounds failed.
    """

    def __init__(self, transport: Transport, required: bool) -> None:
        self._transport, self._required = transport, required
        self.refused: list[Refused] = []
        self.faults = Faults()
        self.roster: Roster | None = None
        self.position = 0
        self._knowing: set[int] = set()
        self._lost: set[int] = set()
        self._declining: set[int] = set()
        self._warned = False
        self._started: Counter[int] = Counter()
        self._not_before: dict[int, int] = {}
        self._round = 0

    def settle(self, wanted: Iterable[int], grid: Grid) -> Roster:
        """The roster of the epoch, in which all of these nodes are that can be; `refused` says why others are not."""
        self.refused = []
        self.faults.begin_round()
        self._round += 1
        sampled = set(wanted) - self.faults.left_out
        strangers = self._strangers(sampled) if self.roster is not None else set()
        if self.roster is None or strangers:
            for node in strangers:
                self._started[node] += 1
                self._not_before[node] = self._round + min(2 ** self._started[node], LONGEST_WAIT)
            self._begin((sampled | set(grid.get_node_ids())) - self.faults.left_out, grid)
        return self.roster  # type: ignore[return-value]  # there is one now

    def _strangers(self, sampled: set[int]) -> set[int]:
        """Those of these that can be asked in a new epoch only, and may start one."""
        names = set(self.roster.names) if self.roster is not None else set()
        return {node for node in sampled - names | sampled & self._lost if self._round >= self._not_before.get(node, 0)}

    def cohort(self, wanted: Iterable[int]) -> tuple[int, ...]:
        """Those of these nodes that are in the roster, have not declined its terms, and are not left out for faults."""
        names = set(self.roster.names) if self.roster is not None else set()
        return tuple(sorted(set(wanted) & names - self._declining - self.faults.left_out))

    def next_position(self) -> int:
        """The position of the round that is asked for now."""
        self.position += 1
        return self.position - 1

    def needs_roster(self, node: int) -> bool:
        """Whether the node has not yet answered in this epoch."""
        return node not in self._knowing

    def note_answer(self, node: int) -> None:
        """Note that the node has the roster."""
        self._knowing.add(node)

    def note_refusal(self, refused: Refused) -> None:
        """Note a refusal: of a position or a cohort by other secrets than this epoch's, else by the node's policy."""
        if isinstance(refused, NodeRefused) and refused.node is not None:
            (self._lost if refused.refusal_kind in ("position", "cohort") else self._declining).add(refused.node)

    def _begin(self, nodes: set[int], grid: Grid) -> None:
        """Begin an epoch of all nodes that answer, under a number above all earlier ones, of other processes too."""
        epoch = max(self.roster.epoch + 1 if self.roster is not None else 0, time.time_ns() // 10**6)
        run = run_bytes(int(grid.run.run_id))
        registered = {node.node_id: bytes(node.public_key) for node in grid.get_nodes()}
        entries: dict[int, RosterEntry] = {}

        def take(node: int, said: bytes) -> None:
            entry = HelloReply.decode(said).peer
            self._check(node, entry, hello_transcript(run, epoch, node, entry.identity, entry.public), registered)
            entries[node] = entry

        def drop(refused: Refused) -> None:
            self.refused.append(refused)
            log(
                WARNING,
                "cepam: node %s does not take part in secure aggregation in this epoch: %s",
                refused.node,
                refused,
            )

        self._transport.exchange(grid, {node: HelloRequest(run, epoch).encode() for node in sorted(nodes)}, take, drop)
        late = f"no answer to the key agreement within {self._transport.timeout:g} s (unmask_timeout)"
        for node in sorted(nodes - set(entries) - {refused.node for refused in self.refused}):
            self.refused.append(Refused("missing", node, late))
        peers = _distinct(entries.values())
        self.roster = Roster.of(run, epoch, peers)
        self.position, self._knowing, self._lost, self._declining = 0, set(), set(), set()
        for node in nodes - {peer.node for peer in peers}:
            wait = min(ROUNDS_TO_RETRY * 2 ** self._started[node], LONGEST_WAIT)
            self._not_before[node] = max(self._not_before.get(node, 0), self._round + wait)
        log(INFO, "cepam: a new epoch of secure aggregation: %d of %d nodes agreed on keys", len(peers), len(nodes))

    def _check(self, node: int, entry: RosterEntry, transcript: bytes, registered: dict[int, bytes]) -> None:
        """Refuse an entry for which the others would refuse the whole roster."""
        if entry.node != node or not verify(entry.identity, transcript, entry.signature):
            raise ValueError("its key is not signed by the identity that it names")
        if canonical(entry.identity) != entry.identity:
            raise ValueError("its identity is not written as OpenSSH writes it")
        agree(new_pair()[0], entry.public, b"")  # raises for a weak point
        try:
            known = canonical(registered.get(node, b"")) == entry.identity
        except ValueError:
            known = False
        if not known and self._required:
            raise ValueError("its identity is not the key that the node is registered with")
        if not known and not self._warned:
            self._warned = True
            log(
                WARNING,
                "cepam: the identity of node %d is not the key that it is registered with: only nodes that pin their "
                "cohort know with whom they share masks (docs/secure-aggregation.md). This is said once, for all nodes",
                node,
            )


def _distinct(entries: Iterable[RosterEntry]) -> list[RosterEntry]:
    """The entries whose keys and identities nobody else has: nodes refuse a roster with two alike."""
    listed = list(entries)
    publics, identities = Counter(e.public for e in listed), Counter(e.identity for e in listed)
    return [e for e in listed if publics[e.public] == 1 == identities[e.identity]]

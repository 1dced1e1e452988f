"""Who can take part in secure aggregation: the epochs of a run, each with one roster of signed keys; faulty nodes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from logging import INFO, WARNING, getLogger

from flwr.serverapp import Grid

from cepam.flower.secure_aggregation.transport import NodeRefused, Transport, run_bytes
from cepam.protocol.agreement import agree, canonical, new_pair, verify
from cepam.protocol.server import Refused
from cepam.secure_aggregation.messages import HelloReply, HelloRequest
from cepam.secure_aggregation.roster import Roster, RosterEntry, hello_transcript
from cepam.secure_aggregation.server import SecAggRound

log = getLogger("flwr").log  # Flower's own log, which `flwr run --stream` shows


class Faults:
    """Remembers over the rounds of a run who disputes shares with whom, and whose seeds did not open.

    A dispute is a pair of nodes: the receiver says that what the sender sealed for it does not open. Two honest nodes
    never dispute, so an honest node has at most as many disputes as there are nodes at fault. Who has more than the
    quorum can spare (K - t of K nodes, one at least) is at fault, as sender or as accuser, and is left out for good.
    So is a sender whose seed does not follow from the shares of all K nodes, while there are no more such senders than
    liars whom an honest sender's seed stands (`SecAggRound.most_wrong`).

    Where that tells nothing, those who may have been at fault sit out: nobody the first time, then 1, 2, 4, … rounds.

    Guarantee: while at most K - t nodes misbehave (one, where no share can be spared; half as many, where over 500 ways
    to choose t of K nodes exist), no honest node is left out for good (docs/proofs/secure-aggregation.md;
    tests/attacks/test_secure_aggregation_shares.py).
    """

    def __init__(self) -> None:
        self.named: set[int] = set()
        self._disputes: set[frozenset[int]] = set()
        self._times: Counter[int] = Counter()
        self._back: dict[int, int] = {}
        self._round = 0
        self._most = 1

    def begin_round(self) -> None:
        """Count a round, after which whoever sat out long enough is back."""
        self._round += 1

    @property
    def left_out(self) -> set[int]:
        """The nodes that are not asked in this round."""
        return self.named | {node for node, back in self._back.items() if self._round < back}

    def note(self, protocol: SecAggRound, is_open: bool) -> None:
        """Take notice of a round whose shares were asked for.

        Args:
            protocol: the round, with all shares that came.
            is_open: whether its sum was opened.
        """
        spare = len(protocol.cohort) - protocol.settings.threshold
        self._most = max(self._most, spare)
        self._disputes |= {frozenset(pair) for pair in protocol.disputes if not self.named & set(pair)}
        while disputed := self._most_disputed():
            self._name(disputed, "disputes its sealed shares with more nodes than can be at fault")
        if is_open:
            return
        unopened = protocol.unopened() - self.named
        # Everybody sent shares, and more of a sender's are wrong than nodes can be at fault: so it is one of these.
        is_all = protocol.survivors == protocol.cohort and not protocol.silent
        if is_all and len(unopened) <= protocol.most_wrong:
            self._name(unopened, "committed to a seed that does not follow from its shares")
        self._sit_out(self._suspects(protocol, unopened) - self.named)

    def _most_disputed(self) -> set[int]:
        """The nodes with the most disputes, if these are more than any round could spare."""
        counts = Counter(node for pair in self._disputes for node in pair)
        most = max(counts.values(), default=0)
        return {node for node, count in counts.items() if count == most} if most > self._most else set()

    def _suspects(self, protocol: SecAggRound, unopened: frozenset[int]) -> set[int]:
        """Whoever may have kept the sum closed: the silent, and where enough answered senders and their accusers."""
        if len(protocol.survivors) - len(protocol.silent) < protocol.settings.threshold:
            return set(protocol.silent)
        accusers = {receiver for sender, receiver in protocol.disputes if sender in unopened}
        return set(protocol.silent) | unopened | accusers if not self.named & protocol.unopened() else set()

    def _name(self, nodes: Iterable[int], reason: str) -> None:
        for node in sorted(nodes):
            self.named.add(node)
            log(WARNING, "cepam: node %d is left out of this run: it %s", node, reason)
        self._disputes = {pair for pair in self._disputes if not pair & self.named}

    def _sit_out(self, nodes: Iterable[int]) -> None:
        for node in sorted(nodes):
            self._times[node] += 1
            rounds = 2 ** (self._times[node] - 2) if self._times[node] > 1 else 0
            self._back[node] = self._round + 1 + rounds
            if rounds:
                log(WARNING, "cepam: node %d sits out %d rounds: its shares may have kept sums closed", node, rounds)


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
        """Those of these nodes that are in the roster, have not declined it, and are not left out for faults."""
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

"""A node of a sum: it answers hello, train, repair and unmask, each by fixed rules, and fails closed.

Every answer is a transition that the journal holds before the answer is given. Refusals depend on public data only.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from cepam.clip import L2
from cepam.secure.journal import Journal, JournalEntry, RunPlace
from cepam.secure.mechanism import on_gpu, type_name
from cepam.secure.messages import (
    NO_SHARE,
    HelloReply,
    HelloRequest,
    RepairReply,
    RepairRequest,
    TrainReply,
    TrainRequest,
    UnmaskReply,
    UnmaskRequest,
)
from cepam.secure.pairs import PairKeys, advance, agree_root, commit, open_share, round_keys, seal_share, self_mask
from cepam.secure.refusal import RefusalKind, SumRefused
from cepam.secure.roster import RosterEntry, Sign, Verify, hello_transcript
from cepam.secure.settings import SumSettings, round_salt
from cepam.secure.shamir import SECRET_BYTES, share_value, split
from cepam.secure.state import NodeState, OpenRound
from cepam.secure.terms import RoundCharge, Terms

Work = Callable[[SumSettings], Any]
FURTHEST_AHEAD = 1 << 12


@dataclass
class SumNode:
    """One client's end of a sum.

    `sign` and `verify` are the node's registered key at work; `terms` its floor; `journal` its memory of what it said.
    `state` holds its secrets between calls: read it after every call, refused or not, keep it in memory, and hand it
    back as it was last. `draw` gives fresh random bytes.

    Guarantee: whatever the server sends, every sum that it can open holds `2 quorum - clients - colluders` honest
    clients at least, and no client is in two sums of a round (docs/trust.md; tests/secure/test_lying_server.py).
    """

    node: int
    identity: bytes
    sign: Sign
    verify: Verify
    terms: Terms
    journal: Journal
    state: bytes = field(default=b"", repr=False)
    draw: Callable[[int], bytes] = field(default=secrets.token_bytes, repr=False)

    def hello(self, request: bytes) -> bytes:
        """A fresh signed key for a new epoch; whatever was open before is erased."""
        asked = HelloRequest.decode(request)
        with self.journal.hold() as entry:
            place = entry.place(asked.run)
            if self.state and (not entry.places or NodeState.decode(self.state).answered > entry.answered.rounds):
                raise SumRefused("terms", "the journal is gone or old, and with it what this node has spent")
            if place is not None and asked.epoch <= place.epoch:
                raise SumRefused("position", f"epoch {asked.epoch} of this run was used before")
            private = self.draw(32)
            public = X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
            signature = self.sign(hello_transcript(asked.run, asked.epoch, self.node, self.identity, public))
            reply = HelloReply(RosterEntry(self.node, self.identity, public, signature)).encode()
            self._commit(entry, NodeState(asked.run, asked.epoch, public, private))
        return reply

    def train(self, request: bytes, model: bytes, work: Work) -> bytes:
        """The masked update of a round, once. `model` is the check value of the model as this node received it.

        `work` trains and returns the update, an array or a tensor on a GPU, which is masked there. The settings that it
        is handed passed this node's terms: their clip and batch are the ones to train with. Whatever goes wrong
        in it sends the zero update with its noise: an error that depends on the data would be a noise-free bit about
        them.
        """
        asked = TrainRequest.decode(request)
        settings, cohort = asked.settings, asked.cohort
        with self._held() as (entry, state):
            self._check_offer(settings, cohort, state, entry)
            chains = dict(state.chains) if state.roster else self._agree(asked, state)
            if asked.roster_digest != (state.roster or asked.roster_digest):
                raise SumRefused("cohort", "the roster is not the one of this epoch")
            circle = self._circle(cohort, chains, settings)
            for _ in range(settings.position - state.position):
                chains = {peer: advance(chain) for peer, chain in chains.items()}
            salt = round_salt(settings, asked.roster_digest, cohort, model)
            keys = {peer: round_keys(chains[peer], salt, self.node, peer) for peer in circle if peer != self.node}
            reply, share = self._mask(
                settings, salt, circle, keys, _safe_update(work, settings, self.terms.longest(settings))
            )
            opened = OpenRound(
                salt, settings.threshold, circle, {peer: pair.mask for peer, pair in keys.items()},
                {peer: pair.inward for peer, pair in keys.items()}, share,
            )  # fmt: skip
            after = NodeState(
                state.run, state.epoch, state.public, b"", asked.roster_digest, settings.degree, settings.position + 1,
                {peer: advance(chain) for peer, chain in chains.items()}, opened,
            )  # fmt: skip
            charge = RoundCharge.of(settings, len(cohort), self.terms)
            self._commit(replace(entry, answered=entry.answered.add(charge)), after)
        return reply.encode()

    def repair(self, request: bytes) -> bytes:
        """The mask keys with everyone who is missing: while a quorum is left, this node in it."""
        asked = RepairRequest.decode(request)
        with self._held() as (entry, state):
            opened = self._opened(state, asked.salt)
            repaired = opened.repaired | set(asked.missing)
            if not set(asked.missing) <= set(opened.circle):
                self._erase(entry, state, "cohort", "a name was repaired that is not in this node's circle")
            self._check_left(entry, state, opened, repaired)
            self._commit(entry, replace(state, open=replace(opened, repaired=frozenset(repaired))))
        return RepairReply(asked.salt, tuple(opened.masks[name] for name in asked.missing)).encode()

    def unmask(self, request: bytes) -> bytes:
        """This node's shares of the survivors' self-masks, once; the round is then erased.

        A peer whose share does not open costs that share alone, and is told by `NO_SHARE`: what the node reveals is a
        part of what it would reveal had all opened. Where none opens the node was told of another round, and refuses.
        """
        asked = UnmaskRequest.decode(request)
        with self._held() as (entry, state):
            opened = self._opened(state, asked.salt)
            self._check_left(entry, state, opened, opened.repaired)
            left = tuple(name for name in opened.circle if name not in opened.repaired)
            if asked.survivors != left or len(asked.shares) != len(left) - 1:
                self._erase(entry, state, "cohort", "the survivors are not the cohort less all that was repaired")
            peers = [name for name in left if name != self.node]
            shares = {name: _opened_share(opened, name, sealed) for name, sealed in zip(peers, asked.shares)}
            if set(shares.values()) <= {NO_SHARE}:
                self._erase(entry, state, "share", "no survivor's share opens")
            self._commit(entry, replace(state, open=None))
        shares[self.node] = opened.share
        return UnmaskReply(asked.salt, tuple(shares[name] for name in left)).encode()

    def _mask(
        self, settings: SumSettings, salt: bytes, circle: tuple[int, ...], keys: dict[int, PairKeys], update: Any
    ) -> tuple[TrainReply, bytes]:
        """The reply, and the share of its own seed that this node keeps."""
        codec, seed = settings.codec, self.draw(SECRET_BYTES)
        masks = [(self_mask(seed, salt), 1)]
        masks += [(pair.mask, 1 if self.node < peer else -1) for peer, pair in keys.items()]
        vector = codec.mask(codec.noised(update, self.draw(32)), masks)
        dealt = dict(zip(circle, split(seed, settings.threshold, len(circle), self.draw)))
        sealed = tuple(seal_share(pair.outward, salt, dealt[peer]) for peer, pair in keys.items())
        return TrainReply(salt, vector, commit(seed, salt), sealed), dealt[self.node]

    def _agree(self, asked: TrainRequest, state: NodeState) -> dict[int, bytes]:
        """A chain for each peer: the roster is checked once, and no other is accepted in this epoch."""
        roster = asked.roster
        if roster is None or roster.digest != asked.roster_digest:
            raise SumRefused("cohort", "the roster of a new epoch is missing or not the one that is named")
        circle = roster.circle(self.node, asked.settings.degree)
        roster.check(self.verify, circle)
        self.terms.check_roster(roster)
        own = (roster.run, roster.epoch, roster.peer(self.node).public, roster.peer(self.node).identity)
        if own != (state.run, state.epoch, state.public, self.identity):
            raise SumRefused("cohort", "the roster has another run, epoch or key for this node")
        return {peer: agree_root(state.private, roster, self.node, peer) for peer in circle if peer != self.node}

    def _check_offer(
        self, settings: SumSettings, cohort: tuple[int, ...], state: NodeState, entry: JournalEntry
    ) -> None:
        if (settings.run, settings.epoch) != (state.run, state.epoch):
            raise SumRefused("position", "the offer is for another run or epoch")
        if not state.position <= settings.position <= state.position + FURTHEST_AHEAD:
            raise SumRefused("position", f"position {settings.position} was used, or is too far ahead")
        if state.roster and settings.degree != state.degree:
            raise SumRefused("cohort", "the graph of an epoch does not change")
        settings.check(len(cohort))
        self.terms.check(settings, len(cohort))
        if entry.answered.rounds >= self.terms.rounds:
            raise SumRefused("terms", f"the {self.terms.rounds} rounds that this node allows are spent")

    def _circle(self, cohort: tuple[int, ...], chains: dict[int, bytes], settings: SumSettings) -> tuple[int, ...]:
        """The names of the cohort that this node shares masks with, and itself."""
        known = {*chains, self.node}
        if self.node not in cohort or not (settings.degree or set(cohort) <= known):
            raise SumRefused("cohort", "the cohort must hold this node and come from the roster")
        circle = tuple(name for name in cohort if name in known)
        if len(circle) < settings.threshold:
            raise SumRefused("quorum", f"{len(circle)} holders are fewer than the threshold {settings.threshold}")
        return circle

    @contextmanager
    def _held(self) -> Iterator[tuple[JournalEntry, NodeState]]:
        with self.journal.hold() as entry:
            state = NodeState.decode(self.state) if self.state else None
            place = entry.place(state.run) if state else None
            if state is None or place is None or hashlib.sha256(self.state).digest() != place.state:
                raise SumRefused("position", "this node's state is missing or old: a new epoch is needed")
            yield entry, state

    def _commit(self, entry: JournalEntry, state: NodeState) -> None:
        data = replace(state, answered=entry.answered.rounds).encode()
        self.journal.commit(entry.moved(RunPlace(state.run, state.epoch, hashlib.sha256(data).digest())))
        self.state = data

    def _opened(self, state: NodeState, salt: bytes) -> OpenRound:
        if state.open is None or state.open.salt != salt:
            raise SumRefused("position", "this round is not open")
        return state.open

    def _check_left(
        self, entry: JournalEntry, state: NodeState, opened: OpenRound, repaired: set[int] | frozenset[int]
    ) -> None:
        """Nothing, or the round is erased: at EVERY repair and unmask a quorum is left, and this node in it."""
        left = set(opened.circle) - repaired
        if len(left) < opened.threshold or self.node not in left:
            self._erase(entry, state, "quorum", f"{len(left)} would be left of the {opened.threshold} that are needed")

    def _erase(self, entry: JournalEntry, state: NodeState, kind: RefusalKind, reason: str) -> NoReturn:
        self._commit(entry, replace(state, open=None))
        raise SumRefused(kind, reason)


def _opened_share(opened: OpenRound, peer: int, sealed: bytes) -> bytes:
    """The share that the peer sealed for this node, or `NO_SHARE` where it is none."""
    try:
        share = open_share(opened.seals[peer], opened.salt, sealed)
        share_value(share)
    except (SumRefused, ValueError):
        return NO_SHARE
    return share


def _safe_update(work: Work, settings: SumSettings, longest: float) -> Any:
    """The update, its norm at most `longest`, where it lies; zeros where anything at all went wrong."""
    try:
        with np.errstate(all="ignore"):
            made = work(settings)
            values = made if on_gpu(made) else np.asarray(made)
            if type_name(values) not in ("float32", "float64") or tuple(values.shape) != (settings.coordinates,):
                raise ValueError("not an update of this round")
            if not bool((abs(values) < math.inf).all()):
                raise ValueError("not finite")
            reach = settings.codec.plan.reach
            # Both are contractions: no example that was clipped before moves the update further for them.
            made = L2(longest).apply(values)
            made = made.clip(-reach, reach) if settings.batch else made
            if not bool((abs(made) <= reach).all()):
                raise ValueError("beyond the reach of the noise")  # here, not where an error would be told
            return made
    except Exception:
        return np.zeros(settings.coordinates, dtype=np.float32)

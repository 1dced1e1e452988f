"""The client of secure aggregation: it answers hello, train, repair and unmask by fixed rules, and fails closed."""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from cepam.clip import L2
from cepam.kernels.dispatch import as_held
from cepam.policy import AccountStore, ClientPolicy, NodeAccount, PolicyRefused, RunPlace
from cepam.secure_aggregation.channel import (
    SECRET_BYTES,
    SHARE_BYTES,
    PairKeys,
    advance,
    agree_root,
    commit,
    open_share,
    round_keys,
    seal_share,
    self_mask,
    share_value,
    split,
)
from cepam.secure_aggregation.fields import ByteReader, ByteWriter
from cepam.secure_aggregation.mechanism import type_name
from cepam.secure_aggregation.messages import (
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
from cepam.secure_aggregation.roster import (
    LONGEST_RUN,
    RefusalKind,
    RosterEntry,
    SecAggRefused,
    Sign,
    Verify,
    hello_transcript,
)
from cepam.secure_aggregation.settings import (
    SecAggSettings,
    charge_of,
    check_offer,
    check_roster,
    largest_update,
    round_salt,
)

MAGIC = b"cepam sum state v1"


@dataclass(frozen=True)
class OpenRound:
    """A round that was answered and not yet closed: what repair and unmask may still reveal."""

    salt: bytes
    threshold: int
    neighbourhood: tuple[int, ...]
    masks: Mapping[int, bytes] = field(repr=False)
    seals: Mapping[int, bytes] = field(repr=False)
    share: bytes = field(repr=False)
    repaired: frozenset[int] = frozenset()

    def write(self, writer: ByteWriter) -> None:
        """Append the fields."""
        writer.raw(self.salt).number(self.threshold, 4).names(self.neighbourhood).raw(self.share).names(self.repaired)
        for keys in (self.masks, self.seals):
            _write_keys(writer, keys)

    @classmethod
    def read(cls, reader: ByteReader) -> OpenRound:
        """The round whose fields come next."""
        salt, threshold, neighbourhood = reader.raw(32), reader.number(4), reader.names()
        share, repaired = reader.raw(SHARE_BYTES), frozenset(reader.names())
        return cls(salt, threshold, neighbourhood, _read_keys(reader), _read_keys(reader), share, repaired)


@dataclass(frozen=True)
class NodeState:
    """An epoch as a node sees it: its private key until the first round, then chains, one for each peer of its
    neighbourhood.

    `roster` is the digest of the one roster that the epoch has, empty before the first round. `answered` counts the
    rounds that the account held when this was written: an account with fewer was rolled back.
    """

    run: bytes
    epoch: int
    public: bytes
    private: bytes = field(default=b"", repr=False)
    roster: bytes = b""
    degree: int = 0
    position: int = 0
    chains: Mapping[int, bytes] = field(default_factory=dict, repr=False)
    open: OpenRound | None = None
    answered: int = 0

    def encode(self) -> bytes:
        """The state as bytes: SECRET."""
        writer = ByteWriter(MAGIC).blob(self.run).number(self.epoch, 8).raw(self.public).blob(self.private)
        writer.blob(self.roster).number(self.degree, 4).number(self.position, 8)
        _write_keys(writer, self.chains)
        writer.number(self.answered, 8).number(int(self.open is not None), 1)
        if self.open is not None:
            self.open.write(writer)
        return writer.bytes()

    @classmethod
    def decode(cls, data: bytes) -> NodeState:
        """The state that these bytes are."""
        reader = ByteReader(data)
        if reader.raw(len(MAGIC)) != MAGIC:
            raise ValueError("this is not the state of a node")
        run, epoch, public, private = reader.blob(LONGEST_RUN), reader.number(8), reader.raw(32), reader.blob(32)
        roster, degree, position, chains = reader.blob(32), reader.number(4), reader.number(8), _read_keys(reader)
        answered = reader.number(8)
        opened = OpenRound.read(reader) if reader.number(1, most=1) else None
        reader.end()
        return cls(run, epoch, public, private, roster, degree, position, chains, opened, answered)


def _write_keys(writer: ByteWriter, keys: Mapping[int, bytes]) -> None:
    writer.names(keys).pieces(keys[name] for name in sorted(keys))


def _read_keys(reader: ByteReader) -> dict[int, bytes]:
    return dict(zip(reader.names(), reader.pieces(32)))


Train = Callable[[SecAggSettings], Any]
FURTHEST_AHEAD = 1 << 12


@dataclass
class SecAggClient:
    """One client's end of secure aggregation.

    Args:
        node: The node's id.
        identity: Its registered key.
        sign: Signs with that key.
        verify: Verifies another node's signature.
        policy: What the node enforces.
        account: Where the node keeps what it has answered.
        state: The client's secrets between calls. Read it after every call, refused or not, keep it in memory, and
            hand it back as it was last.
        draw: Gives fresh random bytes.

    Guarantee: whatever the server sends, every sum that it can open holds at least `2 quorum - clients - colluders`
    honest clients, and no client is in two sums of a round (docs/proofs/secure-aggregation.md;
    tests/secure_aggregation/test_lying_server.py). Condition: the complete graph; on a sparse one the server must
    tell the truth about drop-outs.
    """

    node: int
    identity: bytes
    sign: Sign
    verify: Verify
    policy: ClientPolicy
    account: AccountStore
    state: bytes = field(default=b"", repr=False)
    draw: Callable[[int], bytes] = field(default=secrets.token_bytes, repr=False)

    def hello(self, request: bytes) -> bytes:
        """A fresh signed key for a new epoch; whatever was open before is erased.

        Args:
            request: A `HelloRequest` as bytes.

        Returns:
            A `HelloReply` as bytes.

        Raises:
            SecAggRefused: The epoch was used before, or the node's account is gone or old.
        """
        received = HelloRequest.decode(request)
        with self.account.hold() as entry:
            place = entry.place(received.run)
            if self.state and (not entry.places or NodeState.decode(self.state).answered > entry.answered.rounds):
                raise SecAggRefused("policy", "the account is gone or old, and with it what this node has spent")
            if place is not None and received.epoch <= place.epoch:
                raise SecAggRefused("position", f"epoch {received.epoch} of this run was used before")
            private = self.draw(32)
            public = X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
            signature = self.sign(hello_transcript(received.run, received.epoch, self.node, self.identity, public))
            reply = HelloReply(RosterEntry(self.node, self.identity, public, signature)).encode()
            self._commit(entry, NodeState(received.run, received.epoch, public, private))
        return reply

    def train(self, request: bytes, model: bytes, work: Train, coordinates: int) -> bytes:
        """The masked update of a round, once.

        The account is free while `work` trains; nothing leaves before the answer is in it, so a position is answered
        once also where another process answered meanwhile.

        Args:
            request: what the server asks.
            model: the check value of the model as this node received it.
            work: trains and returns the update, an array or a tensor on a GPU, which is masked there. The settings that
                it is handed passed this node's policy: their clip and batch are the ones to train with. Whatever is
                raised in it, `SystemExit` and `KeyboardInterrupt` too, sends the zero update with its noise: an error
                that depends on the data would be a noise-free bit about them.
            coordinates: how many coordinates that model has. A request for more is refused before memory is taken.

        Returns:
            The reply.

        Raises:
            SecAggRefused: for an offer that this node does not answer.
            MalformedMessage: for anything that is no request.
        """
        received = TrainRequest.decode(request)
        settings, cohort = received.settings, received.cohort
        if settings.coordinates > coordinates:
            raise SecAggRefused("cohort", f"the model has {coordinates} coordinates, not {settings.coordinates}")
        with self._held() as (entry, before):
            self._check_offer(settings, cohort, before, entry)
            chains = dict(before.chains) if before.roster else self._agree(received, before)
            if received.roster_digest != (before.roster or received.roster_digest):
                raise SecAggRefused("cohort", "the roster is not the one of this epoch")
            neighbourhood = self._neighbourhood(cohort, chains, settings)
        for _ in range(settings.position - before.position):
            chains = {peer: advance(chain) for peer, chain in chains.items()}
        salt = round_salt(settings, received.roster_digest, cohort, model)
        keys = {peer: round_keys(chains[peer], salt, self.node, peer) for peer in neighbourhood if peer != self.node}
        update = _safe_update(work, settings, largest_update(self.policy, settings))
        reply, share = self._mask(settings, salt, neighbourhood, keys, update)
        opened = OpenRound(
            salt, settings.threshold, neighbourhood, {peer: pair.mask for peer, pair in keys.items()},
            {peer: pair.inward for peer, pair in keys.items()}, share,
        )  # fmt: skip
        after = NodeState(
            before.run, before.epoch, before.public, b"", received.roster_digest, settings.degree,
            settings.position + 1, {peer: advance(chain) for peer, chain in chains.items()}, opened,
        )  # fmt: skip
        with self._held() as (entry, state):
            if state != before:
                raise SecAggRefused("position", "another message was answered while this node trained")
            self._commit(self._check_offer(settings, cohort, state, entry), after)
        return reply.encode()

    def repair(self, request: bytes) -> bytes:
        """The mask keys with everyone who is missing: while a quorum is left, this node in it.

        Args:
            request: A `RepairRequest` as bytes.

        Returns:
            A `RepairReply` as bytes.

        Raises:
            SecAggRefused: The request does not fit the open round, or too few clients are left.
        """
        received = RepairRequest.decode(request)
        with self._held() as (entry, state):
            opened = self._opened(state, received.salt)
            repaired = opened.repaired | set(received.missing)
            if not set(received.missing) <= set(opened.neighbourhood):
                self._erase(entry, state, "cohort", "a name was repaired that is not in this node's neighbourhood")
            self._check_left(entry, state, opened, repaired)
            self._commit(entry, replace(state, open=replace(opened, repaired=frozenset(repaired))))
        return RepairReply(received.salt, tuple(opened.masks[name] for name in received.missing)).encode()

    def unmask(self, request: bytes) -> bytes:
        """This node's shares of the survivors' self-masks, once; the round is then erased.

        A peer whose share does not open costs that share alone, and is reported as `NO_SHARE`: what the node reveals
        is a part of what it would reveal had all opened. Where none opens, the node was sent shares of another round,
        and refuses.

        Args:
            request: An `UnmaskRequest` as bytes.

        Returns:
            An `UnmaskReply` as bytes.

        Raises:
            SecAggRefused: The request does not fit the open round, or too few clients are left.
        """
        received = UnmaskRequest.decode(request)
        with self._held() as (entry, state):
            opened = self._opened(state, received.salt)
            self._check_left(entry, state, opened, opened.repaired)
            left = tuple(name for name in opened.neighbourhood if name not in opened.repaired)
            if received.survivors != left or len(received.shares) != len(left) - 1:
                self._erase(entry, state, "cohort", "the survivors are not the cohort less all that was repaired")
            peers = [name for name in left if name != self.node]
            shares = {name: _opened_share(opened, name, sealed) for name, sealed in zip(peers, received.shares)}
            if set(shares.values()) <= {NO_SHARE}:
                self._erase(entry, state, "share", "no survivor's share opens")
            self._commit(entry, replace(state, open=None))
        shares[self.node] = opened.share
        return UnmaskReply(received.salt, tuple(shares[name] for name in left)).encode()

    def _mask(
        self,
        settings: SecAggSettings,
        salt: bytes,
        neighbourhood: tuple[int, ...],
        keys: dict[int, PairKeys],
        update: Any,
    ) -> tuple[TrainReply, bytes]:
        """The reply, and the share of its own seed that this node keeps."""
        codec, seed = settings.codec, self.draw(SECRET_BYTES)
        masks = [(self_mask(seed, salt), 1)]
        masks += [(pair.mask, 1 if self.node < peer else -1) for peer, pair in keys.items()]
        vector = codec.mask(codec.noised(update, self.draw(32)), masks)
        dealt = dict(zip(neighbourhood, split(seed, settings.threshold, len(neighbourhood), self.draw)))
        sealed = tuple(seal_share(pair.outward, salt, dealt[peer]) for peer, pair in keys.items())
        return TrainReply(salt, vector, commit(seed, salt), sealed), dealt[self.node]

    def _agree(self, received: TrainRequest, state: NodeState) -> dict[int, bytes]:
        """A chain for each peer: the roster is checked once, and no other is accepted in this epoch."""
        roster = received.roster
        if roster is None or roster.digest != received.roster_digest:
            raise SecAggRefused("cohort", "the roster of a new epoch is missing or not the one that is named")
        neighbourhood = roster.neighbourhood(self.node, received.settings.degree)
        roster.check(self.verify, neighbourhood)
        check_roster(self.policy, roster)
        own = (roster.run, roster.epoch, roster.peer(self.node).public, roster.peer(self.node).identity)
        if own != (state.run, state.epoch, state.public, self.identity):
            raise SecAggRefused("cohort", "the roster has another run, epoch or key for this node")
        return {peer: agree_root(state.private, roster, self.node, peer) for peer in neighbourhood if peer != self.node}

    def _check_offer(
        self, settings: SecAggSettings, cohort: tuple[int, ...], state: NodeState, entry: NodeAccount
    ) -> NodeAccount:
        """The account with this answer on it; raises where the offer or the limits do not allow one."""
        if (settings.run, settings.epoch) != (state.run, state.epoch):
            raise SecAggRefused("position", "the offer is for another run or epoch")
        if not state.position <= settings.position <= state.position + FURTHEST_AHEAD:
            raise SecAggRefused("position", f"position {settings.position} was used, or is too far ahead")
        if state.roster and settings.degree != state.degree:
            raise SecAggRefused("cohort", "the graph of an epoch does not change")
        settings.check(len(cohort))
        try:
            check_offer(self.policy, settings, len(cohort))
            charge = charge_of(self.policy, settings, len(cohort))
            return replace(entry, answered=self.policy.check_limits(entry.answered, charge))
        except (PolicyRefused, ValueError) as refused:
            raise SecAggRefused("policy", str(refused)) from refused

    def _neighbourhood(
        self, cohort: tuple[int, ...], chains: dict[int, bytes], settings: SecAggSettings
    ) -> tuple[int, ...]:
        """The names of the cohort that this node shares masks with, and itself."""
        known = {*chains, self.node}
        if self.node not in cohort or not (settings.degree or set(cohort) <= known):
            raise SecAggRefused("cohort", "the cohort must hold this node and come from the roster")
        neighbourhood = tuple(name for name in cohort if name in known)
        if len(neighbourhood) < settings.threshold:
            raise SecAggRefused(
                "quorum", f"{len(neighbourhood)} holders are fewer than the threshold {settings.threshold}"
            )
        return neighbourhood

    @contextmanager
    def _held(self) -> Iterator[tuple[NodeAccount, NodeState]]:
        with self.account.hold() as entry:
            state = NodeState.decode(self.state) if self.state else None
            place = entry.place(state.run) if state else None
            if state is None or place is None or hashlib.sha256(self.state).digest() != place.state:
                raise SecAggRefused("position", "this node's state is missing or old: a new epoch is needed")
            yield entry, state

    def _commit(self, entry: NodeAccount, state: NodeState) -> None:
        data = replace(state, answered=entry.answered.rounds).encode()
        self.account.commit(entry.moved(RunPlace(state.run, state.epoch, hashlib.sha256(data).digest())))
        self.state = data

    def _opened(self, state: NodeState, salt: bytes) -> OpenRound:
        if state.open is None or state.open.salt != salt:
            raise SecAggRefused("position", "this round is not open")
        return state.open

    def _check_left(
        self, entry: NodeAccount, state: NodeState, opened: OpenRound, repaired: set[int] | frozenset[int]
    ) -> None:
        """Erase the round unless a quorum is left, with this node in it: checked at EVERY repair and unmask."""
        left = set(opened.neighbourhood) - repaired
        if len(left) < opened.threshold or self.node not in left:
            self._erase(entry, state, "quorum", f"{len(left)} would be left of the {opened.threshold} that are needed")

    def _erase(self, entry: NodeAccount, state: NodeState, kind: RefusalKind, reason: str) -> NoReturn:
        self._commit(entry, replace(state, open=None))
        raise SecAggRefused(kind, reason)


def _opened_share(opened: OpenRound, peer: int, sealed: bytes) -> bytes:
    """The share that the peer sealed for this node, or `NO_SHARE` where it is none."""
    try:
        share = open_share(opened.seals[peer], opened.salt, sealed)
        share_value(share)
    except (SecAggRefused, ValueError):
        return NO_SHARE
    return share


def _safe_update(work: Train, settings: SecAggSettings, longest: float) -> Any:
    """The update, its norm at most `longest`, where it lies; zeros where anything at all went wrong."""
    try:
        with np.errstate(all="ignore"):
            made = work(settings)
            values = as_held(made)
            if type_name(values) not in ("float32", "float64") or tuple(values.shape) != (settings.coordinates,):
                raise ValueError("not an update of this round")
            if not bool((abs(values) < math.inf).all()):
                raise ValueError("not finite")
            reach = settings.codec.plan.reach
            # Both are contractions: no example that was clipped before moves the update further for them.
            made = L2(longest).apply(values)
            made = made.clip(-reach, reach) if settings.batch else made
            if not bool((abs(made) <= reach).all()):
                raise ValueError("beyond the quantization range of the noise")  # here, not where an error would travel
            return made
    except BaseException:  # SystemExit and its like would end the process, and be seen
        return np.zeros(settings.coordinates, dtype=np.float32)

"""A fuzz target for each parser of bytes from others: what it is fed, and which errors it promises.

A target has valid samples; a case is a mutated one. It may return, or raise what is promised. `tools/fuzz.py`
runs them for long, tests/attacks/test_parsers.py briefly.
"""

from __future__ import annotations

import base64
import copy
import io
import json
import math
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import cepam
from cepam import privacy
from cepam.codec.tree import decode_tree, encode_tree, structure_of
from cepam.downlink import Broadcast, Receiver
from cepam.downlink.broadcast import origin_of, version_at
from cepam.downlink.grid import Grid, Hysteresis, read_frame, write_frame
from cepam.errors import CepamError
from cepam.fl.aggregation.downlink import GridDownlink
from cepam.flower import client_mod
from cepam.flower.secure_aggregation.client_mod import read_cohort
from cepam.kernels.numpy.search_coder import encode_segment
from cepam.policy import AnsweredRounds, ClientPolicy, MemoryAccount, RoundCharge, read_policy
from cepam.policy.account import NodeAccount, RunPlace
from cepam.protocol import agreement
from cepam.protocol.account import AccountIndex, Accounting, RunAccount
from cepam.protocol.agreement import Answer, Declined, Offer
from cepam.protocol.correlated_noise import ClientCorrelatedNoise, CorrelatedNoiseConfig, CorrelatedNoiseRefused
from cepam.protocol.enforcement import EnforcedPolicy
from cepam.protocol.models import BroadcastMessage, ClientModel, ModelLayout, unpack
from cepam.protocol.settings import UplinkSettings
from cepam.secure_aggregation import RefusalReply, SecAggRound
from cepam.secure_aggregation.client import NodeState
from cepam.secure_aggregation.messages import (
    HelloReply,
    HelloRequest,
    RepairReply,
    RepairRequest,
    TrainReply,
    TrainRequest,
    UnmaskReply,
    UnmaskRequest,
)
from tests.corpus import AT, DOUBLE, SEARCHED, TRAVELS, make_codec, open_payload, seal_payload
from tests.secure_aggregation import sums

Rng = np.random.Generator
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**70), 10**400, 0.5, -0.0, 1e308, 5e-324, math.nan, math.inf,
    "", "x", "x" * 5000, "\ud800", "9" * 5000, "gaussian", b"", b"\0" * 32, [], {}, [[]], [1] * 1000, {"a": {}},
]  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A parser: `case` makes a mutated input from random numbers, `parse` is fed with it, `errors` are promised."""

    name: str
    case: Callable[[Rng], Any]
    parse: Callable[[Any], object]
    errors: tuple[type[Exception], ...]

    def attack(self, rng: Rng) -> str:
        """How one case ended: `PARSED`, or the lines through which it was refused. Other exceptions go through."""
        made = self.case(rng)
        try:
            self.parse(made)
        except self.errors as refused:
            return _lines(refused)
        return PARSED


PARSED = "parsed"


class Unreadable(Exception):
    """What a target raises for a parser that says None or False for what it refuses."""


def _lines(refused: BaseException) -> str:
    """The first lines through which a refusal came, with those of what caused it."""
    said: list[list[str]] = []
    each: BaseException | None = refused
    while each is not None and len(said) < 4:
        passed = traceback.walk_tb(each.__traceback__)
        said.append([f"{Path(frame.f_code.co_filename).name}:{at}" for frame, at in islice(passed, 1, 12)])
        each = each.__cause__ or each.__context__
    return " < ".join(" ".join(lines) for lines in said)


def inside(ends: Counter[str]) -> float:
    """The share of cases that did not end in the commonest refusal.

    A target whose cases all end in one refusal, such as that of a checksum, tests nothing behind it.
    """
    refusals = [times for end, times in ends.items() if end != PARSED]
    return 1 - max(refusals, default=0) / max(ends.total(), 1)


def mutate(rng: Rng, data: bytes) -> bytes:
    """The data with a few bytes changed, dropped, doubled or made up."""
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        at = int(rng.integers(0, len(out) + 1))
        kind = rng.integers(7)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << int(rng.integers(8))
        elif kind == 1 and at < len(out):
            out[at] = int(rng.choice([0, 1, 127, 128, 255]))
        elif kind == 2:
            del out[at : at + int(rng.integers(1, 20))]
        elif kind == 3:
            out[at:at] = rng.bytes(int(rng.integers(1, 20)))
        elif kind == 4:
            out[at:at] = out[at : at + int(rng.integers(1, 20))]
        elif kind == 5:
            out[at : at + 8] = rng.choice([b"\xff" * 8, b"\0" * 8, b"\xff" * 4 + b"\0" * 4])
        else:
            out = out[:at]
    return bytes(out)


def _resized(rng: Rng, data: bytes) -> bytes:
    """The data mutated, of the same length."""
    return mutate(rng, data).ljust(len(data), b"\0")[: len(data)]


def mutate_value(rng: Rng, value: Any) -> Any:
    """A nested value with one part replaced, dropped or added."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = list(value)[int(rng.integers(len(value)))]
        kind = rng.random()
        if kind < 0.15:
            return {name: part for name, part in value.items() if name != key}
        if kind < 0.25:
            return {**value, "odd": _odd(rng)}
        return {**value, key: mutate_value(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = int(rng.integers(len(value)))
        if rng.random() < 0.2:
            return value[:at] + value[at + 1 :] if rng.random() < 0.5 else [*value, value[at]]
        return [*value[:at], mutate_value(rng, value[at]), *value[at + 1 :]]
    if isinstance(value, bytes | str) and value and rng.random() < 0.5:
        data = mutate(rng, value if isinstance(value, bytes) else value.encode(errors="replace"))
        return data if isinstance(value, bytes) else data.decode(errors="replace")
    return _odd(rng)


def _odd(rng: Rng) -> Any:
    return copy.deepcopy(ODD[int(rng.integers(len(ODD)))])


def mutate_text(rng: Rng, text: str) -> str:
    """JSON with other values, other text, or nested without end."""
    kind = rng.random()
    if kind < 0.6:
        return json.dumps(mutate_value(rng, json.loads(text)), default=repr)
    if kind < 0.63:
        return str(rng.choice(["[", '{"a":', "[[1],"])) * int(rng.integers(1, 20_000))
    return mutate(rng, text.encode()).decode(errors="replace")


def _of(samples: Iterable[Any], change: Callable[[Rng, Any], Any]) -> Callable[[Rng], Any]:
    held = list(samples)
    return lambda rng: change(rng, held[int(rng.integers(len(held)))])


def secure_aggregation_targets() -> list[Target]:
    """The messages, a client's state, and both ends of a round."""
    group, round_ = sums.trained(5, 4)
    request = round_.request()
    replies = {name: reply.encode() for name, reply in sums.replies(round_).items()}
    assert not round_.repairs()
    asks = dict(round_.unmasks())
    repairs = RepairRequest(round_.salt, (11,)).encode()
    opened = UnmaskReply(round_.salt, tuple(b"\1" * 32 + b"\0" for _ in range(5))).encode()
    keys = RepairReply(round_.salt, (b"\2" * 32,)).encode()
    hello = HelloRequest(sums.RUN, 2).encode()
    greeting = HelloReply(group.roster.peers[0]).encode()
    samples: list[tuple[type[Any], bytes]] = [
        (HelloRequest, hello), (HelloReply, greeting), (TrainRequest, request), (TrainReply, replies[10]),
        (RepairRequest, repairs), (RepairReply, keys), (UnmaskRequest, asks[10]), (UnmaskReply, opened),
        (RefusalReply, RefusalReply("policy").encode()),
    ]  # fmt: skip
    made = [
        Target(f"secure aggregation {kind.__name__}", _of([data], mutate), kind.decode, (CepamError,))
        for kind, data in samples
    ]
    fresh = sums.cohort(5)
    first = SecAggRound(sums.settings(4), fresh.roster, fresh.roster.names, sums.MODEL)
    start = fresh.nodes[10].state

    def train(data: bytes) -> None:
        node = sums.node(0, account=fresh.nodes[10].account, state=start)
        with node.account.hold() as entry:
            before = entry
        try:
            node.train(data, sums.MODEL, lambda asked: np.zeros(asked.coordinates, np.float32), 12)
        finally:
            node.account.commit(before)

    def client(stage: str, data: bytes) -> None:
        node = sums.node(0, account=group.nodes[10].account, state=group.nodes[10].state)
        with node.account.hold() as entry:
            before = entry
        try:
            getattr(node, stage)(data)
        finally:
            node.account.commit(before)

    def take(data: bytes) -> None:
        end = SecAggRound(round_.settings, group.roster, group.roster.names, sums.MODEL)
        end.take(10, data)

    def names(rng: Rng) -> bytes:
        missing = np.unique(
            rng.choice([9, 10, 11, 12, 13, 14, 15, 2**64 - 1], size=int(rng.integers(0, 5))).astype("u8")
        )
        return RepairRequest(round_.salt, tuple(int(name) for name in missing)).encode()

    def sealed(rng: Rng) -> bytes:
        asked = UnmaskRequest.decode(asks[10])
        pieces = tuple(_resized(rng, piece) if rng.random() < 0.4 else piece for piece in asked.shares)
        survivors = asked.survivors if rng.random() < 0.8 else asked.survivors[1:]
        return replace(asked, survivors=survivors, shares=pieces).encode()

    made += [
        Target("client repair names", names, partial(client, "repair"), (CepamError,)),
        Target("client unmask shares", sealed, partial(client, "unmask"), (CepamError,)),
        Target("client train", _of([first.request()], mutate), train, (CepamError,)),
        Target("client hello", _of([hello], mutate), partial(client, "hello"), (CepamError,)),
        Target("client repair", _of([repairs], mutate), partial(client, "repair"), (CepamError,)),
        Target("client unmask", _of([asks[10]], mutate), partial(client, "unmask"), (CepamError,)),
        Target("server take", _of([replies[10]], mutate), take, (CepamError,)),
        Target("client state", _of([group.nodes[10].state], mutate), NodeState.decode, (CepamError, ValueError)),
    ]
    return [*made, _request_target(fresh, first, start), *_repair_targets()]


def _request_target(fresh: sums.Cohort, first: SecAggRound, start: bytes) -> Target:
    """Requests whose bytes are sound and whose numbers are not."""
    asked = TrainRequest.decode(first.request())
    counts = [0, 1, 2, 3, 4, 5, 6, 7, 255, 2**16, 2**31, 2**32 - 1]
    reals = [0.0, 5e-324, 1e-300, 1e-6, 0.25, 0.5, 1.0, 64.0, 1e12, 1e300]
    limits = {"coordinates": 2**31, "bits": 32, "degree": 2**32 - 2}
    names = {
        "epoch": counts, "position": counts, "coordinates": counts[1:], "bits": [1, 8, 31, 32], "gain": counts[1:],
        "noise": reals, "clip": reals, "batch": reals, "record_sampling_rate": reals, "quorum": counts[1:],
        "colluders": counts,
        "degree": [0, 2, 4, 6, 2**31], "threshold": counts[1:],
    }  # fmt: skip

    def requests(rng: Rng) -> bytes:
        chosen = [str(name) for name in rng.choice(list(names), size=int(rng.integers(1, 4)), replace=False)]
        changes = {
            name: min(names[name][int(rng.integers(len(names[name])))], limits.get(name, 2**63)) for name in chosen
        }
        return replace(asked, settings=replace(asked.settings, **changes)).encode()

    def train(data: bytes) -> None:
        node = sums.node(0, POLICIES[sum(data) % len(POLICIES)], account=MemoryAccount(), state=start)
        with fresh.nodes[10].account.hold() as entry:
            node.account.commit(entry)
        node.train(data, sums.MODEL, lambda settings: np.zeros(settings.coordinates, np.float32), 12)

    return Target("client train numbers", requests, train, (CepamError,))


def _repair_targets() -> list[Target]:
    """Replies of one survivor to the server's later stages, as far as the opened sum; two of seven nodes are missing.

    All other nodes answer honestly. Four of five mutated replies have sound bytes and other keys or shares.
    """
    group = sums.cohort(7)
    training = SecAggRound(sums.settings(4, clients=7), group.roster, group.roster.names, sums.MODEL)
    for name in list(group.nodes)[:5]:
        training.take(name, group.train(name, training.request()))
    key = {name: group.nodes[name].repair(ask) for name, ask in training.repairs().items()}
    for name in list(key)[1:]:
        training.take_repair(name, key[name])
    unmasking = copy.deepcopy(training)
    unmasking.take_repair(10, key[10])
    share = {name: group.nodes[name].unmask(ask) for name, ask in unmasking.unmasks().items()}
    for name in list(share)[1:]:
        unmasking.take_unmask(name, share[name])

    def repairs(rng: Rng, reply: RepairReply) -> bytes:
        return (
            mutate(rng, reply.encode()) if rng.random() < 0.2 else replace(reply, keys=other(rng, reply.keys)).encode()
        )

    def unmasks(rng: Rng, reply: UnmaskReply) -> bytes:
        return (
            mutate(rng, reply.encode())
            if rng.random() < 0.2
            else replace(reply, shares=other(rng, reply.shares)).encode()
        )

    def other(rng: Rng, pieces: tuple[bytes, ...]) -> tuple[bytes, ...]:
        chosen = int(rng.integers(len(pieces)))
        return (*pieces[:chosen], _resized(rng, pieces[chosen]), *pieces[chosen + 1 :])

    def take_repair(data: bytes) -> None:
        end = copy.deepcopy(training)
        end.take_repair(10, data)
        assert not end.repairs(), "a repair that was taken is asked for again"
        end.unmasks()
        for name in share:
            end.take_unmask(name, share[name])
        assert np.isfinite(end.open()).all()

    def take_unmask(data: bytes) -> None:
        end = copy.deepcopy(unmasking)
        end.take_unmask(10, data)
        assert not end.unopened(), "one wrong share among five closes a sum that four open"
        assert np.array_equal(end.open(), honest)

    unmasked = copy.deepcopy(unmasking)
    unmasked.take_unmask(10, share[10])
    honest = unmasked.open()
    return [
        Target("server take_repair", _of([RepairReply.decode(key[10])], repairs), take_repair, (CepamError,)),
        Target("server take_unmask", _of([UnmaskReply.decode(share[10])], unmasks), take_unmask, (CepamError,)),
    ]


POLICIES = [
    sums.TERMS,
    ClientPolicy(noise_scale=1e-12, clipping_norm=1e12, rounds=9, honest=1, divisor=1e-9, records=2**62),
    ClientPolicy(noise_scale=1e-12, clipping_norm=1e12, rounds=9, honest=1, sparse=True, degree=2, epsilon=8.0),
]


def policy_targets() -> list[Target]:
    """A node's policy and account, and offers as a node with a policy meets them."""
    charges = [
        RoundCharge("server", 4.0, 1.0, 400), RoundCharge("secure-aggregation", 0.2, 1.0, 12, 3, 64.0, 0.5),
        RoundCharge("server", 0.2, 1.0, 12, law="laplace", norm_type="l1", rounds=5, releases=5),
    ]  # fmt: skip
    held = NodeAccount((RunPlace(b"run", 3, bytes(32)),), AnsweredRounds(tuple(charges)), 7)
    whole = held.encode()
    content = json.loads(whole)
    del content["checksum"]

    def resealed(rng: Rng, value: Any) -> bytes:
        from cepam.policy.account import _checksum

        made = mutate_value(rng, value)
        made = made if isinstance(made, dict) else {"odd": made}
        try:
            return json.dumps({**made, "checksum": _checksum(made)}).encode()
        except (TypeError, ValueError, RecursionError):  # bytes and the like, which no JSON holds
            return json.dumps(made, default=repr, skipkeys=True).encode()

    terms = CorrelatedNoiseConfig(0.5, 2, 6)
    kinds = [
        UplinkSettings(cepam.Gaussian(4.0), cepam.L2(1.0)), UplinkSettings(cepam.Laplace(4.0), cepam.L1(1.0)),
        UplinkSettings(cepam.Gaussian(4.0), cepam.L2(1.0), bit=0.5),
        UplinkSettings(cepam.Gaussian(4.0), cepam.L2(1.0), correlated_noise=terms),
        UplinkSettings(cepam.Gaussian(4.0), cepam.L2(1.0), correlated_noise=replace(terms, divisor=8.0)),
    ]  # fmt: skip
    offers = [Offer(kind, 7, 8, 1, 0, b"12345678", b"\1" * 32, b"", b"", b"", 1).to_fields() for kind in kinds]
    floors = ClientPolicy(noise_scale=0.1, clipping_norm=10.0, rounds=9, trust="server", divisor=8.0, records=9)
    limited = replace(floors, divisor=0.0, epsilon=50.0)
    drawn = replace(floors, epsilon=50.0, record_sampling_rate=0.5)
    rules = [EnforcedPolicy(policy, MemoryAccount()) for policy in (floors, limited, drawn)]

    def offered(rng: Rng) -> tuple[Any, EnforcedPolicy]:
        fields = dict(offers[int(rng.integers(len(offers)))])
        if rng.random() < 0.7:
            settings = mutate_value(rng, json.loads(str(fields["settings"])))
            fields["settings"] = json.dumps(settings, default=repr)
        else:
            fields = mutate_value(rng, fields)
        return fields, rules[int(rng.integers(3))]

    def meet(case: tuple[Any, EnforcedPolicy]) -> None:
        offer = Offer.from_fields(case[0] if isinstance(case[0], dict) else {})
        begins = True
        if offer.settings.correlated_noise is not None:
            begins = not ClientCorrelatedNoise.follow(offer, 12, None).charged
        case[1].check(offer.settings, 12, begins)

    return [
        Target("client policy", _of([POLICY], mutate), read_policy, (ValueError,)),
        Target("client policy values", _of([POLICY], _other_values), read_policy, (ValueError,)),
        Target("node account", _of([content], resealed), NodeAccount.decode, (CepamError,)),
        Target("node account file", _of([whole], mutate), NodeAccount.decode, (CepamError,)),
        Target("offer to a node with a policy", offered, meet, (CepamError, ValueError)),
    ]


def protocol_targets() -> list[Target]:
    """Offers, answers, settings, identities, model layouts, broadcasts and what a client keeps of them."""
    settings = [
        UplinkSettings(cepam.Gaussian(0.1), cepam.L2(1.0)),
        UplinkSettings(cepam.Laplace(0.1), cepam.L1(1.0), cepam.Integer(2), padding=64),
        UplinkSettings(cepam.Gaussian(0.1), cepam.L2(1.0), cepam.Lattice(np.array([[2.0, 1.0], [0.0, 1.0]])), bit=0.5),
    ]
    offers = [Offer(one, 7, 8, 1, 0, b"12345678", b"\1" * 32, b"").to_fields() for one in settings]
    answers = [Answer(1, 2, b"\1" * 32, b"sig", b"12345678", 3).to_fields()]
    arrays = {"a": np.zeros((3, 4), np.float32), "n": np.zeros(2, np.int64), "b": np.ones(5, np.float32)}
    layout = ModelLayout.of(arrays)
    grid = b"12345678"
    server = Broadcast(grid)
    server.publish(layout.vector(arrays), 0.01)
    whole = server.message_from(None)
    server.publish(layout.vector(arrays) + np.float32(0.05), 0.01)
    change = server.message_from(1) if server.version > 1 else whole
    beside = {"n": arrays["n"]}
    _, copy_held = unpack(BroadcastMessage(grid, layout.to_text(), whole), beside, None)

    def receive(case: tuple[str, bytes, ClientModel | None]) -> None:
        text, message, kept = case
        unpack(BroadcastMessage.from_fields(BroadcastMessage(grid, text, message).to_fields(), message), beside, kept)

    def broadcasts(rng: Rng) -> tuple[str, bytes, ClientModel | None]:
        kept = copy_held if rng.random() < 0.5 else None
        text = mutate_text(rng, layout.to_text()) if rng.random() < 0.5 else layout.to_text()
        message = [whole, change][int(rng.integers(2))]
        return text, mutate(rng, message) if rng.random() < 0.7 else message, kept

    def states(rng: Rng) -> tuple[str, bytes, ClientModel | None]:
        state = mutate_value(rng, {**copy_held.state, "steps": copy_held.state["steps"].tolist()})
        state = state if isinstance(state, dict) else {}
        steps = state.get("steps")
        if isinstance(steps, list) and all(type(step) is int and abs(step) < 2**31 for step in steps):
            state["steps"] = np.array(steps, "<i4")  # as a node keeps them
        return "", change, ClientModel(grid, layout.to_text(), state)

    def restore(case: tuple[str, bytes, ClientModel | None]) -> None:
        """A copy that is damaged counts as none: what is wrong with it is asked of what reads it."""
        assert case[2] is not None
        with suppress(CepamError):
            receive(case)
        Receiver(grid, size=layout.size).load_state_dict(case[2].state)

    public = agreement.public_of(_key_file())
    signature = agreement.sign(_key_file(), b"said")

    def verify(case: tuple[bytes, bytes]) -> None:
        if not agreement.verify(case[0], b"said", case[1]):
            raise Unreadable

    def identities(rng: Rng) -> tuple[bytes, bytes]:
        return (mutate(rng, public), signature) if rng.random() < 0.7 else (public, mutate(rng, signature))

    def inner(rng: Rng) -> bytes:
        kind, body, *_ = public.split()
        return kind + b" " + base64.b64encode(mutate(rng, base64.b64decode(body)))

    refusals = (CepamError, ValueError)
    return [
        _hysteresis_target(),
        *_kept_noise_targets(),
        Target("identity inside", inner, agreement.canonical, (ValueError,)),
        Target("offer", _of(offers, mutate_value), _fields(Offer.from_fields), (ValueError,)),
        Target("answer", _of(answers, mutate_value), _fields(Answer.from_fields), (ValueError,)),
        Target("settings", _of([s.to_json() for s in settings], mutate_text), UplinkSettings.from_json, (ValueError,)),
        Target("model layout", _of([layout.to_text()], mutate_text), _sized, (ValueError,)),
        Target("broadcast fields", _of([BroadcastMessage(grid, "[]", b"").to_fields()], mutate_value),
               _fields(lambda read: BroadcastMessage.from_fields(read, b"")), (ValueError,)),
        Target("broadcast", broadcasts, receive, refusals),
        Target("client's copy", states, restore, refusals),
        Target("broadcast alone", _of([whole, change], mutate), lambda data: Receiver(grid, size=17).apply(data),
               (CepamError,)),
        Target("signature", identities, verify, (Unreadable,)),
        Target("identity", _of([public], mutate), agreement.canonical, (ValueError,)),
        Target("cohort file", _of([public + b"\n# them\n" + public], mutate), read_cohort, (ValueError,)),
    ]  # fmt: skip


def _kept_noise_targets() -> list[Target]:
    """What a node kept of its correlated noise, in memory and in its file, when the next offer comes."""
    settings = [
        UplinkSettings(cepam.Gaussian(4.0), cepam.L2(1.0), correlated_noise=CorrelatedNoiseConfig(decay, 2, 6))
        for decay in (0.5, 0.0)
    ]
    cases: list[tuple[Offer, dict[str, Any]]] = []
    for one in settings:
        stream = ClientCorrelatedNoise.follow(Offer(one, 7, 8, 1, 0, b"", b"", b""), 12, None)
        stream.sender.next(np.linspace(0.0, 0.1, 12))
        kept = stream.to_fields(7)
        cases += [
            (Offer(one, 7, 8, 2, 0, b"", b"", b"", noise_id=name, place=1), kept) for name in (stream.name, b"new")
        ]
    folder = Path(tempfile.mkdtemp(prefix="cepam-fuzz-", dir=_memory_folder()))
    context: Any = SimpleNamespace(node_config={client_mod.FOLDER: str(folder)}, state={})

    def follow(case: tuple[Offer, Any]) -> None:
        offer, kept = case
        stream = ClientCorrelatedNoise.follow(offer, 12, kept)
        assert np.isfinite(stream.sender.next(np.zeros(12))).all()
        stream.to_fields(7)

    def follow_file(case: tuple[Offer, bytes]) -> None:
        offer, data = case
        path = client_mod._file(offer, context)
        assert path is not None
        path.write_bytes(data)
        kept = client_mod._kept_noise(offer, context)
        assert kept is not None, "a file that is there counts as none"
        follow((offer, kept))

    def fields(rng: Rng, case: tuple[Offer, dict[str, Any]]) -> tuple[Offer, dict[str, Any]]:
        changed = mutate_value(rng, case[1])
        return case[0], changed if isinstance(changed, dict) else {}

    def file(rng: Rng, case: tuple[Offer, dict[str, Any]]) -> tuple[Offer, bytes]:
        plain = {name: {"hex": v.hex()} if isinstance(v, bytes) else v for name, v in case[1].items()}
        return case[0], mutate_text(rng, json.dumps(plain)).encode(errors="surrogatepass")

    return [
        Target("kept noise", _of(cases, fields), follow, (CorrelatedNoiseRefused,)),
        Target("kept noise file", _of(cases, file), follow_file, (CorrelatedNoiseRefused, Declined)),
    ]


def _hysteresis_target() -> Target:
    """Broadcasts of a server with hysteresis: two of three with other content under a mark that fits it."""
    rng, rows, columns = np.random.default_rng(5), 4, 64
    size = rows * columns
    downlink = GridDownlink(b"12345678", np.zeros(size, np.float32), lambda rate: 0.01 * rate,
                            Hysteresis(0.75, [(size, rows)]))  # fmt: skip
    sent = []
    for number in range(4):
        step = rng.normal(size=size).astype(np.float32) * 0.02
        downlink.publish(downlink.broadcast.weights + step, 1.0 / (1 + number // 2), step)
        sent.append(downlink.broadcast.message_from(number))
    broadcast, last = downlink.broadcast, downlink.broadcast.message_from(3)
    holds = Receiver(b"12345678", np.zeros(size, np.float32))
    for message in sent[:3]:
        holds.apply(message)
    state, grid, frame = holds.state_dict(), Grid(b"12345678", "auto", None), read_frame(last, broadcast._grid, size)
    held = holds._held

    def written(rng: Rng) -> bytes:
        if rng.random() < 1 / 3:
            return mutate(rng, last)
        blocks = tuple(mutate(rng, block) if rng.random() < 0.9 else block for block in frame.blocks)
        shift = frame.shift if rng.random() < 0.7 else int(rng.integers(0, 40))
        other = replace(frame, blocks=blocks, shift=shift)
        try:
            point = grid.decode(origin_of(held, size), shift, blocks)
            return write_frame(other, grid, version_at(grid, frame.version, point).check)
        except CepamError:
            return write_frame(other, grid, bytes(32))

    def receive(message: bytes) -> None:
        receiver = Receiver(b"12345678", np.zeros(size, np.float32))
        receiver.load_state_dict(state)
        assert np.isfinite(receiver.apply(message)).all()

    return Target("hysteresis downlink", written, receive, (CepamError,))


POLICY = (
    b'noise_scale = 0.15\nclipping_norm = 1.0\nrounds = 500\nepsilon = 8.0\ndelta = 1e-5\ntrust = "server"\n'
    b"metrics = true\nparticipants = 3\nquorum = 20\nhonest = 10\ncolluders = 2\ndivisor = 64.0\nrecords = 9\n"
    b"record_sampling_rate = 0.5\nsparse = true\ndegree = 46\n"
)
VALUES = ["true", "-1", "1e999", "nan", "inf", '"x"', "[]", "{}", "0", "9" * 400, "1979-05-27", "[" * 3000, "0.5", "''"]


def _other_values(rng: Rng, text: bytes) -> bytes:
    lines = text.decode().splitlines()
    at = int(rng.integers(len(lines)))
    lines[at] = f"{lines[at].split(' ')[0]} = {VALUES[int(rng.integers(len(VALUES)))]}"
    return "\n".join(lines).encode()


def _fields(parse: Callable[[dict[str, Any]], object]) -> Callable[[Any], object]:
    return lambda read: parse(read if isinstance(read, dict) else {})


def _sized(text: str) -> None:
    ModelLayout.from_text(text).size.bit_length()


def _key_file() -> bytes:
    from tests.flower.secure_aggregation.fakes import key_pair

    return key_pair(1)[0]


def account_targets() -> list[Target]:
    """Saved accounts and their index."""
    folder = Path(tempfile.mkdtemp(prefix="cepam-fuzz-", dir=_memory_folder()))
    options = Accounting(delta=1e-5)
    kept = RunAccount(folder, options, strict=True)
    kept.resume("run", "start")
    kept.charge(privacy.Mechanism.uniform(3, cepam.Gaussian(1.0), cepam.L2(1.0), privacy.Sampling("all"), 1), None)
    content = json.loads(kept.path.read_text())
    del content["checksum"]
    index = (folder / "index.txt").read_bytes()
    place = folder / "other.json"

    def read(made: Any) -> None:
        from cepam.protocol.account import _checksum

        try:
            text = json.dumps(made, default=repr)
        except ValueError:
            return
        held = {**json.loads(text), "checksum": _checksum(text)} if text.startswith("{") else made
        place.write_text(json.dumps(held, default=repr), errors="replace")
        kept._read("other")

    def read_bytes(data: bytes) -> None:
        place.write_bytes(data)
        kept._read("other")

    whole = kept.path.read_bytes()
    return [
        Target("account", _of([content], mutate_value), read, (CepamError, ValueError)),
        Target("account file", _of([whole], mutate), read_bytes, (CepamError, ValueError)),
        Target("account index", _of([index], mutate), lambda data: AccountIndex(io.BytesIO(data)), ()),
    ]


def checkpoint_targets() -> list[Target]:
    """Checkpoints of a run: what does not open under the run's key is no checkpoint."""
    from cepam.fl.runs import checkpoint

    key = bytes(32)
    whole = checkpoint._encrypted(key, memoryview(b"content" * 20))

    def opened(data: bytes) -> None:
        if checkpoint._decrypted(key, data) is None:
            raise Unreadable
        assert data == whole, "a mangled checkpoint opened"

    buffer = io.BytesIO()
    rest = json.dumps({"round": 7, "offset": 99, "states": {}}).encode()
    np.savez(buffer, rest=np.frombuffer(rest, dtype=np.uint8), weights=np.zeros((1, 4)))
    place = Path("checkpoint.npz")

    def after_decryption(content: bytes) -> None:
        checkpoint._parsed(place, content)

    def record(text: str) -> None:
        again = io.BytesIO()
        np.savez(again, rest=np.frombuffer(text.encode(errors="replace"), dtype=np.uint8), weights=np.zeros((1, 4)))
        after_decryption(again.getvalue())

    return [
        Target("checkpoint", _of([whole], mutate), opened, (Unreadable,)),
        Target("checkpoint record", _of([rest.decode()], mutate_text), record, (ValueError,)),
        Target("checkpoint after decryption", _of([buffer.getvalue()], mutate), after_decryption, (ValueError,)),
    ]


def _memory_folder() -> str | None:
    """A folder in memory, where there is one: a busy disk would look like a parser that hangs."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def tree_targets() -> list[Target]:
    """Updates of a whole model."""
    tree = {"a": np.zeros((2, 3), np.float32), "b": [np.ones(4, np.float32)]}
    codec = make_codec(size=10)  # as many as the tree has
    message = encode_tree(codec, tree, AT, unclipped=True)
    place = structure_of(tree).address(AT)
    payload = open_payload(message, codec, place)

    def resealed(rng: Rng, data: bytes) -> bytes:
        flags = 0 if rng.random() < 0.8 else int(rng.integers(16))
        return seal_payload(mutate(rng, data), codec, place, flags)

    return [
        Target("tree", _of([message], mutate), lambda data: decode_tree(codec, data, AT, tree), (CepamError,)),
        Target(
            "tree resealed", _of([payload], resealed), lambda data: decode_tree(codec, data, AT, tree), (CepamError,)
        ),
    ]


def search_targets() -> list[Target]:
    """Segments of the search coder: both backends must refuse, or give the same finite vector.

    Three of four segments have 20 coordinates, which NumPy decodes faster; 100 have trees of several levels.
    """
    codec, rng = make_codec(coder="auto"), np.random.default_rng(3)
    plan, noise, flags = codec.plan, AT.derive().noise, SEARCHED | DOUBLE
    sizes = (20, 100)
    known = {size: codec.sized(size) for size in sizes}
    segments: list[tuple[int, bytes]] = []
    messages: list[tuple[int, bytes]] = []
    for size in sizes:
        updates = [rng.normal(size=size) * 0.08, rng.normal(size=size) * 0.25, np.zeros(size), np.ones(size)]
        updates.append(np.where(np.arange(size) % (0.6 * size) == 0, 4.0, 0.01 * rng.normal(size=size)))
        made = [encode_segment(plan, noise, np.trunc(x * plan.scale).astype(np.int64), 0) for x in updates]
        messages += [(size, seal_payload(bytes([size]) + one, codec, AT, flags | TRAVELS)) for one in made]
        messages += [(size, seal_payload(one, known[size], AT, flags)) for one in made]
        segments += [(size, one) for one in made] * (3 if size == sizes[0] else 1)

    def mangled(rng: Rng, sample: tuple[int, bytes]) -> tuple[int, bytes]:
        return sample[0], mutate(rng, sample[1])

    def resealed(rng: Rng, sample: tuple[int, bytes]) -> tuple[int, bytes]:
        # The flags stay in three cases of four, and so does the size: what follows is what the coder reads.
        size, segment = sample
        mine = flags if rng.random() < 0.75 else int(rng.integers(8))
        if rng.random() < 0.5:
            return size, seal_payload(mutate(rng, segment), known[size], AT, mine)
        kept = bytes([size]) + mutate(rng, segment)
        return size, seal_payload(kept if rng.random() < 0.75 else mutate(rng, kept), codec, AT, mine | TRAVELS)

    def decode(case: tuple[int, bytes]) -> None:
        size, data = case
        found: list[Any] = []
        for backend in ("numba", "numpy"):
            try:
                of = codec if data[:1] and data[0] & TRAVELS else known[size]
                found.append(replace(of, backend=backend).decode(data, AT, size=size).tobytes())
            except CepamError as refused:
                found.append(refused)
        if not isinstance(found[0], bytes):
            assert not isinstance(found[1], bytes), f"the backends disagree on {data.hex()}"
            raise found[0]
        assert found[0] == found[1], f"the backends disagree on {data.hex()}"
        assert np.isfinite(np.frombuffer(found[0], dtype=np.float64 if len(found[0]) == 8 * size else np.float32)).all()

    return [
        Target("search", _of(messages, mangled), decode, (CepamError,)),
        Target("search resealed", _of(segments, resealed), decode, (CepamError,)),
    ]


def all_targets() -> list[Target]:
    """Every target, beside the codec's own in tools/fuzz.py."""
    return [
        *secure_aggregation_targets(), *policy_targets(), *protocol_targets(), *account_targets(),
        *checkpoint_targets(), *tree_targets(), *search_targets(),
    ]  # fmt: skip

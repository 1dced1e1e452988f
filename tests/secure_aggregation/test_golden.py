"""A whole round with a dropout, pinned: every key, mask, share and byte. A change here needs a new version number."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from cepam.distributions.laws import Gaussian
from cepam.policy import ClientPolicy, MemoryAccount
from cepam.secure_aggregation import HelloReply, HelloRequest, Roster, SecAggClient, SecAggRound, SecAggSettings, fit

GOLDEN = {
    "hello": "b78b20c0064510950bc958b8bca0e59b",
    "train": "a1226ddb8e517831e3b80680695740d3",
    "repair": "dc7289bcecec836935a0503eae11fd6a",
    "unmask": "db08d33d04c2da6df71034d3d5806cab",
    "sum": "085b77aab7e673ec9391ec1c318bb2ca",
}


def drawer(name: int) -> Callable[[int], bytes]:
    """Bytes that look random and are the same in every run."""
    calls = iter(range(1000))
    return lambda count: hashlib.shake_256(b"golden %d %d" % (name, next(calls))).digest(count)


def sign(transcript: bytes) -> bytes:
    return hashlib.sha256(b"signed" + transcript).digest()


def transcript() -> dict[str, list[bytes]]:
    """All that was said in one round of five nodes, of which one was silent."""
    policy = ClientPolicy(noise_scale=0.2, clipping_norm=1.0, rounds=5)
    nodes = {
        name: SecAggClient(
            name, b"identity %d" % name, sign, lambda _, t, s: s == sign(t), policy, MemoryAccount(), b"", drawer(name)
        )
        for name in range(1, 6)
    }
    said: dict[str, list[bytes]] = {stage: [] for stage in GOLDEN}
    for node in nodes.values():
        said["hello"].append(node.hello(HelloRequest(b"golden", 1).encode()))
    roster = Roster.of(b"golden", 1, [HelloReply.decode(reply).peer for reply in said["hello"]])
    code = fit(Gaussian(0.25), 5, 100, 5.0)
    settings = SecAggSettings(b"golden", 1, 0, 100, code.bits, code.gain, 0.25, 1.0, 4)
    round_ = SecAggRound(settings, roster, roster.names, bytes(range(32)))
    said["train"].append(round_.request())
    for name in (1, 2, 3, 5):
        update = np.full(100, name / 64, dtype=np.float32)
        reply = nodes[name].train(round_.request(), bytes(range(32)), lambda _, update=update: update, len(update))
        said["train"].append(reply)
        round_.take(name, said["train"][-1])
    for name, ask in round_.repairs().items():
        said["repair"] += [ask, nodes[name].repair(ask)]
        round_.take_repair(name, said["repair"][-1])
    for name, ask in round_.unmasks().items():
        said["unmask"] += [ask, nodes[name].unmask(ask)]
        round_.take_unmask(name, said["unmask"][-1])
    said["sum"].append(round_.open().astype("<f8").tobytes())
    return said


def test_a_round_is_the_same_to_the_last_byte() -> None:
    found = {stage: hashlib.sha256(b"".join(words)).hexdigest()[:32] for stage, words in transcript().items()}
    assert found == GOLDEN

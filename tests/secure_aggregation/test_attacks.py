"""Attacks on a node's rules, each of which must fail to learn; docs/proofs/secure-aggregation.md names them."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from cepam.secure_aggregation import SecAggRound
from cepam.secure_aggregation.channel import advance, combine, commit, open_share, round_keys
from cepam.secure_aggregation.client import NodeState
from cepam.secure_aggregation.messages import NO_SHARE, RepairRequest, TrainReply, UnmaskReply, UnmaskRequest

from . import sums
from .sums import CLIP, MODEL, NOISE, Cohort, cohort, refused, replies, run_round, sealed_for, state, trained


def test_repair_for_all_others_and_no_unmask() -> None:
    """The victim would hand out every pairwise key; it stops at the quorum and forgets the round."""
    group, round_ = trained()
    with refused("quorum"):
        group.nodes[10].repair(RepairRequest(round_.salt, (11, 12, 13, 14)).encode())
    assert state(group, 10).open is None
    group, round_ = trained()
    assert group.nodes[10].repair(RepairRequest(round_.salt, (11,)).encode())
    with refused("quorum"):
        group.nodes[10].repair(RepairRequest(round_.salt, (12,)).encode())
    with refused("position"):
        group.nodes[10].repair(RepairRequest(round_.salt, (11,)).encode())


def test_repair_that_names_the_node_itself_or_a_stranger() -> None:
    for names, kind in (((10,), "quorum"), ((99,), "cohort")):
        group, round_ = trained()
        with refused(kind):
            group.nodes[10].repair(RepairRequest(round_.salt, names).encode())
        assert state(group, 10).open is None


def test_repair_and_unmask_for_one_client() -> None:
    group, round_ = trained()
    group.nodes[10].repair(RepairRequest(round_.salt, (11,)).encode())
    everyone = group.roster.names
    with refused("cohort"):
        group.nodes[10].unmask(UnmaskRequest(round_.salt, everyone, sealed_for(round_, 10, everyone)).encode())
    assert state(group, 10).open is None


def test_unmask_then_repair() -> None:
    group, round_ = trained()
    everyone = group.roster.names
    group.nodes[10].unmask(UnmaskRequest(round_.salt, everyone, sealed_for(round_, 10, everyone)).encode())
    with refused("position"):
        group.nodes[10].repair(RepairRequest(round_.salt, (11,)).encode())


def test_unmask_twice_and_unmask_of_fewer_than_the_quorum() -> None:
    group, round_ = trained()
    everyone = group.roster.names
    ask = UnmaskRequest(round_.salt, everyone, sealed_for(round_, 10, everyone)).encode()
    group.nodes[10].unmask(ask)
    with refused("position"):
        group.nodes[10].unmask(ask)
    few = (11, 12, 13)
    with refused("cohort"):
        group.nodes[11].unmask(UnmaskRequest(round_.salt, few, sealed_for(round_, 11, few)).encode())


def test_a_replayed_position() -> None:
    group, round_ = trained()
    with refused("position"):
        group.train(10, round_.request())
    run_round(group, sums.settings(4, position=1))
    with refused("position"):
        group.train(10, round_.request())


def test_positions_far_ahead() -> None:
    group = cohort(5)
    round_ = SecAggRound(sums.settings(4, position=2**40), group.roster, group.roster.names, MODEL)
    with refused("position"):
        group.train(10, round_.request())


@pytest.mark.parametrize("back_to", ["before train", "before repair", "nothing"])
def test_a_rolled_back_state(back_to: str) -> None:
    """A context from before a fault would answer a second time, with the same masks."""
    group = cohort(5)
    member = group.nodes[10]
    before = member.state
    round_ = SecAggRound(sums.settings(4), group.roster, group.roster.names, MODEL)
    group.train(10, round_.request())
    trained_state = member.state
    member.repair(RepairRequest(round_.salt, (11,)).encode())
    member.state = {"before train": before, "before repair": trained_state, "nothing": b""}[back_to]
    with refused("position"):
        group.train(10, round_.request())
    with refused("position"):
        member.repair(RepairRequest(round_.salt, (12,)).encode())
    sums.hello([member], epoch=2)
    with refused("position"):
        member.repair(RepairRequest(round_.salt, (12,)).encode())


def test_a_crafted_model_with_an_overflow_gate() -> None:
    """Training that fails exactly if a record is there: the reply looks like any other, and is a zero update."""
    size = 400
    bad = {
        "raises": lambda asked: 1 / 0,
        "infinite": lambda asked: np.full(size, np.inf, dtype=np.float32),
        "nan": lambda asked: np.full(size, np.nan),
        "overflows in the norm": lambda asked: np.full(size, 1e300),
        "another shape": lambda asked: np.zeros(size + 1, dtype=np.float32),
        "integers": lambda asked: np.ones(size, dtype=np.int64),
        "no array": lambda asked: "a record",
    }
    asked = sums.settings(4, coordinates=size, clients=6)
    lengths = set()
    for label, work in bad.items():
        group = cohort(6, size)
        group.updates = {name: np.zeros(size, dtype=np.float32) for name in group.nodes}
        group.work = lambda name, work=work: work  # type: ignore[method-assign]
        round_, total = run_round(group, asked)
        lengths.add(len(replies(round_)[10].encode()))
        assert np.abs(total).max() < 9 * NOISE * np.sqrt(6) + 6 * asked.codec.cell, label
    group = cohort(6, size)
    round_, _ = run_round(group, asked)
    assert lengths == {len(replies(round_)[10].encode())}


def test_the_sum_of_clipped_examples_is_bounded_by_the_node_whatever_training_computed() -> None:
    size, records, batch = 100, 32, 16.0
    policy = replace(sums.TERMS, divisor=batch, records=records)
    for length, expected in ((1e6, records * CLIP / batch), (1.5, 1.5)):
        group = cohort(5, size, policy=policy)
        zero = np.zeros(size, dtype=np.float32)
        group.updates = {10: np.full(size, length / np.sqrt(size)), **dict.fromkeys(range(11, 15), zero)}
        asked = sums.settings(4, coordinates=size, batch=batch)
        _, total = run_round(group, asked)
        # Along the update: noise of 5 nodes and rounding. Nine deviations are exceeded with chance below 1e-18.
        bound = 9 * np.sqrt(5 * (NOISE**2 + asked.codec.cell**2 / 12))
        assert abs(total.sum() / np.sqrt(size) - expected) < bound


def test_updates_beyond_the_clip_are_clipped_by_the_node() -> None:
    size = 100
    group = cohort(5, size)
    group.updates = {name: np.full(size, 1e6, dtype=np.float32) for name in group.nodes}
    asked = sums.settings(4, coordinates=size)
    _, total = run_round(group, asked)
    assert np.linalg.norm(total) < 5 * CLIP + 9 * NOISE * np.sqrt(5 * size) + np.sqrt(size) * 5 * asked.codec.cell


def test_shares_swapped_tampered_or_foreign() -> None:
    """What does not open is not told; where nothing opens the node refuses. The round is erased either way."""

    def ask(group: Cohort, round_: SecAggRound, shares: list[bytes], closed: set[int]) -> None:
        request = UnmaskRequest(round_.salt, group.roster.names, tuple(shares)).encode()
        if len(closed) == 4:
            with refused("share"):
                group.nodes[10].unmask(request)
        else:
            told = dict(zip(group.roster.names, UnmaskReply.decode(group.nodes[10].unmask(request)).shares))
            assert {name for name, share in told.items() if share == NO_SHARE} == closed
        assert state(group, 10).open is None
        with refused("position"):
            group.nodes[10].unmask(request)

    group, round_ = trained()
    good = list(sealed_for(round_, 10, group.roster.names))
    ask(group, round_, [good[1], good[0], *good[2:]], {11, 12})
    group, round_ = trained()
    good = list(sealed_for(round_, 10, group.roster.names))
    ask(group, round_, [bytes([good[0][0] ^ 1]) + good[0][1:], *good[1:]], {11})
    group, round_ = trained()
    good = list(sealed_for(round_, 10, group.roster.names))
    ask(group, round_, [round_._sealed(11, 12), *good[1:]], {11})
    group, round_ = trained()
    good = list(sealed_for(round_, 10, group.roster.names))
    ask(group, round_, good[::-1], {11, 12, 13, 14})
    group, round_ = trained()
    run_round(group, sums.settings(4, position=1))
    other = SecAggRound(sums.settings(4, position=2), group.roster, group.roster.names, MODEL)
    for name in group.nodes:
        other.take(name, group.train(name, other.request()))
    ask(group, other, [*sealed_for(round_, 10, (11,)), *sealed_for(other, 10, (12, 13, 14))], {11})


def test_sealed_shares_do_not_open_with_revealed_mask_keys() -> None:
    group, round_ = trained()
    key = group.nodes[10].repair(RepairRequest(round_.salt, (11,)).encode())[-32:]
    for sealed in (round_._sealed(11, 10), round_._sealed(10, 11)):
        with refused("share"):
            open_share(key, round_.salt, sealed)


@pytest.mark.parametrize("what", ["model", "bits", "noise", "position", "cohort"])
def test_another_round_for_one_node(what: str) -> None:
    """Masks do not cancel and shares do not open: the round is lost, nothing is learned."""
    group = cohort(6)
    asked = sums.settings(4, clients=6)
    round_ = SecAggRound(asked, group.roster, group.roster.names, MODEL)
    changed = {
        "bits": replace(asked, bits=asked.bits + 1),
        "noise": replace(asked, noise=asked.noise * 1.001),
        "position": replace(asked, position=1),
    }.get(what, asked)
    names = group.roster.names[:5] if what == "cohort" else group.roster.names
    model = hashlib.sha256(b"other").digest() if what == "model" else MODEL
    other = SecAggRound(changed, group.roster, names, model)
    odd = TrainReply.decode(group.train(10, other.request(), model))
    for name in (11, 12, 13, 14, 15):
        round_.take(name, group.train(name, round_.request()))
    shares = (*odd.shares, odd.shares[0])[:5]
    forged = replace(odd, salt=round_.salt, vector=bytes(asked.codec.message_bytes), shares=shares)
    round_.take(10, forged.encode())
    assert not round_.repairs()
    asks = round_.unmasks()
    with refused("position"):
        group.nodes[10].unmask(asks.pop(10))
    for name, ask in asks.items():
        round_.take_unmask(name, group.nodes[name].unmask(ask))
    assert round_.disputes == {(10, name) for name in range(11, 16)}
    assert round_.unopened() == {10}
    with refused("quorum"):
        round_.open()


@pytest.mark.parametrize("liars", [(10,), (12,), (14,), (10, 12)])
def test_a_seed_that_is_not_the_committed_one(liars: tuple[int, ...]) -> None:
    """Four of five shares give a seed: one wrong one is left out, two end the round."""
    group, round_ = trained()
    assert not round_.repairs()
    for name, ask in round_.unmasks().items():
        reply = UnmaskReply.decode(group.nodes[name].unmask(ask))
        if name in liars:
            reply = replace(reply, shares=tuple((1).to_bytes(33, "little") for _ in reply.shares))
        round_.take_unmask(name, reply.encode())
    if len(liars) == 1:
        total = np.sum(list(group.updates.values()), axis=0)
        assert np.abs(round_.open() - total).max() < 9 * NOISE * np.sqrt(5) + 5 * round_.settings.codec.cell
        return
    with refused("commitment"):
        round_.open()


def test_the_chain_does_not_follow_from_a_revealed_mask_key() -> None:
    """What is revealed is an HKDF output under a label of its own, and the chain has moved on by then."""
    group = cohort(5)
    round_ = SecAggRound(sums.settings(4), group.roster, group.roster.names, MODEL)
    group.train(10, round_.request())
    key = group.nodes[10].repair(RepairRequest(round_.salt, (11,)).encode())[-32:]
    chain = state(group, 10).chains[11]
    assert chain != key
    assert chain not in (advance(key), key)
    later = round_keys(chain, round_.salt, 10, 11)
    assert key not in (later.mask, later.inward, later.outward)
    assert state(group, 10).private == b""


def test_no_secret_is_in_any_reply_or_refusal() -> None:
    group = cohort(5)
    round_ = SecAggRound(sums.settings(4), group.roster, group.roster.names, MODEL)
    said: list[bytes] = []
    for name in (10, 11, 12, 13):
        reply = group.train(name, round_.request())
        said.append(reply)
        round_.take(name, reply)
    secrets = {secret for name in (10, 11, 12, 13) for secret in _secrets(state(group, name))}
    masks_with_missing = {state(group, name).open.masks[14] for name in (10, 11, 12, 13)}  # type: ignore[union-attr]
    for name, ask in round_.repairs().items():
        said.append(group.nodes[name].repair(ask))
        round_.take_repair(name, said[-1])
    own_shares = {state(group, name).open.share for name in (10, 11, 12, 13)}  # type: ignore[union-attr]
    for name, ask in round_.unmasks().items():
        said.append(group.nodes[name].unmask(ask))
        round_.take_unmask(name, said[-1])
    everything = b"".join(said)
    for secret in secrets - masks_with_missing - own_shares:
        assert secret not in everything
    for name in (10, 11, 12, 13):
        assert state(group, name).open is None
        assert not any(
            secret in group.nodes[name].state for secret in secrets - set(state(group, name).chains.values())
        )


def _secrets(known: NodeState) -> set[bytes]:
    assert known.open is not None
    return {*known.chains.values(), *known.open.masks.values(), *known.open.seals.values(), known.open.share}


def test_fewer_shares_than_the_threshold_do_not_give_the_seed() -> None:
    group, round_ = trained()
    assert not round_.repairs()
    shares = []
    for place, (name, ask) in enumerate(round_.unmasks().items()):
        if len(shares) < 3:
            shares.append((place, UnmaskReply.decode(group.nodes[name].unmask(ask)).shares[4]))
    try:
        seed = combine([place for place, _ in shares], [share for _, share in shares])
    except ValueError:
        return
    assert commit(seed, round_.salt) != replies(round_)[14].commitment

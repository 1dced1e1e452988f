"""Offers, rosters and rounds that a node must refuse: its own floor, and keys that are not what they say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cepam.policy import AccountUnusable, ClientPolicy, FileAccount, RoundCharge
from cepam.secure_aggregation import Roster, RosterEntry, SecAggRefused, SecAggRound
from cepam.secure_aggregation.messages import TrainReply, TrainRequest
from cepam.secure_aggregation.roster import hello_transcript

from . import sums
from .sums import CLIP, MODEL, Cohort, cohort, refused, run_round, trained


def test_an_epoch_said_hello_to_twice() -> None:
    group = cohort(5)
    for epoch in (0, 1):
        with refused("position"):
            sums.hello(group.nodes.values(), epoch)
    sums.hello(group.nodes.values(), 2)


def test_a_lost_account_does_not_give_back_what_was_spent(tmp_path: Path) -> None:
    member = sums.node(0, account=sums.file_account(tmp_path / "journal"))
    sums.hello([member], 1)
    (tmp_path / "journal").unlink()
    with pytest.raises(AccountUnusable, match="no account"):
        sums.hello([member], 2)
    with pytest.raises(FileExistsError, match="mark"):
        FileAccount.create(tmp_path / "journal")
    for left in (tmp_path).iterdir():
        left.unlink()
    FileAccount.create(tmp_path / "journal")  # the operator forgets all; the node itself still knows
    with refused("policy"):
        sums.hello([member], 2)


def test_a_rolled_back_account_does_not_give_back_what_was_spent(tmp_path: Path) -> None:
    nodes = {10 + i: sums.node(i, account=sums.file_account(tmp_path / f"{i}")) for i in range(5)}
    group = Cohort(nodes, sums.hello(nodes.values(), 1))
    old = (tmp_path / "0").read_bytes()
    run_round(group, sums.settings(4))
    (tmp_path / "0").write_bytes(old)
    with pytest.raises(AccountUnusable, match="restored from a backup"):
        run_round(group, sums.settings(4, position=1))
    (tmp_path / "0.mark").write_bytes(b"0")  # the mark restored with it: the node's own secrets are newer
    with refused("position"):
        run_round(group, sums.settings(4, position=1))
    with refused("policy"):
        sums.hello([nodes[10]], 2)


def test_quorum_20_of_39() -> None:
    """2 · 20 - 39 = 1: a lying server would read one client alone."""
    group = cohort(39, policy=ClientPolicy(noise_scale=0.2, clipping_norm=CLIP, rounds=9))
    round_ = SecAggRound(sums.settings(20, clients=39), group.roster, group.roster.names, MODEL)
    with refused("policy"):
        group.train(10, round_.request())
    with refused("quorum"):
        SecAggRound(sums.settings(20, clients=39, colluders=1), group.roster, group.roster.names, MODEL)
    group, request = cohort(5), SecAggRound(sums.settings(4), cohort(5).roster, range(10, 15), MODEL).request()
    lies = TrainRequest.decode(request)
    lies = replace(lies, settings=replace(lies.settings, quorum=3, threshold=3, colluders=1), roster=group.roster)
    with refused("quorum"):
        group.train(10, replace(lies, roster_digest=group.roster.digest).encode())


OFFERS = {
    "noise": {"noise": 0.19}, "clip": {"clip": 1.01}, "quorum": {"quorum": 4, "threshold": 4},
    "honest": {"colluders": 3}, "batch": {"batch": 10.0}, "record_sampling_rate": {"record_sampling_rate": 0.6},
    "sparse": {"degree": 4, "threshold": 4},
}  # fmt: skip


@pytest.mark.parametrize("below", OFFERS)
def test_offers_below_the_policy(below: str) -> None:
    policy = ClientPolicy(noise_scale=0.2, clipping_norm=1.0, rounds=9, quorum=5, honest=3, record_sampling_rate=0.5)
    group = cohort(6, policy=policy)
    good = sums.settings(5, clients=6, record_sampling_rate=0.5)
    asked = replace(good, **OFFERS[below])
    with refused("policy"):
        group.train(10, SecAggRound(asked, group.roster, group.roster.names, MODEL).request())
    assert group.train(10, SecAggRound(good, group.roster, group.roster.names, MODEL).request())


def test_the_rounds_of_a_node_are_spent_over_all_runs(tmp_path: Path) -> None:
    policy = ClientPolicy(noise_scale=0.2, clipping_norm=1.0, rounds=2)
    nodes = {10 + i: sums.node(i, policy, account=sums.file_account(tmp_path / f"{i}")) for i in range(5)}
    for run in (b"one", b"two"):
        group = Cohort(nodes, sums.hello(nodes.values(), 1, run))
        run_round(group, sums.settings(4, run=run))
    nodes = {10 + i: sums.node(i, policy, account=sums.file_account(tmp_path / f"{i}")) for i in range(5)}
    group = Cohort(nodes, sums.hello(nodes.values(), 1, b"three"))
    with refused("policy"):
        run_round(group, sums.settings(4, run=b"three"))


def rosters(group: Cohort) -> dict[str, tuple[str, Roster]]:
    peers = list(group.roster.peers)
    first, last, sign = peers[1], peers[-1], sums.identity(4)[1]
    elsewhere = hello_transcript(group.roster.run, group.roster.epoch, 99, last.identity, last.public)

    def with_last(peer: RosterEntry) -> Roster:
        return Roster(group.roster.run, group.roster.epoch, (*peers[:-1], peer))

    return {
        "unsigned": ("unsigned", with_last(replace(last, signature=b""))),
        "a key of the server's": ("unsigned", with_last(replace(last, public=b"\x09" + bytes(31)))),
        "signed for another node": ("unsigned", with_last(replace(last, signature=sign(elsewhere)))),
        "signed in another epoch": ("unsigned", Roster(group.roster.run, 2, tuple(peers))),
        "one identity twice": ("cohort", with_last(replace(last, identity=first.identity))),
        "one key twice": ("cohort", with_last(replace(last, public=first.public))),
        "one node twice": ("cohort", with_last(replace(last, node=first.node))),
        "without this node": ("cohort", Roster(group.roster.run, group.roster.epoch, tuple(peers[1:]))),
    }


@pytest.mark.parametrize("case", list(rosters(cohort(5))))
def test_rosters_that_are_not_what_they_say(case: str) -> None:
    group = cohort(5)
    kind, roster = rosters(group)[case]
    asked = replace(sums.settings(3), epoch=roster.epoch)
    request = TrainRequest(asked, (10, 11, 12, 13, 14), roster.digest, roster).encode()
    with pytest.raises(SecAggRefused) as error:
        group.train(10, request)
    assert error.value.kind in (kind, "position")


def test_the_server_puts_its_own_key_in_the_place_of_a_node_with_an_identity_of_its_own() -> None:
    """An invented node signs well; only a pinned cohort tells."""
    group = cohort(5)
    pinned = frozenset(sums.identity(i)[0] for i in range(4))
    group.nodes[10].policy = replace(sums.TERMS, cohort=pinned)
    with refused("cohort"):
        group.train(10, SecAggRound(sums.settings(4), group.roster, group.roster.names, MODEL).request())


def test_a_second_roster_in_an_epoch_and_an_own_key_that_is_not() -> None:
    group, _ = trained()
    other = Roster.of(group.roster.run, 1, [*group.roster.peers[:4], sums.cohort(6).roster.peers[5]])
    asked = sums.settings(4, position=1)
    with refused("cohort"):
        group.train(10, TrainRequest(asked, other.names, other.digest, other).encode())
    fresh, elsewhere = cohort(5), cohort(5)
    with refused("cohort"):
        fresh.train(10, SecAggRound(sums.settings(4), elsewhere.roster, elsewhere.roster.names, MODEL).request())


def test_two_rosters_for_two_halves_open_nothing() -> None:
    """Both are signed well; masks and sealing keys are bound to the whole roster, so the halves share nothing."""
    group = cohort(5)
    peers = list(group.roster.peers)
    transcript = hello_transcript(sums.RUN, 1, 14, peers[4].identity, peers[4].public)
    again = replace(peers[4], signature=sums.identity(4)[1](transcript))
    other = Roster.of(sums.RUN, 1, [*peers[:4], again])
    assert other.digest != group.roster.digest
    round_ = SecAggRound(sums.settings(4), group.roster, group.roster.names, MODEL)
    second = SecAggRound(sums.settings(4), other, group.roster.names, MODEL)
    for name in (10, 11, 12):
        round_.take(name, group.train(name, round_.request()))
    for name in (13, 14):
        told = TrainReply.decode(group.train(name, second.request()))
        round_.take(name, replace(told, salt=round_.salt).encode())
    assert not round_.repairs()
    asks = round_.unmasks()
    for name in (13, 14):
        with refused("position"):
            group.nodes[name].unmask(asks[name])
    for name in (10, 11, 12):
        round_.take_unmask(name, group.nodes[name].unmask(asks[name]))
    assert round_.disputes == {(sender, name) for sender in (13, 14) for name in (10, 11, 12)}
    assert round_.unopened() == {10, 11, 12, 13, 14}
    with refused("quorum"):
        round_.open()


def test_a_server_that_tells_of_smaller_draws_larger_batches_or_smaller_clips_is_not_believed() -> None:
    """The training code draws, clips examples and divides: the node's own ledger counts what its own terms say."""
    policy = ClientPolicy(
        noise_scale=0.2,
        clipping_norm=1.0,
        rounds=9,
        divisor=64.0,
        record_sampling_rate=0.5,
        colluders=1,
        honest=1,
        records=64,
    )
    group = cohort(5, policy=policy)
    flattered = sums.settings(4, batch=1e6, record_sampling_rate=1e-6, clip=1e-3)
    whole = sums.settings(4, position=1, record_sampling_rate=0.1, clip=0.5)
    for asked in (flattered, whole):
        group.train(10, SecAggRound(asked, group.roster, group.roster.names, MODEL).request())
    with group.nodes[10].account.hold() as entry:
        found = entry.answered.charges
    assert found == (
        RoundCharge("secure-aggregation", sums.NOISE, 1.0, 12, 2, 64.0, 0.5),
        RoundCharge("secure-aggregation", sums.NOISE, 0.5, 12, 2, 0.0, 0.5),
    )


def test_an_update_at_the_end_of_the_reach_is_answered_like_any_other() -> None:
    """A clip as wide as the noise reaches: rounding must not make an error of what the update was."""
    for batch in (0.0, 64.0):
        group = cohort(5, policy=ClientPolicy(noise_scale=0.2, clipping_norm=1e12, rounds=9, divisor=batch, records=64))
        reach = sums.settings(4).codec.plan.reach
        group.updates = {10: np.full(12, 3e38, dtype=np.float32), 11: np.full(12, reach)}
        asked = sums.settings(4, clip=reach, batch=batch)
        round_ = SecAggRound(asked, group.roster, group.roster.names, MODEL)
        assert len({len(group.train(name, round_.request())) for name in (10, 11, 12)}) == 1

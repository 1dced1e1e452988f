"""Whole rounds: whoever drops out, a round with a quorum opens right, and one without opens not at all."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cepam.errors import MalformedMessage
from cepam.secure_aggregation import SecAggRefused, SecAggRound

from . import sums
from .sums import CLIP, MODEL, NOISE, Cohort, cohort, run_round


def tolerance(clients: int, cell: float) -> float:
    """Nine standard deviations of the noise and all of the rounding: a false alarm has chance under 1e-17."""
    return 9 * NOISE * np.sqrt(clients) + clients * cell


def expect(group: Cohort, names: tuple[int, ...]) -> np.ndarray:
    return np.sum([group.updates[name] for name in names], axis=0, dtype=np.float64)


@pytest.mark.parametrize(("clients", "quorum"), [(3, 3), (4, 3), (5, 4), (8, 6), (30, 24)])
def test_rounds_of_an_epoch_open_one_after_the_other(clients: int, quorum: int) -> None:
    group = cohort(clients)
    for position in range(3):
        asked = sums.settings(quorum, clients=clients, position=position)
        round_, total = run_round(group, asked, with_roster=position == 0)
        assert round_.survivors == group.roster.names
        assert np.abs(total - expect(group, round_.survivors)).max() < tolerance(clients, asked.codec.cell)


def test_the_sum_is_exact_to_the_last_grid_step() -> None:
    """With 32 bits the opened sum is the sum of the nodes' own integers: masks leave nothing behind."""
    group = cohort(5)
    drawn: list[np.ndarray] = []
    asked = sums.settings(4, bits=32)
    for name, member in group.nodes.items():
        secret = hashlib.shake_256(b"%d" % name)
        stream = iter(range(10**6))
        member.draw = lambda count, secret=secret, stream=stream: secret.digest(10**6)[
            (at := 4096 * next(stream)) : at + count
        ]
        drawn.append(asked.codec.noised(group.updates[name], secret.digest(10**6)[4096 : 4096 + 32]))
    _, total = run_round(group, asked)
    scaled = total / asked.codec.grid
    assert np.array_equal(np.rint(scaled).astype(np.int64), np.sum(drawn, axis=0))


@pytest.mark.parametrize(("clients", "quorum"), [(3, 3), (100, 80)])
def test_the_smallest_and_the_largest_complete_graph(clients: int, quorum: int) -> None:
    group = cohort(clients)
    away, mute = ({11, 12, 13}, {14, 15}) if clients == 100 else (set(), set())
    round_, total = run_round(group, sums.settings(quorum, clients=clients), no_train=away, no_unmask=mute)
    assert len(round_.survivors) == clients - len(away)
    error = total - np.sum([group.updates[name] for name in round_.survivors], axis=0)
    cells = len(round_.survivors) * round_.settings.codec.cell
    assert np.abs(error).max() < 9 * sums.NOISE * np.sqrt(clients) + cells


def test_chains_move_on_where_a_node_missed_rounds() -> None:
    group = cohort(5)
    run_round(group, sums.settings(4), no_train=[12])
    run_round(group, sums.settings(4, position=3))
    asked = sums.settings(4, position=7)
    round_, total = run_round(group, asked, no_train=[10])
    assert np.abs(total - expect(group, round_.survivors)).max() < tolerance(5, asked.codec.cell)


def test_a_cohort_that_is_a_part_of_the_roster() -> None:
    group = cohort(7)
    for position, names in enumerate([(10, 12, 13, 15), (11, 12, 14, 15, 16), (10, 11, 12)]):
        asked = sums.settings(3, clients=len(names), position=position)
        round_ = SecAggRound(asked, group.roster, names, MODEL)
        for name in names:
            round_.take(name, group.train(name, round_.request()))
        assert not round_.repairs()
        for name, ask in round_.unmasks().items():
            round_.take_unmask(name, group.nodes[name].unmask(ask))
        assert np.abs(round_.open() - expect(group, names)).max() < tolerance(len(names), asked.codec.cell)


def test_a_repair_whose_reply_was_lost_is_answered_again_with_the_same_keys() -> None:
    group = cohort(5)
    round_ = SecAggRound(sums.settings(4), group.roster, group.roster.names, MODEL)
    for name in (10, 11, 12, 13):
        round_.take(name, group.train(name, round_.request()))
    ask = round_.repairs()[10]
    assert group.nodes[10].repair(ask) == group.nodes[10].repair(ask)


NAMES = st.sets(st.integers(10, 15))


@settings(max_examples=60, deadline=None)
@given(NAMES, NAMES, NAMES, st.sampled_from([4, 5]))
def test_drop_outs_in_every_stage(no_train: set[int], no_repair: set[int], no_unmask: set[int], quorum: int) -> None:
    group = cohort(6)
    asked = sums.settings(quorum, clients=6)
    left = set(group.nodes) - no_train
    if no_train:
        left -= no_repair
    try:
        round_, total = run_round(group, asked, no_train, no_repair, no_unmask)
    except SecAggRefused as error:
        kind = error.kind
        total = None
    if total is None:
        assert kind == "quorum"
        assert len(left) < quorum or len(left - no_unmask) < quorum
        return
    assert set(round_.survivors) == left
    assert len(left - no_unmask) >= quorum
    assert np.abs(total - expect(group, round_.survivors)).max() < tolerance(6, asked.codec.cell)


def test_below_the_quorum_the_nodes_themselves_say_no() -> None:
    group = cohort(5)
    round_ = SecAggRound(sums.settings(4), group.roster, group.roster.names, MODEL)
    for name in (10, 11, 12):
        round_.take(name, group.train(name, round_.request()))
    with pytest.raises(SecAggRefused, match="quorum"):
        round_.repairs()
    with pytest.raises(SecAggRefused, match=r"position|quorum"):
        round_.unmasks()
    assert not round_.charged


def test_a_round_is_charged_once_shares_were_asked_for() -> None:
    group = cohort(5)
    round_ = SecAggRound(sums.settings(4), group.roster, group.roster.names, MODEL)
    for name in group.nodes:
        round_.take(name, group.train(name, round_.request()))
    assert not round_.repairs()
    assert not round_.charged
    round_.unmasks()
    assert round_.charged
    with pytest.raises(SecAggRefused, match="quorum"):
        round_.open()
    with pytest.raises(SecAggRefused, match="position"):
        round_.repairs()


def test_replies_that_do_not_belong_are_refused() -> None:
    group = cohort(5)
    round_ = SecAggRound(sums.settings(4), group.roster, group.roster.names, MODEL)
    other = SecAggRound(sums.settings(4, position=1), group.roster, group.roster.names, MODEL)
    reply = group.train(10, round_.request())
    with pytest.raises(SecAggRefused, match="position"):
        other.take(10, reply)
    with pytest.raises(SecAggRefused, match="position"):
        round_.take(99, reply)
    round_.take(10, reply)
    with pytest.raises(SecAggRefused, match="position"):
        round_.take(10, reply)
    with pytest.raises(MalformedMessage):
        round_.take(11, reply[:-1])


@pytest.mark.parametrize(("clients", "degree", "threshold"), [(40, 12, 7), (60, 10, 6)])
def test_a_sparse_graph(clients: int, degree: int, threshold: int) -> None:
    policy = sums.ClientPolicy(noise_scale=0.2, clipping_norm=CLIP, rounds=10, sparse=True, degree=10)
    group = cohort(clients, policy=policy)
    asked = sums.settings(clients - 8, clients=clients, degree=degree, threshold=threshold)
    for name in group.nodes:
        neighbourhood = group.roster.neighbourhood(name, degree)
        assert len(neighbourhood) == degree + 1
        assert all(name in group.roster.neighbourhood(peer, degree) for peer in neighbourhood)
    round_, total = run_round(group, asked, no_train=[11, 25], no_repair=[12], no_unmask=[13])
    assert {11, 25} <= set(group.roster.names) - set(round_.survivors)
    assert np.abs(total - expect(group, round_.survivors)).max() < tolerance(clients, asked.codec.cell)
    unwilling = cohort(clients)
    request = SecAggRound(asked, unwilling.roster, unwilling.roster.names, MODEL).request()
    with pytest.raises(SecAggRefused, match="policy"):
        unwilling.train(10, request)

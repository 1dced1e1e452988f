"""A client whose shares keep charged rounds closed: it is named and left out, and honest clients are not blamed."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message

import cepam
from cepam import privacy
from cepam.flower.client_mod import SECURE_AGGREGATION, carried, carry
from cepam.secure_aggregation.channel import SEALED_BYTES, SHARE_BYTES
from cepam.secure_aggregation.messages import NO_SHARE, TrainReply, UnmaskReply
from cepam.secure_aggregation.server import SecAggRound

from ..flower.conftest import _fast_disk, _identity  # noqa: F401
from ..flower.fakes import outcome, start_arrays, vector_of
from ..flower.secure_aggregation.fakes import NAMES, SIZE, SumGrid, stage_of, sum_fleet, summing
from ..secure_aggregation import sums

GUILTY, VICTIM, ROUNDS = 102, 104, 10
LAW, DELTA = cepam.Gaussian(2.0), 1e-5
Change = Callable[[bytes], bytes]


def garbage(places: slice) -> Change:
    """Sealed shares of these places replaced by random bytes; vector and commitment stay good."""

    def change(said: bytes) -> bytes:
        reply = TrainReply.decode(said)
        shares = list(reply.shares)
        for place in range(len(shares))[places]:
            shares[place] = secrets.token_bytes(SEALED_BYTES)
        return replace(reply, shares=tuple(shares)).encode()

    return change


def another_commitment(said: bytes) -> bytes:
    return replace(TrainReply.decode(said), commitment=secrets.token_bytes(32)).encode()


def answering(share: Callable[[], bytes], places: slice = slice(None)) -> Change:
    """Another answer to unmask: these shares are what `share` gives."""

    def change(said: bytes) -> bytes:
        reply = UnmaskReply.decode(said)
        shares = list(reply.shares)
        for place in range(len(shares))[places]:
            shares[place] = share()
        return replace(reply, shares=tuple(shares)).encode()

    return change


def random_share() -> bytes:
    return secrets.token_bytes(SHARE_BYTES - 1) + b"\0"


def misbehave(grid: SumGrid, node: int, **changes: Change) -> None:
    """The node answers these stages as it likes."""
    deliver = grid.nodes[node].handle

    def handle(message: Message) -> Message:
        change = changes.get(stage_of(message))
        reply = deliver(message)
        if change is not None and reply.has_content():
            reply.content[SECURE_AGGREGATION] = carry(change(carried(reply.content[SECURE_AGGREGATION])))
        return reply

    grid.nodes[node].handle = handle  # type: ignore[method-assign]


def misdeal(grid: SumGrid, node: int, monkeypatch: pytest.MonkeyPatch, share: Callable[[], bytes]) -> None:
    """The node seals well what is no share of its seed."""
    deliver = grid.nodes[node].handle

    def handle(message: Message) -> Message:
        with monkeypatch.context() as patched:
            patched.setattr(
                "cepam.secure_aggregation.client.split", lambda seed, t, places, draw: [share() for _ in range(places)]
            )
            return deliver(message)

    grid.nodes[node].handle = handle  # type: ignore[method-assign]


class Seen:
    """A run of some rounds: which were opened, how many nodes were asked, who was named."""

    def __init__(
        self,
        grid: SumGrid,
        folder: Path,
        caplog: pytest.LogCaptureFixture,
        *,
        rounds: int = ROUNDS,
        **options: object,
    ) -> None:
        logging.getLogger("flwr").addHandler(caplog.handler)
        self.strategy = summing(noise=LAW, delta=DELTA, folder=folder / "accounts", **options)
        result = outcome(self.strategy, grid, start_arrays(SIZE), rounds)
        metrics = [dict(result.train_metrics_clientapp[number]) for number in range(1, rounds + 1)]
        self.arrays = result.arrays
        self.opened = [int(each["cepam-opened"]) for each in metrics]
        self.asked = [int(each["cepam-sampled"]) for each in metrics]
        said = [record.getMessage() for record in caplog.records]
        self.named = {
            int(found[1]) for line in said if (found := re.search(r"node (\d+) is left out of this run", line))
        }
        self.charged = sum(1 for a, b in zip([0.0, *self.spent(metrics)], self.spent(metrics)) if b > a)

    @staticmethod
    def spent(metrics: list[dict[str, float]]) -> list[float]:
        return [float(each["cepam-epsilon"]) for each in metrics]


SENDERS: dict[str, Change] = {
    "garbage for all": garbage(slice(None)),
    "garbage for two": garbage(slice(2)),
    "another commitment": another_commitment,
}


@pytest.mark.parametrize("attack", SENDERS)
@pytest.mark.parametrize("count", [5, 6])
def test_a_sender_of_bad_shares_costs_one_round_and_is_named(attack: str, count: int, tmp_path, caplog) -> None:
    grid, updates = sum_fleet(tmp_path, count)
    misbehave(grid, GUILTY, train=SENDERS[attack])
    seen = Seen(grid, tmp_path, caplog)
    assert seen.opened == [0] + [1] * (ROUNDS - 1)
    assert seen.asked == [count] + [count - 1] * (ROUNDS - 1)
    assert seen.named == {GUILTY}
    assert seen.charged == ROUNDS
    # Nine sums of the honest nodes, over those asked; noise and rounding, nine deviations.
    honest = np.delete(updates, GUILTY - 100, axis=0).mean(axis=0)
    bound = 9 * LAW.scale * np.sqrt((ROUNDS - 1) * 13 / 12 / (count - 1))
    np.testing.assert_allclose(vector_of(seen.arrays), (ROUNDS - 1) * honest, atol=bound)


@pytest.mark.parametrize("share", [random_share, lambda: b"\xff" * SHARE_BYTES, lambda: NO_SHARE])
def test_a_sender_that_seals_what_are_no_shares(share, tmp_path, caplog, monkeypatch) -> None:
    grid, _ = sum_fleet(tmp_path)
    misdeal(grid, GUILTY, monkeypatch, share)
    seen = Seen(grid, tmp_path, caplog)
    assert seen.opened == [0] + [1] * (ROUNDS - 1)
    assert seen.named == {GUILTY}


def test_a_budget_is_not_drained(tmp_path, caplog) -> None:
    """The budget is that of ten rounds of five: the honest four train on with what the one lost round left."""
    mechanism = privacy.Mechanism.uniform(
        5, LAW, cepam.L2(1.0), privacy.Sampling("all"), 1, rounds=12, coordinates=SIZE
    )
    grid, _ = sum_fleet(tmp_path)
    misbehave(grid, GUILTY, train=garbage(slice(None)))
    seen = Seen(grid, tmp_path, caplog, budget=privacy.epsilon(mechanism, DELTA, client=0))
    assert sum(seen.opened) >= 8
    assert seen.opened[1:6] == [1] * 5


def test_a_sender_that_is_silent_afterwards_or_chooses_its_rounds_is_named_too(tmp_path, caplog) -> None:
    grid, _ = sum_fleet(tmp_path)
    misbehave(grid, GUILTY, train=garbage(slice(None)))
    grid.mute = {("unmask", GUILTY)}
    seen = Seen(grid, tmp_path, caplog)
    assert (seen.opened, seen.named) == ([0] + [1] * (ROUNDS - 1), {GUILTY})
    caplog.clear()
    # One receiver a round: every round opens without that share, and the disputes add up.
    grid, _ = sum_fleet(tmp_path / "one")
    turn = iter(range(100))
    misbehave(grid, GUILTY, train=lambda said: garbage(slice(at := next(turn) % 4, at + 1))(said))
    seen = Seen(grid, tmp_path / "one", caplog)
    assert (seen.opened, seen.named) == ([1] * ROUNDS, {GUILTY})
    assert seen.asked == [5, 5] + [4] * (ROUNDS - 2)


def test_two_senders_of_ten(tmp_path, caplog) -> None:
    grid, _ = sum_fleet(tmp_path, 10)
    for node, attack in ((GUILTY, "another commitment"), (107, "garbage for all")):
        misbehave(grid, node, train=SENDERS[attack])
    seen = Seen(grid, tmp_path, caplog)
    assert seen.opened == [0] + [1] * (ROUNDS - 1)
    assert seen.named == {GUILTY, 107}


def test_two_receivers_of_ten_that_lie_about_three_nodes(tmp_path, caplog) -> None:
    """No more than the quorum can spare: whatever these two say, every round opens, and nobody else is left out."""
    grid, _ = sum_fleet(tmp_path, 10)
    misbehave(grid, GUILTY, unmask=answering(random_share, slice(5, 8)))
    misbehave(grid, 103, unmask=answering(lambda: NO_SHARE, slice(5, 8)))
    seen = Seen(grid, tmp_path, caplog)
    assert seen.opened == [1] * ROUNDS
    assert seen.named <= {103}


@pytest.mark.parametrize("count", [5, 8])
def test_a_false_accuser_excludes_nobody_but_itself(count: int, tmp_path, caplog) -> None:
    grid, _ = sum_fleet(tmp_path, count)
    misbehave(grid, GUILTY, unmask=answering(lambda: NO_SHARE))
    seen = Seen(grid, tmp_path, caplog)
    assert seen.opened == [1] * ROUNDS
    assert seen.named == {GUILTY}


@pytest.mark.parametrize("share", [lambda: NO_SHARE, random_share], ids=["accuses", "lies"])
def test_a_receiver_that_is_after_one_node_achieves_nothing(share, tmp_path, caplog) -> None:
    grid, _ = sum_fleet(tmp_path)
    misbehave(grid, GUILTY, unmask=answering(share, slice(VICTIM - 100, VICTIM - 99)))
    seen = Seen(grid, tmp_path, caplog)
    assert seen.opened == [1] * ROUNDS
    assert seen.named == set()
    assert seen.asked == [5] * ROUNDS


RECEIVERS: dict[str, dict[str, Change]] = {
    "accuses one": {"unmask": answering(lambda: NO_SHARE, slice(4, 5))},
    "lies about one": {"unmask": answering(random_share, slice(4, 5))},
    "lies about all": {"unmask": answering(random_share)},
    "garbage for one": {"train": garbage(slice(3, 4))},
    "another commitment": {"train": another_commitment},
    "silent": {},
}


@pytest.mark.parametrize("attack", RECEIVERS)
def test_without_a_share_to_spare_nobody_is_blamed_and_the_budget_is_kept(attack: str, tmp_path, caplog) -> None:
    """A quorum of all: one wrong share closes a round, and whose it was cannot be told. Few rounds are charged."""
    grid, _ = sum_fleet(tmp_path)
    misbehave(grid, GUILTY, **RECEIVERS[attack])
    grid.mute = {("unmask", GUILTY)} if attack == "silent" else set()
    seen = Seen(grid, tmp_path, caplog, quorum=1.0)
    assert seen.named == set()
    assert seen.charged - sum(seen.opened) <= 4


def test_honest_nodes_that_fall_silent_are_not_blamed(tmp_path, caplog) -> None:
    grid, _ = sum_fleet(tmp_path)
    rounds = iter(range(1000))

    def between(stage: str, node: int) -> None:
        if stage == "train" and node == 100:
            grid.mute = {("unmask", 103), ("unmask", 104)} if next(rounds) in (2, 6) else set()

    grid.between = between
    seen = Seen(grid, tmp_path, caplog)
    assert [number for number, is_open in enumerate(seen.opened) if not is_open] == [2, 6]
    assert seen.named == set()
    assert set(seen.asked) == {5, 3}
    assert set(NAMES) == set(grid.nodes)


def test_wrong_shares_among_many_good_ones_open() -> None:
    """30 nodes, threshold 24: two or three holders, wherever they sit, lie about all seeds. The sum opens."""
    for liars in ((10, 25), (12, 20, 33)):
        group = sums.cohort(30)
        asked = sums.settings(24, clients=30)
        round_ = SecAggRound(asked, group.roster, group.roster.names, sums.MODEL)
        request = round_.request()
        for name in group.nodes:
            round_.take(name, group.train(name, request))
        assert not round_.repairs()
        for name, ask in round_.unmasks().items():
            said = group.nodes[name].unmask(ask)
            round_.take_unmask(name, answering(random_share)(said) if name in liars else said)
        assert round_.unopened() == frozenset()
        # Noise and rounding of 30 clients, nine deviations.
        total = np.sum([group.updates[name] for name in group.nodes], axis=0)
        np.testing.assert_allclose(round_.open(), total, atol=9 * sums.NOISE * np.sqrt(30 * 13 / 12))


def test_a_sender_among_twenty_is_named_too(tmp_path, caplog) -> None:
    """More ways to choose shares than can be tried: the decoder says whose shares give no committed seed."""
    grid, _ = sum_fleet(tmp_path, 20)
    misbehave(grid, GUILTY, train=another_commitment)
    misbehave(grid, 110, unmask=answering(random_share))
    seen = Seen(grid, tmp_path, caplog, rounds=3)
    assert (seen.opened, seen.asked, seen.named) == ([0, 1, 1], [20, 19, 19], {GUILTY})

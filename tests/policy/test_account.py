"""What a node wrote down before it spoke holds, whatever happens to the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cepam.policy import AccountUnusable, AnsweredRounds, FileAccount, RoundCharge
from cepam.policy.account import MOST_RUNS, NodeAccount, RunPlace
from cepam.secure_aggregation import SecAggRefused, SecAggRound
from cepam.secure_aggregation.messages import RepairRequest
from tests.secure_aggregation import sums
from tests.secure_aggregation.sums import MODEL, Cohort, cohort, run_round

CHARGES = st.builds(
    RoundCharge,
    st.sampled_from(["server", "secure-aggregation"]), st.floats(0.01, 10), st.floats(0.01, 10), st.integers(1, 99),
    st.integers(1, 9), st.floats(0, 10), st.floats(0.01, 1), rounds=st.integers(1, 9), releases=st.integers(0, 9),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=64), st.integers(0, 2**64 - 1), st.lists(CHARGES, max_size=5))
def test_entries_come_back_and_damage_is_seen(run: bytes, epoch: int, charges: list[RoundCharge]) -> None:
    answered = AnsweredRounds()
    for charge in charges:
        answered = answered.add(charge)
    assert answered.rounds == sum(charge.rounds for charge in charges)
    entry = NodeAccount((RunPlace(run, epoch, b"s" * 32),), answered)
    data = entry.encode()
    assert NodeAccount.decode(data) == entry
    for at in range(0, len(data), 7):
        try:
            found = NodeAccount.decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        except AccountUnusable:
            continue
        assert found == entry  # the last digit of a number, another way to write the same


def durable(folder: Path, clients: int = 5) -> Cohort:
    nodes = {10 + i: sums.node(i, account=sums.file_account(folder / f"node-{i}")) for i in range(clients)}
    return Cohort(nodes, sums.hello(nodes.values(), 1))


def test_rounds_with_accounts_on_disk(tmp_path: Path) -> None:
    group = durable(tmp_path)
    for position in range(2):
        run_round(group, sums.settings(4, position=position), no_train=[12])
    assert (tmp_path / "node-0").stat().st_mode & 0o777 == 0o600
    assert NodeAccount.decode((tmp_path / "node-0").read_bytes()).answered.rounds == 2
    assert NodeAccount.decode((tmp_path / "node-2").read_bytes()).answered.rounds == 0
    # No secret is in the file: it holds the digest of the state only.
    data = (tmp_path / "node-0").read_bytes()
    assert group.nodes[10].state not in data


def test_a_transition_that_could_not_be_written_is_not_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = durable(tmp_path)
    round_ = SecAggRound(sums.settings(4), group.roster, group.roster.names, MODEL)
    before = group.nodes[10].state

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(AccountUnusable, match="no space"):
            group.train(10, round_.request())
    assert group.nodes[10].state == before
    assert group.train(10, round_.request())


def test_a_kill_between_the_account_and_the_context(tmp_path: Path) -> None:
    """The account moved on, the driver still has the state from before: the node asks for a new epoch."""
    group = durable(tmp_path)
    node, before = group.nodes[10], group.nodes[10].state
    round_ = SecAggRound(sums.settings(4), group.roster, group.roster.names, MODEL)
    group.train(10, round_.request())
    revived = sums.node(0, account=sums.file_account(tmp_path / "node-0"), state=before)
    with pytest.raises(SecAggRefused, match="new epoch"):
        revived.train(round_.request(), MODEL, group.work(10), sums.COORDINATES)
    with pytest.raises(SecAggRefused, match="new epoch"):
        revived.repair(RepairRequest(round_.salt, (11,)).encode())
    group.nodes[10] = revived
    group.roster = sums.hello(group.nodes.values(), 2)
    run_round(group, sums.settings(4, epoch=2))
    assert NodeAccount.decode((tmp_path / "node-0").read_bytes()).answered.rounds == 2
    with pytest.raises(SecAggRefused, match="new epoch"):
        node.repair(RepairRequest(round_.salt, (11,)).encode())


def test_a_damaged_account_stops_the_node(tmp_path: Path) -> None:
    group = durable(tmp_path)
    (tmp_path / "node-0").write_bytes(b"cepam node account and then nothing")
    with pytest.raises(AccountUnusable):
        sums.hello([group.nodes[10]], 2)


def test_two_copies_of_a_node_answer_once(tmp_path: Path) -> None:
    group = durable(tmp_path)
    request = SecAggRound(sums.settings(4), group.roster, group.roster.names, MODEL).request()
    copies = [
        sums.node(0, account=sums.file_account(tmp_path / "node-0"), state=group.nodes[10].state) for _ in range(4)
    ]
    answers: list[object] = []

    def ask(copy: object) -> None:
        try:
            answers.append(copy.train(request, MODEL, group.work(10), sums.COORDINATES))  # type: ignore[attr-defined]
        except SecAggRefused as refused:
            answers.append(refused.kind)

    threads = [threading.Thread(target=ask, args=(copy,)) for copy in copies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(type, answers), key=str) == [bytes, str, str, str]


KILLED = """
import os, signal, sys
from pathlib import Path
from cepam.policy import FileAccount
from cepam.policy.account import NodeAccount, RunPlace
account = FileAccount.create(Path(sys.argv[1]))
for epoch in range(1, 10**9):
    with account.hold():
        account.commit(NodeAccount((RunPlace(b"run", epoch, bytes(32)),)))
    print(epoch, flush=True)
"""


def test_kill_9_at_any_moment_leaves_the_last_word_or_the_next(tmp_path: Path) -> None:
    path = tmp_path / "account"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = [int(process.stdout.readline()) for _ in range(40)]
    os.kill(process.pid, signal.SIGKILL)
    said += [int(line) for line in process.stdout.read().split()]
    process.wait()
    with FileAccount(path).hold() as entry:
        assert entry.places[0].epoch in (said[-1], said[-1] + 1)


def test_two_runs_at_a_time_on_one_node(tmp_path: Path) -> None:
    """One account, one count of answers; each run has its own state and neither disturbs the other."""
    accounts = [sums.file_account(tmp_path / f"node-{i}") for i in range(5)]
    groups = []
    for run in (b"one", b"two"):
        nodes = {10 + i: sums.node(i, account=accounts[i]) for i in range(5)}
        groups.append((run, Cohort(nodes, sums.hello(nodes.values(), 1, run))))
    for position in range(2):
        for run, group in groups:
            run_round(group, sums.settings(4, run=run, position=position))
    with accounts[0].hold() as entry:
        assert entry.answered.rounds == 4
        assert [place.run for place in entry.places] == [b"one", b"two"]
        for number in range(MOST_RUNS):
            entry = entry.moved(RunPlace(b"%d" % number, 1, bytes(32)))
        assert entry.place(b"one") is None
        assert entry.answered.rounds == 4


def test_a_memory_account_holds_while_the_process_lives() -> None:
    group = cohort(5)
    run_round(group, sums.settings(4))
    with group.nodes[10].account.hold() as entry:
        assert entry.answered.charges == (RoundCharge("secure-aggregation", sums.NOISE, sums.CLIP, 12, 3),)


def test_a_run_that_was_forgotten_must_say_hello_again() -> None:
    """A server that starts many runs pushes an old one out of the account; its secrets then answer nothing."""
    group, round_ = sums.trained()
    member, kept = group.nodes[10], group.nodes[10].state
    for number in range(MOST_RUNS):
        member.state = b""
        sums.hello([member], 1, b"run %d" % (100 + number))
    member.state = kept
    with sums.refused("position"):
        member.repair(RepairRequest(round_.salt, (11,)).encode())
    with sums.refused("position"):
        group.train(10, SecAggRound(sums.settings(4, position=1), group.roster, group.roster.names, MODEL).request())
    with member.account.hold() as entry:
        assert entry.answered.rounds == 1  # what was spent is never forgotten

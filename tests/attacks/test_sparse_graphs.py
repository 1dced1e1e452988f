"""A sparse graph of masks chosen by the server: a floor for its degree, and an accountant that counts what protects."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cepam.policy import ClientPolicy, read_policy
from cepam.secure_aggregation import SecAggRound, sparse_graph
from cepam.secure_aggregation.channel import combine, self_mask
from cepam.secure_aggregation.messages import (
    RepairReply,
    RepairRequest,
    TrainReply,
    UnmaskReply,
    UnmaskRequest,
)
from cepam.secure_aggregation.settings import charge_of, check_offer

from ..secure_aggregation import sums

SPARSE = ClientPolicy(noise_scale=0.2, clipping_norm=1.0, rounds=1000, honest=1, sparse=True, degree=2)


def test_a_degree_below_the_policy_is_refused() -> None:
    asked = sums.settings(20, clients=22, degree=2, threshold=2)
    floor = sparse_graph(1000, 0.1, 0.1)[0]
    for policy in (replace(SPARSE, degree=4), replace(SPARSE, degree=floor)):
        with sums.refused("policy"):
            check_offer(policy, asked, 22)
    check_offer(SPARSE, asked, 22)
    wide = sums.settings(800, clients=1000, degree=floor, threshold=26)
    check_offer(replace(SPARSE, degree=floor), wide, 1000)
    with pytest.raises(ValueError, match="degree"):
        ClientPolicy(noise_scale=0.2, clipping_norm=1.0, rounds=10, sparse=True)


def test_the_accountant_counts_the_neighbours_that_protect() -> None:
    """22 clients, quorum 20, degree 2: a lying server reads one client alone, so one share protects and is charged."""
    asked = sums.settings(20, clients=22, degree=2, threshold=2)
    charge = charge_of(SPARSE, asked, 22)
    assert charge.shares == 1
    answered = sums.MemoryAccount()._account.answered.add(charge)
    alone = answered.epsilon(1e-5)
    wished = replace(answered, charges=(replace(charge, shares=20),)).epsilon(1e-5)
    assert alone > 3 * wished
    wide = sums.settings(800, clients=1000, degree=46, threshold=26)
    assert charge_of(SPARSE, wide, 1000).shares == 2 * 26 - 47
    assert charge_of(replace(SPARSE, colluders=3), wide, 1000).shares == 2
    complete = sums.settings(20, clients=22)
    assert charge_of(SPARSE, complete, 22).shares == 18


def test_a_server_that_lies_on_a_ring_reads_one_client_and_that_is_what_is_charged() -> None:
    group = sums.cohort(8, policy=SPARSE)
    asked = sums.settings(7, clients=8, degree=2, threshold=2)
    round_ = SecAggRound(asked, group.roster, group.roster.names, sums.MODEL)
    replies = {name: TrainReply.decode(group.train(name, round_.request())) for name in group.nodes}
    for name, reply in replies.items():
        round_.take(name, reply.encode())
    victim = 10
    one, other = (name for name in group.roster.neighbourhood(victim, 2) if name != victim)
    neighbourhood, salt = round_.neighbourhood(victim), round_.salt

    def repaired(node: int, missing: int) -> bytes:
        said = group.nodes[node].repair(RepairRequest(salt, (missing,)).encode())
        return RepairReply.decode(said).keys[0]

    def share_of_victim(node: int, missing: frozenset[int]) -> bytes:
        left = tuple(name for name in round_.neighbourhood(node) if name not in missing)
        sealed = sums.sealed_for(round_, node, left)
        said = UnmaskReply.decode(group.nodes[node].unmask(UnmaskRequest(salt, left, sealed).encode()))
        return said.shares[left.index(victim)]

    # The victim is told that one neighbour is missing, the other neighbour that the victim is.
    keys = {one: repaired(victim, one), other: repaired(other, victim)}
    shares = [share_of_victim(victim, frozenset({one})), share_of_victim(one, frozenset())]
    seed = combine([neighbourhood.index(victim), neighbourhood.index(one)], shares)
    masks = [(self_mask(seed, salt), 1)] + [(key, 1 if victim < peer else -1) for peer, key in keys.items()]
    alone = asked.codec.open([replies[victim].vector], masks)
    # One client's noise and rounding, nine deviations: its update, with its own share of noise alone.
    np.testing.assert_allclose(alone, group.updates[victim], atol=9 * sums.NOISE * np.sqrt(13 / 12))
    with group.nodes[victim].account.hold() as entry:
        assert [charge.shares for charge in entry.answered.charges] == [1]


GOOD = "noise_scale = 0.15\nclipping_norm = 1\nrounds = 500\n"


@pytest.mark.parametrize(
    "line",
    [
        'sparse = "false"', 'sparse = "true"\ndegree = 46', "sparse = 1\ndegree = 46", "sparse = 0", "sparse = true",
        "degree = 46", "sparse = true\ndegree = 1", "sparse = true\ndegree = 46.0",
        'record_sampling_rate = "0.1"', "record_sampling_rate = true",
        'divisor = "64"', "divisor = [64.0]", "quorum = 20.0", 'quorum = "20"', "honest = true", "rounds = 1e3",
        "cohort = []", "quorom = 20", "quorum = 99999999999999999999", "record_sampling_rate = nan", "divisor = inf",
        f"divisor = 1{'0' * 400}\nrecords = 1", f"record_sampling_rate = {'[' * 3000}{']' * 3000}",
    ],
)  # fmt: skip
def test_a_policy_file_has_one_type_for_each_field(line: str) -> None:
    text = GOOD if not line.startswith("rounds") else GOOD.replace("rounds = 500\n", "")
    with pytest.raises(ValueError, match=r"must|field|missing|deep|cohort"):
        read_policy(f"{text}{line}\n".encode())


@pytest.mark.parametrize(
    "line", ["noise_scale = true", 'noise_scale = "0.15"', 'clipping_norm = "1"', "clipping_norm = false", ""]
)
def test_a_policy_file_with_another_noise_or_clip(line: str) -> None:
    name = line.split(" ")[0] or "noise_scale"
    kept = "".join(f"{one}\n" for one in GOOD.splitlines() if not one.startswith(name))
    with pytest.raises(ValueError, match=r"must|field|missing|deep|cohort"):
        read_policy(f"{kept}{line}\n".encode())


def test_good_policy_files() -> None:
    assert read_policy(GOOD.encode()) == ClientPolicy(noise_scale=0.15, clipping_norm=1.0, rounds=500)
    found = read_policy(
        f"{GOOD}sparse = true\ndegree = 46\nrecord_sampling_rate = 1\ndivisor = 64\nrecords = 9\n".encode()
    )
    assert found == ClientPolicy(0.15, 1.0, 500, divisor=64.0, records=9, sparse=True, degree=46)

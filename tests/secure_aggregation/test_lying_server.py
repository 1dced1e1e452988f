"""A server that lies about who dropped out, by brute force: every sum that it opens is over many honest clients.

A node is told any rising sequence of missing names that its rules allow, and always asked to unmask at the end: silence
reveals less. What it reveals is then fixed by the set it was told; all combinations of sets are tried.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numba import njit

from cepam.secure_aggregation import SecAggRefused, SecAggRound
from cepam.secure_aggregation.messages import RepairRequest, UnmaskRequest

from . import sums
from .sums import MODEL, cohort

CASES = [
    (3, 2, 0), (3, 3, 0), (3, 3, 1), (4, 3, 0), (4, 3, 1), (4, 4, 1), (4, 4, 2), (5, 3, 0), (5, 4, 0), (5, 4, 1),
    (5, 4, 2), (5, 5, 3), (6, 4, 1), (6, 5, 0), (6, 5, 2), (6, 5, 3), (6, 6, 3),
]  # fmt: skip


def allowed(node: int, clients: int, quorum: int) -> list[int]:
    """The sets of missing names, as bits, that a node goes along with."""
    others = [1 << other for other in range(clients) if other != node]
    sets = [sum(part) for size in range(clients - quorum + 1) for part in itertools.combinations(others, size)]
    return sets or [0]


@njit(cache=False)
def smallest_opened(options, counts, clients, quorum, colluders):  # type: ignore[no-untyped-def]
    """The fewest honest clients in a sum that opens, over all the server's lies; `clients + 1` if none does."""
    honest = clients - colluders
    told = np.zeros(honest, np.int64)
    pick = np.zeros(honest, np.int64)
    worst = clients + 1
    while True:
        for i in range(honest):
            told[i] = options[i, pick[i]]
        opened = 0
        for v in range(honest):
            shares = colluders
            for a in range(honest):
                shares += ((told[a] >> v) & 1) ^ 1
            if shares >= quorum:
                opened |= 1 << v
        seen = 0
        for v in range(honest):
            if (seen >> v) & 1:
                continue
            group, grown = 0, 1 << v
            while grown != group:
                group = grown
                for i in range(honest):
                    if (group >> i) & 1:
                        for j in range(honest):
                            hidden = ((told[i] >> j) & 1) == 0 and ((told[j] >> i) & 1) == 0
                            if hidden:
                                grown |= 1 << j
            seen |= group
            if group & opened == group:
                size = 0
                for i in range(honest):
                    size += (group >> i) & 1
                worst = min(worst, size)
        place = 0
        while place < honest:
            pick[place] += 1
            if pick[place] < counts[place]:
                break
            pick[place] = 0
            place += 1
        if place == honest:
            return worst


def brute_force(clients: int, quorum: int, colluders: int, floor: int) -> int:
    sets = [allowed(node, clients, floor) for node in range(clients - colluders)]
    counts = np.array([len(each) for each in sets])
    options = np.zeros((len(sets), counts.max()), dtype=np.int64)
    for node, each in enumerate(sets):
        options[node, : len(each)] = each
    return int(smallest_opened(options, counts, clients, quorum, colluders))


@pytest.mark.parametrize(("clients", "quorum", "colluders"), CASES)
def test_every_opened_sum_is_over_many_honest_clients(clients: int, quorum: int, colluders: int) -> None:
    worst = brute_force(clients, quorum, colluders, quorum)
    promised = 2 * quorum - clients - colluders
    if promised >= 1:
        assert worst >= promised
        assert worst <= clients - colluders


@pytest.mark.parametrize(("clients", "quorum", "worst"), [(4, 3, 2), (5, 3, 1), (6, 4, 2), (5, 4, 4), (6, 5, 5)])
def test_the_worst_that_a_lying_server_does(clients: int, quorum: int, worst: int) -> None:
    """2t - K in the first three, where nothing is given away in the bound; one more where one name can be missing."""
    assert brute_force(clients, quorum, 0, quorum) == worst


def test_without_the_rule_at_repair_one_client_is_read() -> None:
    """The control: nodes that count only when they unmask hand out every key, and a sum of one opens."""
    assert brute_force(5, 4, 0, quorum := 1) == quorum


@pytest.mark.parametrize(("clients", "quorum"), [(4, 3), (5, 4), (6, 4)])
def test_the_sets_that_real_nodes_go_along_with_are_those_of_the_model(clients: int, quorum: int) -> None:
    """Every set of missing names, in one message and name by name, to a real node: it answers as the model says."""
    names = tuple(range(10, 10 + clients))
    fits = set(allowed(0, clients, quorum))
    for missing in itertools.chain.from_iterable(itertools.combinations(names, size) for size in range(clients + 1)):
        for steps in ([missing], [(name,) for name in missing]):
            group = cohort(clients)
            round_ = SecAggRound(sums.settings(quorum, clients=clients), group.roster, names, MODEL)
            for name in names:
                round_.take(name, group.train(name, round_.request()))
            node = group.nodes[10]
            try:
                for step in steps:
                    if step:
                        node.repair(RepairRequest(round_.salt, step).encode())
                left = tuple(name for name in names if name not in missing)
                shares = tuple(round_._sealed(name, 10) for name in left if name != 10)
                node.unmask(UnmaskRequest(round_.salt, left, shares).encode())
                answered = True
            except SecAggRefused as error:
                answered, kind = False, error.kind
            assert answered or kind == "quorum"
            assert answered == (sum(1 << (name - 10) for name in missing) in fits)

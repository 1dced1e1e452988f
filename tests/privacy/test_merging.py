"""Rounds that differ only in who took part are counted for each node, and cost what a ledger of all rounds says."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from cepam import L2, Gaussian, Laplace
from cepam.privacy import Accountant, Client, Mechanism, Sampling, spent
from cepam.privacy.composition.losses import epsilon_of, uncovered
from tests.privacy.mechanisms import charges_by_node

PLAIN, LOUD = Client(Gaussian(2.0), 100), Client(Gaussian(3.0), 100, 2.0)
SAMPLINGS = [Sampling("all"), Sampling("poisson", 10)]


def drawn(seed: int, rounds: int, kinds: tuple[Client, ...], sampling: Sampling, **more) -> list[Mechanism]:
    """Rounds of 4 of 7 nodes, of which some send two vectors; node j is always of the same kind."""
    draw, made = random.Random(seed), []
    for _ in range(rounds):
        nodes = draw.sample(range(7), 4)
        nodes += [nodes[0]] if draw.random() < 0.2 else []
        clients = tuple(kinds[node % len(kinds)] for node in nodes)
        made.append(Mechanism(clients, L2(1.0), sampling, coordinates=50, nodes=tuple(nodes), **more))
    return made


def added(rounds: list[Mechanism], **more) -> Accountant:
    accountant = Accountant(**more)
    for each in rounds:
        accountant = accountant.add(each)
    return accountant


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda each: each.kind)
@pytest.mark.parametrize("kinds", [(PLAIN,), (PLAIN, LOUD)], ids=["alike", "two kinds"])
@pytest.mark.parametrize("identified", [True, False])
def test_merged_rounds_cost_each_client_what_listed_ones_do(
    sampling: Sampling, kinds: tuple[Client, ...], identified: bool
) -> None:
    rounds = drawn(3, 24, kinds, sampling, colluders=1)
    merged, listed = added(rounds, identified=identified), Accountant(tuple(rounds), identified=identified)
    assert merged.rounds == listed.rounds == 24
    assert len(merged.mechanisms) <= 8 < len(listed.mechanisms)
    for node in range(8):
        assert merged.charges(node) == listed.charges(node)
        assert merged.epsilon(1e-5, client=node) == pytest.approx(listed.epsilon(1e-5, client=node), rel=1e-12)
    assert merged.envelope() == listed.envelope()
    assert merged.epsilon(1e-5) == pytest.approx(listed.epsilon(1e-5), rel=1e-12)
    assert merged.delta(1.0) == pytest.approx(listed.delta(1.0), rel=1e-12)
    assert spent(merged, 1e-5) == pytest.approx(spent(listed, 1e-5), rel=1e-12)
    assert merged.observers(1e-5) == pytest.approx(listed.observers(1e-5), rel=1e-12)
    kept, whole = merged.slack(), listed.slack()
    assert (kept.epsilon, kept.missed, kept.shown) == pytest.approx((whole.epsilon, whole.missed, whole.shown))


def test_absent_clients_are_merged_too() -> None:
    draw = random.Random(5)
    whole = Mechanism.uniform(6, Gaussian(0.5), L2(1.0), Sampling("poisson", 5), 500, coordinates=20)
    rounds = [whole.without(draw.sample(range(6), draw.randrange(3))) for _ in range(30)]
    merged, listed = added(rounds), Accountant(tuple(rounds))
    assert len(merged.mechanisms) == 3
    for client in range(6):
        assert merged.charges(client) == listed.charges(client)
    assert merged.epsilon(1e-5) == pytest.approx(listed.epsilon(1e-5), rel=1e-12)


def test_laplace_under_l2_clips_is_merged_too() -> None:
    kind = Client(Laplace(20.0), 100)
    rounds = drawn(7, 12, (kind,), Sampling("all"))
    merged, listed = added(rounds), Accountant(tuple(rounds))
    assert len(merged.mechanisms) == 2
    for node in range(7):
        assert merged.epsilon(1e-5, client=node) == pytest.approx(listed.epsilon(1e-5, client=node), rel=1e-12)
    assert merged.epsilon(1e-5) == pytest.approx(listed.epsilon(1e-5), rel=1e-12)


def test_the_headline_is_the_worst_client_however_many_there_are() -> None:
    """Thirty of a hundred nodes: no client took part in all rounds, and nobody is charged as if it had."""
    draw, rounds = random.Random(1), []
    for _ in range(40):
        nodes = tuple(draw.sample(range(100), 30))
        rounds.append(Mechanism((PLAIN,) * 30, L2(1.0), Sampling("poisson", 10), nodes=nodes))
    accountant = added(rounds)
    assert len(accountant.mechanisms) == 1
    assert accountant.epsilon(1e-5) == max(accountant.epsilon(1e-5, client=node) for node in range(100))
    assert accountant.epsilon(1e-5) < 0.8 * replace(accountant, identified=False).epsilon(1e-5)


def test_what_differs_in_more_than_who_took_part_is_not_merged() -> None:
    first = Mechanism((PLAIN, PLAIN), L2(1.0), Sampling("all"), nodes=(1, 2), coordinates=9)
    others = [
        replace(first, clients=(PLAIN, LOUD)),
        replace(first, clients=(PLAIN,) * 3, nodes=(1, 2, 3)),
        replace(first, clients=(PLAIN,) * 2, nodes=(1, 1)),
        replace(first, clip=L2(2.0)),
        replace(first, sampling=Sampling("poisson", 3)),
        replace(first, colluders=1),
        replace(first, coordinates=10),
        replace(first, clients=(replace(PLAIN, records=7),) * 2),
    ]
    for other in others:
        assert first.followed_by(other) is None
    moved = first.followed_by(replace(first, nodes=(2, 3)))
    assert moved is not None
    assert moved.node_rounds == ((1, 0, 1), (2, 0, 2), (3, 0, 1))
    assert not moved.foreseeable
    assert moved.over(1).node_rounds is None


def test_a_node_that_is_of_another_kind_later_keeps_both() -> None:
    one = Mechanism((PLAIN, LOUD), L2(1.0), Sampling("poisson", 10), nodes=(1, 2))
    swapped = replace(one, nodes=(2, 1))
    reordered = replace(one, clients=(LOUD, PLAIN), nodes=(1, 2))
    merged, listed = added([one, swapped, reordered]), Accountant((one, swapped, reordered))
    assert len(merged.mechanisms) == 1
    assert charges_by_node(one)[1] != charges_by_node(one)[2]
    for node in (1, 2):
        assert merged.charges(node) == listed.charges(node)


def test_merged_rounds_outlive_their_process() -> None:
    accountant = added(drawn(2, 9, (PLAIN, LOUD), Sampling("all")))
    state = json.loads(json.dumps(accountant.state_dict()))
    again = Accountant().load_state_dict(state)
    assert again == accountant
    assert again.add(drawn(2, 1, (PLAIN, LOUD), Sampling("all"))[0]).rounds == 10
    rows = next(each for each in state["releases"] if each["node_rounds"])["node_rounds"]
    rows[0][2] += 1
    with pytest.raises(ValueError, match="node_rounds must"):
        Accountant().load_state_dict(state)


def test_a_history_that_another_covers_is_no_worse() -> None:
    small, large = (charges_by_node(each)[1][0] for each in (
        Mechanism((PLAIN,) * many, L2(1.0), Sampling("poisson", 10), nodes=tuple(range(many))) for many in (5, 4)
    ))  # fmt: skip
    assert small.shift.size < large.shift.size
    histories = [((large, 3), (small, 5)), ((large, 2), (small, 6)), ((large, 1), (small, 8)), ((small, 8),)]
    kept = uncovered(histories)
    assert kept == [histories[2], histories[0]]
    assert max(epsilon_of(each, 1e-5) for each in histories) == max(epsilon_of(each, 1e-5) for each in kept)

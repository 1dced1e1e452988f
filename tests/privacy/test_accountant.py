"""One book for engine, Flower and FLARE: who replied, what it cost, to whom, and across a restart."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import pytest

import cepam
from cepam import E8, L1, L2, Gaussian, Laplace, Lattice, privacy
from cepam.privacy import Accountant, Client, Mechanism, Sampling, epsilon, fingerprint, spent
from cepam.privacy.composition.accountant import MARKS
from tests.privacy.mechanisms import charges_by_node


def fleet(many: int = 4, rounds: int = 1, **more) -> Mechanism:
    return Mechanism.uniform(many, Gaussian(0.5), L2(1.0), Sampling("poisson", 5), 500, rounds=rounds, **more)


def round_of(*nodes: int, sigma: float = 2.0, **more) -> Mechanism:
    clients = tuple(Client(Gaussian(sigma), 100, 1 / len(nodes)) for _ in nodes)
    return Mechanism(clients, L2(1.0), Sampling("all"), nodes=nodes, coordinates=10, **more)


def test_equal_rounds_are_counted_not_listed() -> None:
    accountant = Accountant()
    for turn in range(6):
        accountant = accountant.add(fleet().without([turn % 2]))
    assert len(accountant.mechanisms) == 1
    assert accountant.rounds == 6
    assert len(accountant.add(fleet()).mechanisms) == 2
    assert accountant.add(fleet(rounds=3)).rounds == 9


def test_a_reply_that_is_used_is_charged_each() -> None:
    """A node that answers two messages of a round pays for both: alone, as two rounds of half the others' noise."""
    once, twice = Accountant((round_of(1, 2, 3),)), Accountant((round_of(1, 1, 2, 3),))
    assert len(charges_by_node(twice.mechanisms[0])[1]) == 2
    assert len(charges_by_node(twice.mechanisms[0])[2]) == 1
    assert twice.epsilon(1e-5, client=1) > 1.3 * once.epsilon(1e-5, client=1)
    assert twice.epsilon(1e-5) == twice.epsilon(1e-5, client=1)


def test_two_replies_in_one_sum_are_charged_exactly() -> None:
    """Without sampling the truth is one Gaussian: twice the shift, over the noise of all replies."""
    mechanism = round_of(1, 1, 2, 3)
    mu = 2 * mechanism.distance(0) * 0.25 / (0.25 * 2.0 * 4**0.5)
    charged = math.hypot(*(charge.shift.size for charge in charges_by_node(mechanism)[1]))
    assert charged == pytest.approx(mu, rel=1e-12)
    alone = replace(mechanism, colluders=3)
    assert math.hypot(*(charge.shift.size for charge in charges_by_node(alone)[1])) == pytest.approx(2**0.5)


def test_a_node_is_followed_by_its_name() -> None:
    accountant = Accountant().add(round_of(1, 2)).add(round_of(3, 2)).add(round_of(3, 2, 1))
    assert accountant.epsilon(1e-5, client=2) > accountant.epsilon(1e-5, client=1) > 0
    assert accountant.epsilon(1e-5) == accountant.epsilon(1e-5, client=2)
    assert accountant.epsilon(1e-5, client=9) == pytest.approx(0.0, abs=1e-9)
    with pytest.raises(ValueError, match="name the nodes"):
        Accountant((round_of(1, 2), replace(round_of(1, 2), nodes=None)))
    with pytest.raises(ValueError, match="nodes must name"):
        replace(round_of(1, 2), nodes=(1,))


def test_without_names_every_round_is_charged_as_its_worst_client_paid() -> None:
    rounds = [round_of(1, 2), round_of(3, 4), round_of(5, 6, 7)]
    known, unknown = Accountant(), Accountant(identified=False)
    for each in rounds:
        known, unknown = known.add(each), unknown.add(each)
    assert known.epsilon(1e-5) < unknown.epsilon(1e-5)
    same = Accountant((round_of(1, 2, rounds=2), round_of(1, 2, 3)))
    assert unknown.epsilon(1e-5) == pytest.approx(same.epsilon(1e-5, client=1), rel=1e-6)


def test_laplace_under_l2_clips_is_followed_too() -> None:
    def sent(*nodes: int) -> Mechanism:
        clients = tuple(Client(Laplace(20.0), 100, 1.0) for _ in nodes)
        return Mechanism(clients, L2(1.0), Sampling("all"), nodes=nodes, coordinates=50)

    accountant = Accountant().add(sent(1, 2)).add(sent(2, 3)).add(sent(2, 2))
    assert accountant.epsilon(1e-5, client=2) > accountant.epsilon(1e-5, client=1)
    assert accountant.epsilon(1e-5) == accountant.epsilon(1e-5, client=2)
    assert replace(accountant, identified=False).epsilon(1e-5) == pytest.approx(accountant.epsilon(1e-5), rel=1e-9)
    assert accountant.delta(accountant.epsilon(1e-5)) == pytest.approx(1e-5, rel=1e-3)


def test_observers() -> None:
    found = Accountant((fleet(5, 3),)).observers(1e-5)
    assert list(found) == ["outsider", "one curious client", "4 colluders"]
    assert found["outsider"] < found["one curious client"] < found["4 colluders"]
    assert found["outsider"] == epsilon(fleet(5, 3), 1e-5)
    assert Accountant((fleet(5, 3),)).against(9).epsilon(1e-5) == found["4 colluders"]


def test_a_running_figure_bounds_the_truth_and_ends_at_it() -> None:
    accountant, rounds, seen = Accountant(), 40, []
    for done in range(1, rounds + 1):
        accountant = accountant.add(fleet())
        seen.append(accountant.running(1e-5, rounds))
        assert seen[-1] >= epsilon(fleet(rounds=done), 1e-5)
    assert len(set(seen)) <= MARKS
    assert seen[-1] == epsilon(fleet(rounds=rounds), 1e-5)
    uneven = Accountant().add(fleet(rounds=19)).add(fleet().without([1]))
    assert uneven.running(1e-5, rounds) is None
    assert uneven.add(fleet()).running(1e-5, rounds) == pytest.approx(spent(uneven.add(fleet()), 1e-5))
    Accountant().foresee(fleet(), 1e-5, 4)
    assert Accountant().epsilon(1e-5) == 0.0


def test_rounds_in_which_nobody_replied_cost_nothing() -> None:
    accountant = Accountant().add(fleet(coordinates=10).without(range(4)))
    assert accountant.rounds == 1
    assert accountant.epsilon(1e-5) == pytest.approx(0.0, abs=1e-9)
    assert accountant.running(1e-5, 10) == pytest.approx(0.0, abs=1e-9)


def state_of(accountant: Accountant) -> dict:
    return json.loads(json.dumps(accountant.state_dict()))


def test_a_accountant_outlives_its_process() -> None:
    mine = fingerprint({"law": "gaussian", "sigma": 2.0}, L2(1.0))
    accountant = Accountant(configuration=mine).add(round_of(1, 2)).add(round_of(2, 2, 3)).add(round_of(1, 2))
    odd = Client(Gaussian(0.1), 7, 0.3, 2.5, L2(9.0), E8)
    own = replace(odd, lattice=Lattice([[1.0, 0.3], [0.0, 1.1]]))
    accountant = accountant.add(
        Mechanism((odd, own), L2(1.0), Sampling("poisson", 2), nodes=(8, 9), absent=frozenset({1}))
    )
    again = Accountant(configuration=mine).load_state_dict(state_of(accountant))
    assert again == accountant
    assert again.epsilon(1e-5) == accountant.epsilon(1e-5)


def test_a_state_of_another_configuration_is_refused() -> None:
    state = state_of(Accountant(configuration=fingerprint("sigma", 2.0)).add(round_of(1, 2)))
    assert fingerprint("sigma", 2.0) == fingerprint("sigma", 2.0) != fingerprint("sigma", 1.0)
    with pytest.raises(ValueError, match="of another run: configuration"):
        Accountant(configuration=fingerprint("sigma", 1.0)).load_state_dict(state)
    with pytest.raises(ValueError, match="identified"):
        Accountant(configuration=fingerprint("sigma", 2.0), identified=False).load_state_dict(state)


@pytest.mark.parametrize("damage", [{"version": 1}, {"clients": []}, {"releases": [3]}, {"releases": None}])
def test_a_damaged_state_is_refused(damage: dict) -> None:
    with pytest.raises(ValueError, match="saved accountant"):
        Accountant().load_state_dict({**state_of(Accountant().add(round_of(1, 2))), **damage})


def test_mechanisms_must_agree() -> None:
    with pytest.raises(ValueError, match="adjacency"):
        Accountant((fleet(), fleet(adjacency="add-remove")))
    with pytest.raises(ValueError, match="clients"):
        Accountant((fleet(4), fleet(5)))
    laplace = Mechanism.uniform(4, Laplace(1.0), L1(1.0), Sampling("all"), 10)
    assert Accountant((laplace, laplace.without([1]))).epsilon(0.0) == pytest.approx(4.0)


@pytest.mark.parametrize("rounds", [1, 40])
def test_a_rough_look_at_the_observers_is_a_bound_and_near(rounds: int) -> None:
    clip, drawn = cepam.L2(1.0), privacy.Sampling("poisson", 20.0)
    records = privacy.Mechanism.uniform(
        8, cepam.Gaussian(0.05), clip, drawn, 1000, rounds=rounds, adjacency="add-remove", clipped="example"
    )
    users = privacy.CohortMechanism.of(privacy.Cohort(1000, 100.0), clip, 1.0, rounds=rounds, adjacency="add-remove")
    sites = privacy.LocalMechanism.of([500, 4000], clip, 2.0, batch=64, rounds=rounds)
    for mechanism in (records, users, sites):
        accountant = privacy.Accountant((mechanism,))
        exact, rough = accountant.observers(1e-5), accountant.observers(1e-5, rough=True)
        assert exact.keys() == rough.keys()
        for who, value in exact.items():
            assert rough[who] >= value * (1.0 - 1e-9)
            assert rough[who] == value or rough[who] <= 1.01 * value


def test_a_state_that_grew_with_the_rounds_is_that_of_all_of_them() -> None:
    """What `add` carries on, against a state that is written at once; the one before stays as it was."""
    draw, grown = random.Random(7), Accountant()
    for _ in range(12):
        nodes = sorted(draw.sample(range(6), 3))
        clients = tuple(Client(Gaussian(0.5), 100, 1.0 + node % 2) for node in nodes)
        before, kept = grown, json.dumps(grown.state_dict())
        grown = grown.add(Mechanism(clients, L2(1.0), Sampling("all"), coordinates=100, nodes=tuple(nodes)))
        assert json.dumps(before.state_dict()) == kept
        assert grown.state_dict() == Accountant(grown.mechanisms).state_dict()
        assert Accountant().load_state_dict(grown.state_dict()) == grown

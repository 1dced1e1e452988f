"""Federations of unlike sites: the figure for all is the worst site's own, however many there are."""

from __future__ import annotations

import math
import random
import time

import numpy as np
import pytest

from cepam import L2, Gaussian
from cepam.privacy import (
    Accountant,
    Client,
    GaussianShift,
    LocalMechanism,
    Mechanism,
    Sampling,
    SubsampledMechanism,
    calibrate,
    calibrate_each,
)
from cepam.privacy.composition.losses import epsilon_of, uncovered
from tests.privacy import oracle

DELTA = 1e-6


def sizes(many: int) -> list[int]:
    """Sites of 500 to 9,000 records, no two alike."""
    return random.Random(1).sample(range(500, 9001), many)


def local(many: int, multiplier: float = 6.0) -> LocalMechanism:
    """Local DP-SGD: smaller sites draw a record more often, and make fewer steps."""
    return LocalMechanism.of(sizes(many), L2(1.0), multiplier, batch=64, epochs=5, rounds=20, coordinates=1000)


def weighted(many: int) -> Mechanism:
    """Weights in proportion to records and draws of a fixed size: smaller sites are drawn more, and move it less."""
    total = sum(sizes(many))
    clients = tuple(Client(Gaussian(0.02), n, n / total, 10) for n in sizes(many))
    return Mechanism(clients, L2(1.0), Sampling("poisson", 10), 200, 0, "add-remove", "example", coordinates=1000)


def whole_updates(many: int) -> Mechanism:
    """Whole clipped updates, records drawn with replacement, under replace-one."""
    total = sum(sizes(many))
    clients = tuple(Client(Gaussian(0.6), n, n / total) for n in sizes(many))
    return Mechanism(clients, L2(1.0), Sampling("replacement", 15), 80)


def rows(mechanism: Mechanism, delta: float = DELTA) -> list[float]:
    return [Accountant((mechanism,)).epsilon(delta, client) for client in range(len(mechanism.clients))]


@pytest.mark.parametrize("make", [local, weighted, whole_updates])
@pytest.mark.parametrize("many", [8, 9, 40])
def test_the_figure_for_all_is_the_worst_row(make, many: int) -> None:
    mechanism = make(many)
    each = rows(mechanism)
    assert len({round(one, 6) for one in each}) > many // 2
    assert Accountant((mechanism,)).epsilon(DELTA) == pytest.approx(max(each), rel=1e-9)
    spent = Accountant((mechanism,)).delta(1.0)
    assert spent == pytest.approx(max(Accountant((mechanism,)).delta(1.0, k) for k in range(many)), rel=1e-9)


@pytest.mark.parametrize("make", [local, weighted, whole_updates])
def test_forty_unlike_sites_against_an_oracle(make) -> None:
    """By another method, which shares no code: nobody is above the figure, and somebody is at it."""
    mechanism = make(40)
    found = Accountant((mechanism,)).epsilon(DELTA)
    ranked = np.argsort(rows(mechanism))[::-1]
    each = []
    for k in (int(k) for k in [*ranked[:5], *ranked[5::5]]):
        mu, p, times = mechanism.mu(k), mechanism.sampling_rate(k), mechanism.events_of(k)
        each.append(oracle.worst_delta([(mu, p, times)], mechanism.adjacency, found))
    assert max(each) <= DELTA * (1 + 1e-4)  # what the oracle's own quadrature is good for
    assert max(each) == pytest.approx(DELTA, rel=2e-3)


def test_noise_for_forty_unlike_sites_meets_the_target_for_all() -> None:
    met = calibrate(local(40), 2.0, DELTA)
    assert 2.0 * (1 - 1e-4) <= max(rows(met)) <= 2.0
    assert Accountant((met,)).epsilon(DELTA) <= 2.0
    each = calibrate_each(local(12), [2.0] * 12, [DELTA] * 12)
    assert rows(each) == pytest.approx([2.0] * 12, rel=1e-5)
    assert Accountant((each,)).epsilon(DELTA) == pytest.approx(2.0, rel=1e-5)


@pytest.mark.parametrize("make", [local, weighted])
def test_five_hundred_unlike_sites_take_seconds(make) -> None:
    mechanism, start = make(500), time.process_time()
    found = Accountant((mechanism,)).epsilon(DELTA)
    met = calibrate(mechanism, 2.0, DELTA)
    assert time.process_time() - start < 120.0  # about eight on an idle core
    some = random.Random(2).sample(range(500), 20)
    assert found >= max(Accountant((mechanism,)).epsilon(DELTA, k) for k in some)
    assert max(Accountant((met,)).epsilon(DELTA, k) for k in some) <= 2.0


def test_a_smaller_chance_a_smaller_shift_and_fewer_rounds_cost_less() -> None:
    """What is left out is covered: at every epsilon, in every direction, for one round and for many."""
    grid = np.linspace(0.0, 8.0, 41)
    for adjacency in ("replace", "add-remove"):
        large = SubsampledMechanism(GaussianShift(1.3), 0.2, adjacency)
        for small in (
            SubsampledMechanism(GaussianShift(1.3), 0.15, adjacency),
            SubsampledMechanism(GaussianShift(1.1), 0.2, adjacency),
        ):
            assert all(small.profile(at) <= large.profile(at) for at in grid)
            for kind in oracle.KINDS[adjacency]:
                for at in (0.1, 1.0, 3.0):
                    less = oracle.delta([(small.shift.size, small.sampling_rate, 30)], kind, at)
                    assert less < oracle.delta([(1.3, 0.2, 30)], kind, at)
            assert uncovered([((small, 5),), ((large, 5),), ((large, 4),)]) == [((large, 5),)]
            assert len(uncovered([((small, 6),), ((large, 5),)])) == 2


def test_sites_that_cross_are_both_kept() -> None:
    """A rare large shift and a frequent small one: neither covers the other, and either may be the worse."""
    rare = SubsampledMechanism(GaussianShift(3.0), 0.001, "add-remove")
    often = SubsampledMechanism(GaussianShift(0.3), 0.2, "add-remove")
    kept = uncovered([((rare, 20),), ((often, 20),)])
    assert len(kept) == 2
    few, many = [
        [epsilon_of(((one, 20),), delta) for one in (rare, often)] for delta in (1e-2, 1e-7)
    ]  # fmt: skip
    assert few[0] < few[1]
    assert many[0] > many[1]


def test_a_node_of_a_deployment_is_followed_by_its_id() -> None:
    """Flower's and FLARE's accounts: nodes of unlike records and weights, each in some of the rounds."""
    draw, known = random.Random(3), dict(enumerate(sizes(12)))
    accountant = Accountant(identified=True)
    for _ in range(6):
        nodes = sorted(draw.sample(range(12), 5))
        clients = tuple(Client(Gaussian(0.5), known[node], known[node] / 5000) for node in nodes)
        accountant = accountant.add(
            Mechanism(clients, L2(1.0), Sampling("poisson", 20), nodes=tuple(nodes), coordinates=100)
        )
    found = accountant.epsilon(DELTA)
    assert found == pytest.approx(max(accountant.epsilon(DELTA, node) for node in range(12)), rel=1e-9)
    assert math.isfinite(found)

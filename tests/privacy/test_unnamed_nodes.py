"""Nodes without stable names: any client may hold the record in any round, and the figure covers all of that."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from cepam import L2, Gaussian
from cepam.privacy import Accountant, Client, GaussianShift, Mechanism, Sampling, SubsampledMechanism
from cepam.privacy.composition.losses import ORDERS, delta_by, divergences, epsilon_by, epsilon_of
from tests.privacy import oracle

DELTA, ROUNDS = 1e-6, 100


def federation(weighted: bool, adjacency: str = "add-remove") -> Mechanism:
    """Four sites with draws of one size; weights in proportion to records let chance and sensitivity cross."""
    records = (500, 1500, 4000, 9000)
    weights = [n / sum(records) if weighted else 0.25 for n in records]
    clients = tuple(Client(Gaussian(0.1), n, weight, 20) for n, weight in zip(records, weights))
    return Mechanism(clients, L2(1.0), Sampling("poisson", 20), ROUNDS, 0, adjacency, "example")  # type: ignore[arg-type]


def rows(mechanism: Mechanism) -> list[float]:
    return [Accountant((mechanism,)).epsilon(DELTA, client) for client in range(len(mechanism.clients))]


def unnamed(mechanism: Mechanism) -> Accountant:
    return Accountant((mechanism,), identified=False)


def test_where_one_client_has_the_largest_chance_and_shift_the_figure_is_its_own() -> None:
    mechanism = federation(weighted=False)
    assert unnamed(mechanism).epsilon(DELTA) == pytest.approx(max(rows(mechanism)), rel=1e-9)
    assert unnamed(mechanism)._renyi() is None


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
def test_where_they_cross_the_figure_is_below_the_envelope_and_above_every_client(adjacency: str) -> None:
    accountant = unnamed(federation(weighted=True, adjacency=adjacency))
    found = accountant.epsilon(DELTA)
    assert max(rows(federation(True, adjacency))) < found < 0.75 * epsilon_of(accountant.envelope(), DELTA)
    assert accountant.delta(found) <= DELTA * (1 + 1e-6)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
@pytest.mark.parametrize("seed", range(4))
def test_whoever_holds_the_record_in_each_round_an_oracle_finds_no_more(seed: int, adjacency: str) -> None:
    """By another method, which shares no code, for places that change from round to round."""
    mechanism = federation(weighted=True, adjacency=adjacency)
    found = unnamed(mechanism).epsilon(DELTA)
    places = Counter(random.Random(seed).choices(range(4), weights=(1, seed, 2, 1 + 3 * seed), k=ROUNDS))
    taken = [(mechanism.mu(k), mechanism.sampling_rate(k), times) for k, times in places.items()]
    assert oracle.worst_delta(taken, adjacency, found) <= DELTA
    assert oracle.worst_delta(taken, adjacency, min(rows(mechanism))) > DELTA  # the best client's is too little


@pytest.mark.parametrize(("mu", "p"), [(1.3, 0.001), (0.2, 0.5), (1.0, 1.0), (3.0, 0.01)])
def test_the_divergences_are_those_of_dp_accounting(mu: float, p: float) -> None:
    rdp = pytest.importorskip("dp_accounting.rdp")
    event = pytest.importorskip("dp_accounting.dp_event")
    theirs = rdp.RdpAccountant(orders=list(ORDERS[:40]))
    theirs.compose(event.PoissonSampledDpEvent(p, event.GaussianDpEvent(1.0 / mu)), 10)
    ours = divergences(SubsampledMechanism(GaussianShift(mu), p, "add-remove"))
    assert ours is not None
    np.testing.assert_allclose(10 * ours[:40], theirs._rdp, rtol=1e-6)
    short = np.full_like(ORDERS, np.inf)
    short[:40] = 10 * ours[:40]
    assert epsilon_by(short, DELTA) == pytest.approx(theirs.get_epsilon(DELTA), rel=1e-6)
    assert delta_by(short, epsilon_by(short, DELTA)) == pytest.approx(DELTA, rel=1e-3)


@pytest.mark.parametrize(("mu", "p"), [(1.3, 0.001), (0.2, 0.5), (2.0, 0.99), (0.05, 0.1), (10.0, 0.3), (0.01, 1e-3)])
def test_divergences_of_replaced_records_bound_those_of_the_oracles_pair(mu: float, p: float) -> None:
    """The moments of the symmetric pair by quadrature; never below them, and at most a fifth above."""
    ours = divergences(SubsampledMechanism(GaussianShift(mu), p, "replace"))
    assert ours is not None
    small = [k for k, a in enumerate(ORDERS) if a * mu < 10]  # the quadrature ends eleven deviations beyond the shift
    pair = oracle.Round(mu, p, "replace")
    theirs = pair.cumulant(ORDERS[small] - 1.0).real / (ORDERS[small] - 1.0)
    assert (ours[small] >= theirs).all()
    assert (ours[small] <= 1.2 * theirs + 1e-10).all()
    far = ORDERS * mu**2 / 2.0 * (1.0 + 1e-9) + 1e-10  # drawing makes no round worse
    assert (ours <= far).all()


def test_rounds_that_are_added_one_by_one_cost_the_same() -> None:
    whole, one = unnamed(federation(weighted=True)), federation(weighted=True).over(1)
    grown = Accountant(identified=False)
    for _ in range(ROUNDS):
        grown = grown.add(one)
    assert grown.epsilon(DELTA) == pytest.approx(whole.epsilon(DELTA), rel=1e-9)

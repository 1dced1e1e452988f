"""The inverse of the account."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cepam import L1, L2, Gaussian, Laplace
from cepam.privacy import Client, Mechanism, Sampling, calibrate, calibrate_each, epsilon, report


def uniform(adjacency: str = "replace", records: int = 2000, rounds: int = 80, colluders: int = 0, law=None, clip=None):
    return Mechanism.uniform(
        30,
        law or Gaussian(1.0),
        clip or L2(1.0),
        Sampling("replacement", 15),
        records,
        rounds=rounds,
        colluders=colluders,
        adjacency=adjacency,  # type: ignore[arg-type]
        coordinates=6422,
    )


@pytest.mark.parametrize(
    ("target", "replace", "add_remove"),
    [(1, 0.3037, 0.3013), (2, 0.2518, 0.2504), (4, 0.2031, 0.2020), (8, 0.1592, 0.1583)],
)
def test_truth_table(target: float, replace: float, add_remove: float) -> None:
    for adjacency, want in (("replace", replace), ("add-remove", add_remove)):
        found = calibrate(uniform(adjacency).layered(), target, 1e-5)
        assert found.clients[0].law.scale == pytest.approx(want, abs=6e-5)
        assert target * (1 - 1e-5) <= epsilon(found, 1e-5) <= target


def test_truth_table_with_colluders_and_the_papers_target() -> None:
    assert calibrate(uniform(colluders=29), 1, 1e-5).clients[0].law.scale == pytest.approx(1.663, abs=6e-4)
    for adjacency, want in (("replace", 0.28645), ("add-remove", 0.28418)):
        found = calibrate(uniform(adjacency, records=1666), 1.45, 1e-5)
        assert found.clients[0].law.scale == pytest.approx(want, abs=6e-6)


@pytest.mark.parametrize("clip", [L1(1.0), L2(1.0)], ids=["l1", "l2"])
@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_laplace(clip, delta: float) -> None:
    found = calibrate(uniform(law=Laplace(1.0), clip=clip), 2.0, delta)
    assert 2.0 * (1 - 1e-5) <= epsilon(found, delta) <= 2.0 * (1 + 1e-12)


def test_private_preset() -> None:
    mechanism = Mechanism.uniform(
        30, Gaussian(1.0), L2(1.0), Sampling("poisson", 32), 2000, rounds=600, adjacency="add-remove", clipped="example"
    )
    found = calibrate(mechanism, 1.9663683, 1e-5)
    assert found.clients[0].law.scale * 960 / 30**0.5 == pytest.approx(1.1, rel=1e-5)


@settings(max_examples=6, deadline=None)
@given(target=st.floats(0.05, 9), rounds=st.sampled_from([1, 7, 60]), start=st.floats(1e-3, 1e3))
def test_round_trip_monotone_and_independent_of_the_start(target: float, rounds: int, start: float) -> None:
    mechanism = uniform(rounds=rounds, law=Gaussian(start))
    found = calibrate(mechanism, target, 1e-5)
    assert target * (1 - 1e-4) <= epsilon(found, 1e-5) <= target
    assert calibrate(mechanism, target * 1.001, 1e-5).clients[0].law.scale < found.clients[0].law.scale


def test_every_client_its_own_target() -> None:
    clients = (Client(Gaussian(1.0), 1000, 0.2), Client(Gaussian(1.0), 3000, 0.5), Client(Gaussian(1.0), 500, 0.3))
    mechanism = Mechanism(clients, L2(1.0), Sampling("replacement", 10), 20)
    targets, deltas = (0.5, 2.0, 4.0), (1e-5, 1e-6, 1e-4)
    found = calibrate_each(mechanism, targets, deltas)
    for guarantee, target in zip(report(found, deltas), targets):
        assert guarantee.colluding == pytest.approx(target, rel=1e-5)
        assert guarantee.outsider < guarantee.curious <= guarantee.colluding
    with pytest.raises(ValueError, match="each"):
        calibrate_each(mechanism, (1.0,), (1e-5,))


def test_for_one_client_or_the_worst() -> None:
    clients = (Client(Gaussian(1.0), 500), Client(Gaussian(2.0), 5000))
    mechanism = Mechanism(clients, L2(1.0), Sampling("replacement", 10), 20)
    worst, second = calibrate(mechanism, 1.0, 1e-5), calibrate(mechanism, 1.0, 1e-5, client=1)
    assert epsilon(worst, 1e-5) == pytest.approx(1.0, rel=1e-5)
    assert epsilon(second, 1e-5, 1) == pytest.approx(1.0, rel=1e-5)
    assert second.clients[0].law.scale < worst.clients[0].law.scale
    assert worst.clients[1].law.scale == pytest.approx(2 * worst.clients[0].law.scale)


@pytest.mark.parametrize(("target", "delta"), [(0.0, 1e-5), (-1.0, 1e-5), (1.0, 1.0), (1.0, 0.99), (1.0, 0.0)])
def test_hopeless_targets_are_refused(target: float, delta: float) -> None:
    with pytest.raises(ValueError, match=r"epsilon|delta|pure"):
        calibrate(uniform(), target, delta)


def test_under_thirty_seconds() -> None:
    start = time.process_time()
    calibrate(uniform("add-remove", rounds=1000), 3.0, 1e-6)
    assert time.process_time() - start < 30.0

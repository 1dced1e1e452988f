"""What dp-accounting makes of our events is what we say; what it has no word for is not put into other words."""

from __future__ import annotations

import pytest

from cepam import L1, L2, Gaussian, Laplace
from cepam.privacy import Ledger, Release, Sampling, epsilon, supports, to_dp_event

dp_event = pytest.importorskip("dp_accounting").dp_event
pld = pytest.importorskip("dp_accounting.pld")


def release(kind: str, clipped: str, adjacency: str, law=None, clip=None, rounds: int = 20) -> Release:
    return Release.uniform(
        3, law or Gaussian(0.3), clip or L2(1.0), Sampling(kind, 40), 1000,  # type: ignore[arg-type]
        rounds=rounds, adjacency=adjacency, clipped=clipped,  # type: ignore[arg-type]
    )  # fmt: skip


SAID = [
    release("poisson", "example", "add-remove"),
    release("poisson", "example", "add-remove", Laplace(1.0), L1(1.0)),
    release("all", "update", "replace", Gaussian(3.0)),
    release("all", "update", "add-remove", Laplace(40.0), L1(1.0)),
]


@pytest.mark.parametrize("run", SAID, ids=repr)
def test_the_library_charges_an_event_as_we_do(run: Release) -> None:
    assert supports(run)
    accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
    event = to_dp_event(run)
    assert accountant.supports(event)
    theirs = accountant.compose(event).get_epsilon(1e-5)
    assert theirs == pytest.approx(epsilon(run, 1e-5), rel=2e-3)


def test_rounds_that_differ_and_rounds_without_the_client() -> None:
    run = SAID[0]
    ledger = Ledger().add(run).add(run.without([1]))
    accountant = pld.PLDAccountant(value_discretization_interval=1e-4).compose(to_dp_event(ledger))
    assert accountant.get_epsilon(1e-5) == pytest.approx(ledger.epsilon(1e-5, client=0), rel=2e-3)
    assert to_dp_event(run.without([0])) == dp_event.NoOpDpEvent()


def test_laplace_under_l2_clips_is_zcdp() -> None:
    run = release("all", "update", "replace", Laplace(40.0), L2(1.0), rounds=1)
    assert to_dp_event(run).event == dp_event.ZCDpEvent((2.0 / 40.0) ** 2 / 2)


@pytest.mark.parametrize(
    "run",
    [
        release("poisson", "example", "replace"),
        release("poisson", "update", "add-remove"),
        release("replacement", "update", "add-remove"),
        release("without", "update", "replace"),
    ],
    ids=["replace", "whole update", "with replacement", "without replacement"],
)
def test_what_it_has_no_word_for(run: Release) -> None:
    assert not supports(run)
    assert to_dp_event(run) == dp_event.UnsupportedDpEvent()
    assert not pld.PLDAccountant().supports(to_dp_event(run))

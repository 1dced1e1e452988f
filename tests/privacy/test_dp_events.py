"""What dp-accounting makes of our events is what we say; what it has no word for is not put into other words."""

from __future__ import annotations

import sys

import pytest

from cepam import L1, L2, Gaussian, Laplace
from cepam.privacy import Accountant, Mechanism, Sampling, epsilon, supports, to_dp_event

dp_event = pytest.importorskip("dp_accounting").dp_event
pld = pytest.importorskip("dp_accounting.pld")


def mechanism(kind: str, clipped: str, adjacency: str, law=None, clip=None, rounds: int = 20) -> Mechanism:
    return Mechanism.uniform(
        3, law or Gaussian(0.3), clip or L2(1.0), Sampling(kind, 40), 1000,  # type: ignore[arg-type]
        rounds=rounds, adjacency=adjacency, clipped=clipped,  # type: ignore[arg-type]
    )  # fmt: skip


SAID = [
    mechanism("poisson", "example", "add-remove"),
    mechanism("poisson", "example", "add-remove", Laplace(1.0), L1(1.0)),
    mechanism("all", "update", "replace", Gaussian(3.0)),
    mechanism("all", "update", "add-remove", Laplace(40.0), L1(1.0)),
]


@pytest.mark.parametrize("run", SAID, ids=repr)
def test_the_library_charges_an_event_as_we_do(run: Mechanism) -> None:
    assert supports(run)
    library = pld.PLDAccountant(value_discretization_interval=1e-4)
    event = to_dp_event(run)
    assert library.supports(event)
    theirs = library.compose(event).get_epsilon(1e-5)
    assert theirs == pytest.approx(epsilon(run, 1e-5), rel=2e-3)


def test_rounds_that_differ_and_rounds_without_the_client() -> None:
    run = SAID[0]
    accountant = Accountant().add(run).add(run.without([1]))
    library = pld.PLDAccountant(value_discretization_interval=1e-4).compose(to_dp_event(accountant))
    assert library.get_epsilon(1e-5) == pytest.approx(accountant.epsilon(1e-5, client=0), rel=2e-3)
    assert to_dp_event(run.without([0])) == dp_event.NoOpDpEvent()


def test_laplace_under_l2_clips_is_zcdp() -> None:
    run = mechanism("all", "update", "replace", Laplace(40.0), L2(1.0), rounds=1)
    assert to_dp_event(run).event == dp_event.ZCDpEvent((2.0 / 40.0) ** 2 / 2)


@pytest.mark.parametrize(
    "run",
    [
        mechanism("poisson", "example", "replace"),
        mechanism("poisson", "update", "add-remove"),
        mechanism("replacement", "update", "add-remove"),
        mechanism("without", "update", "replace"),
    ],
    ids=["replace", "whole update", "with replacement", "without replacement"],
)
def test_what_it_has_no_word_for(run: Mechanism) -> None:
    assert not supports(run)
    assert to_dp_event(run) == dp_event.UnsupportedDpEvent()
    assert not pld.PLDAccountant().supports(to_dp_event(run))


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    assert supports(SAID[0])
    with pytest.raises(ModuleNotFoundError, match=r"cepam\[dp-accounting\]"):
        to_dp_event(SAID[0])

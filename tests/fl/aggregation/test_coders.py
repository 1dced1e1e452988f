"""Which coder a run has, and that the accountant never charges less than the codec may cost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest

import cepam
from cepam import policy as policies
from cepam import privacy
from cepam.clip import L2
from cepam.distributions.laws import Gaussian, Laplace
from cepam.fl.aggregation.accounting import mechanism_of, plan_clients
from cepam.fl.config.settings import Settings
from cepam.fl.data.dataset import Dataset
from cepam.fl.simulation import Sent, Simulation
from cepam.privacy.composition.accountant import affordable
from cepam.privacy.numerics import slack
from cepam.protocol.account import Accounting
from cepam.protocol.correlated_noise import CorrelatedNoiseConfig
from cepam.protocol.enforcement import charge_of
from cepam.protocol.settings import UplinkSettings
from tests.corpus import LATTICES, SEARCHED

LAWS = (Gaussian(0.5), Laplace(0.5))
CODERS = ("auto", "layered", "paper")
LARGE = privacy.CohortMechanism.of(
    privacy.Cohort(100_000, 1000), L2(1.0), 1.0, rounds=1000, adjacency="add-remove", coordinates=3_000_000
)


def offers() -> list[UplinkSettings]:
    """What a server may ask, of every law, lattice and coder."""
    every = itertools.product(LAWS, LATTICES.values(), CODERS)
    return [UplinkSettings(law, L2(1.0), lattice, coder) for law, lattice, coder in every]  # type: ignore[arg-type]


def test_a_client_is_charged_for_the_search_coder_unless_it_is_said_to_be_without() -> None:
    assert privacy.Client(Gaussian(1.0), 1).may_search
    assert privacy.Client(Gaussian(1.0), 1, lattice=cepam.Integer(1)).may_search
    assert not privacy.Client(Gaussian(1.0), 1, searched=False).may_search
    assert not privacy.Client(Gaussian(1.0), 1, lattice=cepam.E8).may_search
    assert not privacy.Client(Laplace(1.0), 1).may_search


@pytest.mark.parametrize("asked", offers(), ids=str)
def test_no_deployment_charges_less_than_its_codec_may_cost(asked: UplinkSettings) -> None:
    account, policy = Accounting(), policies.ClientPolicy(0.1, 2.0, rounds=10)
    made: list[Any] = [account.mechanism([(0, asked), (1, asked)], True, 1000)]
    if isinstance(asked.law, Gaussian):
        made.append(account.cohort_mechanism(privacy.Cohort(100, 10.0), asked, 1000))
        charge = charge_of(policy, asked, 1000, True)
        made += policies.AnsweredRounds((charge,)).accountant().mechanisms
        config = CorrelatedNoiseConfig(0.5, 2, 4)
        one = config.client(asked.law, 10, lattice=asked.lattice, searched=asked.codec.searches)
        assert one.may_search >= asked.codec.searches
    for mechanism in made:
        assert bool(mechanism.searched()) >= asked.codec.searches
        assert not asked.codec.searches or slack.slack_part(mechanism, slack.Shown()).searched


@pytest.mark.parametrize("coder", CODERS)
@pytest.mark.parametrize("scheme", ["cepam-gaussian", "cepam-laplace"])
@pytest.mark.parametrize("lattice", ["Z1", "E8", "D4"])
def test_no_simulation_charges_less_than_its_codec_may_cost(
    quick: Settings, small: Dataset, scheme: str, lattice: str, coder: str
) -> None:
    chosen = quick.updated({
        "compression.scheme": scheme, "compression.lattice": lattice, "compression.coder": coder,
    }).fitted(small.clients)  # fmt: skip
    held = Simulation(chosen, small).aggregators[0].row.held  # type: ignore[attr-defined]
    plans = plan_clients(chosen, held, 1000, 1)
    mechanism = mechanism_of(chosen, plans, 1000)
    assert mechanism is not None
    for plan, client in zip(plans, mechanism.clients):
        assert (
            client.may_search == plan.codec.searches == ((scheme, lattice, coder) == ("cepam-gaussian", "Z1", "auto"))
        )  # type: ignore[attr-defined]


def test_sums_too_large_for_the_search_coder_are_those_of_layered_clients() -> None:
    assert math.isinf(privacy.epsilon(LARGE, 1e-5))
    taken = affordable(LARGE, 1e-5)
    assert not taken.searched()
    assert math.isfinite(privacy.epsilon(taken, 1e-5))
    met = privacy.calibrate(LARGE, 4.0, 1e-5)
    assert not met.searched()
    assert privacy.epsilon(met, 1e-5) <= 4.0
    small = privacy.CohortMechanism.of(privacy.Cohort(1000, 50), L2(1.0), 1.0, rounds=10, coordinates=1000)
    assert affordable(small, 1e-5) is small
    assert privacy.calibrate(small, 4.0, 1e-5).searched()


def test_where_neither_can_be_charged_nothing_changes() -> None:
    hopeless = privacy.CohortMechanism.of(
        privacy.Cohort(1000, 100), L2(1.0), 1.0, rounds=10**6, coordinates=10**9, adjacency="add-remove"
    )
    assert affordable(hopeless, 1e-5) is hopeless


UNITS: tuple[dict[str, Any], ...] = (
    {"privacy.epsilon": 4.0, "privacy.noise_scale": None},
    {"privacy.noise_scale": 3.0},
)


@pytest.mark.parametrize("noise", UNITS, ids=["target", "stated"])
@pytest.mark.parametrize("unit", ["record", "client"])
def test_a_run_takes_the_layered_quantizer_where_search_has_no_figure_and_says_so(
    quick: Settings, small: Dataset, monkeypatch: pytest.MonkeyPatch, unit: str, noise: dict[str, Any]
) -> None:
    chosen = quick.updated({"privacy.unit": unit, "privacy.adjacency": "add-remove", **noise})
    if unit == "client":
        chosen = chosen.updated(
            {"training.record_sampling": "all", "training.batch_size": 1, "clients.sampling": "poisson"}
        )
    first: list[int] = []

    def watch(sent: Sent) -> None:
        first.extend(each.message[0] for each in sent.envelopes if each.message)

    def run() -> Simulation:
        first.clear()
        made = Simulation(chosen, small, watch=watch)
        made.step()
        return made

    usual = run()
    assert not any("layered" in line for line in usual.warnings)
    monkeypatch.setattr(slack, "search_miss", lambda places: 1e-3)
    _forget()
    changed = run()
    assert any("compression.coder is layered" in line for line in changed.warnings)
    assert first
    assert not any(each & SEARCHED for each in first)
    assert math.isfinite(changed.aggregators[0].spent() or math.inf)
    _forget()


def _forget() -> None:
    """Nothing may be remembered of another arithmetic."""
    from cepam.privacy.composition import accountant

    for each in vars(accountant).values():
        if isinstance(each, Callable) and hasattr(each, "cache_clear"):  # type: ignore[arg-type]
            each.cache_clear()

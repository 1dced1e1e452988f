"""Our accountant behind Flower's protocol, against Flower's own and inside Flower's own strategy."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp import GaussianPrivacyEvent, NeighboringRelation, PrivacyConfig, PrivacySpent, SamplingMethod
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Strategy,
)

import cepam
from cepam.flower import Accounting, CorrelatedNoiseConfig, PldAccountant, Private
from cepam.privacy import Accountant, Client, Mechanism, Sampling

from .fakes import FakeGrid, Node, adding, start_arrays, vector_of


def config(sampling: str = "no-amplification", relation: str = "add-or-remove-one", **options) -> PrivacyConfig:
    return PrivacyConfig(1e-5, 100, NeighboringRelation(relation), SamplingMethod(sampling), **options)


def event(noise: float = 2.0, sample: int = 10) -> GaussianPrivacyEvent:
    return GaussianPrivacyEvent(noise, sample, 100)


@pytest.mark.parametrize(
    ("sampling", "relation"),
    [("no-amplification", "add-or-remove-one"), ("poisson", "add-or-remove-one")],
)
def test_it_is_at_most_flowers_own_and_close_to_it(sampling: str, relation: str) -> None:
    rdp = pytest.importorskip("flwr.supercore.privacy_accounting.rdp_accountant")
    ours, theirs = PldAccountant(config(sampling, relation)), rdp.RdpAccountant(config(sampling, relation))
    for accountant in (ours, theirs):
        accountant.compose(event(), count=20)
        accountant.compose(event(noise=3.0), count=5)
    assert ours.num_releases == theirs.num_releases == 25
    assert 0.6 * theirs.get_epsilon(1e-5) < ours.get_epsilon(1e-5) <= theirs.get_epsilon(1e-5)
    assert ours.get_delta(ours.get_epsilon(1e-5)) == pytest.approx(1e-5, rel=0.05)


def test_a_replaced_client_moves_twice_as_far() -> None:
    one = PldAccountant(config("without-replacement", "replace-one"))
    one.compose(event(sample=100))
    other = PldAccountant(config())
    other.compose(event(noise=1.0, sample=100))
    assert one.get_epsilon(1e-5) == pytest.approx(other.get_epsilon(1e-5), rel=1e-6)


def test_state_limits_and_refusals() -> None:
    accountant = PldAccountant(config(max_epsilon=3.0))
    assert not accountant.would_exceed(event(noise=5.0))
    assert accountant.would_exceed(event(noise=0.5))
    accountant.compose(event(), count=3)
    copy = PldAccountant(config())
    copy.load_state_dict(accountant.state_dict())
    assert copy.get_privacy_spent() == accountant.get_privacy_spent()
    with pytest.raises(ValueError, match="max_epsilon"):
        copy.would_exceed(event())
    with pytest.raises(ValueError, match="population"):
        copy.compose(GaussianPrivacyEvent(1.0, 5, 50))
    with pytest.raises(ValueError, match="count"):
        copy.compose(event(), count=0)
    with pytest.raises(ValueError, match="method"):
        copy.load_state_dict({"method": "rdp"})


@pytest.mark.parametrize(
    "other",
    [
        PrivacyConfig(1e-5, 200, NeighboringRelation("add-or-remove-one"), SamplingMethod("no-amplification")),
        config("poisson"),
        config("without-replacement", "replace-one"),
    ],
)
def test_a_state_of_another_configuration_is_refused(other: PrivacyConfig) -> None:
    accountant = PldAccountant(config())
    accountant.compose(event(), count=20)
    with pytest.raises(ValueError, match="configuration"):
        PldAccountant(other).load_state_dict(accountant.state_dict())
    older = {key: value for key, value in accountant.state_dict().items() if key != "configuration"}
    with pytest.raises(ValueError, match="configuration"):
        PldAccountant(config()).load_state_dict(older)


def fixed_clipping(side: str, accountant: PldAccountant) -> Strategy:
    kind = {
        "server": DifferentialPrivacyServerSideFixedClipping, "client": DifferentialPrivacyClientSideFixedClipping,
    }[side]  # fmt: skip
    return kind(FedAvg(), 1.0, 1.0, 3, accountant=accountant)


def three(side: str) -> FakeGrid:
    """Three nodes without a mod of this package; on the client side with Flower's own clipping mod."""

    class Clipping(Node):
        def handle(self, message: Message) -> Message:
            if side == "client" and message.metadata.message_type == "train":
                return fixedclipping_mod(message, self.context, self.train)
            return self.train(message, self.context)

    return FakeGrid([Clipping(k, adding(np.full(400, 1.0))) for k in (1, 2, 3)])


@pytest.mark.parametrize("side", ["server", "client"])
def test_flowers_own_strategies_take_it_and_stop_at_its_limit(side: str) -> None:
    of_three = partial(
        PrivacyConfig, 1e-5, 3, NeighboringRelation("add-or-remove-one"), SamplingMethod("no-amplification")
    )
    free = PldAccountant(of_three())
    strategy = fixed_clipping(side, free)
    moved = vector_of(strategy.start(three(side), start_arrays(400), num_rounds=2).arrays)
    assert np.linalg.norm(moved) < 2.0 + 2 * 20 * 1.0  # clipped: the updates had norm 20 each
    spent = strategy.privacy_spent()
    assert spent == free.get_privacy_spent()
    assert (spent.num_releases, spent.accounting_method) == (2, "cepam-pld")
    one = Client(cepam.Gaussian(1.0), 1)
    own = Mechanism((one,), cepam.L2(1.0), Sampling("all"), 2, adjacency="add-remove", unit="client")
    assert spent.epsilon == pytest.approx(Accountant((own,)).epsilon(1e-5), rel=1e-6)
    limited = PldAccountant(of_three(max_epsilon=(spent.epsilon + 1e-6)))
    with pytest.raises(PrivacyBudgetExhausted, match="max_epsilon"):
        fixed_clipping(side, limited).start(three(side), start_arrays(400), num_rounds=5)
    assert limited.num_releases == 2
    assert limited.get_epsilon(1e-5) == spent.epsilon


class Laplacian:
    """An event that Flower's interface does not know."""

    noise_multiplier, sample_size, population_size = 1.0, 10, 100


def test_what_flowers_events_cannot_express_is_refused() -> None:
    accountant = PldAccountant(config(max_epsilon=3.0))
    for ask in (accountant.compose, accountant.would_exceed):
        with pytest.raises(ValueError, match="GaussianPrivacyEvent, got Laplacian"):
            ask(Laplacian())  # type: ignore[arg-type]
    assert accountant.num_releases == 0


def test_a_replaced_client_counts_two_clipping_norms_where_flower_counts_one() -> None:
    rdp = pytest.importorskip("flwr.supercore.privacy_accounting.rdp_accountant")
    ours, theirs = (kind(config("without-replacement", "replace-one")) for kind in (PldAccountant, rdp.RdpAccountant))
    ours.compose(event(noise=4.0), count=20)
    theirs.compose(event(noise=2.0), count=20)
    assert ours.get_epsilon(1e-5) <= theirs.get_epsilon(1e-5)
    theirs.compose(event(noise=2.0), count=1)
    ours.compose(event(noise=2.0), count=20)
    assert ours.get_epsilon(1e-5) > theirs.get_epsilon(1e-5)


def run_of(grid: FakeGrid, **options) -> Private:
    given = {"clip": cepam.L2(1.0), "noise": cepam.Gaussian(1.0), **options}
    strategy = Private(FedAvg(), **given)
    strategy.start(grid, start_arrays(400), num_rounds=3)
    return strategy


def test_private_reports_what_was_spent_as_flower_does() -> None:
    grid = FakeGrid([Node(k, adding(np.full(400, 0.01))) for k in (1, 2, 3)])
    strategy = run_of(grid, accounting=Accounting(unit="client", adjacency="add-remove"))
    assert strategy.privacy_spent() == PrivacySpent(strategy.epsilon, 1e-5, 3, "cepam-pld")
    assert strategy.epsilon > 0
    before = Private(FedAvg(), clip=cepam.L2(1.0), epsilon=2.0, accounting=Accounting(unit="client"))
    assert before.privacy_spent() == PrivacySpent(0.0, 1e-5, 0, "cepam-pld")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "unit 'record'"),
        ({"noise": cepam.Laplace(1.0), "clip": cepam.L1(1.0), "accounting": Accounting(unit="client")}, "Gaussian"),
        (
            {
                "accounting": Accounting(unit="client", stable_nodes=True),
                "correlated_noise": CorrelatedNoiseConfig(0.5, slices=1, max_participations=3),
            },
            "correlated_noise",
        ),
    ],
    ids=["records", "laplace", "correlated"],
)
def test_what_flowers_figure_cannot_express_raises(options: dict[str, Any], reason: str) -> None:
    strategy = Private(FedAvg(), **{"clip": cepam.L2(1.0), "noise": cepam.Gaussian(1.0), **options})
    with pytest.raises(ValueError, match=reason):
        strategy.privacy_spent()

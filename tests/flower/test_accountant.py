"""Our accountant behind Flower's protocol, against Flower's own and inside Flower's own strategy."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.serverapp import GaussianPrivacyEvent, NeighboringRelation, PrivacyConfig, SamplingMethod
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from cepam.flower import PldAccountant, Uplink

from .fakes import FakeGrid, Node, adding, start_arrays


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


def test_flowers_own_strategy_takes_it() -> None:
    accountant = PldAccountant(
        PrivacyConfig(1e-5, 3, NeighboringRelation("add-or-remove-one"), SamplingMethod("no-amplification"))
    )
    grid = FakeGrid([Node(k, adding(np.full(400, 0.01))) for k in (1, 2, 3)])
    for node in grid.nodes.values():
        node.uplink = Uplink(required=False)
    strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 3, accountant=accountant)
    strategy.start(grid, start_arrays(400), num_rounds=2)
    assert accountant.num_releases == 2
    assert strategy.privacy_spent().epsilon > 0

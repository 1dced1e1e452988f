"""The mod and the wrapper together: what the wrapped strategy sees, settings, weights, keys."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import (
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedTrimmedAvg,
    Krum,
    QFedAvg,
)
from scipy import stats

import cepam
from cepam.flower import Accounting, Authentication, Compression, Dropouts, Gradient, NodeSettings, Private
from cepam.lattices.lattice import Lattice
from cepam.protocol.settings import UplinkSettings
from tests.deployment import flat

from .fakes import FakeGrid, Node, adding, copied, start_arrays, vector_of

SIZE = 4000


def fleet(count: int, size: int = SIZE, **metrics: float) -> tuple[FakeGrid, np.ndarray]:
    """Nodes whose updates have norm 1/2, and the mean of those updates."""
    draw = np.random.default_rng(5)
    updates = draw.normal(size=(count, size))
    updates *= 0.5 / np.linalg.norm(updates, axis=1, keepdims=True)
    nodes = [Node(2**63 + 11 + k, adding(updates[k], examples=10 + k, **metrics)) for k in range(count)]
    return FakeGrid(nodes), updates.mean(axis=0)


def private(strategy=None, sigma: float = 0.1, **options) -> Private:
    return Private(strategy or FedAvg(), noise=cepam.Gaussian(sigma), clip=cepam.L2(1.0), **flat(**options))


def test_decoded_average_is_the_mean_update_plus_gaussian_noise_of_the_charged_variance() -> None:
    # Fresh keys. False alarm 1e-9; the control, a scale wrong by 10 %, must fail, and misses with chance below 1e-13.
    grid, mean = fleet(4, size=100_000)
    result = private(sigma=0.1).start(grid, start_arrays(100_000, value=0.25), num_rounds=1)
    noise = vector_of(result.arrays).astype(np.float64) - 0.25 - mean
    assert stats.kstest(noise, stats.norm(scale=0.1 / 2).cdf).pvalue > 1e-9
    assert stats.kstest(noise, stats.norm(scale=1.1 * 0.1 / 2).cdf).pvalue < 1e-9


@pytest.mark.parametrize(
    "strategy",
    [FedAvg(), FedAvgM(server_momentum=0.5), FedAdam(), FedMedian(), FedTrimmedAvg(), Krum(), QFedAvg(0.1)],
    ids=lambda s: type(s).__name__,
)
def test_any_strategy_trains_around_the_wrapper(strategy) -> None:
    grid, _ = fleet(5, train_loss=0.5)
    result = private(strategy).start(grid, start_arrays(SIZE), num_rounds=2)
    assert np.isfinite(vector_of(result.arrays)).all()
    assert result.train_metrics_clientapp[2]["cepam-replies"] == 5
    assert result.train_metrics_clientapp[2]["cepam-dropped"] == 0


def test_gradient_replies_take_a_step_down() -> None:
    size = 2000
    gradient = np.linspace(-0.02, 0.02, size).astype(np.float32)

    def train(message, context):
        arrays = ArrayRecord({"w": Array(gradient.reshape(-1, 4))})
        return Message(RecordDict({"g": arrays, "m": MetricRecord({"num-examples": 3})}), reply_to=message)

    grid = FakeGrid([Node(k, train) for k in (1, 2)])
    strategy = private(sigma=1e-4, update=Gradient(0.5))
    arrays = strategy.start(grid, start_arrays(size, 1.0), num_rounds=1).arrays
    np.testing.assert_allclose(vector_of(arrays), 1.0 - 0.5 * gradient, atol=5e-4)
    raw = private(sigma=1e-4, update=Gradient(None))
    np.testing.assert_allclose(vector_of(raw.start(grid, start_arrays(size, 1.0), 1).arrays), gradient, atol=6e-4)


def test_integer_arrays_stay_as_the_server_sent_them() -> None:
    def train(message, context):
        arrays = {"w": Array(np.full(8, 0.5, np.float32)), "n": Array(np.array([99]))}
        return Message(RecordDict({"a": ArrayRecord(arrays), "m": MetricRecord({"num-examples": 3})}), reply_to=message)

    grid = FakeGrid([Node(k, train) for k in (1, 2)])
    start = ArrayRecord({"w": Array(np.zeros(8, np.float32)), "n": Array(np.array([7]))})
    result = private(sigma=1e-4).start(grid, start, num_rounds=1)
    assert result.arrays["n"].numpy() == 7
    np.testing.assert_allclose(result.arrays["w"].numpy(), 1 / np.sqrt(8), atol=1e-3)


def test_weights_are_public_constants_not_what_a_reply_claims() -> None:
    low, high = np.zeros(400), np.full(400, 0.02)
    grid = FakeGrid([Node(1, adding(low, examples=1)), Node(2, adding(high, examples=10**12))])
    arrays = private(sigma=1e-4).start(grid, start_arrays(400), num_rounds=1).arrays
    assert vector_of(arrays).mean() == pytest.approx(0.01, abs=1e-3)
    weighted = NodeSettings(weight=3.0)
    arrays = private(sigma=1e-4, nodes={2: weighted}).start(grid, start_arrays(400), num_rounds=1).arrays
    assert vector_of(arrays).mean() == pytest.approx(0.015, abs=1e-3)


def test_settings_travel_for_each_client() -> None:
    own = NodeSettings(noise=cepam.Gaussian(0.3), compression=Compression("E8", padding=512))
    grid, _ = fleet(2)
    node = min(grid.nodes)
    sizes = {}

    def meddle(who, reply):
        sizes[who] = len(reply.content["arrays"]["update"].data)
        return [reply]

    grid.meddle = meddle
    private(nodes=lambda who: own if who == node else None).start(grid, start_arrays(SIZE), num_rounds=1)
    assert sizes.pop(node) % 512 == 0
    assert next(iter(sizes.values())) % 512 != 0


@pytest.mark.parametrize(
    "settings",
    [
        UplinkSettings(cepam.Gaussian(0.1), cepam.L2(1.0)),
        UplinkSettings(cepam.Laplace(0.1), cepam.L1(3.0), lattice=cepam.A2, padding=64, update="gradient"),
        UplinkSettings(cepam.Gaussian(0.1), cepam.L2(1.0), lattice=cepam.Integer(3), coder="paper"),
        UplinkSettings(cepam.Gaussian(0.1), cepam.L2(1.0), lattice=Lattice([[2.0, 0.3], [0.1, 1.7]])),
    ],
)
def test_settings_survive_the_journey(settings: UplinkSettings) -> None:
    read = UplinkSettings.from_json(settings.to_json())
    assert read == settings
    assert read.codec.fingerprint == settings.codec.fingerprint


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"law": ["gaussian", 0.1]}', '{"law": ["evil", 1]}'])
def test_settings_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        UplinkSettings.from_json(text)


def test_messages_are_small_and_nothing_plain_travels() -> None:
    grid, _ = fleet(3, size=100_000)
    result = private(sigma=0.2).start(grid, start_arrays(100_000), num_rounds=1)
    metrics = result.train_metrics_clientapp[1]
    assert metrics["cepam-float32-bytes"] == 3 * 400_000
    assert metrics["cepam-float32-bytes"] > 30 * metrics["cepam-message-bytes"]


def test_a_key_is_agreed_once_and_moves_on_every_round() -> None:
    grid, _ = fleet(2)
    answers = []

    def meddle(node, reply):
        answers.append((node, reply.content["cepam"]["position"], reply.content["cepam"]["public"]))
        return [reply]

    grid.meddle = meddle
    private().start(grid, start_arrays(SIZE), num_rounds=3)
    for node in grid.nodes:
        mine = [(position, public) for who, position, public in answers if who == node]
        assert [position for position, _ in mine] == [0, 1, 2]
        assert [bool(public) for _, public in mine] == [True, False, False]
        assert grid.nodes[node].context.state["cepam"]["position"] == 3


def test_a_restarted_node_agrees_again_without_losing_the_round(caplog) -> None:
    grid, _ = fleet(2)
    strategy = private()
    node = next(iter(grid.nodes.values()))
    configured = strategy.configure_train

    def configure(server_round, arrays, config, grid):
        if server_round == 2:
            node.restart()
        return configured(server_round, arrays, config, grid)

    strategy.configure_train = configure
    with caplog.at_level(logging.INFO, logger="flwr"):
        result = strategy.start(grid, start_arrays(SIZE), num_rounds=3)
    assert [result.train_metrics_clientapp[r]["cepam-replies"] for r in (1, 2, 3)] == [2, 2, 2]


def signing(tmp_path, name: str) -> tuple[str, bytes]:
    key = ec.generate_private_key(ec.SECP384R1())
    path = tmp_path / name
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    )
    pem = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return str(path), pem


def test_signed_agreements_are_bound_to_the_registered_key(tmp_path, caplog) -> None:
    grid, _ = fleet(3)
    good, other, bare = grid.nodes.values()
    for node in (good, other):
        path, node.public_key = signing(tmp_path, str(node.node_id))
        node.config["cepam-identity"] = path
    other.public_key = signing(tmp_path, "someone else")[1]
    with caplog.at_level(logging.WARNING, logger="flwr"):
        metrics = (
            private(authentication=Authentication(required=True))
            .start(grid, start_arrays(SIZE), 1)
            .train_metrics_clientapp[1]
        )
    assert metrics["cepam-replies"] == 1
    assert metrics["cepam-dropped-agreement"] == 2
    assert metrics["cepam-sampled"] == 3
    assert bare.context.state["cepam"]["position"] == 1


def test_a_node_that_knows_the_server_refuses_other_offers(tmp_path) -> None:
    key, public = signing(tmp_path, "server")
    other, _ = signing(tmp_path, "impostor")
    (tmp_path / "server.pub").write_bytes(public)
    for server_key, replies in ((key, 2), (other, 1), (None, 1)):
        grid, _ = fleet(2)
        next(iter(grid.nodes.values())).config["cepam-server"] = str(tmp_path / "server.pub")
        result = private(authentication=Authentication(server_key=server_key)).start(
            grid, start_arrays(SIZE), num_rounds=2
        )
        assert [m["cepam-replies"] for m in result.train_metrics_clientapp.values()] == [replies, replies]


def test_an_offer_that_was_changed_on_its_way_is_refused(tmp_path) -> None:
    key, public = signing(tmp_path, "server")
    (tmp_path / "server.pub").write_bytes(public)
    grid, _ = fleet(2)
    node = next(iter(grid.nodes.values()))
    node.config["cepam-server"] = str(tmp_path / "server.pub")
    private(authentication=Authentication(server_key=key)).start(grid, start_arrays(SIZE), num_rounds=1)
    message = next(m for m in grid.seen if m.metadata.dst_node_id == node.node_id)
    weak = UplinkSettings(cepam.Gaussian(1e-4), cepam.L2(1.0)).to_json()
    for name, value in (("settings", weak), ("public", bytes(range(32))), ("position", 5), ("round", 9)):
        spoiled = copied(message)
        spoiled.content["cepam"][name] = value
        assert node.handle(spoiled).error.reason == "cepam: unsigned"


def test_a_node_that_signed_once_must_sign_again(tmp_path) -> None:
    grid, _ = fleet(2)
    node = next(iter(grid.nodes.values()))
    path, node.public_key = signing(tmp_path, "key")
    node.config["cepam-identity"] = path
    strategy = private()
    strategy.start(grid, start_arrays(SIZE), num_rounds=1)
    del node.config["cepam-identity"]
    node.restart()
    metrics = strategy.start(grid, start_arrays(SIZE), num_rounds=1).train_metrics_clientapp[1]
    assert metrics["cepam-dropped-agreement"] == 1


def test_an_unauthenticated_agreement_is_warned_about(caplog) -> None:
    grid, _ = fleet(2)
    private().start(grid, start_arrays(SIZE), num_rounds=2)
    warnings = [r for r in caplog.records if "is not authenticated" in r.getMessage()]
    assert len(warnings) == 1


def test_the_wrapper_refuses_what_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="strategy must be"):
        Private("FedAvg", noise=cepam.Gaussian(1.0), clip=cepam.L2(1.0))
    with pytest.raises(ValueError, match="law must be"):
        Private(FedAvg(), noise=cepam.UniformBall(1.0), clip=cepam.L2(1.0))
    for neither_or_both in ({}, {"noise": cepam.Gaussian(1.0), "epsilon": 2.0}):
        with pytest.raises(ValueError, match="exactly one of noise and epsilon"):
            Private(FedAvg(), clip=cepam.L2(1.0), **neither_or_both)
    with pytest.raises(ValueError, match="must have a scale"):
        Private(FedAvg(), clip=cepam.L2(1.0), noise=cepam.Gaussian)
    with pytest.raises(ValueError, match="update must be"):
        private(update="gradient")
    with pytest.raises(ValueError, match="least_replies"):
        Dropouts(least_replies=0)
    with pytest.raises(ValueError, match="budget"):
        private(budget=-1.0)
    with pytest.raises(ValueError, match="required"):
        Authentication(required="maybe")
    with pytest.raises(ValueError, match="padding"):
        Compression(padding=0)
    with pytest.raises(ValueError, match="learning_rate"):
        Gradient(0.0)
    with pytest.raises(ValueError, match="delta"):
        Accounting(delta=2.0)
    with pytest.raises(ValueError, match="weight"):
        UplinkSettings(cepam.Gaussian(1.0), cepam.L2(1.0), weight=0.0)

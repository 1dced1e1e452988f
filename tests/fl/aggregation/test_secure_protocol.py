"""Masked sums of a run's clients: right sums, dropouts in every stage, graphs, and the same bytes after a resume."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from cepam.distributions.laws import Gaussian
from cepam.fl.aggregation.secure import EPOCH_ROUNDS, ProtocolTraffic, SimulatedProtocol
from cepam.fl.clients.sampling import Randomness
from cepam.fl.config.settings import SecAggGraph, Settings
from cepam.keys import Key
from cepam.secure_aggregation import QuantizationRange, SecAggSettings

MODEL = hashlib.sha256(b"weights").digest()
NOISE, SIZE = 0.01, 40


def exchange(clients: int = 5, dropout: float = 0.0, quorum: float = 0.8, rounds: int = 50) -> SimulatedProtocol:
    made = Settings.of(
        {
            "clients.count": clients,
            "privacy.noise_scale": NOISE,
            "privacy.trust": "secure-aggregation",
            "privacy.quorum": quorum,
            "clients.dropout_rate": dropout,
            "run.seeds": 1,
        }
    )
    graph = SecAggGraph.of(made)
    shape = SecAggSettings(
        b"run", 1, 0, SIZE, 1, 1, NOISE, 1.0, graph.quorum, 0, degree=graph.degree, threshold=graph.threshold
    )
    row = Randomness(Key.simulated(clients))
    return SimulatedProtocol(
        row, shape, clients, rounds, QuantizationRange(Gaussian(NOISE), clients, 1.0), dropout=dropout
    )


def updates(clients: int, round: int = 0) -> dict[int, np.ndarray]:
    rows = np.random.default_rng(round).normal(size=(clients, SIZE)) / (4 * np.sqrt(SIZE))
    return dict(enumerate(rows.astype(np.float32)))


def run(made: SimulatedProtocol, round: int) -> ProtocolTraffic:
    return made.run_round(made.offer(round), round, updates(made.clients, round), MODEL)


def error(traffic: ProtocolTraffic, sent: dict[int, np.ndarray]) -> np.ndarray:
    assert traffic.total is not None
    return traffic.total - np.sum([sent[k] for k in traffic.survivors], axis=0, dtype=np.float64)


def test_the_sum_is_that_of_all_updates_with_the_noise_of_all() -> None:
    made = exchange()
    off = np.concatenate([error(run(made, round), updates(5, round)) for round in range(25)])
    # 1,000 errors of variance K s^2 (1 + rounding, at most 1/12): nine deviations of the estimate either way.
    assert 0.6 < off.var() / (5 * NOISE**2) < 1.55
    assert abs(off.mean()) < 7 * NOISE * np.sqrt(5 * 1.1 / 1000)


def test_bits_fall_once_the_public_rule_knows_the_sums() -> None:
    made = exchange()
    first = made.offer(0).bits
    for round in range(3):
        assert run(made, round).lost is None
    assert made.offer(3).bits < first
    given = replace(made, bits=20, nodes=None)
    assert given.offer(3).bits == 20


def test_trips_and_bytes_without_and_with_drop_outs() -> None:
    whole = run(exchange(10), 1)
    assert (whole.round_trips, whole.vectors, whole.survivors) == (2, 10, tuple(range(10)))
    seen: dict[str, ProtocolTraffic] = {}
    made = exchange(10, dropout=0.3, quorum=0.6)
    for round in range(1, 25):
        traffic = run(made, round)
        kind = "lost" if traffic.total is None else "repaired" if traffic.round_trips > 2 else "whole"
        seen[kind] = traffic
        if traffic.total is not None:
            assert 6 <= len(traffic.survivors) <= 10
            assert np.abs(error(traffic, updates(10, round))).max() < 10 * NOISE * np.sqrt(10)
        else:
            assert traffic.lost is not None
    assert {"repaired", "lost"} <= set(seen)
    assert seen["repaired"].round_trips >= 3
    assert seen["lost"].total is None


def test_new_nodes_send_the_same_bytes_and_count_the_same() -> None:
    """What a resumed run does: new nodes, the state of the exchange, a later round."""
    whole, again = exchange(6, dropout=0.1), exchange(6, dropout=0.1)
    for round in range(4):
        run(whole, round)
    again.load_state_dict(whole.state_dict())
    for round in range(4, 7):
        one, other = run(whole, round), run(again, round)
        assert (one.up, one.down, one.round_trips, one.survivors) == (
            other.up,
            other.down,
            other.round_trips,
            other.survivors,
        )
        assert np.array_equal(one.total, other.total)
    # Control: another row's masks and noise give other sums.
    other_row = replace(exchange(6), row=Randomness(Key.simulated(99)))
    assert not np.array_equal(run(other_row, 6).total, one.total)


def test_a_new_epoch_begins_by_itself() -> None:
    made = exchange(3, rounds=3 * EPOCH_ROUNDS)
    last, first = run(made, EPOCH_ROUNDS - 1), run(made, EPOCH_ROUNDS)
    assert made.nodes is not None
    assert made.nodes.roster.epoch == 2
    assert (last.round_trips, first.round_trips) == (2, 3)
    assert first.down > last.down


def test_a_sparse_graph_where_there_are_many() -> None:
    made = exchange(120, dropout=0.05, quorum=0.85)
    assert 0 < made.shape.degree < 119
    traffic = run(made, 1)
    assert traffic.lost is None
    assert len(traffic.survivors) < 120
    assert np.abs(error(traffic, updates(120, 1))).max() < 10 * NOISE * np.sqrt(120)


def test_another_model_at_one_node_loses_the_sum() -> None:
    """The masks bind the weights' check value: nodes that hold other weights do not cancel, and nothing opens."""
    made = exchange(4, quorum=1.0)
    run(made, 0)
    assert made.nodes is not None
    honest = made.nodes.train

    def wrong(client: int, round: int, requests: object, model: bytes, update: object) -> bytes:
        return honest(client, round, requests, bytes(32) if client == 1 else model, update)  # type: ignore[arg-type]

    made.nodes.train = wrong  # type: ignore[assignment]
    traffic = run(made, 1)
    assert traffic.total is None
    assert "another round" in str(traffic.lost)


@pytest.mark.slow
def test_a_thousand_clients_a_tenth_of_them_missing() -> None:
    made = exchange(1000, dropout=0.08, quorum=0.9)
    assert (made.shape.degree, made.shape.threshold) == (46, 26)
    for round in range(2):
        traffic = run(made, round)
        assert traffic.lost is None
        assert 900 <= len(traffic.survivors) < 1000
        assert np.abs(error(traffic, updates(1000, round))).max() < 10 * NOISE * np.sqrt(1000)

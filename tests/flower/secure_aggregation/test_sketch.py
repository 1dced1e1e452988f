"""Sketched sums over Flower: fewer numbers leave, clipped after the public map, which the masks bind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message

import cepam
from cepam.distributions.laws import Gaussian
from cepam.flower.client_mod import SECURE_AGGREGATION, carried, carry
from cepam.secure_aggregation import SecAggSettings, Sketch, fit
from cepam.secure_aggregation.messages import HelloRequest, TrainRequest
from tests.flower.fakes import RUN, Node, adding, outcome, start_arrays, vector_of

from .fakes import NAMES, SIZE, SumGrid, ask, secagg_client, sum_fleet, summing

NUMBERS, SIGMA = 200, 0.001


def rounds_of(grid: SumGrid) -> list[SecAggSettings]:
    sent = [carried(message.content[SECURE_AGGREGATION]) for stage, _, message, _ in grid.traffic if stage == "train"]
    return [TrainRequest.decode(said).settings for said in sent[:: len(grid.nodes)]]


def test_the_strategy_is_handed_the_restored_mean_of_what_was_clipped_after_the_map(tmp_path) -> None:
    updates = np.random.default_rng(5).normal(size=(5, SIZE))
    updates /= np.linalg.norm(updates, axis=1, keepdims=True)
    grid = SumGrid([secagg_client(tmp_path, k, adding(updates[k])) for k in range(5)])
    found = summing(sigma=SIGMA, sketch=NUMBERS).start(grid, start_arrays(SIZE), num_rounds=2)
    first, second = rounds_of(grid)
    assert (first.coordinates, second.coordinates) == (NUMBERS, NUMBERS)
    assert Sketch.of(first, SIZE).seed != Sketch.of(second, SIZE).seed
    expected, lengths = np.zeros(SIZE), []
    for asked in (first, second):
        sketch = Sketch.of(asked, SIZE)
        mapped = [sketch.apply(update) for update in updates]
        lengths += [float(np.linalg.norm(part)) for part in mapped]
        expected += sketch.restore(np.sum([cepam.L2(1.0).apply(part) for part in mapped], axis=0)) / 5
    assert min(lengths) < 1.0 < max(lengths)
    # Noise of a restored coordinate: SIGMA √(13/12) √5 / 5 a round, two rounds; nine deviations fail below 1e-15.
    bound = 9 * SIGMA * np.sqrt(2 * 13 / 12 / 5)
    np.testing.assert_allclose(vector_of(found.arrays), expected, atol=bound)
    assert np.abs(vector_of(found.arrays) - 2 * updates.mean(axis=0)).max() > bound
    whole = SumGrid([secagg_client(tmp_path / "whole", k, adding(updates[k])) for k in range(5)])
    summing(sigma=SIGMA).start(whole, start_arrays(SIZE), num_rounds=1)
    saved = len(whole.replies("train")[100]) - len(grid.replies("train")[100])
    assert saved >= (SIZE - NUMBERS) * 6 // 8


def test_drop_outs_targets_and_the_quantized_downlink_go_with_it(tmp_path) -> None:
    grid, _ = sum_fleet(tmp_path)
    grid.deaf = {("train", 104)}
    strategy = summing(epsilon=4.0, sketch=NUMBERS, downlink="quantized")
    metrics = strategy.start(grid, start_arrays(SIZE), num_rounds=2).train_metrics_clientapp
    assert metrics[1]["cepam-opened"] == 1
    assert 0.0 < strategy.epsilon <= 4.0


def test_a_node_that_was_told_of_another_map_is_not_in_the_sum(tmp_path) -> None:
    """The map is a function of the settings: told of another gain, a node draws other signs, and other masks."""
    grid, updates = sum_fleet(tmp_path)
    deliver = grid.nodes[102].handle

    def deceive(message: Message) -> Message:
        if (said := carried(message.content[SECURE_AGGREGATION]))[4] == TrainRequest.code:
            asked = TrainRequest.decode(said)
            forged = replace(asked, settings=replace(asked.settings, gain=asked.settings.gain - 1))
            message.content[SECURE_AGGREGATION] = carry(forged.encode())
        return deliver(message)

    grid.nodes[102].handle = deceive  # type: ignore[method-assign]
    found = summing(sigma=SIGMA, sketch=NUMBERS).start(grid, start_arrays(SIZE), num_rounds=1)
    assert found.train_metrics_clientapp[1]["cepam-replies"] == 4
    sketch = Sketch.of(rounds_of(grid)[0], SIZE)
    expected = sketch.restore(sketch.apply(updates[[0, 1, 3, 4]].sum(axis=0))) / 5
    np.testing.assert_allclose(vector_of(found.arrays), expected, atol=9 * SIGMA * np.sqrt(4 * 13 / 12) / 5)


def offered(node: Node, coordinates: int, batch: float) -> bytes | str:
    run = f"flower {RUN}".encode()
    code = fit(Gaussian(0.1), 5, coordinates, 5.0)
    offer = SecAggSettings(run, 3, 0, coordinates, code.bits, code.gain, 0.1, 1.0, 4, batch=batch)
    beside = {"arrays": start_arrays(SIZE), "cepam": ConfigRecord({"update": "parameters"})}
    return ask(node, TrainRequest(offer, NAMES, bytes(32), None).encode(), beside)


def test_nodes_refuse_maps_of_clipped_examples_and_more_numbers_than_the_model_has(tmp_path) -> None:
    (tmp_path / "0.toml").write_text("noise_scale = 0.001\nclipping_norm = 1.0\nrounds = 9\ndivisor = 8\nrecords = 8")
    node = sum_fleet(tmp_path, 1)[0].nodes[100]
    ask(node, HelloRequest(f"flower {RUN}".encode(), 3).encode())
    assert offered(node, NUMBERS, 8.0) == "policy"
    assert offered(node, NUMBERS, 0.0) == offered(node, SIZE, 8.0) == "cohort"  # they pass, and want for a roster
    assert "arrays" in offered(node, SIZE + 1, 0.0)


def test_sketches_that_are_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="sketch must be"):
        summing(sketch=0)
    with pytest.raises(ValueError, match="before the map"):
        summing(sketch=NUMBERS, clipped="example", records=100)
    grid, _ = sum_fleet(tmp_path)
    result = outcome(summing(sketch=SIZE), grid, start_arrays(SIZE))
    assert result.train_metrics_clientapp[1]["cepam-sampled"] == 0
    assert "sketch must be below" in str(result.error)

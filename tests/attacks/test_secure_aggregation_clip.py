"""A server that sets the clip which a node believes it enforces: what it learns of one record stays bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from cepam.flower import Gradient

from ..flower.conftest import _fast_disk, _identity  # noqa: F401
from ..flower.fakes import adding, start_arrays, vector_of
from ..flower.secure_aggregation.fakes import SIZE, SumGrid, secagg_client, summing

RECORDS, CLIP, SIGMA, LIE = 64, 1.0, 0.5, 10_000.0
TERMS = f"""noise_scale = {SIGMA}
clipping_norm = {CLIP}
rounds = 9
divisor = {RECORDS}
records = {RECORDS}
honest = 1
"""
TARGET = np.random.default_rng(1).choice([-1.0, 1.0], size=SIZE) / np.sqrt(SIZE)
"""The direction of the one record that the server is after; a crafted model makes its gradient as long as it likes."""


def gradients() -> np.ndarray:
    made = np.random.default_rng(2).normal(size=(RECORDS, SIZE)) * 0.5 / np.sqrt(SIZE)
    made[0] = 1e6 * TARGET
    return made


def clipping(where: str, seen: list[float]) -> Any:
    """A ClientApp that clips each gradient, to a number from the run's configuration or from its message."""

    def train(message: Message, context: Context) -> Message:
        told = context.run_config if where == "run" else message.content["config"]
        clip, divisor = float(told["cepam-clip"]), float(told["cepam-divisor"])
        seen.append(clip)
        rows = gradients()
        rows *= np.minimum(1.0, clip / np.linalg.norm(rows, axis=1, keepdims=True))
        arrays = ArrayRecord({"w": Array((rows.sum(axis=0) / divisor).reshape(-1, 4).astype(np.float32))})
        return Message(RecordDict({"arrays": arrays, "m": MetricRecord({"num-examples": 1})}), reply_to=message)

    return train


def attacked(folder: Path, where: str, liars: tuple[int, ...] = (100, 101, 102, 103, 104)) -> tuple[Any, SumGrid, list]:
    """A round whose server lies about the clip to these nodes; node 100 holds the record."""
    seen: list[float] = []
    folder.mkdir(exist_ok=True)
    for k in range(5):
        (folder / f"{k}.toml").write_text(TERMS)
    grid = SumGrid([secagg_client(folder, k, adding(np.zeros(SIZE)) if k else clipping(where, seen)) for k in range(5)])
    lie = {"cepam-clip": LIE, "cepam-divisor": float(RECORDS)}
    for node in grid.nodes.values():
        node.run_config = dict(lie) if node.node_id in liars else {**lie, "cepam-clip": CLIP}
        node.restart()
    grid.run_config = grid.nodes[104].run_config
    strategy = summing(sigma=SIGMA, update=Gradient(), records=RECORDS, clipped="example")
    result = strategy.start(grid, start_arrays(SIZE), num_rounds=1, train_config=ConfigRecord(dict(lie)))
    return result, grid, seen


def cosine(result: Any) -> float:
    view = -vector_of(result.arrays).astype(np.float64)
    return float(view @ TARGET / np.linalg.norm(view))


@pytest.mark.parametrize("where", ["run", "message"])
def test_a_clip_of_10000_from_the_server_does_not_show_a_record(where: str, tmp_path) -> None:
    """Unclipped, the record's gradient over the batch has norm 156, and the noise of the sum 22: a cosine of 0.99."""
    result, _, seen = attacked(tmp_path, where)
    assert result.train_metrics_clientapp[1]["cepam-opened"] == 1
    # The node lets through a norm of records * clip / batch = 1 at most: 0.05 of the noise. The cosine of noise with
    # one direction has deviation 1/20: seven of them above that are met with chance below 1e-11.
    assert abs(cosine(result)) < 0.05 + 7 / 20
    assert seen == [LIE if where == "run" else CLIP]


def test_a_run_configuration_for_one_node_alone_keeps_it_out_of_the_sum(tmp_path) -> None:
    result, grid, seen = attacked(tmp_path, "run", liars=(100,))
    metrics = result.train_metrics_clientapp[1]
    assert (metrics["cepam-replies"], metrics["cepam-dropped-malformed"], metrics["cepam-opened"]) == (4, 1, 1)
    assert seen == [LIE]
    assert len(grid.replies("train")) == 5
    assert abs(cosine(result)) < 0.05 + 7 / 20

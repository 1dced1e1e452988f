"""A run that trains nothing fails loudly, with the reason: in every mode, at once where every node refuses."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, Context, Error, Message
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.serverapp.strategy import FedAvg

import cepam
from cepam.errors import NoUsableReplies
from cepam.flower import (
    Accounting,
    Authentication,
    CorrelatedNoiseConfig,
    Dropouts,
    Fixed,
    Gradient,
    Poisson,
    Private,
    Uplink,
)

from .fakes import FakeGrid, Node, adding, start_arrays, vector_of

SIZE = 400


def private(**options) -> Private:
    return Private(FedAvg(), **{"clip": cepam.L2(1.0), "noise": cepam.Gaussian(0.01), **options})


def four(train=None) -> FakeGrid:
    return FakeGrid([Node(k, train or adding(np.full(SIZE, 0.01))) for k in range(1, 5)])


def failed(grid: FakeGrid, rounds: int = 3, **options) -> NoUsableReplies:
    with pytest.raises(NoUsableReplies) as nothing:
        private(**options).start(grid, start_arrays(SIZE), num_rounds=rounds)
    return nothing.value


class Plain(Node):
    """A node whose ClientApp has no mod of this package."""

    def handle(self, message: Message) -> Message:
        message.content.pop("cepam")
        return self.train(message, self.context)


def test_a_client_app_without_the_mod_ends_the_run_after_its_first_round() -> None:
    grid = FakeGrid([Plain(k, adding(np.full(SIZE, 0.01))) for k in range(1, 5)])
    error = failed(grid)
    assert "every node of the first round refused: 4 times" in str(error)
    assert "does the ClientApp use cepam.flower.Uplink?" in str(error)
    assert list(error.metrics) == [1]
    assert len(grid.seen) == 4


def test_agreements_that_must_be_signed_and_are_not_end_the_run_at_once() -> None:
    error = failed(four(), authentication=Authentication(required=True))
    assert "is not signed with the node's authentication key (agreement)" in str(error)
    assert list(error.metrics) == [1]


def raising(message: Message, context: Context) -> Message:
    raise ValueError("the patient is called Ada")


def test_faults_that_may_pass_are_waited_for_until_the_end(caplog) -> None:
    for meddled, reason in (
        (lambda node, reply: [], "no reply came in time (missing)"),
        (lambda node, reply: [Message(Error(1, "gone"), reply_to=sent(reply))], "code 1: gone (error)"),
    ):
        grid = four()
        grid.meddle = meddled
        error = failed(grid)
        assert f"no reply of any round could be used: 12 times {reason}" in str(error)
        assert list(error.metrics) == [1, 2, 3]
    error = failed(four(raising))
    assert "training function raised" in str(error)
    assert "Ada" not in str(error)
    assert error.reasons == {"code 2: cepam: training (error)": 12}
    assert sum("trained nothing" in record.getMessage() for record in caplog.records) == 9


def sent(reply: Message) -> Message:
    """A message that this reply's answer can answer instead."""
    made = Message(reply.content, dst_node_id=reply.metadata.src_node_id, message_type="train")
    made.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return made


MODES: dict[str, dict[str, Any]] = {
    "charge": {"dropouts": Dropouts("charge")},
    "compensate": {"dropouts": Dropouts("compensate")},
    "whole clients": {"accounting": Accounting(unit="client")},
    "laplace": {"noise": cepam.Laplace(0.01), "clip": cepam.L1(1.0)},
    "gradient": {"update": Gradient(0.1)},
    "quantized downlink": {"downlink": "quantized"},
    "poisson": {"sampling": Poisson(1.0)},
    "fixed": {"sampling": Fixed(3)},
    "target": {"noise": None, "epsilon": 2.0},
    "correlated noise": {
        "noise": cepam.Gaussian(4.0), "accounting": Accounting(stable_nodes=True),
        "correlated_noise": CorrelatedNoiseConfig(decay=0.8, slices=3, max_participations=9),
    },
}  # fmt: skip
DROPS: dict[str, Callable[[int, Message], list[Message]]] = {
    "silence": lambda node, reply: [],
    "garbage": lambda node, reply: [garbled(reply)],
}


def garbled(reply: Message) -> Message:
    """The reply with other bytes in its message."""
    for record in reply.content.array_records.values():
        for name, array in list(record.items()):
            record[name] = Array(array.dtype, array.shape, array.stype, bytes(len(array.data)))
    return reply


@pytest.mark.parametrize("drop", DROPS)
@pytest.mark.parametrize("mode", MODES)
def test_a_run_whose_replies_are_all_dropped_fails_in_every_mode(mode: str, drop: str, tmp_path: Path) -> None:
    options = {"accounting": Accounting(), **MODES[mode]}
    options["accounting"] = replace(options["accounting"], folder=tmp_path / "dropped")
    grid = four()
    grid.meddle = DROPS[drop]
    with pytest.raises(NoUsableReplies, match="nothing was trained"):
        private(**options).start(grid, start_arrays(SIZE), num_rounds=2)
    options["accounting"] = replace(options["accounting"], folder=tmp_path / "good")
    assert private(**options).start(four(), start_arrays(SIZE), num_rounds=2).arrays  # the same run with its replies


def test_one_good_round_is_a_result() -> None:
    grid, rounds = four(), iter(range(100))
    grid.meddle = lambda node, reply: [reply] if 4 <= next(rounds) < 8 else []
    result = private().start(grid, start_arrays(SIZE), num_rounds=3)
    assert vector_of(result.arrays).mean() == pytest.approx(0.01, abs=0.01)


def test_too_few_replies_in_every_round_are_no_result() -> None:
    grid = four()
    grid.meddle = lambda node, reply: [reply] if node == 1 else []
    error = failed(grid, dropouts=Dropouts(least_replies=2))
    assert [metrics["cepam-replies"] for metrics in error.metrics.values()] == [1, 1, 1]


def test_a_secret_cohort_fails_at_the_end_and_the_error_tells_no_count(caplog) -> None:
    grid = four(raising)
    with caplog.at_level(logging.INFO, logger="flwr"):
        error = failed(grid, rounds=4, sampling=Poisson(1.0))
    assert list(error.metrics) == [1, 2, 3, 4]  # each round is published, whoever replied
    assert "times" not in str(error)
    assert not any("trained nothing" in record.getMessage() for record in caplog.records)
    assert "code 2: cepam: training" in str(error)


def test_nobody_sampled_is_no_failure() -> None:
    result = private(sampling=Poisson(1e-12, max_cohort=3)).start(four(), start_arrays(SIZE), num_rounds=1)
    assert np.isfinite(vector_of(result.arrays)).all()


class Old(NumPyClient):
    """A client of Flower's legacy interface."""

    def fit(self, parameters, config):
        return parameters, 1, {}


class LegacyNode(Node):
    """A node that runs a ClientApp built from `client_fn`, with the mod innermost or below another."""

    def __init__(self, node_id: int, mods: list) -> None:
        super().__init__(node_id, raising)
        self.app = ClientApp(client_fn=lambda context: Old().to_client(), mods=mods)

    def handle(self, message: Message) -> Message:
        return self.app(message, self.context)


def passing(message: Message, context: Context, call_next) -> Message:
    return call_next(message, context)


@pytest.mark.parametrize("mods", [[Uplink()], [Uplink(), passing]], ids=["innermost", "outer"])
def test_legacy_apps_are_named(mods: list) -> None:
    error = failed(FakeGrid([LegacyNode(k, mods) for k in range(1, 3)]))
    assert "cepam: legacy-app" in str(error)
    assert "use @app.train()" in str(error)
    assert list(error.metrics) == [1]
    with pytest.raises(ValueError, match=r"legacy interface.*flwr\.serverapp\.strategy\.FedAvg"):
        Private(LegacyFedAvg(), clip=cepam.L2(1.0), epsilon=1.0)


def test_what_nodes_say_cannot_bloat_or_forge_the_error() -> None:
    grid, number = four(), iter(range(10**9))
    grid.meddle = lambda node, reply: [
        Message(Error(7, f"{next(number)} \n all is well" + "x" * 10_000), reply_to=sent(reply))
    ]
    strategy = private()
    with pytest.raises(NoUsableReplies) as nothing:
        strategy.start(grid, start_arrays(SIZE), num_rounds=300)
    assert len(nothing.value.reasons) == 1000
    assert str(nothing.value).isprintable()
    assert len(str(nothing.value)) < 1200

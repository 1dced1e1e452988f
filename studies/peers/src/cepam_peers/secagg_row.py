"""Flower's SecAgg+ as shipped: the legacy workflow and mod, under the legacy client-side fixed clipping.

`SecAggPlusWorkflow` asks for a `LegacyContext`, so the strategies of the message API cannot use it. The noise is added
by the server after unmasking: secure aggregation hides single updates from an honest server, epsilon does not.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import fixedclipping_mod, secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow

from cepam_peers.flower_rows import RUN, LocalGrid
from cepam_peers.tasks import Floats, Problem, epsilon_of, noise_for

SHARES, THRESHOLD = 5, 3


def secure(inner: Any, noise: float, clip: float, clients: int) -> tuple[Any, Any, list[Any]]:
    """What a user adds to a legacy app."""
    strategy = DifferentialPrivacyClientSideFixedClipping(inner, noise, clip, clients)
    workflow = DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(SHARES, THRESHOLD, max_weight=1.0))
    return strategy, workflow, [secaggplus_mod, fixedclipping_mod]


def train(problem: Problem, clip: float, seed: int) -> tuple[dict[str, Floats], dict[str, Any]]:
    """One run: the last weights, and what it sent and spent."""
    told, clients, delta = problem.settings.training, problem.clients, problem.settings.privacy.delta
    assert problem.settings.privacy.epsilon is not None
    noise = noise_for(clients, told.rounds, problem.settings.privacy.epsilon, delta)
    names = list(problem.start())

    class Client(NumPyClient):  # type: ignore[misc]
        """One step on all records."""

        def __init__(self, number: int) -> None:
            self.number = number

        def fit(self, parameters: list[Floats], config: dict[str, Any]) -> tuple[list[Floats], int, dict[str, Any]]:
            """The moved weights, with weight 1."""
            slope = problem.gradient(dict(zip(names, parameters)), self.number)
            return [w - np.float32(clip / 2.0) * slope[name] for name, w in zip(names, parameters)], 1, {}

    inner = FedAvg(
        fraction_evaluate=0.0, min_fit_clients=clients, min_available_clients=clients,
        initial_parameters=ndarrays_to_parameters(list(problem.start().values())),
    )  # fmt: skip
    strategy, workflow, mods = secure(inner, noise, clip, clients)
    app = ClientApp(client_fn=lambda context: Client(int(context.node_config["partition-id"])).to_client(), mods=mods)
    contexts = {k + 1: Context(RUN, k + 1, {"partition-id": k}, RecordDict(), {}) for k in range(clients)}
    grid = LocalGrid({k: lambda message, k=k: app(message, contexts[k]) for k in contexts})  # type: ignore[misc]
    np.random.seed(seed)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    context = LegacyContext(Context(RUN, 0, {}, RecordDict(), {}), ServerConfig(num_rounds=told.rounds), strategy)
    workflow(grid, context)
    record = context.state.array_records["parameters"]
    last = parameters_to_ndarrays(_parameters(record))
    weights = dict(zip(names, last))
    return weights, {
        "up": grid.up, "down": grid.down, "messages": clients * told.rounds, "reported": None,
        "proved": epsilon_of(clients, told.rounds, noise, delta),
    }  # fmt: skip


def _parameters(record: Any) -> Any:
    from flwr.compat.common.recorddict_compat import arrayrecord_to_parameters

    return arrayrecord_to_parameters(record, keep_input=True)

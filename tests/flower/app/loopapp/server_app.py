"""FedAvg with or without cepam; the report goes to a file that the test reads."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, NeighboringRelation, PrivacyConfig, SamplingMethod, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

import cepam
from cepam.flower import Accounting, Authentication, CorrelatedNoiseConfig, PldAccountant, Poisson, Private

app = ServerApp()


def start_of(size: int, spread: float) -> np.ndarray:
    """The weights before the first round: the test computes the same."""
    return (spread * np.random.default_rng(99).normal(size=size)).astype(np.float32)


def accountant_of(nodes: int, budget: float | None = None) -> PldAccountant:
    """Our accountant for Flower's own fixed clipping, every node in every round; it stops at the budget."""
    relation, sampling = NeighboringRelation("add-or-remove-one"), SamplingMethod("no-amplification")
    return PldAccountant(PrivacyConfig(1e-5, nodes, relation, sampling, max_epsilon=budget))


def break_order(strategy: Private, when: int, hold: str) -> None:
    """Let the server ask for the round before once more in round `when` (0: never).

    The round after the second begins once the file `hold` is there.
    """
    asked = strategy.configure_train

    def configure(server_round: int, *rest: Any) -> Any:
        while hold and server_round == 3 and not Path(hold).exists():
            time.sleep(0.2)
        return asked(server_round - (server_round == when), *rest)

    strategy.configure_train = configure  # type: ignore[method-assign]


@app.main()
def main(grid: Grid, context: Context) -> None:
    """The run; every round's metrics and the final model are reported."""
    config = context.run_config
    nodes, slices, rounds = int(config["nodes"]), int(config["slices"]), int(config["num-server-rounds"])
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=min(2, nodes), min_available_nodes=nodes)
    if config["private"]:
        strategy = Private(
            strategy,
            clip=cepam.L2(1.0),
            noise=cepam.Gaussian(float(config["sigma"])),
            accounting=Accounting(stable_nodes=bool(slices)),
            sampling=Poisson(float(config["rate"])) if config["rate"] else None,
            downlink=str(config["downlink"]),
            authentication=Authentication(
                required=config["authentication"] == "require", server_key=str(config["server-key"]) or None
            ),
            correlated_noise=CorrelatedNoiseConfig(0.8, slices, max_participations=rounds) if slices else None,
        )
        break_order(strategy, int(config["backwards"]), str(config["hold"]))
    elif config["budget"]:
        accountant = accountant_of(nodes, float(config["budget"]))
        strategy = DifferentialPrivacyServerSideFixedClipping(strategy, 1.0, 1.0, nodes, accountant=accountant)
    start = ArrayRecord({"w": Array(start_of(int(config["size"]), float(config["spread"])))})
    result = strategy.start(grid, start, num_rounds=rounds, timeout=float(config["timeout"]))
    rounds = {r: dict(m) for r, m in result.train_metrics_clientapp.items()}
    if config["report"]:
        np.save(str(config["report"]) + ".npy", result.arrays["w"].numpy())
        Path(str(config["report"])).write_text(json.dumps(rounds))

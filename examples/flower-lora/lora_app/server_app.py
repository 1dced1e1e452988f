"""The server: FedAvg of adapters. `Private(…)` around it is all that cepam asks of it."""

from __future__ import annotations

import json
from dataclasses import replace
from logging import INFO, getLogger
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvgM

import cepam
from cepam.flower import Accounting, Dropouts, Private, Target
from cepam.privacy import Sampling
from lora_app.task import perplexity, tuned
from lora_app.text import examples_of

app = ServerApp()
log = getLogger("flwr").log


def plain(config: Any) -> FedAvgM:
    """The strategy without cepam."""
    return FedAvgM(
        fraction_evaluate=0.0,
        min_train_nodes=int(config["least-replies"]),
        min_available_nodes=int(config["clients"]),
        server_learning_rate=float(config["server-rate"]),
        server_momentum=0.0,
    )


def private(config: Any, records: int) -> Private:
    """The strategy: noise is calibrated to epsilon over the run, and adapters travel down as a quantized broadcast."""
    accounting = Accounting(delta=float(config["delta"]), records=records, adjacency="add-remove")
    if config["unit"] == "client":
        accounting = replace(accounting, unit="client")
    else:
        drawn = Sampling("poisson", int(config["draws"]))
        accounting = replace(accounting, record_sampling=drawn, clipped="example")
    rounds, clients = int(config["num-server-rounds"]), int(config["clients"])
    return Private(
        plain(config),
        clip=cepam.L2(float(config["clip"])),
        epsilon=Target(float(config["epsilon"]), rounds=rounds, nodes=clients),
        accounting=accounting,
        dropouts=Dropouts(least_replies=int(config["least-replies"])),
        downlink="quantized",
    )


@app.main()
def main(grid: Grid, context: Context) -> None:
    """A whole run; perplexity before and after, epsilon and bytes go to the log and, if asked for, to a file."""
    config = context.run_config
    made = tuned(str(config["model"]), int(config["rank"]), int(config["seed"]), str(config["device"]))
    test = examples_of(str(config["text"]), -1, made.encode, int(config["length"]))
    # Records a client: a public constant. Made-up text has as many; of your own text give the least.
    records = len(examples_of(str(config["text"]), 0, made.encode, int(config["length"])))
    seen: dict[int, float] = {}

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        seen[server_round] = perplexity(made, arrays.to_torch_state_dict(), test)
        return MetricRecord({"perplexity": seen[server_round]})

    start = made.state()
    strategy = private(config, records) if config["private"] else plain(config)
    result = strategy.start(
        grid,
        initial_arrays=ArrayRecord(start),
        num_rounds=int(config["num-server-rounds"]),
        timeout=float(config["timeout"]),
        evaluate_fn=evaluate,
    )
    rounds = {r: dict(m) for r, m in result.train_metrics_clientapp.items()}
    summary = {
        "adapter_weights": sum(value.numel() for value in start.values()),
        "perplexity_before": seen[0],
        "perplexity_after": seen[max(seen)],
        "epsilon": strategy.epsilon if isinstance(strategy, Private) else None,
        "delta": float(config["delta"]),
        "unit": str(config["unit"]),
        "device": str(next(made.model.parameters()).device),
        "bytes_up_a_client_and_round": _mean(rounds, "cepam-message-bytes"),
        "bytes_down_a_client_and_round": _mean(rounds, "cepam-downlink-bytes"),
        "rounds": rounds,
    }
    for name in ("perplexity_before", "perplexity_after", "epsilon", "bytes_up_a_client_and_round"):
        log(INFO, "%s %s", name, summary[name])
    if config["report"]:
        Path(str(config["report"])).write_text(json.dumps(summary))


def _mean(rounds: dict[int, dict[str, Any]], name: str) -> float:
    """Bytes a reply, over all rounds."""
    replies = sum(int(metrics.get("cepam-replies", 0)) for metrics in rounds.values())
    return sum(int(metrics.get(name, 0)) for metrics in rounds.values()) / max(1, replies)

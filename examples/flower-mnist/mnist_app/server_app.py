"""The server: FedAdam over the clients' gradients. `Private(…)` around it is all that cepam asks of it."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, Strategy

import cepam
from cepam.flower import Accounting, Authentication, Dropouts, Gradient, Private
from mnist_app.task import RECORDS, network, test_accuracy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """A whole training run; results go to the log and, if asked for, to a file."""
    config = context.run_config
    clients, rounds = int(config["clients"]), int(config["num-server-rounds"])
    strategy: Strategy = FedAdam(
        fraction_evaluate=0.0,
        min_train_nodes=int(config["least-replies"]),
        min_available_nodes=clients,
        eta=float(config["learning-rate"]),
        beta_1=0.9,
        beta_2=0.999,  # Adam's own: Flower's defaults, 0.99 and tau 1e-3, learn less under noise
        tau=1e-8,
    )
    if config["private"]:
        strategy = Private(
            strategy,
            clip=cepam.L2(float(config["clip"])),
            noise=cepam.Gaussian(float(config["sigma"])),
            update=Gradient(),
            accounting=Accounting.per_example(RECORDS // clients, int(config["draws"]), delta=float(config["delta"])),
            dropouts=Dropouts(least_replies=int(config["least-replies"])),
            authentication=Authentication(
                required=config["authentication"] == "require",
                server_key=str(config["server-key"]) or None,
            ),
        )
    torch.manual_seed(int(config["seed"]))
    accuracies: dict[int, float] = {}

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model = network()
        model.load_state_dict(arrays.to_torch_state_dict())
        accuracies[server_round] = test_accuracy(model)
        return MetricRecord({"accuracy": accuracies[server_round]})

    result = strategy.start(
        grid,
        initial_arrays=ArrayRecord(network().state_dict()),
        num_rounds=rounds,
        timeout=float(config["timeout"]),
        evaluate_fn=evaluate,
    )
    if config["report"]:
        metrics = {r: dict(m) for r, m in result.train_metrics_clientapp.items()}
        Path(str(config["report"])).write_text(json.dumps({"accuracy": accuracies, "rounds": metrics}))

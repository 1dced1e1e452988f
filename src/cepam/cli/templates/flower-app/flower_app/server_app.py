"""The server: Adam on the nodes' noisy gradients."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam

import cepam.flower
from flower_app.task import network, records_per_node, test_accuracy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, evaluate after each round, and write the report where one is asked for."""
    config = context.run_config
    dataset, nodes = str(config["dataset"]), int(config["nodes"])
    inner = FedAdam(
        fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes,
        eta=float(config["learning-rate"]), beta_1=0.9, beta_2=0.999, tau=1e-8,
    )  # fmt: skip
    accounting = cepam.flower.Accounting.per_example(
        records_per_node(dataset, nodes), int(config["batch"]), delta=float(config["delta"]),
        folder=str(config["account"]) or None,
    )  # fmt: skip
    strategy = cepam.flower.Private(
        inner, clip=cepam.L2(float(config["clip"])), epsilon=float(config["epsilon"]), accounting=accounting,
        update=cepam.flower.Gradient(),
    )  # fmt: skip

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model = network()
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": test_accuracy(model, dataset)})

    torch.manual_seed(int(config["seed"]))
    result = strategy.start(
        grid,
        initial_arrays=ArrayRecord(network().state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        timeout=float(config["timeout"]),
        evaluate_fn=evaluate,
    )
    if config["report"]:
        accuracy = {number: metrics["accuracy"] for number, metrics in result.evaluate_metrics_serverapp.items()}
        report = {"epsilon": strategy.epsilon, "delta": strategy.accounting.delta, "accuracy": accuracy}
        Path(str(config["report"])).write_text(json.dumps(report))

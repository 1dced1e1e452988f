"""The node: the mean of a secret batch's gradients, each clipped by itself."""

from __future__ import annotations

import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import cepam.flower
import cepam.torch
from flower_app.task import network, records_of

app = ClientApp(mods=[cepam.flower.Uplink()])  # adds the noise, compresses and seals


@app.train()
def train(message: Message, context: Context) -> Message:
    """One step of DP-SGD."""
    config, node = context.run_config, context.node_config
    records = records_of(str(config["dataset"]), int(node["partition-id"]), int(node["num-partitions"]))
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    private = cepam.torch.PerExampleGradients(model, F.cross_entropy, cepam.L2(float(config["clip"])))
    gradient = private.gradient(records, expected_batch_size=int(config["batch"]))
    metrics = MetricRecord({"num-examples": int(config["batch"])})  # public: how many were drawn is private
    return Message(RecordDict({"arrays": ArrayRecord(gradient), "metrics": metrics}), reply_to=message)

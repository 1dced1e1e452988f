"""The client: the clipped gradient of a secret batch. cepam asks for `mods=[Uplink()]` and `PerExampleGradients`."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import cepam
from cepam.flower import Uplink
from cepam.torch import PerExampleGradients
from mnist_app.task import network, records_of


def uplink(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """`Uplink()`; only because this app can also run without privacy, for comparison, plain updates may leave then."""
    return Uplink(required=bool(context.run_config["private"]))(message, context, call_next)


app = ClientApp(mods=[uplink])


@app.train()
def train(message: Message, context: Context) -> Message:
    """The gradient of a fresh batch, every record's part of it clipped."""
    torch.set_num_threads(1)
    config, node = context.run_config, context.node_config
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    images, labels = records_of(int(node["partition-id"]), int(node["num-partitions"]))
    private = PerExampleGradients(model, F.cross_entropy, cepam.L2(float(config["clip"])))
    gradient = private.gradient((images, labels), int(config["draws"]))
    if not config["private"]:  # without cepam the strategy wants weights
        gradient = {name: value - gradient[name] for name, value in model.state_dict().items()}
    # The number of records drawn is private: the public expectation goes out instead.
    metrics = MetricRecord({"num-examples": int(config["draws"])})
    return Message(RecordDict({"arrays": ArrayRecord(gradient), "metrics": metrics}), reply_to=message)

"""The client: one gradient step on a Poisson batch. `mods=[Uplink()]` is all that cepam asks of it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from cepam.flower import Uplink
from mnist_app.task import clipped_gradient, network, poisson_batch


def uplink(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """`Uplink()`; only because this app can also run without privacy, for comparison, plain updates may leave then."""
    return Uplink(required=bool(context.run_config["private"]))(message, context, call_next)


app = ClientApp(mods=[uplink])


@app.train()
def train(message: Message, context: Context) -> Message:
    """The broadcast weights less the clipped gradient of a fresh batch."""
    torch.set_num_threads(1)
    draws = int(context.run_config["draws"])
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    images, labels = poisson_batch(
        int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]), draws
    )
    gradient = clipped_gradient(model, images, labels, float(context.run_config["clip"]), draws)
    trained = {name: value - gradient[name] for name, value in model.state_dict().items()}
    # The number of records drawn is private: the public expectation goes out instead.
    return Message(
        RecordDict({"arrays": ArrayRecord(trained), "metrics": MetricRecord({"num-examples": draws})}),
        reply_to=message,
    )

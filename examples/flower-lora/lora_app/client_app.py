"""The client: adapters trained on its own text. `mods=[Uplink()]` is all that cepam asks of it."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from cepam.flower import Uplink
from lora_app.task import clipped_step, trained, tuned
from lora_app.text import examples_of


def uplink(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """`Uplink()`; only because this app can also run without privacy, for comparison, plain updates may leave then."""
    return Uplink(required=bool(context.run_config["private"]))(message, context, call_next)


app = ClientApp(mods=[uplink])


@app.train()
def train(message: Message, context: Context) -> Message:
    """The broadcast adapters with what this client's text changes in them."""
    config, client = context.run_config, int(context.node_config["partition-id"])
    made = tuned(str(config["model"]), int(config["rank"]), int(config["seed"]), str(config["device"]))
    rows = examples_of(str(config["text"]), client, made.encode, int(config["length"]))
    received = message.content["arrays"].to_torch_state_dict()
    if config["unit"] == "client":
        state = trained(made, received, rows, int(config["local-steps"]), float(config["local-rate"]))
    else:
        state = clipped_step(made, received, rows, int(config["draws"]), float(config["clip"]))
    # How much text a client has is its own affair: weights are public constants.
    return Message(
        RecordDict({"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": 1})}), reply_to=message
    )

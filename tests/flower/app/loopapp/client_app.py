"""A client whose update is known to the test, and which spoils its replies on demand."""

from __future__ import annotations

import time

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from cepam.flower import Uplink


def known_update(partition: int, size: int) -> np.ndarray:
    """The update of a partition, of norm 1/2: the test computes the same."""
    values = np.random.default_rng(partition).normal(size=size)
    return (0.5 * values / np.linalg.norm(values)).astype(np.float32)


def fault_of(message: Message, context: Context) -> str:
    """What this node does wrong in this round; faults read like `1:2:nan` (partition, round, fault)."""
    now = f"{context.node_config['partition-id']}:{message.content['config']['server-round']}:"
    found = [f for f in str(context.run_config["faults"]).split(",") if f.startswith(now)]
    return found[0].split(":")[2] if found else ""


def spoil(message: Message, context: Context, call_next) -> Message:
    """A mod outside `Uplink`: what leaves the node is not what `Uplink` made."""
    fault = fault_of(message, context)
    reply = call_next(message, context)
    if reply.has_error() or "arrays" not in reply.content:
        return reply
    sealed = reply.content["arrays"]
    if "update" not in sealed:
        return reply
    data = sealed["update"].data
    kept = context.state.get("kept")
    context.state["kept"] = ConfigRecord({"data": data})
    changed = None
    if fault == "garbage":
        changed = b"garbage" * 100
    elif fault == "truncated":
        changed = data[: len(data) // 2]
    elif fault == "flipped":
        changed = data[:-1] + bytes([data[-1] ^ 1])
    elif fault == "replayed":
        changed = kept["data"] if kept is not None else b""
    if changed is not None:
        reply.content["arrays"] = ArrayRecord({"update": Array("uint8", (len(changed),), "cepam.v1", changed)})
    if fault == "nothing":
        reply.content = RecordDict()
    return reply


def uplink(message: Message, context: Context, call_next) -> Message:
    """`Uplink`, which lets plain updates leave where the run is meant to be plain; or nothing, as in a plain app."""
    if not context.run_config["uplink"]:
        return call_next(message, context)
    return Uplink(required=bool(context.run_config["private"]))(message, context, call_next)


app = ClientApp(mods=[spoil, uplink])


@app.train()
def train(message: Message, context: Context) -> Message:
    """The broadcast model plus the known update."""
    fault = fault_of(message, context)
    if told := context.node_config.get("told"):
        with open(str(told), "a") as file:
            print(message.content["config"]["cepam-slice"], file=file)
    if fault == "crash":
        raise RuntimeError("the training function crashed")
    time.sleep(float(context.run_config["pause"]))
    weights = message.content["arrays"]["w"].numpy()
    update = known_update(int(context.node_config["partition-id"]), weights.size)
    if fault == "nan":
        update[7] = np.nan
    arrays = ArrayRecord({"w": Array(weights + update.reshape(weights.shape))})
    metrics = MetricRecord({"num-examples": 10**12 if fault == "huge" else 10})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

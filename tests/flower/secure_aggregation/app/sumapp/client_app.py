"""A client whose update is known to the test, which says too much, and whose SuperNode dies on demand."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from cepam.flower import ClientPolicy, Uplink

STAGES = {1: "hello", 3: "train", 5: "repair", 7: "unmask"}
SECRET = "the-patient-is-called-Ada"


def known_update(partition: int, size: int) -> np.ndarray:
    """The update of a partition, of norm 1/2: the test computes the same."""
    values = np.random.default_rng(partition).normal(size=size)
    return (0.5 * values / np.linalg.norm(values)).astype(np.float32)


def dying(message: Message, context: Context, call_next) -> Message:
    """A mod outside `Uplink`: `deaths` like `4:unmask:2` kill -9 a partition's SuperNode in its second such stage.

    The answer is computed first, and the journal has it; it does not leave. A death happens once.
    """
    stage = STAGES[bytes(message.content["cepam-secure-aggregation"]["update"].data)[4]]
    counts = dict(context.state.get("counts", ConfigRecord()))
    counts[stage] = int(counts.get(stage, 0)) + 1
    context.state["counts"] = ConfigRecord(counts)
    death = f"{context.node_config['partition-id']}:{stage}:{counts[stage]}"
    reply = call_next(message, context)
    if death in str(context.run_config["deaths"]).split(","):
        mark = Path(str(context.run_config["folder"])) / death.replace(":", "-")
        if not mark.exists():
            mark.touch()
            os.killpg(os.getpgid(0), signal.SIGKILL)
    return reply


# For nodes of a simulation; real nodes have files of their own, which decide.
POLICY = ClientPolicy(noise_scale=0.001, clipping_norm=1.0, rounds=100, honest=1)
app = ClientApp(mods=[dying, Uplink(policy=POLICY)])


@app.train()
def train(message: Message, context: Context) -> Message:
    """The broadcast model plus the known update, and metrics and records that must not leave."""
    weights = message.content["arrays"]["w"].numpy()
    partition = int(context.node_config["partition-id"])
    if partition == 1 and message.content["config"]["server-round"] == 1:
        raise ValueError(SECRET)
    update = known_update(partition, weights.size)
    return Message(
        RecordDict(
            {
                "arrays": ArrayRecord({"w": Array(weights + update)}),
                "metrics": MetricRecord({"num-examples": 10, "loss": float(update[0])}),
                "notes": ConfigRecord({"note": SECRET}),
            }
        ),
        reply_to=message,
    )

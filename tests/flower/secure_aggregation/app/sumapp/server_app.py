"""FedAvg over sums; every round's model and metrics, and all that came from nodes, go to files that the test reads."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import cepam
from cepam.flower import Authentication, SecureAggregation

app = ServerApp()


REPLIES = {2: "hello", 4: "train", 6: "repair", 8: "unmask"}


def record_traffic(grid: Grid, folder: Path, death: str = "") -> None:
    """Append whatever the server gets from nodes to files: bytes, and a line about each message.

    Where `death` names a stage, the ServerApp is killed (-9) when the first answer of that stage has come.
    """
    pull = grid.pull_messages

    def pulled(message_ids: Iterable[str]) -> list[Message]:
        came = list(pull(message_ids))
        with (folder / "traffic.bin").open("ab") as raw, (folder / "traffic.jsonl").open("a") as lines:
            for message in came:
                told = {"error": message.error.reason} if message.has_error() else _written(message, raw)
                lines.write(json.dumps({"node": str(message.metadata.src_node_id), **told}) + "\n")
        if death in {_stage(message) for message in came}:
            (folder / f"server-{death}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return came

    grid.pull_messages = pulled


def _stage(message: Message) -> str | None:
    """The stage that a message answers."""
    if message.has_error() or "cepam-secure-aggregation" not in message.content:
        return None
    return REPLIES.get(bytes(message.content["cepam-secure-aggregation"]["update"].data)[4])


def _written(message: Message, raw) -> dict[str, object]:
    said = [bytes(array.data) for record in message.content.array_records.values() for array in record.values()]
    at = raw.tell()
    raw.write(b"".join(said))
    others = {name: repr(dict(record)) for name, record in message.content.config_records.items()}
    others |= {name: repr(dict(record)) for name, record in message.content.metric_records.items()}
    return {"records": list(message.content), "at": at, "bytes": sum(map(len, said)), "others": others}


@app.main()
def main(grid: Grid, context: Context) -> None:
    """The run; the model after each round is kept."""
    config = context.run_config
    folder, nodes = Path(str(config["folder"])), int(config["nodes"])
    record_traffic(grid, folder, str(config["server-death"]))
    strategy = SecureAggregation(
        FedAvg(min_available_nodes=nodes),
        clip=cepam.L2(1.0),
        noise=cepam.Gaussian(float(config["sigma"])),
        quorum=int(config["quorum"]),
        unmask_timeout=float(config["unmask-timeout"]),
        authentication=Authentication(
            required=config["authentication"] == "require", server_key=str(config["server-key"]) or None
        ),
    )
    models: list[np.ndarray] = []

    def keep(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        models.append(arrays["w"].numpy())
        if server_round:
            (folder / f"published-{context.run_id}-{server_round}").touch()
        if server_round:  # all take part in the first round; later some are dead
            strategy.strategy.min_available_nodes = 3
        while server_round == int(config["pause-after"]) and not (folder / "resume").exists():
            time.sleep(0.2)
        return None

    start = ArrayRecord({"w": Array(np.zeros(int(config["size"]), dtype=np.float32))})
    rounds, patience = int(config["num-server-rounds"]), float(config["timeout"])
    result = strategy.start(grid, start, num_rounds=rounds, timeout=patience, evaluate_fn=keep)
    np.save(folder / "models.npy", np.array(models))
    metrics = {r: dict(m) for r, m in result.train_metrics_clientapp.items()}
    (folder / "report.json").write_text(json.dumps(metrics))

"""`examples/flower-lora` in one process, on a CPU or a GPU: `python tools/flower_lora.py rank=203 unit=record`.

No SuperLink, no ports: the grid and the nodes are those of the tests. The words are settings of the app (its
pyproject.toml); the results are printed as one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
sys.path.append(str(Path(__file__).resolve().parents[1]))

from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from tests.flower.fakes import RUN, FakeGrid, Node

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "flower-lora"
sys.path.append(str(EXAMPLE))


def ran(folder: Path, **changes: Any) -> dict[str, Any]:
    """What the app reports of a run in this process, under its own settings with these changes."""
    from lora_app import client_app, server_app

    os.environ["FLWR_HOME"] = str(folder / "home")
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, 1
    settings = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    report = folder / "report.json"
    settings |= {"report": str(report), **{name.replace("_", "-"): value for name, value in changes.items()}}
    nodes = []
    for k in range(int(settings["clients"])):
        node = Node(2**62 + k, client_app.train)
        node.uplink = client_app.uplink  # type: ignore[assignment]
        node.context = Context(RUN, node.node_id, {"partition-id": k}, RecordDict(), settings)
        nodes.append(node)
    server_app.main(FakeGrid(nodes), Context(RUN, 1, {}, RecordDict(), settings))
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def main() -> None:
    """Print the run's results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", help="name=value, as in the app's pyproject.toml")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    given = parser.parse_args()
    changes: dict[str, Any] = {"device": given.device}
    for word in given.settings:
        name, _, value = word.partition("=")
        try:
            changes[name] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            changes[name] = value
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="flower-lora-") as folder:
        found = ran(Path(folder), **changes)
    found["seconds"] = round(time.perf_counter() - started, 1)
    print(json.dumps({name: value for name, value in found.items() if name != "rounds"}))


if __name__ == "__main__":
    main()

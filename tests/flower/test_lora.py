"""`examples/flower-lora` in one process on its tiny model: adapters alone travel, text is learned, bytes are few.

Needs transformers and peft (`pip install transformers peft`); skips without them.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="the example needs transformers: pip install transformers peft")
pytest.importorskip("peft", reason="the example needs peft: pip install peft")

from flwr.app import Context, RecordDict

from .fakes import RUN, FakeGrid, Node

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "flower-lora"


def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> dict[str, Any]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from lora_app import client_app, server_app

    settings = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    report = tmp_path / "report.json"
    settings |= {"report": str(report), **{name.replace("_", "-"): value for name, value in changes.items()}}
    uplink = client_app.uplink
    nodes = []
    for k in range(int(settings["clients"])):
        node = Node(2**62 + k, client_app.train)
        node.uplink = uplink
        node.context = Context(RUN, node.node_id, {"partition-id": k}, RecordDict(), settings)
        nodes.append(node)
    server_app.main(FakeGrid(nodes), Context(RUN, 1, {}, RecordDict(), settings))
    found: dict[str, Any] = json.loads(report.read_text())
    return found


@pytest.mark.flower
def test_adapters_are_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without cepam: that the example learns at all, so that what privacy costs can be read beside it."""
    found = ran(tmp_path, monkeypatch, private=False, local_steps=20, num_server_rounds=1, clients=2)
    assert found["perplexity_after"] < 0.9 * found["perplexity_before"]
    assert found["epsilon"] is None


@pytest.mark.slow
def test_two_hundred_users_tune_privately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ran(tmp_path, monkeypatch, clients=200, rank=1, num_server_rounds=3, clip=0.3, local_steps=10)
    assert 7.9 < found["epsilon"] <= 8.0
    assert found["unit"] == "client"
    assert found["perplexity_after"] < 0.9 * found["perplexity_before"]
    print(json.dumps({name: value for name, value in found.items() if name != "rounds"}))


@pytest.mark.flower
def test_records_and_a_million_weights_in_under_60_kilobytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ran(tmp_path, monkeypatch, unit="record", rank=203, num_server_rounds=1, clients=2, epsilon=8.0)
    print(json.dumps({name: value for name, value in found.items() if name != "rounds"}))
    assert found["adapter_weights"] > 1_000_000
    assert found["bytes_up_a_client_and_round"] < 60_000
    assert 0 < found["epsilon"] <= 8.0
    assert found["bytes_down_a_client_and_round"] < 4 * found["adapter_weights"]

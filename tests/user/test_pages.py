"""Pages whose blocks a user would paste one after the other run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
WHOLE = [
    "models-and-tensors.md", "own.md", "train.md", "laws.md", "index.md", "accounting.md",
    "compression.md", "data.md", "downlink.md", "exactness.md", "search.md",
]  # fmt: skip
FRAGMENTS = [
    "../README.md", "user-level.md", "no-secret-sampling.md", "secure-aggregation.md", "production.md",
]  # fmt: skip
IMPORTS = """
import cepam, cepam.flower
from cepam import privacy
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
"""  # what an app has imported before the lines that a page shows


def run_blocks(page: str, names: dict[str, object]) -> None:
    blocks = BLOCK.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), names)


@pytest.mark.parametrize("page", WHOLE)
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    run_blocks(page, {})


@pytest.mark.parametrize("page", FRAGMENTS)
def test_the_lines_for_flower_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr")
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    names: dict[str, object] = {}
    exec(IMPORTS, names)
    run_blocks(page, names)


def test_the_smallest_flower_app_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its two apps, in one process: what Flower's simulation engine does with them is for `pytest -m flower`."""
    pytest.importorskip("flwr")
    pytest.importorskip("torch")
    from tests.flower.fakes import run_in_process

    names: dict[str, object] = {}
    run_blocks("flower.md", names)
    run_in_process(names["server_app"], names["client_app"], 4)
    ((accuracy, epsilon),) = re.findall(r"^accuracy ([\d.]+), epsilon ([\d.]+)$", capsys.readouterr().out, re.M)
    assert float(accuracy) > 0.85
    assert epsilon == "2.00"

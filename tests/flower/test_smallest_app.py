"""The app of docs/flower.md as a reader saves it: one file, in Flower's own simulation engine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.flower
PAGE = Path(__file__).resolve().parents[2] / "docs" / "flower.md"


def test_the_smallest_app_runs_from_a_file(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="flwr[simulation] is not installed")
    pytest.importorskip("torch")
    first = re.search(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert first
    # The made-up digits of the package, which need no download: a tenth of the records, so at another epsilon, and few
    # rounds. Whether the app learns is asked in tests/user/test_pages.py, in one process and with all its rounds.
    text = first[1]
    smaller = {"15_000": "1_500", "1_000": "256", '"mnist"': '"synthetic"', "=2.0": "=4.0"}
    smaller |= {"rounds=30": "rounds=3"}
    for given, small in smaller.items():
        assert given in text
        text = text.replace(given, small)
    (tmp_path / "app.py").write_text(text, encoding="utf-8")
    environment = {**os.environ, "FLWR_HOME": str(tmp_path / "home"), "FLWR_TELEMETRY_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, "app.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    ((_, epsilon),) = re.findall(r"^accuracy ([\d.]+), epsilon ([\d.]+)$", done.stdout, re.M)
    assert epsilon == "4.00"

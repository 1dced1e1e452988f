"""What a user reads: the verdict first, lines that fit the terminal, numbers as people write them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


def cepam(*words: str, folder: Path, columns: int = 80) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "cepam", *words],
        cwd=folder,
        env=os.environ | {"COLUMNS": str(columns)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("columns", [80, 60])
def test_verify_says_the_verdict_first_and_fits(tmp_path: Path, columns: int) -> None:
    words = ("verify", "--sigma", "0.01", "--lattice", "Z1", "--samples", "10000", "--false-alarm", "1e-9")
    lines = cepam(*words, folder=tmp_path, columns=columns).splitlines()
    assert lines[0] == "PASSED: Gaussian(sigma=0.01) on Z1"
    table = [line.rstrip() for line in lines[3:]]
    assert len(table) < 25
    assert max(map(len, table)) <= columns
    assert max(map(len, lines)) <= 80


def test_explain_writes_numbers_as_people_do(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = (
        "privacy explain --clients 8 --draws 64 --records 20000 --rounds 50 --sigma 0.5 --delta 1e-6 --out page.html"
    )
    cepam(*words.split(), folder=tmp_path)
    page = re.sub(r"<svg.*?</svg>", "", (tmp_path / "page.html").read_text(encoding="utf-8"), flags=re.S)
    assert "20,000 records each" in page
    assert "at delta = 1e-6" in page
    assert not re.search(r"\de[-+]0|\de\+", page)

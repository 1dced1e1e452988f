"""What a user reads: the verdict first, lines that fit the terminal, numbers as people write them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.user.terminal import answered, cepam


@pytest.mark.parametrize("columns", [80, 60])
def test_verify_says_the_verdict_first_and_fits(tmp_path: Path, columns: int) -> None:
    words = ("verify", "--noise-scale", "0.01", "--lattice", "Z1", "--samples", "10000", "--false-alarm", "1e-9")
    lines = cepam(*words, folder=tmp_path, columns=columns).splitlines()
    assert lines[0] == "PASSED: Gaussian(sigma=0.01) on Z1"
    table = [line.rstrip() for line in lines[3:]]
    assert len(table) < 25
    assert max(map(len, table)) <= columns
    assert max(map(len, lines)) <= 80


def test_explain_writes_numbers_as_people_do(tmp_path: Path) -> None:
    words = (
        "privacy explain --clients 8 --local-steps 64 --records 20000 --rounds 50 --noise-scale "
        "0.5 --delta 1e-6 --out page.html"
    )
    cepam(*words.split(), folder=tmp_path)
    page = re.sub(r"<svg.*?</svg>", "", (tmp_path / "page.html").read_text(encoding="utf-8"), flags=re.S)
    assert "20,000 records each" in page
    assert "at delta = 1e-6" in page
    assert not re.search(r"\de[-+]0|\de\+", page)


MISTAKES = [
    "verify --noise-scale 0.01 --lattice E9", "verify --lattice Z1", "trian", "train --dtaa mnist",
    "train --preset nope",
    "train --data nothing.csv --noise-scale 1", "train --data no_module:load --noise-scale 1",
    "encode a.npy b --key x --round 1", "decode nothing out.npy --key x --round 1 --noise-scale 1",
    "privacy epsilon --noise-scale 1", "privacy calibrate --local-steps 1",
    "compare --schemes nope", "data fetch nothing", "reproduce nothing", "keygen /no/such/folder/a.key", "bench --nope",
    "inspect nothing",
]  # fmt: skip


@pytest.mark.parametrize("words", MISTAKES)
def test_errors_all_begin_alike(tmp_path: Path, words: str) -> None:
    """One line that begins with the command, exit code 2."""
    pytest.importorskip("torch")
    done = answered(*words.split(), folder=tmp_path)
    assert done.exit_code == 2
    (said,) = done.stderr.strip().splitlines()
    first = "" if words == "trian" else f" {words.split()[0]}"
    assert said.startswith(f"cepam{first}")
    assert re.match(r"cepam[a-z ]*: \S", said)
    assert "Did you mean 'train'? Did" not in said


def test_lists_of_clients_are_abbreviated(tmp_path: Path) -> None:
    question = "privacy epsilon --record-sampling all --rounds 1 --per-client --records 2000 --clients"
    said = cepam(*f"{question} 30 --noise-scale 2".split(), folder=tmp_path)
    assert re.search(r"^0 to 29 ", said, re.M)
    apart = ",".join(str(2 + k) for k in range(20))
    said = cepam(*f"{question} 20 --noise-scale {apart}".split(), folder=tmp_path)
    assert re.search(r"^11 ", said, re.M)
    assert not re.search(r"^12 ", said, re.M)
    assert "and 8 more clients: --json has them all" in said
    assert max(len(line.rstrip()) for line in said.splitlines()) <= 80


def test_reproduce_shows_what_it_ran_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("cepam_paper")
    told = cepam("reproduce", "--help", folder=tmp_path)
    assert "Parts to redo, as listed above." in told
    assert all(f" {part}: " in told for part in ("exactness", "privacy", "rate", "gaussian", "gain", "all", "page"))
    words = ("reproduce", "privacy", "--quick", "--out", "report")
    found = json.loads(cepam(*words, "--json", folder=tmp_path))
    assert found["parts"] == ["privacy"]
    shown = {each["claim"] for each in found["verdicts"]}
    assert "quoted-laplace" in shown
    assert not any("accuracy" in each["evidence"] for each in found["verdicts"])
    table = cepam(*words, folder=tmp_path)
    assert all(claim in table for claim in shown)
    assert table.count("│") == 5 * len(shown)
    assert "parts not done yet: exactness, rate" in " ".join(table.split())

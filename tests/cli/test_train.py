from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cepam.cli import app

QUICK = ["--data", "synthetic", "--clients", "3", "--rounds", "2", "--tau", "2", "--noise", "0.05"]


def run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.stdout, result.stderr


def test_train_prints_one_json_object(tmp_path: Path) -> None:
    code, out, _ = run("train", *QUICK, "--runs", tmp_path, "--name", "one", "--json", "--client", "0-1 noise=0.1")
    assert code == 0
    summary = json.loads(out)
    assert 0 <= summary["accuracy"] <= 1
    assert summary["noise_scales"] == [0.05, 0.1]
    assert Path(summary["folder"], "curve.png").stat().st_size > 1000
    code, out, _ = run("train", "--resume", "--runs", tmp_path, "--name", "one", "--json")
    assert code == 0
    assert json.loads(out)["accuracy"] == summary["accuracy"]


def test_train_prints_a_table(tmp_path: Path) -> None:
    code, out, _ = run("train", *QUICK, "--runs", tmp_path)
    assert code == 0
    for words in ("test accuracy", "epsilon against outsider", "bits a coordinate", "curve.png"):
        assert words in out


def test_compare(tmp_path: Path) -> None:
    code, out, _ = run("compare", *QUICK, "--runs", tmp_path, "--schemes", "fl,cepam-gaussian-A2", "--seeds", "2")
    assert code == 0
    assert "cepam-gaussian-A2" in out
    assert "index.html" in out


def test_data_fetch() -> None:
    code, out, _ = run("data", "fetch", "synthetic", "--json")
    assert code == 0
    assert json.loads(out)["train"] == 6000


@pytest.mark.parametrize("command", [["train"], ["compare"], ["data", "fetch"]])
def test_help_teaches_with_an_example(command: list[str]) -> None:
    code, out, _ = run(*command, "--help")
    assert code == 0
    assert f"cepam {' '.join(command)} " in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", *QUICK, "--clients", "0"], "clients must be"),
        (["train", *QUICK, "--tau", "0"], "tau must be"),
        (["train", *QUICK, "--scheme", "magic"], "scheme must be one of"),
        (["train", *QUICK[:-2], "--delta", "0.99", "--epsilon", "1"], "delta"),
        (["train", *QUICK[:-2], "--scheme", "fl", "--epsilon", "1"], "impossible"),
        (["train", "--config", "missing.toml"], "no such configuration file"),
        (["train", *QUICK, "--data", "mnist", "--folder", "missing"], "missing"),
        (["train", "--preset", "secret"], "preset must be one of"),
        (["train", "--resume", "--name", "nothing"], "no run named"),
        (["compare", *QUICK, "--schemes", "fl,magic"], "unknown scheme"),
        (["data", "fetch", "cifar"], "data must be one of"),
    ],
)
def test_bad_configuration_is_one_line_and_code_2(tmp_path: Path, words: list[str], said: str) -> None:
    runs = [] if words[0] == "data" else ["--runs", str(tmp_path)]
    code, _, error = run(*words, *runs)
    assert code == 2
    assert said in error
    assert error.startswith(f"cepam {' '.join(words[: 2 if words[0] == 'data' else 1])}: ")
    assert len(error.strip().splitlines()) == 1
    assert "Traceback" not in error

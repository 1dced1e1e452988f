"""`cepam data`: the list, what a fetch tells, and a machine without downloads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cepam.cli.data import app
from cepam.fl.data import fetch
from cepam.fl.data.catalog import CATALOG, NAMES
from cepam.fl.data.fetch import DataUnavailable


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CEPAM_CACHE", str(tmp_path / "cache"))


def test_every_data_set_is_listed_with_its_terms() -> None:
    rows = json.loads(CliRunner().invoke(app, ["list", "--json"]).stdout)
    assert tuple(rows) == NAMES
    assert all(row["licence"] and row["citation"] and row["contents"] for row in rows.values())
    assert [name for name, row in rows.items() if row["fetched"]] == ["synthetic"]
    shown = CliRunner().invoke(app, ["list"])
    assert shown.exit_code == 0
    assert all(name in shown.stdout for name in NAMES)


def test_a_fetch_tells_licence_and_citation() -> None:
    told = CliRunner().invoke(app, ["fetch", "synthetic"])
    assert told.exit_code == 0
    assert "6,000 training and 1,000 test examples, checked" in told.stdout
    assert "licence: none needed" in told.stdout
    assert "cite:" in told.stdout


@pytest.mark.parametrize("name", [name for name, each in CATALOG.items() if each.package])
def test_without_downloads_one_sentence_says_what_to_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*given: object) -> Path:
        raise DataUnavailable("no network")

    monkeypatch.setattr(fetch, "_download", refused)
    problem = CliRunner().invoke(app, ["fetch", name]).exception
    assert isinstance(problem, DataUnavailable)
    package = CATALOG[name].package
    assert package is not None
    assert "\n" not in str(problem)
    assert f"run `{package.how}`" in str(problem)


def test_features_of_unknown_models_are_refused() -> None:
    problem = CliRunner().invoke(app, ["features", "cifar10", "--model", "cnn"]).exception
    assert isinstance(problem, ValueError)
    assert "model must be one of efficientnet-lite0-linear" in str(problem)

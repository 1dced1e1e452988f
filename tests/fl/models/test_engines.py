"""Engines that other distributions bring: who is asked, in which order, what a broken one says, what a run records."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest
from torch import nn

from cepam import fl
from cepam.fl import Dataset, Model, Settings
from cepam.fl.models import interface as engines
from cepam.fl.models.network import TorchNetwork

TORCH = "cepam.fl.models.network.TorchNetwork"
FEWER = {"training.expected_batch_size": 30.0, "data.validation_records": 100}
Install = Callable[..., None]


class OwnNetwork(TorchNetwork):
    """Another program's network."""


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts these engines, by name, in place of what is installed; a text is where an engine is said to be."""

    def put(**named: engines.Engine | str) -> None:
        module = ModuleType("brought_engines")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        points = []
        for name, engine in named.items():
            setattr(module, name, engine)
            where = engine if isinstance(engine, str) else f"{module.__name__}:{name}"
            points.append(EntryPoint(name, where, engines.GROUP))
        monkeypatch.setattr(engines, "entry_points", lambda group: points if group == engines.GROUP else [])

    return put


def own(module: nn.Module, data: Dataset) -> OwnNetwork | None:
    return OwnNetwork(module, data, "cpu") if isinstance(module, nn.Sequential) else None


def test_the_first_by_name_that_takes_the_module(small: Dataset, install: Install) -> None:
    asked = []

    def declines(module: nn.Module, data: Dataset) -> None:
        asked.append((module, data.records))

    model = fl.build("cnn", small)
    install(z=declines, b=own, a=declines)
    assert engines.engine_of(model.on(small, "cpu")) == f"{__name__}.OwnNetwork"
    assert asked == [(model.module, 600)]
    install(a=declines)
    assert engines.engine_of(model.on(small, "cpu")) == TORCH
    install()
    assert engines.engine_of(model.on(small, "cpu")) == TORCH


def test_none_is_asked_where_pytorch_is_meant(small: Dataset, install: Install) -> None:
    """Asked for by name, on features, or with a loss or a metric of the user's own."""
    install(broken="no_such_package:engine")
    fl.build("cnn", small).on(small, "cpu-torch")
    fl.linear_on(fl.Features(nn.Flatten()), small).on(small, "cpu")
    flat = lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10))  # noqa: E731
    Model(flat, loss=nn.functional.cross_entropy).on(small, "cpu")
    Model(flat, metrics={"loss again": nn.functional.cross_entropy}).on(small, "cpu")
    with pytest.raises(ValueError, match="broken"):
        Model(flat).on(small, "cpu")


def test_one_that_cannot_be_loaded_is_refused_with_name_reason_and_remedy(small: Dataset, install: Install) -> None:
    model = fl.build("cnn", small)
    install(a=own, fast="no_such_package:engine")
    assert engines.engine_of(model.on(small, "cpu")).endswith("OwnNetwork")
    install(fast="no_such_package:engine", z=own)
    with pytest.raises(ValueError, match=r"'fast' \(no_such_package:engine\).*No module named.*cpu-torch"):
        model.on(small, "cpu")


def test_a_run_names_its_engine_and_goes_on_with_no_other(
    small: Dataset, quick: Settings, install: Install, tmp_path: Path
) -> None:
    def stop(progress: fl.Progress) -> None:
        raise KeyboardInterrupt

    install(own=own)
    with pytest.raises(KeyboardInterrupt):
        fl.train(quick, tmp_path, small, watch=stop)
    name = f"{__name__}.OwnNetwork"
    assert tomllib.loads((tmp_path / "config.toml").read_text())["provenance"]["engine"] == name
    install()
    with pytest.raises(ValueError, match=f"another network engine .{name}; here it is {TORCH}"):
        fl.train(quick, tmp_path, small, resume=True)
    install(own=own)
    assert fl.train(quick, tmp_path, small, resume=True)["engine"] == name


@pytest.mark.parametrize("preset", ["algorithm1", "published", "convolutional"])
def test_cnns_train_where_no_engine_is_installed(small: Dataset, install: Install, tmp_path: Path, preset: str) -> None:
    install()
    settings = fl.preset(preset).updated({"data.name": "synthetic", "clients.count": 3, "training.rounds": 2})
    fewer = {name: many for name, many in FEWER.items() if settings.values()[name]}
    summary = fl.train(settings.updated(fewer), tmp_path, small)
    assert summary["engine"] == TORCH
    assert 0.0 <= summary["accuracy"] <= 1.0

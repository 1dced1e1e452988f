"""A run goes on as it began, or says in one line why not."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from cepam.fl import Dataset, Model, Settings, Simulation, from_arrays, read_metrics, train
from cepam.fl.config import toml
from cepam.fl.runs import checkpoint, training


class Stop(Exception):
    """What a test stops a run with."""


def stopped(settings: Settings, folder: Path, data: Dataset, after: int, model: Model | None = None) -> None:
    """Leave a run in the folder that was stopped after so many rounds."""

    def watch(progress: training.Progress) -> None:
        if progress.lines[0]["round"] == after:
            raise Stop

    with pytest.raises(Stop):
        train(settings, folder, data, model, watch=watch)


@pytest.fixture
def settings(quick: Settings) -> Settings:
    return quick.updated({"training.rounds": 6, "run.checkpoint_every": 2, "run.simulate": False})


def other(data: Dataset) -> Dataset:
    inputs = data.train_inputs.copy()
    inputs[0, 0] ^= 1
    return replace(data, train_inputs=inputs)


def test_other_data_are_refused(tmp_path: Path, small: Dataset, settings: Settings) -> None:
    stopped(settings, tmp_path / "run", small, 3)
    for changed in (
        other(small),
        replace(small, scale=1.0),
        replace(small, train_labels=small.train_labels[::-1].copy()),
    ):
        with pytest.raises(ValueError, match="was started with other data") as refused:
            train(settings, tmp_path / "run", changed, resume=True)
        assert "\n" not in str(refused.value)
    assert train(settings, tmp_path / "run", small, resume=True)["rounds"] == 6


def test_another_model_is_refused(tmp_path: Path, small: Dataset, settings: Settings) -> None:
    def model(width: int) -> Model:
        return Model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.Tanh(), nn.Linear(width, 10)))

    stopped(settings, tmp_path / "run", small, 3, model(4))
    with pytest.raises(ValueError, match="was started with another model"):
        train(settings, tmp_path / "run", small, model(5), resume=True)
    with pytest.raises(ValueError, match="differs from the given settings in model"):
        train(settings, tmp_path / "run", small, resume=True)
    assert train(settings, tmp_path / "run", small, model(4), resume=True)["rounds"] == 6


def test_a_run_on_own_data_says_so_and_is_not_gone_on_with_by_name(
    tmp_path: Path, small: Dataset, settings: Settings
) -> None:
    own = replace(small, name="mydata")
    stopped(settings, tmp_path / "run", own, 3)
    stored = toml.Settings.of(toml.read(tmp_path / "run" / "config.toml"))
    assert stored.data.name == "own: mydata"
    with pytest.raises(ValueError, match=r"has data of its own \(mydata\).*fl.train\(settings, folder, data"):
        train(stored, tmp_path / "run", resume=True)
    assert train(stored, tmp_path / "run", own, resume=True)["rounds"] == 6


def test_fingerprints_tell_nothing_without_the_secret(tmp_path: Path, small: Dataset, settings: Settings) -> None:
    """Equal data and models have other fingerprints in every run; in a simulation they are equal."""
    for simulate, alike in ((False, False), (True, True)):
        marks = []
        for name in ("one", "two"):
            folder = tmp_path / f"{name}-{simulate}"
            train(settings.updated({"training.rounds": 1, "run.simulate": simulate}), folder, small)
            marks.append(toml.read_provenance(folder / "config.toml"))
        for key in ("nonce", "settings", "data", "model"):
            assert (marks[0][key] == marks[1][key]) is alike


def test_the_configuration_of_a_run_starts_another_one(tmp_path: Path, small: Dataset, settings: Settings) -> None:
    train(settings.updated({"training.rounds": 1}), tmp_path / "run", small)
    again = toml.Settings.of(toml.read(tmp_path / "run" / "config.toml"))
    train(again, tmp_path / "again", small)
    nonces = [toml.read_provenance(tmp_path / name / "config.toml")["nonce"] for name in ("run", "again")]
    assert nonces[0] != nonces[1]


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "padded"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_offered(
    tmp_path: Path, small: Dataset, settings: Settings, damage: str
) -> None:
    stopped(settings, tmp_path / "run", small, 5)
    path = tmp_path / "run" / "checkpoint.npz"
    raw = bytearray(path.read_bytes())
    if damage == "flipped":
        raw[len(raw) // 2] ^= 16
    path.write_bytes({"cut": raw[:-100], "flipped": raw, "empty": b"", "padded": raw + b"x"}[damage])
    with pytest.raises(ValueError, match=r"checkpoint\.npz is damaged.*go on from round 2") as refused:
        train(settings, tmp_path / "run", small, resume=True)
    assert "\n" not in str(refused.value)
    path.unlink()
    said: list[str] = []
    train(settings, tmp_path / "run", small, resume=True, say=said.append)
    assert "going on from checkpoint.previous.npz, round 2" in said[0]
    assert [line["round"] for line in read_metrics(tmp_path / "run")] == [1, 2, 3, 4, 5, 6]


def test_going_on_from_the_checkpoint_before_gives_the_same_run(
    tmp_path: Path, small: Dataset, quick: Settings
) -> None:
    settings = quick.updated({"training.rounds": 6, "run.checkpoint_every": 2})
    train(settings, tmp_path / "whole", small)
    stopped(settings, tmp_path / "run", small, 5)
    (tmp_path / "run" / "checkpoint.npz").unlink()
    train(settings, tmp_path / "run", small, resume=True)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


def test_a_missing_checkpoint_is_no_silent_restart(tmp_path: Path, small: Dataset, settings: Settings) -> None:
    stopped(settings, tmp_path / "run", small, 5)
    for path in (tmp_path / "run").glob("checkpoint*"):
        path.unlink()
    with pytest.raises(ValueError, match=r"checkpoint\.npz is missing, though metrics\.jsonl holds round 5"):
        train(settings, tmp_path / "run", small, resume=True)


def test_cut_metrics_are_named(tmp_path: Path, small: Dataset, settings: Settings) -> None:
    stopped(settings, tmp_path / "run", small, 5)
    path = tmp_path / "run" / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]))
    with pytest.raises(ValueError, match=r"metrics\.jsonl is cut.*go on from round 2"):
        train(settings, tmp_path / "run", small, resume=True)
    path.write_bytes(lines[0])
    with pytest.raises(ValueError, match=r"metrics\.jsonl is cut.*no sound checkpoint is left"):
        train(settings, tmp_path / "run", small, resume=True)
    path.write_bytes(b"not json\n" * 400)
    with pytest.raises(ValueError, match=r"metrics\.jsonl is damaged: line 1"):
        read_metrics(tmp_path / "run")


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path, small: Dataset, settings: Settings) -> None:
    model = Model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)))
    first = Simulation(settings, small, model)
    first.step()
    (tmp_path / "metrics.jsonl").touch()
    checkpoint.save(first, tmp_path, 0)
    assert first.secret is not None
    found = checkpoint.latest(tmp_path, first.secret.checkpoint_key())
    assert found is not None
    with pytest.raises(ValueError, match="is of another model"):
        checkpoint.restore(Simulation(settings, small), found)


def test_a_folder_may_be_text(tmp_path: Path, small: Dataset, settings: Settings) -> None:
    train(settings.updated({"training.rounds": 1}), str(tmp_path / "run"), small)
    assert len(read_metrics(str(tmp_path / "run"))) == 1


@pytest.mark.parametrize("what", ["metrics", "messages", "checkpoint"])
def test_a_full_disk_is_one_line_with_the_file(
    tmp_path: Path, small: Dataset, settings: Settings, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def full(*items: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if what == "messages":
        monkeypatch.setattr(Path, "write_bytes", full)
    elif what == "checkpoint":
        monkeypatch.setattr(checkpoint, "write_atomically", full)
    else:
        monkeypatch.setattr(training.os, "fsync", _after(3, full))
    with pytest.raises(OSError, match="the disk is full: make room, then resume") as problem:
        train(settings.updated({"run.keep_messages": what == "messages"}), tmp_path / "run", small)
    assert str(tmp_path / "run") in str(problem.value.filename)
    monkeypatch.undo()
    assert train(settings.updated({"run.keep_messages": what == "messages"}), tmp_path / "run", small, resume=True)


def _after(calls: int, then: object) -> object:
    real, count = os.fsync, iter(range(10**6))

    def call(handle: int) -> None:
        if next(count) < calls:
            real(handle)
        else:
            then(handle)  # type: ignore[operator]

    return call


def test_a_damaged_secret_is_named(tmp_path: Path, small: Dataset, settings: Settings) -> None:
    stopped(settings, tmp_path / "run", small, 3)
    path = tmp_path / "run" / "secret.key"
    held = path.read_text()
    path.write_text(held[:20])
    with pytest.raises(ValueError, match=r"secret\.key.* is damaged"):
        train(settings, tmp_path / "run", small, resume=True)
    path.write_text(os.urandom(32).hex())
    with pytest.raises(ValueError, match="another secret"):
        train(settings, tmp_path / "run", small, resume=True)
    path.write_text(held)
    assert train(settings, tmp_path / "run", small, resume=True)["rounds"] == 6


def test_own_arrays_end_to_end(tmp_path: Path, settings: Settings) -> None:
    draw = np.random.default_rng(3)
    data = from_arrays(*((draw.normal(size=(n, 5)), draw.integers(0, 2, n)) for n in (60, 20)), name="five numbers")
    train(settings.updated({"training.rounds": 1}), tmp_path / "run", data, Model(lambda: nn.Linear(5, 2), "flat"))
    stored = toml.Settings.of(toml.read(tmp_path / "run" / "config.toml"))
    assert (stored.data.name, stored.model.name) == ("own: five numbers", "own: flat")

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cepam.fl.runs.trackers import write_events


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a folder: steps and values by tag."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(folder)).Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_each_round_is_there_once_however_often_the_file_is_written(tmp_path: Path) -> None:
    lines = [{"round": r, "seed": 1, "accuracy": r / 8, "loss": None} for r in (1, 2, 200)]
    for written in (lines[:1], lines, lines):
        write_events(tmp_path / "events.out.tfevents.0.cepam", written)
    assert read(tmp_path) == {"accuracy": [(1, 0.125), (2, 0.25), (200, 25.0)]}
    assert [path.name for path in tmp_path.iterdir()] == ["events.out.tfevents.0.cepam"]


def test_tags_name_seeds_and_simulations(tmp_path: Path) -> None:
    lines = [{"round": 1, "seed": s, "epsilon": 0.5, "simulated": True} for s in (3, 4)]
    write_events(tmp_path / "events.out.tfevents.0.cepam", lines)
    assert read(tmp_path) == {f"epsilon (simulated)/seed-{s}": [(1, 0.5)] for s in (3, 4)}


def test_without_tensorboard_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    write_events(tmp_path / "events.out.tfevents.0.cepam", [{"round": 1, "seed": 1, "accuracy": 0.5}])
    assert list(tmp_path.iterdir()) == []

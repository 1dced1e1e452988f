"""Presets on real tasks, on made data of their kind: the headline epsilon, and what a run's folder may hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cepam import fl
from cepam.fl.data.catalog import CATALOG
from cepam.fl.data.dataset import Dataset
from cepam.fl.data.texts import Chitchat
from cepam.fl.runs.sources import prepared

from ..models.test_llama import model


def stays() -> Dataset:
    """Three hospitals of 3, 20 and 60 stays."""
    draw = np.random.default_rng(12)
    held = (3, 20, 60)
    x = draw.normal(size=(sum(held) + 40, 7)).astype(np.float32)
    y = (x[:, 0] + draw.normal(size=len(x)) > 0).astype(np.int64)
    return Dataset(
        "made", (7,), 2, x[:-40], y[:-40], x[-40:], y[-40:], clients=("a", "b", "c"),
        owners=np.repeat(np.arange(3), held),
    )  # fmt: skip


def test_the_headline_is_the_worst_hospital(tmp_path: Path) -> None:
    settings = fl.preset("hospitals").updated(
        {"training.rounds": 4, "training.expected_batch_size": 40.0, "run.simulate": True,
         "clients.overrides": [{"clients": ["c"], "epsilon": 1.0}]}
    )  # fmt: skip
    summary = fl.train(settings, tmp_path / "run", stays())
    each = {row["name"]: row["epsilon"] for row in summary["clients"]}
    assert summary["epsilon"] == pytest.approx(max(each.values()), rel=1e-9)
    assert max(each.values()) <= 2.0
    assert each["c"] <= 1.0
    assert 0.0 <= summary["metrics"]["auc"]["mean"] <= 1.0
    assert "loss" in summary["metrics"]


def test_no_file_of_a_run_has_a_word_of_a_user(tmp_path: Path) -> None:
    words = ("xylophone", "zeppelin")
    said = [((f"{words[k % 2]} wonders {'often' * (k % 3 + 1)}", k % 2),) for k in range(24)]
    chat = Chitchat(
        tuple(f"user {k}" for k in range(24)), tuple((answers[0][0],) for answers in said), tuple(said),
        ("Which instruments do you play?", "Which ships would you fly?"),
    )  # fmt: skip
    settings = fl.preset("chitchat-prompts").updated(
        {"training.rounds": 2, "run.simulate": True, "privacy.delta": 0.01, "run.keep_messages": True}
    )
    fl.train(settings, tmp_path / "run", chat.answered(64))
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) > 5
    for path in files:
        content = path.read_bytes().lower()
        assert not any(word.encode() in content for word in (*words, "wonders")), path


def test_no_file_of_a_language_run_has_a_word_of_a_user(tmp_path: Path) -> None:
    """A run gets utterances as tokens: no six of them in a row may be in a file, as numbers of any width or as text."""
    draw = np.random.default_rng(2)
    rows = draw.integers(1, 40, (60, 16))
    before = np.pad(rows, ((0, 0), (1, 0)))[:, :-1].astype(np.int32)
    data = Dataset(
        "made", (16,), 0, before, rows, before[:8], rows[:8], clients=tuple(f"user {k}" for k in range(30)),
        owners=np.repeat(np.arange(30), 2),
    )  # fmt: skip
    settings = fl.preset("chitchat-lora").updated(
        {"training.rounds": 2, "run.simulate": True, "privacy.epsilon": 9.0, "privacy.delta": 0.05,
         "clients.sampling": "fixed", "clients.sampling_rate": 1.0, "run.keep_messages": True,
         "privacy.clipping_norm": 1.0, "training.server_learning_rate": 2.0}
    )  # fmt: skip
    fl.train(settings, tmp_path / "run", data, model())
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) > 5
    runs = [row[:6].astype(kind).tobytes() for row in rows for kind in (np.uint8, np.int16, np.int32, np.int64)]
    runs += [str(row[:6].tolist())[1:-1].encode() for row in rows]
    assert any(part in rows.tobytes() for part in runs)  # the control: this is how tokens would look
    for path in files:
        content = path.read_bytes()
        assert not any(part in content for part in runs), path


@pytest.mark.parametrize("held", [False, True], ids=["fetched now", "in the cache"])
def test_the_first_fetch_shows_licence_and_citation(
    held: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CEPAM_CACHE", str(tmp_path))
    entry = CATALOG["medpar"]
    assert not entry.fetched
    if held:
        assert entry.package is not None
        (tmp_path / "medpar").mkdir()
        for file in entry.package.files:
            (tmp_path / "medpar" / file).touch()
    monkeypatch.setitem(CATALOG, "medpar", replace(entry, load=lambda folder, report: stays()))
    assert prepared(fl.preset("hospitals")).records == 83
    assert len(caplog.messages) == (not held)
    if not held:
        (said,) = caplog.messages
        assert entry.licence in said
        assert entry.citation in said


def test_the_presets_protect_what_they_say() -> None:
    units = {name: fl.preset(name).privacy.unit for name in ("hospitals", "cifar10", "cifar10-scattering")}
    assert set(units.values()) == {"record"}
    for name, users in (("chitchat-prompts", 932), ("chitchat-lora", 1183), ("shakespeare", 806)):
        privacy = fl.preset(name).privacy
        assert (privacy.unit, privacy.epsilon) == ("client", 8.0)
        assert privacy.delta <= users**-1.1
    assert fl.preset("cifar10-users").privacy.unit == "client"

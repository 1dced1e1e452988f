"""Presets on real tasks, on made data of their kind: the headline epsilon, and what a run's folder may hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cepam import fl
from cepam.fl.data.dataset import Dataset
from cepam.fl.data.texts import Chitchat


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


def test_the_presets_protect_what_they_say() -> None:
    units = {name: fl.preset(name).privacy.unit for name in ("hospitals", "cifar10", "cifar10-scattering")}
    assert set(units.values()) == {"record"}
    for name, users in (("chitchat-prompts", 932), ("chitchat-lora", 1183), ("shakespeare", 806)):
        privacy = fl.preset(name).privacy
        assert (privacy.unit, privacy.epsilon) == ("client", 8.0)
        assert privacy.delta <= users**-1.1
    assert fl.preset("cifar10-users").privacy.unit == "client"

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from cepam import fl
from cepam.fl.optim import optimizer
from cepam.privacy.reports.guarantee import rate_for_target


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
def test_agrees_with_torch(name: str) -> None:
    draw = np.random.default_rng(0)
    start, slopes = draw.normal(size=(1, 50)).astype(np.float32), draw.normal(size=(6, 1, 50)).astype(np.float32)
    weights = torch.nn.Parameter(torch.from_numpy(start.copy()))
    theirs: torch.optim.Optimizer = {
        "sgd": lambda: torch.optim.SGD([weights], lr=0.1),
        "momentum": lambda: torch.optim.SGD([weights], lr=0.1, momentum=0.9),
        "adam": lambda: torch.optim.Adam([weights], lr=0.1),
    }[name]()
    ours, made = start, optimizer(name, 0.9)
    memory = made.start(ours)
    for slope in slopes:
        weights.grad = torch.from_numpy(slope.copy())
        theirs.step()
        ours, memory = made.step(ours, slope, 0.1, memory)
    np.testing.assert_allclose(ours, weights.detach().numpy(), atol=1e-5)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="server must be one of"):
        optimizer("lamb", 0.9)
    with pytest.raises(ValueError, match="momentum"):
        optimizer("momentum", 1.0)


def test_the_server_rate_follows_the_target() -> None:
    assert rate_for_target("private", 1.99) == 4.0  # the preset's own
    for epsilon in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0):
        assert rate_for_target("private", epsilon) == pytest.approx(2.0 * epsilon, rel=0.01)
    assert rate_for_target("private", 0.01) == rate_for_target("private", 0.25)
    assert rate_for_target("private", 100.0) == rate_for_target("private", 8.0)
    assert rate_for_target("private", 0.5, own=True) == rate_for_target("private", 0.5)
    assert rate_for_target("private", 8.0, own=True) == 4.0  # not above the preset's own for another model
    assert rate_for_target("users", 2.0) is None
    assert rate_for_target(None, 2.0) is None
    assert rate_for_target("private", None) is None


def test_the_rate_of_settings_in_python_follows_a_target_too() -> None:
    """As `cepam train --preset private --epsilon 0.5` does; until a rate or a noise scale is given."""
    private = fl.preset("private")
    half = private.updated({"privacy.epsilon": 0.5})

    def rate(settings: fl.Settings) -> float:
        return settings.training.server_learning_rate

    assert (rate(private), private.followed_rate) == (4.0, "")
    assert rate(half) == pytest.approx(1.0, rel=0.01)
    assert (
        half.followed_rate == "server learning rate 1.005 for epsilon 0.5; training.server_learning_rate sets another"
    )
    assert rate(half.updated({"privacy.epsilon": 8.0, "run.seed": 3})) == pytest.approx(16.0, rel=0.01)
    assert rate(half.updated({"privacy.epsilon": 8.0}).updated({"model.name": "mlp"})) == 4.0  # not above the preset's
    given = private.updated({"training.server_learning_rate": 3.0})
    assert rate(given.updated({"privacy.epsilon": 0.5})) == 3.0
    assert given.updated({"privacy.epsilon": 0.5}).followed_rate == ""
    assert rate(private.updated({"privacy.noise_scale": 0.1})) == 4.0
    assert rate(fl.preset("users").updated({"privacy.epsilon": 0.5})) == 2.5
    assert half.fitted(["a", "b"]).followed_rate == half.followed_rate


def test_a_run_says_which_rate_it_took(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    settings = fl.preset("private").updated(
        {"privacy.epsilon": 0.5, "data.name": "synthetic", "model.name": "linear", "clients.count": 3}
        | {"training.rounds": 2, "training.expected_batch_size": 30.0, "compression.downlink": "float32"}
    )
    said: list[str] = []
    summary = fl.train(settings, tmp_path / "run", say=said.append)
    assert said[0].startswith("server learning rate 1.005 for epsilon 0.5")
    assert summary["server_learning_rate"] == pytest.approx(1.005, abs=1e-3)

"""Frozen features in front of a head: computed once, kept whole on disk, one example at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from time import sleep

import numpy as np
import pytest
import torch
from torch import nn

from cepam import fl
from cepam.fl import Dataset, Features, from_arrays
from cepam.fl.models.features import _kept, scattering


def frozen() -> nn.Module:
    """A small network with fixed weights, as one that was trained elsewhere."""
    torch.manual_seed(3)
    made = nn.Sequential(nn.AvgPool2d(4), nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(49, 40), nn.Tanh())
    with torch.no_grad():
        made[1].running_mean.fill_(0.5)
        made[3].weight.mul_(12.0)
    return made


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CEPAM_CACHE", str(tmp_path / "cache"))


def test_a_head_on_a_users_network_learns_privately(small: Dataset, tmp_path: Path) -> None:
    """What a user writes: features, a head, a run, and at the end a module that answers for images."""
    features = Features(frozen(), batch=50)
    model = fl.linear_on(features, small)
    assert model.size == 41 * 10
    settings = fl.Settings.of(
        {
            "data.name": "synthetic",
            "clients.count": 5,
            "training.update": "examples",
            "training.record_sampling": "poisson",
            "training.expected_batch_size": 200.0,
            "training.rounds": 40,
            "training.local_steps": 1,
            "privacy.clipping_norm": 1.0,
            "training.server_learning_rate": 2.0,
            "privacy.noise_scale": 0.01,
            "run.evaluate_every": 40,
            "run.device": "cpu",
        }
    )
    summary = fl.train(settings, tmp_path / "run", small, model)
    assert summary["accuracy"] > 0.5
    state = torch.load(tmp_path / "run" / "final.pt")[settings.run.seed]
    whole = model.assembled(state).eval()
    images = torch.from_numpy(small.test_inputs.copy()).float().reshape(-1, *small.shape) * small.scale
    right = (whole(images).argmax(1).numpy() == small.test_labels).mean()
    assert right == pytest.approx(summary["accuracy"], abs=0.011)


def test_another_head(small: Dataset) -> None:
    model = fl.Model(
        lambda: nn.Sequential(nn.Linear(40, 12), nn.Tanh(), nn.Linear(12, 10)), features=Features(frozen())
    )
    scores = model.on(small, "cpu").evaluate(model.initial(1)[None])
    assert 0.0 <= scores.accuracy[0] <= 1.0


def test_the_users_module_is_left_alone(small: Dataset) -> None:
    module = frozen()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    Features(module).of(small)
    assert module.training
    assert all(p.requires_grad for p in module.parameters())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_features_that_look_at_the_batch_are_refused(small: Dataset) -> None:
    mixing = nn.BatchNorm2d(1, affine=False, track_running_stats=False)
    with pytest.raises(ValueError, match="depend on the batch"):
        Features(mixing).of(small)
    with pytest.raises(ValueError, match="finite"):
        Features(nn.Sequential(nn.Flatten(), nn.Threshold(2.0, float("inf")))).of(small)
    with pytest.raises(ValueError, match="batch must be"):
        Features(frozen(), batch=0)


def test_scattering_is_kept_and_found_again(small: Dataset, tmp_path: Path) -> None:
    few = replace(small, train_inputs=small.train_inputs[:64], train_labels=small.train_labels[:64])
    made = scattering(few.shape).of(few)
    kept = sorted((tmp_path / "cache" / "features").iterdir())
    assert len(kept) == 2
    assert made.train_inputs.dtype == np.float16
    first = np.array(made.train_inputs)
    again = scattering(few.shape).of(few)
    assert sorted((tmp_path / "cache" / "features").iterdir()) == kept
    np.testing.assert_array_equal(again.train_inputs, first)
    kept[0].write_bytes(kept[0].read_bytes()[:500])
    kept[1].write_bytes(b"")
    np.testing.assert_array_equal(scattering(few.shape).of(few).train_inputs, first)
    other = replace(few, train_inputs=few.train_inputs[::-1].copy())
    np.testing.assert_array_equal(scattering(few.shape).of(other).train_inputs, first[::-1])
    scattering(few.shape).of(replace(few, shift=-1.0))
    assert len(list((tmp_path / "cache" / "features").iterdir())) == 5
    exact = Features(scattering(few.shape).module).of(few)
    np.testing.assert_allclose(first, exact.train_inputs, rtol=2e-3, atol=2e-3)


def test_two_processes_at_once_compute_features_once(tmp_path: Path) -> None:
    together, starts = Barrier(2), []

    def fill(out: np.ndarray, first: int) -> None:
        starts.append(first)
        sleep(0.02)
        out[:] = first

    def run(_: int) -> np.ndarray:
        together.wait()
        return _kept(tmp_path / "made.npy", (64, 3), "float32", fill, 8, lambda done, total: None)

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(run, range(2))
    np.testing.assert_array_equal(one, other)
    assert starts == list(range(0, 64, 8))
    assert [each.name for each in tmp_path.iterdir() if each.name != "cache"] == ["made.npy"]


def test_the_named_model_is_its_linear_head(small: Dataset) -> None:
    few = replace(small, train_inputs=small.train_inputs[:64], train_labels=small.train_labels[:64])
    model = fl.build("scattering-linear", few)
    assert model.size == 10 * 3970
    assert not model.initial(4).any()
    assert set(model.state_dict(model.initial(0))) == {"weight", "bias"}
    network = model.on(few, "cpu")
    count, bounds = np.array([20, 30, 0]), np.full(3, 0.1, np.float32)
    index = np.arange(90).reshape(3, 30) % 64
    sums, _ = network.summed_gradients(model.initial(0)[None], np.zeros(3, np.int64), index, count, bounds)
    alone = Features(scattering(few.shape).module).of(few)
    x = np.concatenate([alone.train_inputs, np.ones((64, 1), np.float32)], 1).astype(np.float64)
    for row in range(3):
        total = np.zeros((10, 3970))
        for i in index[row, : count[row]]:
            slope = np.outer(np.full(10, 0.1) - np.eye(10)[few.train_labels[i]], x[i])
            total += slope * min(1.0, 0.1 / np.linalg.norm(slope))
        flat = np.concatenate([total[:, :-1].ravel(), total[:, -1]])
        np.testing.assert_allclose(sums[row], flat, atol=1e-5)


def test_a_small_network_on_scattering_maps_clips_each_example() -> None:
    draw = np.random.default_rng(5)
    pixels, labels = draw.integers(0, 256, (12, 3, 16, 16), dtype=np.uint8), np.arange(12) % 4
    data = from_arrays((pixels, labels), (pixels[:4], labels[:4]), "made", 4)
    model = fl.build("scattering-cnn", data, "tanh")
    assert model.features is not None
    assert model.features.of(data).shape == (243, 4, 4)
    network, start = model.on(data, "cpu"), model.initial(3)
    zero, index = np.zeros(1, np.int64), np.arange(12)[None]
    sums, _ = network.summed_gradients(start[None], zero, index, np.array([12]), np.full(1, 0.5, np.float32))
    whole = model.assembled(model.state_dict(start))
    weights, total = [p for p in whole.parameters() if p.requires_grad], np.zeros(model.size)
    for image, label in zip(pixels, labels):
        loss = nn.functional.cross_entropy(whole(torch.from_numpy(image[None]).float() / 255), torch.tensor([label]))
        slope = torch.cat([each.flatten() for each in torch.autograd.grad(loss, weights)]).double().numpy()
        total += slope * min(1.0, 0.5 / np.linalg.norm(slope))
    np.testing.assert_allclose(sums[0], total, atol=2e-3)


def test_normalized_features_are_those_of_each_row_alone() -> None:
    draw = np.random.default_rng(7)
    inputs = draw.normal(size=(9, 6)).astype(np.float32)
    inputs[2] = 4.0
    data = from_arrays((inputs[:6], np.arange(6) % 2), (inputs[6:], np.arange(3) % 2), "made", 2)
    made = Features(nn.Identity(), normalized=True)
    rows = made.of(data).train_inputs
    roots = np.sign(inputs[:6]) * np.sqrt(np.abs(inputs[:6]))
    expected = roots - roots.mean(axis=1, keepdims=True)
    expected[2] = 0.0
    lengths = np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(rows, expected / np.maximum(lengths, 1e-12), atol=1e-6)
    with torch.no_grad():  # the module for raw examples answers alike
        np.testing.assert_allclose(made.whole(torch.from_numpy(inputs[:6])).numpy(), rows, atol=1e-6)

"""Networks in PyTorch: the suite of every engine, and which way a module goes."""

from __future__ import annotations

import multiprocessing
import sys
import threading

import numpy as np
import pytest
import torch
from torch import nn

from cepam import fl
from cepam.fl import Dataset, Model, build
from cepam.fl.models import network
from cepam.fl.models.interface import Network
from cepam.fl.models.network import Layered, TorchNetwork, areas, shared_out
from cepam.torch.mapped import Mapped
from tests.fl.models.suite import NetworkSuite


class TestTorch(NetworkSuite):
    def on(self, model: Model, data: Dataset) -> Network:
        return model.on(data, "cpu-torch")


def test_which_way_a_module_goes(small: Dataset) -> None:
    """Layers where examples may meet, and those that write over their input, go one example at a time."""

    def way(*layers: nn.Module) -> type:
        return type(TorchNetwork(nn.Sequential(*layers, nn.Flatten(), nn.Linear(784, 10)), small, "cpu").passes)

    assert way(nn.Tanh()) is Layered
    assert way(nn.BatchNorm2d(1, affine=False, track_running_stats=False)) is Mapped
    assert way(nn.ReLU(inplace=True)) is Mapped


def test_tensors_give_tensors(small: Dataset) -> None:
    model = build("linear", small)
    of, index, count = np.zeros(2, np.int64), np.arange(40).reshape(2, 20), np.array([20, 3])
    network = model.on(small, "cpu-torch")
    sums, losses = network.summed_gradients(torch.from_numpy(model.initial(0)[None]), of, index, count)
    assert isinstance(sums, torch.Tensor)
    assert isinstance(losses, torch.Tensor)


@pytest.mark.parametrize(("most", "wanted"), [(2, 2), (None, 8)])
def test_threads_that_share_work_out(most: int | None, wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One a core, or so many at most; jobs go on only when that many are at work."""
    monkeypatch.setattr(network, "cores", lambda: 8)
    threads, together = set(), threading.Barrier(wanted)

    def work(job: int) -> None:
        together.wait(60)
        threads.add(threading.get_ident())

    shared_out(work, range(64), "cpu", most=most)
    assert len(threads) == wanted


def share_nothing() -> None:
    shared_out(lambda job: None, range(4), "cpu")


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_fork_of_a_process_that_trained_can_train() -> None:
    """Its threads are its own: those that it was forked beside would never answer."""
    share_nothing()
    worker = multiprocessing.get_context("fork").Process(target=share_nothing)
    worker.start()
    worker.join(60)
    worker.kill()
    assert worker.exitcode == 0


def test_the_area_under_the_curve_is_a_share_of_pairs() -> None:
    draw = np.random.default_rng(9)
    margins, labels = draw.integers(0, 6, (3, 40)).astype(np.float64), draw.integers(0, 2, 40)
    ones, zeros = margins[:, labels == 1][:, :, None], margins[:, labels == 0][:, None, :]
    pairs = ((ones > zeros) + 0.5 * (ones == zeros)).mean(axis=(1, 2))
    np.testing.assert_allclose(areas(margins, labels), pairs)
    assert np.isnan(areas(margins, np.ones(40, dtype=np.int64))).all()


def test_two_classes_are_judged_by_the_area_too() -> None:
    draw = np.random.default_rng(10)
    x = draw.normal(size=(60, 3)).astype(np.float32)
    y = (x[:, 0] > 0.5).astype(np.int64)
    data = fl.from_arrays((x[:30], y[:30]), (x[30:], y[30:]), "two", 2)
    network = fl.build("linear", data).on(data, "cpu")
    weights = np.zeros((2, 8), dtype=np.float32)
    weights[0, 3], weights[1, 0] = 1.0, 1.0  # class 1 grows with the first input; and the other way round
    found = network.evaluate(weights)
    np.testing.assert_allclose(found.metrics["auc"], [1.0, 0.0])
    assert "auc" not in network.evaluate(weights, np.arange(10)).metrics
    three = fl.from_arrays((x[:30], np.arange(30) % 3), (x[30:], np.arange(30) % 3), "three", 3)
    assert "auc" not in fl.build("linear", three).on(three, "cpu-torch").evaluate(np.zeros((1, 12), np.float32)).metrics

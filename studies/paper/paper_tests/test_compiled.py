"""The compiled networks: the suite of every engine, the same bits everywhere, no stale loop, and the door of cepam."""

from __future__ import annotations

import ast
import shutil
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest
from tests.fl.models.suite import NetworkSuite, model_of
from torch import nn

from cepam import fl
from cepam.fl import Dataset, Model
from cepam.fl.models import interface
from cepam.fl.models.network import TorchNetwork
from cepam.kernels.numba.compiling import PACKAGE, stamp_of
from cepam_paper.compiled import CompiledNetwork, compiled_network, vectorised_layers

COMPILED = Path(vectorised_layers.__file__).parent


@pytest.fixture(scope="session")
def small() -> Dataset:
    return fl.synthetic(records=600, tests=200)


class TestCompiled(NetworkSuite):
    names = (
        "strided and padded", "odd pooling", "cnn relu", "cnn tanh", "cnn-private tanh", "mlp relu", "linear relu",
    )  # fmt: skip

    def on(self, model: Model, data: Dataset) -> CompiledNetwork | None:
        return compiled_network(model.module, data.as_numbers())


def test_frozen_and_shared_weights_are_left_to_pytorch(small: Dataset) -> None:
    frozen, layer = nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.Tanh(), nn.Linear(8, 10)), nn.Linear(10, 10)
    assert compiled_network(frozen, small) is not None
    frozen[1].bias.requires_grad_(False)
    assert compiled_network(frozen, small) is None
    assert compiled_network(nn.Sequential(nn.Flatten(), nn.Linear(784, 10), layer, layer), small) is None


def test_cepam_finds_it_where_the_study_is_installed(small: Dataset) -> None:
    """By the installed metadata, so after `make setup` or `pip install ./studies/paper`; PyTorch where it is asked."""
    assert [point.load() for point in entry_points(group=interface.GROUP, name="compiled")] == [compiled_network]
    model = fl.build("cnn", small)
    assert isinstance(model.on(small, "cpu"), CompiledNetwork)
    assert isinstance(model.on(small, "cpu-torch"), TorchNetwork)


def test_the_stamp_follows_the_sources_here_and_the_clip_of_cepam(tmp_path: Path) -> None:
    """A changed constant is compiled anew: what loops read of cepam is named in their stamp."""
    copies = [shutil.copytree(folder, tmp_path / folder.name) for folder in (COMPILED, PACKAGE)]

    def stamp() -> str:
        return stamp_of(copies[0], ["."]) + stamp_of(copies[1], ["clip.py"])

    assert stamp() == vectorised_layers.STAMP
    assert vectorised_layers.pad.py_func.__qualname__ == f"pad_{vectorised_layers.STAMP}"
    for source in (copies[0] / "convolution.py", copies[1] / "clip.py"):
        before = stamp()
        source.write_text(source.read_text() + "\n")
        assert stamp() != before
    read = {node.module for path in COMPILED.glob("*.py") if path.name != "__init__.py"
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cepam.")}  # fmt: skip
    assert read == {"cepam.clip", "cepam.kernels.numba.compiling"}


def shifted(array: np.ndarray, floats: int) -> np.ndarray:
    """The same numbers in memory of their own that starts so many floats after a whole cache line."""
    room = np.empty(array.size + 32, dtype=np.float32)
    start = (-room.ctypes.data // 4) % 16 + floats
    made = room[start : start + array.size].reshape(array.shape)
    made[:] = array
    return made


@pytest.mark.parametrize("name", ["cnn tanh", "odd pooling"])
def test_sums_are_the_same_bits_wherever_and_however_they_are_computed(small: Dataset, name: str) -> None:
    model = model_of(name, small)
    network = compiled_network(model.module, small)
    assert network is not None
    weights = np.stack([model.initial(seed) for seed in range(3)])
    draw = np.random.default_rng(1)
    index, of = draw.integers(0, 600, (40, 37)), draw.integers(0, 3, 40)
    count = draw.integers(0, 38, 40)
    count[::2] %= 4
    bounds = np.where(np.arange(40) % 3, 0.2, np.inf).astype(np.float32)
    first = network.summed_gradients(weights, of, index, count, bounds)
    scores = network.evaluate(weights)
    litter = []
    for attempt in range(30):
        litter.append(np.full(draw.integers(1, 200_000), np.nan, dtype=np.float32))
        if attempt % 3 == 2:
            litter.clear()
        network.threads = 1 + attempt % 5
        network.pool = ThreadPoolExecutor(network.threads)
        moved = shifted(weights, attempt % 16)
        again = network.summed_gradients(moved, of, index, count, bounds)
        for ours, theirs in zip(first, again):
            np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(network.evaluate(moved).loss, scores.loss)
        network.pool.shutdown()
    np.testing.assert_raises(AssertionError, np.testing.assert_array_equal, first[0], np.nextafter(first[0], 1))

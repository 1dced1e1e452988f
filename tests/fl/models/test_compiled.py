from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from cepam.fl import Dataset
from cepam.fl.models.compiled import CompiledNetwork
from tests.fl.models.test_networks import model_of


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
    network = model.on(small, "cpu")
    assert isinstance(network, CompiledNetwork)
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

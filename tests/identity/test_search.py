"""The search coder on both CPU backends: the same bytes and the same vectors, whatever the update."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cepam
from tests.corpus import AT, SEARCHED

SIGMA = 0.01


def updates(size: int) -> dict[str, Any]:
    rng = np.random.default_rng(4)
    x = rng.normal(size=size)
    return {
        "quiet": 0.03 * x,
        "middle": 0.12 * x,
        "loud": 0.33 * x,
        "zeros": 0.0 * x,
        "tiny": 1e-7 * x,
        "constant": np.full(size, 0.1),
        "one spike": np.where(np.arange(size) == 5, 3.0, 0.0),
        "many spikes": np.where(np.arange(size) % 101 == 5, 2.0, 0.01 * x),
        "uneven": 0.1 * x * np.linspace(0.0, 2.0, size) ** 2,
    }


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", list(updates(1)))
@pytest.mark.parametrize("size", [512, 1000, pytest.param(9001, marks=pytest.mark.slow)])
def test_both_backends_agree(size: int, kind: str, dtype: Any) -> None:
    x = (SIGMA * updates(size)[kind]).astype(dtype)
    codec = cepam.Codec(cepam.Gaussian(SIGMA))
    reference, compiled = replace(codec, backend="numpy"), replace(codec, backend="numba")
    message = reference.encode(x, AT)
    assert message[0] & SEARCHED
    assert compiled.encode(x, AT) == message
    vector = reference.decode(message, AT)
    assert vector.dtype == dtype
    assert compiled.decode(message, AT).tobytes() == vector.tobytes()


@pytest.mark.slow
def test_several_segments_and_threads() -> None:
    x = np.random.default_rng(5).normal(size=(1 << 18) + 700) * 0.04 * SIGMA
    codec = cepam.Codec(cepam.Gaussian(SIGMA))
    message = replace(codec, backend="numpy").encode(x, AT)
    for threads in (1, 2):
        assert replace(codec, threads=threads).encode(x, AT) == message
    vector = replace(codec, backend="numpy").decode(message, AT)
    assert codec.decode(message, AT).tobytes() == vector.tobytes()


@pytest.mark.parametrize("margin", [0.0, 0.2])
def test_what_rough_exponentials_leave_open_is_searched_again(margin: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A margin of 0 searches exactly from the start, a wide one searches most parts twice: the same bytes."""
    from cepam.kernels.numba import search_coder

    codec = cepam.Codec(cepam.Gaussian(SIGMA), backend="numba")
    rows = [scale * SIGMA * np.random.default_rng(6).normal(size=40_000) for scale in (0.03, 0.1, 0.3)]
    messages = [codec.encode(x, AT) for x in rows]
    monkeypatch.setattr(search_coder, "ROUGHLY", margin)
    assert [codec.encode(x, AT) for x in rows] == messages


def test_rough_exponentials_are_right_to_their_bound() -> None:
    from cepam.kernels.numba.hadamard import exponentials

    v = np.random.default_rng(7).uniform(-300.0, 300.0, size=8192)
    rough, exact, sums = v.copy(), v.copy(), np.empty(len(v))
    total, largest = exponentials(rough, len(v), 1.0, 0.5, sums, False)
    other, most = exponentials(exact, len(v), 1.0, 0.5, sums, True)
    assert 0.0 < np.abs(rough / exact - 1.0).max() < 2.0**-21
    assert abs(total / other - 1.0) < 2.0**-21
    assert abs(largest / most - 1.0) < 2.0**-21

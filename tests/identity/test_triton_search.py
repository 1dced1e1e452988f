"""The search coder's messages decoded on a GPU beside the CPU's vectors, through Triton's interpreter."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

from typing import Any

import numpy as np
import pytest

import cepam
from cepam.codec.wire import SEARCHED
from cepam.errors import MalformedMessage
from cepam.kernels.format import search as f
from cepam.kernels.numba import search_coder as compiled
from tests.corpus import AT
from tests.identity.interpreter import quick  # noqa: F401
from tests.identity.test_search import updates

torch = pytest.importorskip("torch", reason="the GPU path needs PyTorch")
pytest.importorskip("triton", reason="the GPU path needs Triton")

from cepam.kernels.triton import backend  # noqa: E402

SIGMA = 0.01
CODEC = cepam.Codec(cepam.Gaussian(SIGMA))
PLACES = [cepam.Address(bytes([i]) * 32, round=3, client=i) for i in range(3)]


def task_of() -> Any:
    """What a backend is asked to do with the segments of a message."""
    return CODEC.open(CODEC.encode(np.zeros(f.SHORTEST), AT), AT)[1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["quiet", "loud", "zeros", "one spike", "many spikes"])
def test_vectors_are_the_cpus(kind: str, dtype: Any) -> None:
    """Parts of many sizes, halves, and coordinates that are left to the layered quantizer."""
    x = (SIGMA * updates(600)[kind]).astype(dtype)
    message = CODEC.encode(x, AT)
    assert message[0] & SEARCHED
    found = CODEC.decode(message, AT, device="cpu")
    assert found.numpy().tobytes() == CODEC.decode(message, AT).tobytes()


def test_vectors_of_many_clients() -> None:
    x = np.random.default_rng(2).normal(size=(3, 700)) * np.array([[0.05], [0.1], [0.3]]) * SIGMA
    messages = cepam.encode_many(CODEC, x, PLACES)
    found = cepam.decode_many(CODEC, messages, PLACES, device="cpu", out_dtype=torch.bfloat16)
    alone = torch.stack([torch.from_numpy(CODEC.decode(m, at)) for m, at in zip(messages, PLACES)])
    assert torch.equal(found, alone.float().bfloat16())


@pytest.mark.parametrize(("log_size", "energy_class", "layered"), [(5, 13, 1), (6, 9, 1), (8, 9, 0), (9, 2, 1)])
def test_any_bytes_give_the_cpus_vector_or_are_refused_alike(log_size: int, energy_class: int, layered: int) -> None:
    """Trees and left blocks of random bytes: some with rows, some whose class and parts do not match."""
    rng, task = np.random.default_rng(log_size), task_of()
    first = f.layout_of(520, log_size, energy_class).class_byte(bool(layered))
    trees = rng.bytes(40)
    blocks = [bytes([first]) + (f.short_number(len(trees)) if layered else b"") + trees + layered * rng.bytes(60)]
    expected: Any = np.empty(520, dtype=np.float32)
    try:
        compiled.decode_span(task, blocks, 0, expected)
    except MalformedMessage:
        expected = None
    if expected is None:
        with pytest.raises(MalformedMessage):
            backend.decode_rows([task], [blocks], 520, "float32", "cpu")
    else:
        found = backend.decode_rows([task], [blocks], 520, "float32", "cpu")
        assert found.numpy()[0].tobytes() == expected.tobytes()


@pytest.mark.parametrize("data", [b"", bytes([253]), bytes([16]), bytes([1, 130])])
def test_segments_that_make_no_sense_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        backend.decode_rows([task_of()], [[data]], 64, "float32", "cpu")


def test_a_segment_of_the_layered_quantizer_alone() -> None:
    """In a message that is searched elsewhere; its block may have rows, which no encoder of segments writes."""
    rng, task, size = np.random.default_rng(1), task_of(), 100
    x = SIGMA * rng.normal(size=size)
    for blocks in (compiled.encode_span(task, x, 0), [bytes([f.LAYERED_ONLY]) + rng.bytes(90)]):
        assert blocks[0][0] == f.LAYERED_ONLY
        expected = np.empty(size, dtype=np.float64)
        compiled.decode_span(task, blocks, 0, expected)
        found = backend.decode_rows([task], [blocks], size, "float64", "cpu")
        assert found.numpy()[0].tobytes() == expected.tobytes()

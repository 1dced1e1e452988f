"""Messages of the search coder encoded on a GPU beside the CPU's, byte for byte, through Triton's interpreter."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

from typing import Any

import numpy as np
import pytest

import cepam
from cepam.codec.wire import SEARCHED
from cepam.kernels import dispatch
from cepam.kernels.format import search as f
from cepam.kernels.numpy import search_coder as reference
from tests.corpus import AT
from tests.identity.interpreter import quick  # noqa: F401
from tests.identity.test_search import updates

torch = pytest.importorskip("torch", reason="the GPU path needs PyTorch")
pytest.importorskip("triton", reason="the GPU path needs Triton")

from cepam.kernels.triton import backend, search_encode  # noqa: E402

SIGMA = 0.01
CODEC = cepam.Codec(cepam.Gaussian(SIGMA))
PLACES = [cepam.Address(bytes([i]) * 32, round=3, client=i) for i in range(3)]


@pytest.fixture(autouse=True)
def tensors_are_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """And programs have more parts than on a GPU: the interpreter runs programs one after another."""
    monkeypatch.setattr(dispatch, "on_gpu", torch.is_tensor)
    monkeypatch.setattr(search_encode, "PLACES", 1024)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("quiet", np.float32),
        ("loud", np.float64),
        ("zeros", np.float32),
        ("many spikes", np.float32),
        *(
            pytest.param(kind, dtype, marks=pytest.mark.slow)
            for kind in updates(1)
            for dtype in (np.float32, np.float64)
        ),
    ],
)
def test_messages_are_the_cpus(kind: str, dtype: Any) -> None:
    """Parts of many sizes, halves, coordinates that fill up a block, and some for the layered quantizer."""
    x = (SIGMA * updates(600)[kind]).astype(dtype)
    message = CODEC.encode(torch.from_numpy(x), AT)
    assert message[0] & SEARCHED
    assert message == CODEC.encode(x, AT)

"""Every kernel is launched while the GPU of its tensors is the current one: Triton looks at nothing else."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import cepam
from cepam.codec import batch, wire
from cepam.kernels import dispatch
from cepam.secure_aggregation import MaskedSumCodec
from tests.corpus import AT
from tests.identity.interpreter import quick  # noqa: F401

torch = pytest.importorskip("torch", reason="the GPU path needs PyTorch")
interpreter = pytest.importorskip("triton.runtime.interpreter", reason="the GPU path needs Triton")

from cepam.kernels.triton import backend  # noqa: E402
from cepam.kernels.triton import masks as masks_on_gpu  # noqa: E402

LAUNCHES: list[list[str]] = []
"""The devices that were current, the innermost last, at each launch."""


@pytest.fixture(autouse=True)
def launches_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[str] = []
    LAUNCHES.clear()

    @contextmanager
    def launching_on(device: Any) -> Iterator[None]:
        current.append(str(device))
        yield
        current.pop()

    launch = interpreter.GridExecutor.__call__

    def noted(self: Any, *args: Any, **options: Any) -> None:
        LAUNCHES.append(list(current))
        launch(self, *args, **options)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", noted)
    for module in (backend, masks_on_gpu):
        monkeypatch.setattr(module, "launching_on", launching_on)
    monkeypatch.setattr(dispatch, "on_gpu", torch.is_tensor)
    monkeypatch.setattr(wire, "CHUNK_BYTES", 64)


def all_on_the_cpu() -> bool:
    """Whether something was launched, and all of it while the tensors' device was the current one."""
    return bool(LAUNCHES) and all(current[-1:] == ["cpu"] for current in LAUNCHES)


def test_messages() -> None:
    coder = cepam.Codec(cepam.Gaussian(0.01), cepam.Integer(1), backend="numpy")
    x = torch.from_numpy(np.random.default_rng(2).normal(0, 0.02, 264).astype(np.float32))
    message = coder.encode(x, AT)
    assert wire.count_chunks(wire.payload_size(len(message) - wire.HEAD_BYTES)) > 1
    coder.decode(message, AT, device="cpu")
    assert all_on_the_cpu()
    LAUNCHES.clear()
    batch.decode_many(coder, batch.encode_many(coder, x[None, :16], [AT]), [AT], device="cpu")
    assert all_on_the_cpu()


@pytest.mark.parametrize("lattice", [cepam.Integer(1), cepam.A2])
def test_symbols(lattice: cepam.Lattice) -> None:
    of = cepam.LRSUQ(cepam.Gaussian(0.01), lattice)
    of.reconstruct(*of.quantize(torch.zeros(9), AT), AT)
    assert all_on_the_cpu()


def test_sums() -> None:
    code = MaskedSumCodec(cepam.Gaussian(0.18), 5, 7, 6000)
    masks = [(bytes(32), 1)]
    code.open([code.mask(code.noised(torch.zeros(5), bytes(32)), masks)], masks, device="cpu")
    assert all_on_the_cpu()


def test_a_launch_outside_is_seen() -> None:
    masks_on_gpu._mask(torch.zeros(5, dtype=torch.int32), *(np.ones(n, dtype=np.uint32) for n in (8, 1)))
    assert not all_on_the_cpu()

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported: other tests need its interpreter

from typing import Any

import numpy as np
import pytest

import cepam
from cepam.kernels import dispatch
from tests.corpus import AT


class OnGpu:
    """What a tensor on a GPU says about itself."""

    is_cuda, device = True, "cuda:1"


def test_the_device_is_where_the_update_lies() -> None:
    assert dispatch.device_of(np.zeros(3), "numpy", 2) == dispatch.Cpu("numpy", 2)
    assert dispatch.device_of([np.zeros(3)], "auto", None) == dispatch.Cpu("auto", None)
    assert dispatch.device_of(OnGpu(), "auto", 1) == dispatch.Gpu("cuda:1", dispatch.Cpu("auto", 1))
    assert dispatch.device_named(None, "auto", 1) == dispatch.Cpu("auto", 1)
    assert dispatch.shared_gpu([OnGpu(), OnGpu()]) == "cuda:1"
    assert dispatch.shared_gpu([OnGpu(), np.zeros(3)]) is None
    assert dispatch.shared_gpu([np.zeros(3)]) is None


def test_a_row_that_its_coder_refuses_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a GPU that are coded on the CPU together: the paper's coder may refuse one for its norm."""

    def encode(name: str, threads: int | None, task: Any, row: Any) -> list[bytes]:
        if row[0] == 2.0:
            raise ValueError("exceeds the bound")
        return [row.tobytes()]

    monkeypatch.setattr(dispatch, "encode_spans", encode)
    rows: Any = np.array([[1.0], [2.0], [3.0]])
    found = dispatch.Cpu("numpy", None).measure([None] * 3, rows).encode([0, 1, 2])  # type: ignore[list-item]
    assert (found[0], found[2]) == ([rows[0].tobytes()], [rows[2].tobytes()])
    assert isinstance(found[1], ValueError)


def test_a_device_that_is_no_gpu_is_refused_before_the_address_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cepam.kernels.triton.backend", reason="the GPU path needs Triton")
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    codec, used = cepam.Codec(cepam.Gaussian(0.01), cepam.Integer(1), backend="numpy"), cepam.UsedAddresses()
    message = codec.encode(np.zeros(9, dtype=np.float32), AT)
    with pytest.raises(ValueError, match="must name a GPU"):
        codec.decode(message, AT, used, device="cpu")
    assert AT not in used

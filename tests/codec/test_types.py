"""Types of updates and of decoded vectors: half precision in, exactly widened, and `out_dtype`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cepam
from tests.corpus import AT, make_codec, sparse_update

CODEC = make_codec("gaussian", "Z1")


def test_half_precision_is_its_float32() -> None:
    half = sparse_update(50, np.float32).astype(np.float16)
    assert CODEC.encode(half, AT) == CODEC.encode(half.astype(np.float32), AT)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_tensors_of_half_precision(name: str) -> None:
    torch = pytest.importorskip("torch")
    half = torch.from_numpy(sparse_update(50, np.float32)).to(getattr(torch, name))
    assert CODEC.encode(half, AT) == CODEC.encode(half.float().numpy(), AT)


def test_what_is_no_float_is_refused() -> None:
    with pytest.raises(ValueError, match="float16, bfloat16, float32 or float64"):
        CODEC.encode(np.zeros(3, dtype=np.int64), AT)


@pytest.mark.parametrize("wanted", ["float64", np.float64, np.dtype("float64")])
def test_float64_is_the_grid_itself(wanted: Any) -> None:
    """A float32 message decoded to float64 is not rounded: every value is a multiple of the public grid."""
    message = CODEC.encode(sparse_update(50, np.float32), AT)
    vector = CODEC.decode(message, AT, out_dtype=wanted)
    assert vector.dtype == np.float64
    assert (vector % CODEC.grid == 0).all()
    assert (vector.astype(np.float32) == CODEC.decode(message, AT)).all()


def test_float16_is_rounded_from_float32() -> None:
    messages = [CODEC.encode(sparse_update(50, np.float32), AT)]
    vector = cepam.decode_many(CODEC, messages, [AT], out_dtype="float16")[0]
    assert vector.dtype == np.float16
    assert (vector == CODEC.decode(messages[0], AT).astype(np.float16)).all()


@pytest.mark.parametrize("wanted", ["int8", "bfloat16", np.int32])
def test_other_types_are_refused_before_anything_is_opened(wanted: Any) -> None:
    used = cepam.UsedAddresses()
    with pytest.raises(ValueError, match="out_dtype must be"):
        CODEC.decode(CODEC.encode(np.zeros(3), AT), AT, used, out_dtype=wanted)
    assert AT not in used

"""What may be encoded and what comes back: the interface of a codec, types of vectors, devices."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cepam.codec.sealing import Room
from cepam.keys import Address


class UpdateCodec(Protocol):
    """Turns an update into the message of an address, and the message back into a vector."""

    def encode(self, update: Any, at: Address) -> bytes: ...

    def decode(self, message: bytes, at: Address) -> Any: ...


Vector = npt.NDArray[Any]
ANY_SHAPE = "cepam.encode_tree(codec, update, at) takes any shape, and dicts and lists of arrays"
"""The way out for whoever has more than a vector."""


def check_update(update: Any) -> Vector:
    """The update as a contiguous float32 or float64 array; half precision is widened, which is exact."""
    if isinstance(update, Mapping) or (isinstance(update, list | tuple) and any(hasattr(x, "dtype") for x in update)):
        raise ValueError(f"the update must be one array, got {type(update).__name__}: {ANY_SHAPE}")
    if not isinstance(update, np.ndarray) and str(getattr(update, "dtype", "")) == "torch.bfloat16":
        update = update.float()
    try:
        values = np.asarray(update)
    except (TypeError, ValueError, RuntimeError) as refused:
        raise ValueError(f"the update must be an array of floats on the CPU: {refused}") from refused
    if values.dtype not in (np.float32, np.float64):
        if values.dtype != np.float16 and values.dtype.name != "bfloat16":
            raise ValueError(f"the update must be float16, bfloat16, float32 or float64, got {values.dtype}")
        values = values.astype(np.float32)
    if values.ndim != 1:
        raise ValueError(f"the update must have one dimension, got shape {values.shape}: {ANY_SHAPE}")
    return np.ascontiguousarray(values)


def to_host(update: Any) -> Vector:
    """A tensor as an array of the host."""
    return np.asarray(update.cpu().numpy())


def name_of_dtype(out_dtype: Any, device: str | None) -> str | None:
    """The name of a type that decoded vectors may have, from a name, a NumPy dtype or a PyTorch one."""
    if out_dtype is None:
        return None
    name = getattr(out_dtype, "__name__", str(out_dtype)).removeprefix("torch.")
    if name not in ("float64", "float32", "float16", "bfloat16") or (name == "bfloat16" and device is None):
        raise ValueError(f"out_dtype must be float64, float32 or float16, or bfloat16 with device=…, got {out_dtype!r}")
    return name


@cache
def note_cpu(what: str) -> None:
    """Nothing; warns once that something is coded on the CPU though its vectors are on a GPU."""
    warnings.warn(f"{what} has no GPU form: coded on the CPU and moved between the two", stacklevel=3)


def room_on(device: str | None) -> Room | None:
    """Where a message that goes on to a GPU is opened: in memory that the GPU reads itself."""
    if device is None:
        return None
    from cepam.kernels.triton import backend as triton_backend

    room: Room = triton_backend.pinned
    return room


def gpu_of(update: Any) -> Any:
    """The backend of a tensor that lies on a GPU, else nothing: PyTorch and Triton are imported only then."""
    if not getattr(update, "is_cuda", False):
        return None
    from cepam.kernels.triton import backend as triton_backend

    return triton_backend


def picked(rows: Any, places: Sequence[int]) -> Any:
    """The rows of these places, which ascend; all of them as they are: a GPU would be sent their numbers."""
    return rows if len(places) == len(rows) else rows[places]

"""What may be encoded and what comes back: the interface of a codec, types of vectors."""

from __future__ import annotations

from typing import Any, Protocol

import numpy.typing as npt

from cepam.keys import Address


class UpdateCodec(Protocol):
    """Turns an update into the message of an address, and the message back into a vector."""

    def encode(self, update: Any, at: Address) -> bytes: ...

    def decode(self, message: bytes, at: Address) -> Any: ...


Vector = npt.NDArray[Any]


def name_of_dtype(out_dtype: Any, device: str | None) -> str | None:
    """The name of a type that decoded vectors may have, from a name, a NumPy dtype or a PyTorch one."""
    if out_dtype is None:
        return None
    name = getattr(out_dtype, "__name__", str(out_dtype)).removeprefix("torch.")
    if name not in ("float64", "float32", "float16", "bfloat16") or (name == "bfloat16" and device is None):
        raise ValueError(f"out_dtype must be float64, float32 or float16, or bfloat16 with device=…, got {out_dtype!r}")
    return name

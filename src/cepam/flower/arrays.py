"""Array records as one vector: which arrays travel, in which order, and back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord

Vector = npt.NDArray[np.float32]
Arrays = Mapping[str, Array]
STYPE = "cepam.v1"


def travelling(arrays: Arrays) -> list[str]:
    """The names of the floating-point arrays, in the record's order: the others stay as the server sent them."""
    names = [name for name, array in arrays.items() if np.issubdtype(np.dtype(array.dtype), np.floating)]
    if not names:
        raise ValueError("the server's arrays hold no floating-point array: nothing to send")
    return names


def count(arrays: Arrays) -> int:
    """How many coordinates travel."""
    return sum(int(np.prod(arrays[name].shape)) for name in travelling(arrays))


def dense_bytes(arrays: Arrays) -> int:
    """What the coordinates that travel would take as float32."""
    return 4 * count(arrays)


def to_vector(reply: Arrays, reference: Arrays, difference: bool) -> Vector:
    """The reply as one float32 vector, less the reference if `difference`; names and shapes must match."""
    if set(reply) != set(reference):
        odd = sorted(set(reply) ^ set(reference))
        raise ValueError(f"the reply's arrays are not the server's: {', '.join(odd[:3])} on one side only")
    parts = []
    for name in travelling(reference):
        if tuple(reply[name].shape) != tuple(reference[name].shape):
            raise ValueError(f"array {name!r} has shape {reply[name].shape}, the server's {reference[name].shape}")
        value = reply[name].numpy().astype(np.float64, copy=False).ravel()
        if difference:
            value = value - reference[name].numpy().astype(np.float64, copy=False).ravel()
        parts.append(value.astype(np.float32))
    return np.concatenate(parts)


def from_vector(vector: npt.NDArray[np.floating], reference: Arrays, step: float | None) -> ArrayRecord:
    """The reference plus `step` times the vector, or the vector itself if `step` is None; other arrays unchanged."""
    made, at = {}, 0
    names = set(travelling(reference))
    for name, array in reference.items():
        if name not in names:
            made[name] = array
            continue
        size = int(np.prod(array.shape))
        piece = vector[at : at + size].reshape(tuple(array.shape))
        at += size
        value = piece if step is None else array.numpy() + step * piece
        made[name] = Array(np.asarray(value, dtype=np.dtype(array.dtype)))
    return ArrayRecord(made)


def carry(message: bytes) -> ArrayRecord:
    """The record that carries a message: no header of ours or NumPy's, sent in chunks by Flower."""
    return ArrayRecord({"update": Array("uint8", (len(message),), STYPE, message)})


def carried(record: ArrayRecord) -> bytes:
    """The message in such a record; ValueError if it is something else."""
    if list(record) != ["update"] or record["update"].stype != STYPE:
        raise ValueError("the reply carries plain arrays, not a sealed message")
    return bytes(record["update"].data)

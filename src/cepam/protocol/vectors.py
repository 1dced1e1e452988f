"""A model's named arrays as one vector: which arrays travel, in which order, and back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]
Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]

# Counters of batch normalisation come back as floats once they were averaged: their name tells them.
COUNTERS = ("num_batches_tracked",)
# Variances: noise can bring them below zero, where a model computes NaN.
POSITIVE = ("running_var", "moving_variance")
STATISTICS = (*POSITIVE, "running_mean", "moving_mean")
SMALLEST_PART = 0.1
SMALLEST_VARIANCE = 1e-5
BATCH_NORM = (
    "the model has statistics of batch normalisation: they travel as part of the update, take their share of the clip, "
    "and get noise, which harms; group normalisation (torch.nn.GroupNorm) has none"
)


def travels(name: str, array: Array) -> bool:
    """Whether an array of this name is part of the update: floating-point arrays are, counters never."""
    return np.issubdtype(array.dtype, np.floating) and not name.endswith(COUNTERS)


def travelling(reference: Arrays) -> list[str]:
    """The names of the arrays that travel, in the server's order: the others stay as the server sent them."""
    names = [name for name, array in reference.items() if travels(name, array)]
    if not names:
        raise ValueError("the server's arrays hold no floating-point array: nothing to send")
    return names


def count(reference: Arrays) -> int:
    """How many coordinates travel."""
    return sum(int(reference[name].size) for name in travelling(reference))


def to_vector(reply: Arrays, reference: Arrays, difference: bool) -> Vector:
    """The reply as one float32 vector, less the reference if `difference`; names and shapes must match."""
    if set(reply) != set(reference):
        odd = sorted(set(reply) ^ set(reference))
        raise ValueError(f"the reply's arrays are not the server's: {', '.join(odd[:3])} on one side only")
    parts = []
    for name in travelling(reference):
        value = np.asarray(reply[name])
        if value.shape != reference[name].shape:
            raise ValueError(f"array {name!r} has shape {value.shape}, the server's {reference[name].shape}")
        made = value.astype(np.float64).ravel()
        if difference:
            made -= reference[name].astype(np.float64).ravel()
        with np.errstate(over="ignore", invalid="ignore"):
            parts.append(made.astype(np.float32))
    return np.concatenate(parts)


def from_vector(vector: npt.NDArray[np.floating], reference: Arrays, step: float | None) -> dict[str, Array]:
    """The reference plus `step` times the vector, or the vector itself if `step` is None; other arrays unchanged."""
    made: dict[str, Array] = {}
    at, names = 0, set(travelling(reference))
    for name, array in reference.items():
        if name not in names:
            made[name] = array
            continue
        piece = vector[at : at + array.size].reshape(array.shape)
        at += array.size
        value = piece if step is None else array + step * piece
        made[name] = np.asarray(value, dtype=array.dtype)
    return made


@dataclass(frozen=True)
class Layout:
    """The types that a model's arrays had when they were first sent: an average has floats where integers were."""

    dtypes: tuple[tuple[str, np.dtype[np.generic]], ...]

    @classmethod
    def of(cls, arrays: Arrays) -> Layout:
        """The layout of these arrays."""
        return cls(tuple((name, array.dtype) for name, array in arrays.items()))

    def restored(self, arrays: Arrays) -> dict[str, Array]:
        """The arrays with those that were integers as integers again; arrays of other names as they are."""
        known, made = dict(self.dtypes), dict(arrays)
        for name, array in arrays.items():
            then = known.get(name, array.dtype)
            if array.dtype != then and not np.issubdtype(then, np.floating):
                made[name] = np.asarray(np.rint(array), dtype=then)
        return made


def kept_positive(arrays: Arrays, reference: Arrays) -> dict[str, Array]:
    """The arrays, their variances at least a tenth of the reference's and at least 1e-5.

    This only looks at what is published, so it costs no privacy. Guarantee: tests/protocol/test_vectors.py.
    """
    made = dict(arrays)
    for name, array in arrays.items():
        if name.endswith(POSITIVE) and name in reference and np.issubdtype(array.dtype, np.floating):
            least = np.maximum(SMALLEST_PART * reference[name].astype(np.float64), SMALLEST_VARIANCE)
            made[name] = np.asarray(np.maximum(array, least.reshape(array.shape)), dtype=array.dtype)
    return made


def is_batch_statistic(name: str) -> bool:
    """Whether an array of this name is a running mean or variance of batch normalisation."""
    return name.endswith(STATISTICS)


def has_batch_statistics(arrays: Arrays) -> bool:
    """Whether some array looks like a statistic of batch normalisation."""
    return any(name.endswith((*COUNTERS, *POSITIVE)) for name in arrays)


def digest(arrays: Arrays) -> str:
    """A hash of the values that travel, whatever their names, their order and their number format."""
    values = (np.ascontiguousarray(arrays[name], dtype="<f4").tobytes() for name in travelling(arrays))
    each = sorted(hashlib.sha256(value).digest() for value in values)
    return hashlib.sha256(b"cepam model v1" + b"".join(each)).hexdigest()[:32]

"""Where a run's vectors live: on the host as NumPy arrays, or on a GPU as tensors (`cepam.fl.gpu_arrays`).

The simulator moves rows of vectors about and asks their backend for the few things that depend on it. Bytes are on the
host everywhere: they are the uplink.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cepam.clip import Clip
from cepam.codec.vectors import UpdateCodec
from cepam.errors import CepamError
from cepam.kernels.threads import cores
from cepam.keys import Address

Floats = npt.NDArray[np.float32]
Posted = tuple[Any, bytes | str]


class ArrayBackend(Protocol):
    """The operations of a round on vectors; rows and vectors are arrays or tensors of this backend."""

    def expect(self, codec: UpdateCodec, clients: int, size: int) -> None:
        """Prepare for rounds that encode and decode so many updates of this size, most with codecs that differ
        from this one in their noise only."""

    def put(self, array: npt.NDArray[Any]) -> Any:
        """The array, here."""

    def fetch(self, rows: Any) -> Floats:
        """Rows of this backend as a NumPy array."""

    def stack(self, vectors: Sequence[Any]) -> Any:
        """Vectors as rows."""

    def encode(
        self, raw: Any, clips: Sequence[Clip | None], cuts: list[int] | None, codecs: Sequence[UpdateCodec],
        addresses: Sequence[Address],
    ) -> list[Posted]:  # fmt: skip
        """For each row its clipped update with the message, or None with why there is none.

        A row that is not finite, or that the codec refuses, is sent as zeros with their noise: nobody falls silent for
        a reason that depends on data.
        """

    def decode(
        self, codecs: Sequence[UpdateCodec], messages: Sequence[bytes], addresses: Sequence[Address], size: int
    ) -> list[Any]:
        """Each decoded vector, or in its place why there is none."""

    def mean(self, vectors: Sequence[Any], weights: Sequence[float], over: float | None = None) -> Any:
        """The weighted sum in float64, divided by the sum of the weights or `over` a number that is given."""

    def powers(self, updates: Sequence[Any], vectors: Sequence[Any]) -> tuple[float, float]:
        """The summed squares of the updates, and of what the vectors differ by."""

    def privacy_warnings(self, codecs: Sequence[UpdateCodec]) -> list[str]:
        """What must be said about how this backend serves these codecs, in one line each."""


class Host:
    """NumPy arrays; a thread a core encodes and decodes."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(cores())

    def expect(self, codec: UpdateCodec, clients: int, size: int) -> None:
        """Do nothing: kernels are compiled when the first update comes."""

    def put(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return array.copy()

    def fetch(self, rows: Floats) -> Floats:
        return rows

    def stack(self, vectors: Sequence[Floats]) -> Floats:
        return np.stack(vectors)

    def encode(
        self, raw: Floats, clips: Sequence[Clip | None], cuts: list[int] | None, codecs: Sequence[UpdateCodec],
        addresses: Sequence[Address],
    ) -> list[Posted]:  # fmt: skip
        return list(self.pool.map(lambda *row: _posted(cuts, *row), raw, clips, codecs, addresses))

    def decode(
        self, codecs: Sequence[UpdateCodec], messages: Sequence[bytes], addresses: Sequence[Address], size: int
    ) -> list[Floats | str]:
        return list(self.pool.map(lambda *row: _opened(size, *row), codecs, messages, addresses))

    def mean(self, vectors: Sequence[Floats], weights: Sequence[float], over: float | None = None) -> Floats:
        total = np.zeros(len(vectors[0]), dtype=np.float64)
        for vector, weight in zip(vectors, weights):
            total += weight * vector.astype(np.float64)
        return (total / (sum(weights) if over is None else over)).astype(np.float32)

    def powers(self, updates: Sequence[Floats], vectors: Sequence[Floats]) -> tuple[float, float]:
        made = list(self.pool.map(_powers, updates, vectors))
        return sum(signal for signal, _ in made), sum(noise for _, noise in made)

    def privacy_warnings(self, codecs: Sequence[UpdateCodec]) -> list[str]:
        return []


def _posted(cuts: list[int] | None, raw: Floats, clip: Clip | None, codec: UpdateCodec, at: Address) -> Posted:
    zeros = np.zeros_like(raw)
    sound = clip.apply_or_zero(raw, cuts) if clip is not None else raw if np.isfinite(raw).all() else zeros
    for update in (sound, zeros):
        try:
            return update, codec.encode(update, at)
        except ValueError as problem:
            reason = unable(problem)
    return None, reason


def _powers(update: Floats, vector: Floats) -> tuple[float, float]:
    """Sums without BLAS: its threads would spin on beside those that encode, longer than the sum takes."""
    noise = np.subtract(vector, update, dtype=np.float64)
    signal = update.astype(np.float64)
    return float(np.einsum("i,i", signal, signal)), float(np.einsum("i,i", noise, noise))


def _opened(size: int, codec: UpdateCodec, message: bytes, at: Address) -> Floats | str:
    try:
        vector = np.asarray(codec.decode(message, at), dtype=np.float32)
    except CepamError as problem:
        return broken(problem)
    return vector if vector.shape == (size,) and np.isfinite(vector).all() else unfit(size)


def unable(problem: Exception) -> str:
    """Why a client sent nothing: a codec that cannot even encode zeros."""
    return f"the client could not encode: {problem}"


def broken(problem: Exception) -> str:
    """Why a message gave no vector: the kind of problem alone, since its text may depend on the message."""
    return f"{type(problem).__name__}: {(type(problem).__doc__ or '').partition(chr(10))[0]}"


def unfit(size: int) -> str:
    """Why a vector is no update."""
    return f"not a vector of {size} finite weights"


def backend_of(device: str, idle: Callable[[], None] | None = None) -> ArrayBackend:
    """The array backend of a run on this device, one of cpu, cpu-torch and cuda; `idle` is done where it waits."""
    if device != "cuda":
        return Host()
    from cepam.fl.gpu_arrays import Tensors

    return Tensors("cuda", idle)

"""Where a run's vectors live: on the host as NumPy arrays, or on a GPU as tensors (`cepam.fl.arrays`).

The simulator moves rows of vectors about and asks their backend for the few things that depend on it. Bytes are on the
host everywhere: they are the uplink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cepam.clip import Clip, clip_rows
from cepam.codec.batch import decode_each, encode_each, expect_updates, why_not_on_gpu
from cepam.codec.codec import UpdateCodec
from cepam.errors import CepamError
from cepam.kernels.dispatch import cores, picked
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
    from cepam.fl.arrays import Tensors

    return Tensors("cuda", idle)


# A run's vectors on a GPU: clipped, encoded, decoded and averaged there, all clients of a round at a time.
#
# Clients with equal codecs share one launch of each stage. What has no GPU form is coded on the CPU from the same
# clipped update, and the run says so.


AT_ONCE = 64


class Tensors:
    """Tensors on one device, by default a GPU. While that codes, `idle` is done."""

    def __init__(self, device: str = "cuda", idle: Callable[[], None] | None = None) -> None:
        self.device, self.idle = device, idle
        self.host = Host()

    def expect(self, codec: UpdateCodec, clients: int, size: int) -> None:
        if not _triton_is_missing():
            here = torch.empty(0, device=self.device).device  # a thread beside has a current GPU of its own
            expect_updates(codec, clients, size, str(here))

    def put(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.array(array)).to(self.device)

    def fetch(self, rows: Tensor) -> Floats:
        return np.asarray(rows.cpu().numpy())

    def stack(self, vectors: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(vectors))

    def encode(
        self, raw: Tensor, clips: Sequence[Clip | None], cuts: list[int] | None, codecs: Sequence[UpdateCodec],
        addresses: Sequence[Address],
    ) -> list[Posted]:  # fmt: skip
        updates = _clipped(raw, clips, cuts)
        made: list[Posted] = [(None, "")] * len(raw)
        for codec, places in _shared(codecs, range(len(raw))):
            if codec is None:
                rows, none = self.fetch(picked(updates, places)), [None] * len(places)
                posted = self.host.encode(rows, none, None, _at(places, codecs), _at(places, addresses))
                found = [(None if update is None else self.put(update), message) for update, message in posted]
            else:
                found = self._encoded(codec, picked(updates, places), _at(places, addresses))
            for i, each in zip(places, found):
                made[i] = each
        return made

    def _encoded(self, codec: Any, updates: Tensor, addresses: list[Address]) -> list[Posted]:
        """Each update with its message; zeros where the codec refuses the update, None where it refuses zeros too."""
        found = encode_each(codec, updates, addresses, meanwhile=self.idle)
        refused = [i for i, message in enumerate(found) if isinstance(message, Exception)]
        made: list[Any] = list(zip(updates, found))
        if refused:
            zeros = torch.zeros_like(updates[refused])
            again = encode_each(codec, zeros, _at(refused, addresses))
            for i, zero, message in zip(refused, zeros, again):
                made[i] = (None, unable(message)) if isinstance(message, Exception) else (zero, message)
        return made

    def decode(
        self, codecs: Sequence[UpdateCodec], messages: Sequence[bytes], addresses: Sequence[Address], size: int
    ) -> list[Tensor | str]:
        found: list[Any] = [None] * len(messages)
        for codec, places in _shared(codecs, range(len(messages))):
            theirs, ats = _at(places, messages), _at(places, addresses)
            if codec is None:
                opened = self.host.decode(_at(places, codecs), theirs, ats, size)
                rows: list[Any] = [each if isinstance(each, str) else self.put(each) for each in opened]
            else:
                rows = decode_each(codec, theirs, ats, size=size, device=self.device)
            for i, row in zip(places, _finite(rows, size)):
                found[i] = row
        return found

    def mean(self, vectors: Sequence[Tensor], weights: Sequence[float], over: float | None = None) -> Tensor:
        total = torch.zeros(len(vectors[0]), dtype=torch.float64, device=self.device)
        whole = sum(weights) if over is None else over
        shares = torch.tensor(weights, dtype=torch.float64, device=self.device) / whole
        for cut in _cuts(len(vectors)):
            total += shares[cut] @ torch.stack(list(vectors[cut])).double()
        return total.float()

    def powers(self, updates: Sequence[Tensor], vectors: Sequence[Tensor]) -> tuple[float, float]:
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        for cut in _cuts(len(updates)):
            sent, came = torch.stack(list(updates[cut])).double(), torch.stack(list(vectors[cut])).double()
            sums += torch.stack([sent.square().sum(), (came - sent).square().sum()])
        signal, noise = sums.tolist()
        return signal, noise

    def privacy_warnings(self, codecs: Sequence[UpdateCodec]) -> list[str]:
        reasons = {reason for reason in map(_cpu_reason, codecs) if reason is not None}
        return [
            f"device cuda: {reason}, so its updates are encoded and decoded on the CPU" for reason in sorted(reasons)
        ]


def _clipped(raw: Tensor, clips: Sequence[Clip | None], cuts: list[int] | None) -> Tensor:
    """Each row within its clip; zeros where a row is not finite."""
    held = [clip for clip in clips if clip is not None]
    if len(held) == len(clips):
        return clip_rows(raw, held, cuts)[0]
    if held:
        raise ValueError("either all clients of a round clip, or none")
    return torch.where(torch.isfinite(raw).all(dim=1)[:, None], raw, torch.zeros_like(raw))


@cache
def _triton_is_missing() -> bool:
    return find_spec("triton") is None


def _cpu_reason(codec: UpdateCodec) -> str | None:
    return why_not_on_gpu(codec) or ("Triton is not installed" if _triton_is_missing() else None)


def _shared(codecs: Sequence[UpdateCodec], places: Sequence[int]) -> Iterator[tuple[Any, list[int]]]:
    """(codec, places of the clients that share it) for what a GPU codes, and (None, places) for the rest."""
    same: dict[int, list[int]] = {}
    for i in places:
        same.setdefault(id(codecs[i]), []).append(i)
    groups: dict[Any, list[int]] = {}
    for mine in same.values():
        codec = codecs[mine[0]]
        groups.setdefault(None if _cpu_reason(codec) else codec, []).extend(mine)
    for codec, mine in groups.items():
        yield codec, sorted(mine)


def _finite(rows: list[Any], size: int) -> list[Any]:
    """Each vector, or why it is none or no update."""
    whole = [row for row in rows if isinstance(row, Tensor)]
    fit = iter(torch.isfinite(torch.stack(whole)).all(dim=1).tolist() if whole else [])
    said = [broken(row) if isinstance(row, Exception) else row for row in rows]
    return [unfit(size) if isinstance(row, Tensor) and not next(fit) else row for row in said]


def _at(places: Sequence[int], items: Sequence[Any]) -> list[Any]:
    return [items[i] for i in places]


def _cuts(count: int) -> list[slice]:
    return [slice(at, at + AT_ONCE) for at in range(0, count, AT_ONCE)]

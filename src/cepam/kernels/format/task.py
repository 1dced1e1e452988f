"""What a backend is asked to do: one quantizer, one code, one keystream."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from cepam.kernels.format.plan import Plan
from cepam.lattices.lattice import Search

Coder = Literal["adaptive", "search", "paper"]
MODEL_TABLES = ("scalar.npz", "vector.npz")
LARGEST_ON_GPU = 8
Values = npt.NDArray[Any]


@dataclass(frozen=True)
class CodingTask:
    """A plan, the code for its symbols, and the key of the keystream."""

    plan: Plan
    coder: Coder
    key: bytes = field(repr=False)
    per_block: int
    bound: int = 0
    acceptance: float = 1.0

    @property
    def cpu_only(self) -> str | None:
        """What keeps this task off a GPU, or None."""
        return cpu_only(self.coder, self.plan.search, self.plan.n)


def cpu_only(coder: Coder, search: Search, n: int) -> str | None:
    """What has no kernels on a GPU about this coder on a lattice, or None where it has them."""
    if coder != "adaptive":
        return "the paper's coder" if coder == "paper" else "encoding with the search coder"
    if search is Search.GENERAL:
        return "a lattice from a generator of one's own"
    return f"a lattice in {n} dimensions" if n > LARGEST_ON_GPU else None


@cache
def model_fingerprint() -> bytes:
    """32 bytes that change with the shipped tables of the adaptive coder."""
    digest = hashlib.sha256(b"cepam models v1")
    folder = resources.files("cepam.kernels.format") / "tables"
    for name in MODEL_TABLES:
        with (folder / name).open("rb") as file, np.load(file) as archive:
            for field_name in sorted(archive.files):
                digest.update(np.ascontiguousarray(archive[field_name]).astype("<i8").tobytes())
    return digest.digest()


class Backend(Protocol):
    """A loop over blocks. Every backend gives the same bytes and the same vectors."""

    span_blocks: int

    def encode_span(self, task: CodingTask, values: Values, first: int) -> list[bytes]:
        """The blocks of consecutive values, the first of which belongs to sub-vector number `first`."""

    def decode_span(self, task: CodingTask, blocks: list[bytes], first: int, out: Values) -> None:
        """Fills out with the decoded values of consecutive blocks."""


def rows_of(values: Values, n: int) -> int:
    """The number of sub-vectors that the values fill, the last one padded with zeros."""
    return -(-len(values) // n)


def block_slices(count: int, n: int, per_block: int) -> list[slice]:
    """Where the blocks of `count` values begin and end."""
    step = n * per_block
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def padded_rows(units: npt.NDArray[np.int64], n: int) -> npt.NDArray[np.int64]:
    """Units as rows of n, zeros at the end."""
    rows = np.zeros(rows_of(units, n) * n, dtype=np.int64)
    rows[: len(units)] = units
    return rows.reshape(-1, n)

"""The Numba backend: compiled kernels behind the interface of `plan.Backend`; they release the interpreter's lock.

Run as a module it compiles what codes the task on its standard input, so that the first message of a fresh machine need
not wait for the compiler (`kernels/dispatch.py` starts it).
"""

from __future__ import annotations

import importlib
import pickle
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cepam._internal.files import locked_file
from cepam.errors import MalformedMessage
from cepam.kernels.format import vector_contexts as contexts
from cepam.kernels.format.golomb import golomb_parameter
from cepam.kernels.format.plan import GRID_BITS, CodingTask, Ints, Plan, Values, block_slices, key_words, rows_of
from cepam.kernels.format.row_period import SHARED_BLOCKS
from cepam.kernels.format.scalar_contexts import BYTES_A_COORDINATE, load_tables
from cepam.kernels.numba.compiling import STAMP, Scratch, aligned, kernel_plan, layer_plan, scratch_for
from cepam.kernels.numba.paper_coder import WIDEST_ROW_BYTES, decode_paper, encode_paper
from cepam.kernels.numba.quantizer import (
    quantize_rows,
    quantize_scalar,
    reconstruct_rows,
    reconstruct_scalar,
    to_units,
    widths_and_dithers,
)
from cepam.kernels.numba.row_period import find_period
from cepam.kernels.numba.scalar_coder import Margins, decode_block, encode_block, margins_for, measure_scale
from cepam.kernels.numba.vector_coder import ROW_BYTES, code_eights, code_rows
from cepam.lattices.lattice import Search

_HALF = 1 << (GRID_BITS - 1)


def is_compiling() -> bool:
    """Whether some kernel was not found in the cache on disk and has no machine code yet."""
    kernels = (encode_block, decode_block, code_rows, code_eights, encode_paper, decode_paper, quantize_rows)
    return any(kernel.stats.cache_misses and not kernel.signatures for kernel in kernels)


class NumbaBackend:
    """Fast on one core; spans run side by side in threads."""

    span_blocks = SHARED_BLOCKS

    def encode_span(self, task: CodingTask, values: Values, first: int) -> list[bytes]:
        if task.coder == "search":
            return _search_coder().encode_span(task, values, first)
        if task.plan.n == 1 and task.coder == "adaptive":
            return _encode_scalars(task, values, first)
        n, blocks = task.plan.n, []
        encode = _encode_paper if task.coder == "paper" else _encode_rows
        for part in block_slices(len(values), n, task.per_block):
            count, rows = part.stop - part.start, rows_of(values[part], n)
            x = _row_block(task, rows).x[:rows]
            to_units(values[part], 1.0 / task.plan.unit, x.reshape(-1))
            x.reshape(-1)[count:] = 0
            blocks.append(encode(task, x, first + part.start // n))
        return blocks

    def decode_span(self, task: CodingTask, blocks: list[bytes], first: int, out: Values) -> None:
        if task.coder == "search":
            _search_coder().decode_span(task, blocks, first, out)
            return
        if task.plan.n == 1 and task.coder == "adaptive":
            _decode_scalars(task, blocks, first, out)
            return
        n = task.plan.n
        for block, part in zip(blocks, block_slices(len(out), n, task.per_block)):
            decode = _decode_paper if task.coder == "paper" else _decode_rows
            units = decode(task, block, first + part.start // n, rows_of(out[part], n))
            grid = ((units + _HALF) >> GRID_BITS).astype(np.float64) * task.plan.grid
            out[part] = grid.reshape(-1)[: part.stop - part.start]


def _search_coder() -> ModuleType:
    """The kernels of the search coder, imported where they are first used: most runs have none of them."""
    return importlib.import_module("cepam.kernels.numba.search_coder")


class _Block(NamedTuple):
    """Working memory for one block of coordinates."""

    state: npt.NDArray[np.uint32]
    words: npt.NDArray[np.uint32]
    x: Ints
    b: Ints
    d: Ints
    m: Ints
    margins: Margins
    out: npt.NDArray[np.uint8]


_kept = threading.local()


def _block(count: int) -> _Block:
    """Working memory for at least `count` coordinates, this thread's own: new memory costs a fault a page."""
    kept: _Block | None = getattr(_kept, "block", None)
    if kept is None or len(kept.x) < count:
        state, words = aligned(256, np.uint32), aligned(-(-count // 128) * 256, np.uint32)
        x, b, d, m = (aligned(count, np.int64) for _ in range(4))
        out = np.empty(count * BYTES_A_COORDINATE + 16, dtype=np.uint8)
        kept = _kept.block = _Block(state, words, x, b, d, m, margins_for(count), out)
    return kept


class _RowBlock(NamedTuple):
    """Working memory for one block of sub-vectors."""

    plan: Plan
    scratch: Scratch
    x: Ints
    out: npt.NDArray[np.uint8]


def _row_block(task: CodingTask, rows: int) -> _RowBlock:
    """Working memory for at least so many sub-vectors of the task's plan, this thread's own."""
    kept: _RowBlock | None = getattr(_kept, "rows", None)
    if kept is None or kept.plan is not task.plan or len(kept.x) < rows:
        x, out = aligned((rows, task.plan.n), np.int64), aligned(rows * ROW_BYTES + 16, np.uint8)
        kept = _kept.rows = _RowBlock(task.plan, scratch_for(task.plan, contexts.CONTEXTS), x, out)
    return kept


def _encode_scalars(task: CodingTask, values: Values, first: int) -> list[bytes]:
    layers, key, (prior, means) = layer_plan(task.plan), key_words(task.key), load_tables()
    work = _block(min(len(values), task.per_block))
    blocks: list[bytes] = []
    period = 0
    for part in block_slices(len(values), 1, task.per_block):
        count = part.stop - part.start
        x, b, d, m = work.x[:count], work.b[:count], work.d[:count], work.m[:count]
        to_units(values[part], 1.0 / task.plan.unit, x)
        if part.start == 0:
            period = find_period(x)
        widths_and_dithers(layers, key, work.state, first + part.start, count, work.words, b, d)
        quantize_scalar(x, b, d, m)
        length = encode_block(m, b, d, measure_scale(x), period, prior, means, work.margins, work.out)
        blocks.append(work.out[:length].tobytes())
    return blocks


def _decode_scalars(task: CodingTask, blocks: list[bytes], first: int, out: Values) -> None:
    layers, key, (prior, means) = layer_plan(task.plan), key_words(task.key), load_tables()
    work = _block(min(len(out), task.per_block))
    for block, part in zip(blocks, block_slices(len(out), 1, task.per_block)):
        count = part.stop - part.start
        b, d, m = work.b[:count], work.d[:count], work.m[:count]
        widths_and_dithers(layers, key, work.state, first + part.start, count, work.words, b, d)
        decode_block(np.frombuffer(bytearray(block), dtype=np.uint8), b, d, prior, means, work.margins, m)
        if not reconstruct_scalar(m, b, d, _HALF, GRID_BITS, task.plan.grid, out[part]):
            raise MalformedMessage("a lattice point lies outside the range of the format")


def _code_rows(task: CodingTask, scratch: Scratch, rows: Ints, first: int, decoding: bool, data: Any) -> int:
    """What `code_rows` returns. E8 has a kernel of its own: only what is used is compiled."""
    code = code_eights if task.plan.search is Search.GOSSET else code_rows
    tables = contexts.load_tables(int(task.plan.accept), task.plan.n)
    return int(code(kernel_plan(task.plan), scratch, key_words(task.key), rows, first, decoding, tables, data))


def _encode_rows(task: CodingTask, x: Ints, first: int) -> bytes:
    work = _row_block(task, len(x))
    length = _code_rows(task, work.scratch, x, first, False, work.out)
    if length < 0:
        raise RuntimeError("no trial was accepted: this has chance under 2^-90 and means a broken keystream")
    return work.out[:length].tobytes()


def _decode_rows(task: CodingTask, block: bytes, first: int, rows: int) -> Ints:
    units = np.empty((rows, task.plan.n), dtype=np.int64)
    data = np.frombuffer(block, dtype=np.uint8).copy()
    if _code_rows(task, _row_block(task, rows).scratch, units, first, True, data) < 0:
        raise MalformedMessage("a block decodes to nothing that this codec sends")
    return units


def quantize(plan: Plan, key: bytes, x: Ints, first: int = 0) -> tuple[Ints, Ints]:
    """(H, M) of sub-vectors first, first + 1, … (rows of x): trials counted from 1, lattice coordinates."""
    h, m = np.empty(len(x), dtype=np.int64), np.empty_like(x)
    if not quantize_rows(kernel_plan(plan), scratch_for(plan), key_words(key), x, first, h, m):
        raise RuntimeError("no trial was accepted: this has chance under 2^-90 and means a broken keystream")
    return h, m


def reconstruct(plan: Plan, key: bytes, h: Ints, m: Ints, first: int = 0) -> Ints:
    """The decoded sub-vectors B (M + V_H), in units; trials in h are at least 1."""
    units = np.empty((len(h), plan.n), dtype=np.int64)
    if not reconstruct_rows(kernel_plan(plan), scratch_for(plan), key_words(key), h, m, first, units):
        raise MalformedMessage("a lattice point lies outside the range of the format")
    return units


def _encode_paper(task: CodingTask, x: Ints, first: int) -> bytes:
    lowered, key = kernel_plan(task.plan), key_words(task.key)
    h, m = quantize(task.plan, task.key, x, first)
    run = golomb_parameter(task.acceptance)
    out = np.zeros(len(x) * WIDEST_ROW_BYTES + int(h.sum()) // 8, dtype=np.uint8)
    bits = encode_paper(lowered, scratch_for(task.plan), key, h, m, first, task.bound, run, out)
    if bits < 0:
        raise ValueError("the update exceeds the bound that the paper's coder was given")
    return out[: (bits + 7) // 8].tobytes()


def _decode_paper(task: CodingTask, block: bytes, first: int, rows: int) -> Ints:
    lowered, key = kernel_plan(task.plan), key_words(task.key)
    h, m = np.empty(rows, dtype=np.int64), np.empty((rows, task.plan.n), dtype=np.int64)
    data = np.frombuffer(block, dtype=np.uint8)
    run = golomb_parameter(task.acceptance)
    if not decode_paper(lowered, scratch_for(task.plan), key, data, first, task.bound, run, h, m):
        raise MalformedMessage("a block decodes to nothing that this codec sends")
    return reconstruct(task.plan, task.key, h, m, first)


def kind_of(task: CodingTask) -> str:
    """What tasks have in common that need the same kernels."""
    return f"{task.coder}_{int(task.plan.search)}_{min(task.plan.n, 2)}"


def mark_of(kind: str) -> Path:
    """The file beside Numba's own that says that the kernels of a kind are compiled."""
    return Path(encode_block.stats.cache_path) / f"compiled_{kind}_{STAMP}.nbi"


def compile_for(task: CodingTask) -> None:
    """Compile what encodes and decodes such tasks, from float32 and from float64, unless it lies on disk."""
    mark = mark_of(kind_of(task))
    mark.parent.mkdir(parents=True, exist_ok=True)
    with locked_file(mark.with_suffix(".lock")):  # of several processes one compiles and the others wait
        if mark.exists():
            return
        backend = NumbaBackend()
        # A loud update takes the layered quantizer, whose kernels the search coder needs too.
        levels = (0.0, task.plan.unit * task.plan.scale) if task.coder == "search" else (0.0,)
        for level in levels:
            for dtype in (np.float32, np.float64):
                values = np.full(2 * task.plan.n, level, dtype=dtype)
                backend.decode_span(task, backend.encode_span(task, values, 0), 0, values)
        mark.touch()
    with suppress(OSError):
        mark.with_suffix(".lock").unlink()


if __name__ == "__main__":
    compile_for(pickle.load(sys.stdin.buffer))

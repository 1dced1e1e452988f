"""The Numba backend: compiled kernels behind the interface of `job.Backend`; they release the interpreter's lock."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from cepam.errors import MalformedMessage
from cepam.kernels.chacha import key_words
from cepam.kernels.contexts import CONTEXTS
from cepam.kernels.job import Job, Values, block_slices, rows_of
from cepam.kernels.numbers import Numbers, numbers_of, scratch_for
from cepam.kernels.paper_code import golomb_parameter
from cepam.kernels.paper_compiled import WIDEST_ROW_BYTES, decode_paper, encode_paper
from cepam.kernels.scalar import to_units
from cepam.kernels.shells import ROW_BYTES, code_rows
from cepam.kernels.vector import quantize_rows, reconstruct_rows
from cepam.plan import GRID_BITS, Ints, Plan

_HALF = 1 << (GRID_BITS - 1)


@lru_cache(maxsize=64)
def _numbers(plan: Plan) -> Numbers:
    return numbers_of(plan)


class NumbaBackend:
    """Fast on one core; spans run side by side in threads."""

    span_blocks = 16

    def encode_span(self, job: Job, values: Values, first: int) -> list[bytes]:
        n, blocks = job.plan.n, []
        for part in block_slices(len(values), n, job.per_block):
            x = np.zeros((rows_of(values[part], n), n), dtype=np.int64)
            to_units(values[part], 1.0 / job.plan.unit, x.reshape(-1))
            encode = _encode_paper if job.coder == "paper" else _encode_rows
            blocks.append(encode(job, x, first + part.start // n))
        return blocks

    def decode_span(self, job: Job, blocks: list[bytes], first: int, out: Values) -> None:
        n = job.plan.n
        for block, part in zip(blocks, block_slices(len(out), n, job.per_block)):
            decode = _decode_paper if job.coder == "paper" else _decode_rows
            units = decode(job, block, first + part.start // n, rows_of(out[part], n))
            grid = ((units + _HALF) >> GRID_BITS).astype(np.float64) * job.plan.grid
            out[part] = grid.reshape(-1)[: part.stop - part.start]


def _encode_rows(job: Job, x: Ints, first: int) -> bytes:
    data = np.zeros(len(x) * ROW_BYTES + 16, dtype=np.uint8)
    numbers, scratch = _numbers(job.plan), scratch_for(job.plan, CONTEXTS)
    length = code_rows(numbers, scratch, key_words(job.key), x, first, len(x), True, data, x)
    if length < 0:
        raise RuntimeError("no trial was accepted: this has chance under 2^-90 and means a broken keystream")
    return data[:length].tobytes()


def _decode_rows(job: Job, block: bytes, first: int, rows: int) -> Ints:
    units = np.empty((rows, job.plan.n), dtype=np.int64)
    data = np.frombuffer(block, dtype=np.uint8).copy()
    numbers, scratch = _numbers(job.plan), scratch_for(job.plan, CONTEXTS)
    if code_rows(numbers, scratch, key_words(job.key), units, first, rows, False, data, units) < 0:
        raise MalformedMessage("a block decodes to nothing that this codec sends")
    return units


def _encode_paper(job: Job, x: Ints, first: int) -> bytes:
    numbers, key = _numbers(job.plan), key_words(job.key)
    h, m = np.empty(len(x), dtype=np.int64), np.empty_like(x)
    if not quantize_rows(numbers, scratch_for(job.plan), key, x, first, h, m):
        raise RuntimeError("no trial was accepted: this has chance under 2^-90 and means a broken keystream")
    run = golomb_parameter(job.acceptance)
    out = np.zeros(len(x) * WIDEST_ROW_BYTES + int(h.sum()) // 8, dtype=np.uint8)
    bits = encode_paper(numbers, scratch_for(job.plan), key, h, m, first, job.bound, run, out)
    if bits < 0:
        raise ValueError("the update exceeds the bound that the paper's coder was given")
    return out[: (bits + 7) // 8].tobytes()


def _decode_paper(job: Job, block: bytes, first: int, rows: int) -> Ints:
    numbers, key, n = _numbers(job.plan), key_words(job.key), job.plan.n
    h, m, units = (
        np.empty(rows, dtype=np.int64),
        np.empty((rows, n), dtype=np.int64),
        np.empty((rows, n), dtype=np.int64),
    )
    data = np.frombuffer(block, dtype=np.uint8)
    run = golomb_parameter(job.acceptance)
    if not decode_paper(numbers, scratch_for(job.plan), key, data, first, job.bound, run, h, m):
        raise MalformedMessage("a block decodes to nothing that this codec sends")
    if not reconstruct_rows(numbers, scratch_for(job.plan), key, h, m, first, units):
        raise MalformedMessage("a lattice point lies outside the range of the format")
    return units

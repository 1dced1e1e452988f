"""The NumPy backend: the reference kernels behind the interface of `task.Backend`."""

from __future__ import annotations

import numpy as np

from cepam.kernels.format.plan import CodingTask, Ints, Plan, Values, block_slices, padded_rows, rows_of
from cepam.kernels.format.row_period import SHARED_BLOCKS, find_period
from cepam.kernels.numpy import paper_coder, scalar_coder, search_coder, vector_coder
from cepam.kernels.numpy.quantizer import dither, layers, quantize, reconstruct, to_grid


class NumpyBackend:
    """Reads like the paper; many blocks at a time, so that a million coordinates take seconds."""

    span_blocks = 4 * SHARED_BLOCKS

    def encode_span(self, task: CodingTask, values: Values, first: int) -> list[bytes]:
        if task.coder == "search":
            return search_coder.encode_span(task, to_units(task.plan, values), first)
        x = padded_rows(to_units(task.plan, values), task.plan.n)
        if task.coder == "paper":
            return _encode_paper(task, x, first)
        if task.plan.n == 1:
            return _encode_scalars(task, x[:, 0], first)
        return vector_coder.encode_span(task.plan, task.key, x, first, task.per_block)

    def decode_span(self, task: CodingTask, blocks: list[bytes], first: int, out: Values) -> None:
        rows = rows_of(out, task.plan.n)
        if task.coder == "search":
            units = search_coder.decode_span(task, blocks, first, len(out))
            out[:] = to_grid(units).astype(np.float64) * task.plan.grid
            return
        if task.coder == "paper":
            h, m = _decode_paper(task, blocks, first, rows)
        elif task.plan.n == 1:
            h, m = _decode_scalars(task, blocks, first, rows)
        else:
            h, m = vector_coder.decode_span(task.plan, task.key, blocks, first, rows, task.per_block)
        units = reconstruct(task.plan, task.key, h, m, first)
        out[:] = (to_grid(units).astype(np.float64) * task.plan.grid).reshape(-1)[: len(out)]


def to_units(plan: Plan, values: Values) -> Ints:
    """Values cut toward zero to whole units, so that no norm grows."""
    return np.trunc(values.astype(np.float64) * (1.0 / plan.unit)).astype(np.int64)


def _encode_paper(task: CodingTask, x: Ints, first: int) -> list[bytes]:
    h, m = quantize(task.plan, task.key, x, first)
    return [
        paper_coder.encode(task.plan, task.key, h[part], m[part], first + part.start, task.bound, task.acceptance)
        for part in block_slices(len(x), 1, task.per_block)
    ]


def _decode_paper(task: CodingTask, blocks: list[bytes], first: int, rows: int) -> tuple[Ints, Ints]:
    parts = [
        paper_coder.decode(
            task.plan, task.key, block, first + part.start, part.stop - part.start, task.bound, task.acceptance
        )
        for block, part in zip(blocks, block_slices(rows, 1, task.per_block))
    ]
    return np.concatenate([h for h, _ in parts]), np.concatenate([m for _, m in parts])


def _encode_scalars(task: CodingTask, x: Ints, first: int) -> list[bytes]:
    ids = first + np.arange(len(x), dtype=np.int64)
    _, b = layers(task.plan, task.key, ids)
    d = dither(task.plan, task.key, 0, ids, b)[:, 0]
    _, m = quantize(task.plan, task.key, x[:, None], first)
    parts = [x[part] for part in block_slices(len(x), 1, task.per_block)]
    periods = [find_period(parts[i]) for i in range(0, len(parts), SHARED_BLOCKS)]
    scale = np.array([scalar_coder.measure_scale(part) for part in parts])
    period = np.repeat(periods, SHARED_BLOCKS)[: len(parts)]
    return scalar_coder.encode_span(m[:, 0], b, d, scale, period, task.per_block)


def _decode_scalars(task: CodingTask, blocks: list[bytes], first: int, rows: int) -> tuple[Ints, Ints]:
    ids = first + np.arange(rows, dtype=np.int64)
    _, b = layers(task.plan, task.key, ids)
    d = dither(task.plan, task.key, 0, ids, b)[:, 0]
    m = scalar_coder.decode_span(blocks, b, d, task.per_block)
    return np.ones(rows, dtype=np.int64), m[:, None]

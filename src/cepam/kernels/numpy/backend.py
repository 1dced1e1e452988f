"""The NumPy backend: the reference kernels behind the interface of `job.Backend`."""

from __future__ import annotations

import numpy as np

from cepam.kernels.model.plan import Ints, Plan
from cepam.kernels.model.row_period import SHARED_BLOCKS, find_stride
from cepam.kernels.model.task import Job, Values, block_slices, padded_rows, rows_of
from cepam.kernels.numpy import paper_coder, scalar_coder, vector_coder
from cepam.kernels.numpy.quantizer import dither, layers, quantize, reconstruct, to_grid


class NumpyBackend:
    """Reads like the paper; many blocks at a time, so that a million coordinates take seconds."""

    span_blocks = 4 * SHARED_BLOCKS

    def encode_span(self, job: Job, values: Values, first: int) -> list[bytes]:
        x = padded_rows(to_units(job.plan, values), job.plan.n)
        if job.coder == "paper":
            return _encode_paper(job, x, first)
        if job.plan.n == 1:
            return _encode_margins(job, x[:, 0], first)
        return vector_coder.encode_span(job.plan, job.key, x, first, job.per_block)

    def decode_span(self, job: Job, blocks: list[bytes], first: int, out: Values) -> None:
        rows = rows_of(out, job.plan.n)
        if job.coder == "paper":
            h, m = _decode_paper(job, blocks, first, rows)
        elif job.plan.n == 1:
            h, m = _decode_margins(job, blocks, first, rows)
        else:
            h, m = vector_coder.decode_span(job.plan, job.key, blocks, first, rows, job.per_block)
        units = reconstruct(job.plan, job.key, h, m, first)
        out[:] = (to_grid(units).astype(np.float64) * job.plan.grid).reshape(-1)[: len(out)]


def to_units(plan: Plan, values: Values) -> Ints:
    """Values cut toward zero to whole units, so that no norm grows."""
    return np.trunc(values.astype(np.float64) * (1.0 / plan.unit)).astype(np.int64)


def _encode_paper(job: Job, x: Ints, first: int) -> list[bytes]:
    h, m = quantize(job.plan, job.key, x, first)
    return [
        paper_coder.encode(job.plan, job.key, h[part], m[part], first + part.start, job.bound, job.acceptance)
        for part in block_slices(len(x), 1, job.per_block)
    ]


def _decode_paper(job: Job, blocks: list[bytes], first: int, rows: int) -> tuple[Ints, Ints]:
    parts = [
        paper_coder.decode(
            job.plan, job.key, block, first + part.start, part.stop - part.start, job.bound, job.acceptance
        )
        for block, part in zip(blocks, block_slices(rows, 1, job.per_block))
    ]
    return np.concatenate([h for h, _ in parts]), np.concatenate([m for _, m in parts])


def _encode_margins(job: Job, x: Ints, first: int) -> list[bytes]:
    ids = first + np.arange(len(x), dtype=np.int64)
    _, b = layers(job.plan, job.key, ids)
    d = dither(job.plan, job.key, 0, ids, b)[:, 0]
    _, m = quantize(job.plan, job.key, x[:, None], first)
    parts = [x[part] for part in block_slices(len(x), 1, job.per_block)]
    strides = [find_stride(parts[i]) for i in range(0, len(parts), SHARED_BLOCKS)]
    scale = np.array([scalar_coder.measure_scale(part) for part in parts])
    stride = np.repeat(strides, SHARED_BLOCKS)[: len(parts)]
    return scalar_coder.encode_span(m[:, 0], b, d, scale, stride, job.per_block)


def _decode_margins(job: Job, blocks: list[bytes], first: int, rows: int) -> tuple[Ints, Ints]:
    ids = first + np.arange(rows, dtype=np.int64)
    _, b = layers(job.plan, job.key, ids)
    d = dither(job.plan, job.key, 0, ids, b)[:, 0]
    m = scalar_coder.decode_span(blocks, b, d, job.per_block)
    return np.ones(rows, dtype=np.int64), m[:, None]

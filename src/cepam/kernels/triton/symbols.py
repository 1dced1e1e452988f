"""Symbols (H, M) from a vector on a GPU, and back, without entropy coding.

Launch with `enable_fp_fusion=False`, as every kernel over `layers`, for whole groups of eight coordinates.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from cepam.errors import MalformedMessage
from cepam.kernels.format import plan
from cepam.kernels.format.plan import Accept, Plan
from cepam.kernels.triton.keystream import LATENT_STREAM, ROUNDS, load_key, side_by_side, stream_words
from cepam.kernels.triton.launch import announce, look_at
from cepam.kernels.triton.layers import (
    FURTHEST,
    GRID,
    PER_UNIT,
    REACH,
    SLACK,
    STEP,
    UNIT,
    draw_cells,
    grid_value,
    invert_below,
    round_quotient,
    whole_less,
)
from cepam.kernels.triton.plan import DevicePlan, device_plan
from cepam.kernels.triton.vector_quantizer import (
    fill_fractions,
    fill_radii,
    is_accepted,
    nearest,
    scale_of,
    skip_refused,
)
from cepam.lattices.lattice import Search


class Kind(NamedTuple):
    """What symbols are of: scales from latents or one step; and whether values are put on the public grid."""

    layered: bool
    released: bool = True


REFUSED, WIDE = (tl.constexpr(i) for i in range(2))
"""Which flag is raised: a value that is not finite or beyond reach; what 32 bits may not hold."""
NEAR = tl.constexpr(2.0**52)
MOST = tl.constexpr(2.0**31 - 2.0**10)


@triton.jit
def round_near_quotient(t, b):
    """(`round_quotient` as int32, whether that is right): right while |t| < 2^53, b < 2^50 and it fits.

    The guess has an error under 2^-43 of itself, so one that is lowered by 2^-10 and rounded is the quotient or one
    less. All other values are whole numbers under 2^53: float64 holds them, and the pipe of 32-bit integers, which the
    keystream fills, is spared.
    """
    whole, wide = t.to(tl.float64), b.to(tl.float64)
    guess = whole_less(tl.fma(whole, invert_below(b), SLACK))
    below = whole_less(guess)
    rest = tl.fma(below, wide, whole)
    low = guess.to(tl.int64, bitcast=True).to(tl.int32)
    return low + (rest + rest >= wide).to(tl.int32), tl.abs(below) < MOST


@triton.jit
def load_eight(at, block, inside, lanes: tl.constexpr):
    """Eight values in a row of each lane, `below_each_other`; four in a row are one access, where they are aligned."""
    at += block[:, None] * 8 + tl.arange(0, 4)[None, :]
    near, far = tl.load(at, mask=inside[:, None], other=0), tl.load(at + 4, mask=inside[:, None], other=0)
    return tl.reshape(tl.permute(tl.join(near, far), (2, 1, 0)), (8 * lanes,))


@triton.jit
def store_eight(at, block, values, inside, lanes: tl.constexpr):
    """Writes what `load_eight` reads."""
    at += block[:, None] * 8 + tl.arange(0, 4)[None, :]
    near, far = tl.split(tl.permute(tl.reshape(values, (2, 4, lanes)), (2, 1, 0)))
    tl.store(at, near, mask=inside[:, None])
    tl.store(at + 4, far, mask=inside[:, None])


@triton.jit
def raise_flag(flag, bad, lanes: tl.constexpr):
    """Sets the flag if anything is bad."""
    tl.store(flag + tl.arange(0, 8 * lanes) * 0, 1, mask=bad)


@triton.jit(do_not_specialize=["first", "count"])
def quantize_scalars(x, m, flags, draws, first, count, tiles: tl.constexpr, kind: tl.constexpr, lanes: tl.constexpr):
    """Fills m with the nearest multiples (Paper: M) of `count` groups of coordinates, from number `first` of a vector,
    or from its first without a sum: the keystream's columns that hold no counter are then the scalar unit's.

    A program does so many tiles of lanes, so that it computes those columns once. 32-bit symbols raise the flag `WIDE`
    where a value is not under 2^52 units in size, NaN included, or a symbol does not fit; 64-bit ones raise `REFUSED`
    where it is not finite or beyond reach.
    """
    narrow: tl.constexpr = m.dtype.element_ty == tl.int32
    key = load_key(draws.keys, 0)
    for tile in range(tiles):
        block = (tl.program_id(0) * tiles + tile).to(tl.int64) * lanes + tl.arange(0, lanes)
        b, d = draw_cells(draws, key, block if first is None else block + first, kind.layered)
        inside = block < count
        value = load_eight(x, block, inside, lanes).to(tl.float64) * tl.load(draws.numbers + PER_UNIT)
        t = value.to(tl.int64) - d
        if narrow:
            symbol, fits = round_near_quotient(t, b)
            raise_flag(flags + WIDE, ~(fits & (tl.abs(value) < NEAR)), lanes)
        else:
            symbol = round_quotient(t, b)
            raise_flag(flags + REFUSED, ~(tl.abs(value) <= REACH), lanes)
        store_eight(m, block, symbol, inside, lanes)


@triton.jit(do_not_specialize=["first", "count"])
def reconstruct_scalars(
    m, out, flags, draws, first, count, tiles: tl.constexpr, kind: tl.constexpr, lanes: tl.constexpr
):
    """Fills out with decoded values, as `quantize_scalars` filled m; flags points outside the range of the format."""
    key = load_key(draws.keys, 0)
    for tile in range(tiles):
        block = (tl.program_id(0) * tiles + tile).to(tl.int64) * lanes + tl.arange(0, lanes)
        b, d = draw_cells(draws, key, block if first is None else block + first, kind.layered)
        inside = block < count
        symbol = load_eight(m, block, inside, lanes).to(tl.int64)
        raise_flag(flags + REFUSED, tl.abs(symbol.to(tl.float64) * b.to(tl.float64)) >= FURTHEST, lanes)
        store_eight(out, block, value_of(symbol * b + d, draws.numbers, kind.released), inside, lanes)


@triton.jit
def value_of(units, numbers, released: tl.constexpr):
    """Positions in units as float64, on the public grid where they are released."""
    if released:
        return grid_value(units, tl.load(numbers + GRID))
    else:
        return units.to(tl.float64) * tl.load(numbers + UNIT)


MOST_TRIALS = tl.constexpr(plan.MOST_TRIALS)
UNENDED = tl.constexpr(2)
"""The flag, after those of `scalar_symbols`, of a sub-vector whose trials were all refused."""


class WaveDraws(NamedTuple):
    """What sub-vectors are drawn from: keys, the latent radii of a wave, and the plan's numbers."""

    keys: Any
    radii: Any
    numbers: Any


@triton.jit
def skip_words(words, offset, step: tl.constexpr):
    """Words moved down by `step` where the offset has that bit."""
    moved = ()
    for i in tl.static_range(len(words)):
        if i + step < len(words):
            moved += (tl.where((offset & step) != 0, words[i + step], words[i]),)
        else:
            moved += (words[i],)
    return moved


@triton.jit
def draw_dither(keys, trial, row, b, shape):
    """The dithers of sub-vectors (64-bit numbers) in trials counted from 0, a tuple of n tensors."""
    n: tl.constexpr = shape.n
    key, begin, stream = load_key(keys, 0), row * n, trial.to(tl.int64) + (LATENT_STREAM + 1)
    words = stream_words(key, stream, begin >> 3, ROUNDS)
    # With n = 3, 5, 6 or 7, a sub-vector's words run over the end of a block.
    if 8 % n != 0:
        words = words + stream_words(key, stream, (begin >> 3) + 1, ROUNDS)
    if n != 8:
        offset = (begin & 7).to(tl.int32)
        words = skip_words(skip_words(skip_words(words, offset, 4), offset, 2), offset, 1)
    d = ()
    for i in tl.static_range(n):
        d += (tl.umulhi(words[i], (b * shape.box[i]).to(tl.uint64)).to(tl.int64),)
    return d


@triton.jit
def load_targets(x, numbers, row, count, d, n: tl.constexpr):
    """(sub-vectors in units less dithers, zeros past the end; whether all their values are finite and within reach)."""
    target, good = (), row >= 0
    for i in tl.static_range(n):
        value = tl.load(x + row * n + i, mask=row * n + i < count, other=0.0).to(tl.float64)
        value = value * tl.load(numbers + PER_UNIT)
        good = good & (tl.abs(value) <= REACH)
        target += (value.to(tl.int64) - d[i],)
    return target, good


@triton.jit
def store_points(m, row, j, done, n: tl.constexpr, lanes: tl.constexpr):
    """Writes lattice coordinates of lanes that are done; whether they fit the symbols."""
    above, symbols = tl.zeros_like(row), ()
    for i in tl.static_range(n):
        above = above | ((j[i] + 2147483648) >> 32)
        symbols += (j[i].to(m.dtype.element_ty),)
    if n == 8:
        tl.store(m + row[:, None] * 8 + tl.arange(0, 8)[None, :], side_by_side(symbols, lanes), mask=done[:, None])
    else:
        for i in tl.static_range(n):
            tl.store(m + row * n + i, symbols[i], mask=done)
    return (above == 0) | (m.dtype.element_ty == tl.int64)


@triton.jit(do_not_specialize=["first", "count"], do_not_specialize_on_alignment=["x"])
def quantize_vectors(x, h, m, flags, drawn, first, count, shape: tl.constexpr, tile: tl.constexpr):
    """Fills (H, M) of sub-vectors `first`, `first` + 1, …; trials begin with the one that h holds, counted from 1."""
    n: tl.constexpr = shape.n
    lanes: tl.constexpr = tile[0]
    each: tl.constexpr = tile[0] * tile[1]
    begin = first + tl.program_id(0).to(tl.int64) * each
    end = tl.minimum(begin + each, (count - 1) // n + 1)
    row, taken, left = begin + tl.arange(0, lanes), begin + lanes, (end - begin).to(tl.int32)
    step = tl.load(drawn.numbers + STEP).to(tl.int64)
    trial = tl.load(h + tl.minimum(row, end - 1)) - 1
    while left > 0:
        held = tl.minimum(row, end - 1)
        radius = tl.load(drawn.radii + (held - first))
        b = scale_of(radius, drawn.numbers, step, shape.accept)
        d = draw_dither(drawn.keys, trial, held, b, shape)
        target, good = load_targets(x, drawn.numbers, held, count, d, n)
        j, error, square = nearest(target, b, shape.search, n, shape.basis[n - 1], shape.basis[n * n - 1])
        ends = is_accepted(error, square, radius, shape.accept, n)
        done = (row < end) & (ends | (trial >= MOST_TRIALS - 1))
        tl.store(h + row, trial + 1, mask=done)
        fits = store_points(m, row, j, done, n, lanes)
        tl.store(flags + row * 0 + REFUSED, 1, mask=~good)
        tl.store(flags + row * 0 + WIDE, 1, mask=done & ~fits)
        tl.store(flags + row * 0 + UNENDED, 1, mask=done & ~ends)
        order = tl.cumsum(done.to(tl.int32), 0)
        row = tl.where(done, taken + order - 1, row)
        finished = tl.sum(done.to(tl.int32), 0)
        taken, left = taken + finished, left - finished
        trial = tl.where(done, tl.load(h + tl.minimum(row, end - 1), mask=done, other=0) - 1, trial + 1)


@triton.jit(do_not_specialize=["first", "count"], do_not_specialize_on_alignment=["h", "m"])
def reconstruct_vectors(h, m, out, flags, drawn, first, count, shape: tl.constexpr, tile: tl.constexpr):
    """Fills out with B (M + V_H) of sub-vectors `first`, `first` + 1, …; flags points outside the format's range.

    `tile` has the lanes of a program, and whether values are released on the public grid.
    """
    n: tl.constexpr = shape.n
    lanes: tl.constexpr = tile[0]
    rows = (count - 1) // n + 1
    row = first + tl.program_id(0).to(tl.int64) * lanes + tl.arange(0, lanes)
    held = tl.minimum(row, rows - 1)
    step = tl.load(drawn.numbers + STEP).to(tl.int64)
    b = scale_of(tl.load(drawn.radii + (held - first)), drawn.numbers, step, shape.accept)
    d = draw_dither(drawn.keys, tl.load(h + held) - 1, held, b, shape)
    j, good = (), row >= 0
    for i in tl.static_range(n):
        j += (tl.load(m + held * n + i).to(tl.int64),)
    for i in tl.static_range(n):
        point, size = tl.zeros_like(b), b.to(tl.float64) * 0.0
        for k in tl.static_range(n):
            if shape.basis[i * n + k] != 0:
                point = point + j[k] * shape.basis[i * n + k]
                size = size + j[k].to(tl.float64) * shape.basis[i * n + k]
        good = good & (tl.abs(size) * b.to(tl.float64) < FURTHEST)
        value = value_of(b * point + d[i], drawn.numbers, tile[1])
        tl.store(out + row * n + i, value, mask=row * n + i < count)
    tl.store(flags + row * 0 + REFUSED, 1, mask=~good)


# After those of `waves`, which is imported first.
look_at((quantize_scalars, reconstruct_scalars))
look_at((fill_radii, fill_fractions, skip_refused, quantize_vectors, reconstruct_vectors))

LANES, WARPS = 128, 4
TRIAL_LANES, SHARE = 32, 8
"""Lanes of a program of trials, one a thread of its warp, and how many sub-vectors each has on average."""
PROGRAMS, MOST_SHARED = 8192, 32
"""Programs that skip refused trials of a wave, while a lane has no more sub-vectors than that: many keep lanes busy."""
TILES, REGISTERS = 4, 64
"""Tiles of lanes that a program in one dimension does, where that leaves many programs; and registers of its threads,
so few that eight programs of four warps are on a multiprocessor, and enough that little is spilled."""
WAVE = 1 << 23
"""Sub-vectors of a wave: whole programs of every kernel."""
_WHOLE = (torch.int32, torch.int64)


def quantize(plan: Plan, key: bytes, x: Any) -> tuple[Any, Any]:
    """(H, M) of a contiguous float32 or float64 tensor, shapes (rows,) and (rows, n); zeros fill up the last row.

    Both are int32; M is int64 where it must be. In one dimension H is a view of a single one. Raises `ValueError` if a
    value is not finite or beyond the plan's reach. Guarantee: the integers of the CPU
    (tests/identity/test_triton_symbols.py).
    """
    on, (keys, flags), rows = device_plan(plan, str(x.device)), _put_key(key, x.device), -(-len(x) // plan.n)
    m = x.new_empty((rows, plan.n), dtype=torch.int32)
    if not rows:
        return x.new_ones(0, dtype=torch.int32), m
    announce("quantize", plan.n, int(plan.search), int(plan.accept))
    h = _fill(on, keys, x, m, flags)
    refused, wide, unended = flags.tolist()
    if wide and not refused:
        m = m.to(torch.int64)
        h = _fill(on, keys, x, m, flags)
        refused, _, unended = flags.tolist()
    if refused:
        raise ValueError(f"x must be a finite vector with coordinates up to {plan.reach:.3g} in size")
    if unended:
        raise RuntimeError("no trial was accepted: this has chance under 2^-90 and means a broken keystream")
    return h, m


def check_symbols(plan: Plan, h: Any, m: Any) -> tuple[Any, Any]:
    """(H, M) as `reconstruct` takes them: H int32, M int32 or int64, both contiguous on one device.

    Raises `ValueError` where they are not what `quantize` returns.
    """
    if m.ndim != 2 or m.shape[1] != plan.n or m.dtype not in _WHOLE:
        raise ValueError(f"m must be int32 or int64 of shape (rows, {plan.n}), got {m.dtype} {tuple(m.shape)}")
    if not torch.is_tensor(h) or h.device != m.device or h.shape != m.shape[:1] or h.dtype not in _WHOLE:
        raise ValueError(f"h must be int32 or int64 of shape ({len(m)},) on {m.device}, as quantize returned it")
    trials = h[:1] if plan.n == 1 and h.stride() == (0,) else h
    least, most = (int(end) for end in trials.aminmax()) if len(h) else (1, 1)
    if least < 1 or most > plan.trials:
        raise ValueError(f"h must lie between 1 and {plan.trials}, got {least} to {most}")
    return trials.to(torch.int32).contiguous(), m.contiguous()


def reconstruct(plan: Plan, key: bytes, h: Any, m: Any, released: bool) -> Any:
    """The quantized vector (rows * n,), float64, of what `check_symbols` returned, on the public grid if released."""
    on, (keys, flags) = device_plan(plan, str(m.device)), _put_key(key, m.device)
    out = m.new_empty(m.numel(), dtype=torch.float64)
    if not len(out):
        return out
    announce("reconstruct", plan.n, int(plan.search), int(plan.accept))
    if plan.n == 1:
        _by_eights(reconstruct_scalars, on, keys, m.view(-1), out, flags, Kind(on.layered, released))
    else:
        for first, rows, radii in _waves(on, keys, len(m)):
            reconstruct_vectors[(triton.cdiv(rows, LANES),)](
                h, m, out, flags, WaveDraws(keys, radii, on.numbers), first, len(out), shape=on.shape,
                tile=(LANES, released), num_warps=WARPS, enable_fp_fusion=False,
            )  # fmt: skip
    if flags.any():
        raise MalformedMessage("a lattice point lies outside the range of the format")
    return out


def _fill(on: DevicePlan, keys: Any, x: Any, m: Any, flags: Any) -> Any:
    """H; M is filled."""
    if on.plan.n == 1:
        _by_eights(quantize_scalars, on, keys, x, m.view(-1), flags, Kind(on.layered))
        return x.new_ones(1, dtype=torch.int32).expand(len(m))  # asked for while the device is busy
    h = x.new_ones(len(m), dtype=torch.int32)
    _quantize_vectors(on, keys, x, h, m, flags)
    return h


def _by_eights(kernel: Any, on: DevicePlan, keys: Any, source: Any, out: Any, flags: Any, kind: Kind) -> None:
    """Fills out; the last coordinates, where they are not eight, are filled up with zeros and go alone."""
    (count, rest), draws = divmod(len(source), 8), on.draws(keys)
    options = {"kind": kind, "lanes": LANES, "num_warps": WARPS, "maxnreg": REGISTERS, "enable_fp_fusion": False}
    if count:
        tiles = TILES if count > TILES * LANES * PROGRAMS else 1
        programs = triton.cdiv(count, LANES * tiles)
        kernel[(programs,)](source, out, flags, draws, None, count, tiles=tiles, **options)
    if rest:
        last, made = source.new_zeros(8), out.new_empty(8)
        last[:rest] = source[8 * count :]
        kernel[(1,)](last, made, flags, draws, count, 1, tiles=1, **options)
        out[8 * count :] = made[:rest]


def _quantize_vectors(on: DevicePlan, keys: Any, x: Any, h: Any, m: Any, flags: Any) -> None:
    for first, rows, radii in _waves(on, keys, len(m)):
        if on.plan.search is Search.GOSSET and on.plan.accept is Accept.L2_BALL:
            _skip_refused(on, keys, x, h, first, rows, radii)
        quantize_vectors[(triton.cdiv(rows, TRIAL_LANES * SHARE),)](
            x, h, m, flags, WaveDraws(keys, radii, on.numbers), first, len(x), shape=on.shape,
            tile=(TRIAL_LANES, SHARE), num_warps=1, enable_fp_fusion=False,
        )  # fmt: skip


def _skip_refused(on: DevicePlan, keys: Any, x: Any, h: Any, first: int, rows: int, radii: Any) -> None:
    """Fills h with the trials that sub-vectors of a wave begin with: earlier ones are surely refused."""
    fractions, bounds = radii.new_empty((len(radii), 8), dtype=torch.int32), radii.to(torch.float32)
    fill_fractions[(len(radii) // LANES,)](
        x, radii, on.numbers, fractions, bounds, first, len(x), lanes=LANES, num_warps=WARPS, enable_fp_fusion=False
    )
    share = min(max(rows // (TRIAL_LANES * PROGRAMS), 1), MOST_SHARED)
    skip_refused[(triton.cdiv(rows, TRIAL_LANES * share),)](
        fractions, bounds, keys, h, first, len(x), share, lanes=TRIAL_LANES, num_warps=1
    )


def _waves(on: DevicePlan, keys: Any, total: int) -> Iterator[tuple[int, int, Any]]:
    """(first row, rows, latent radii and more up to whole programs) of parts small enough to hold."""
    held = min(WAVE, -(-total // (8 * LANES)) * 8 * LANES)
    radii = on.numbers.new_zeros(held)
    for wave, first in enumerate(range(0, total, held)):
        if on.layered:
            fill_radii[1, held // (8 * LANES)](
                on.draws(keys), radii, wave, wave + 1, held, lanes=LANES, num_warps=WARPS, enable_fp_fusion=False
            )
        yield first, min(held, total - first), radii


def _put_key(key: bytes, device: Any) -> tuple[Any, Any]:
    """The key's words and three flags that are not set, on the device in one copy."""
    put = torch.frombuffer(bytearray(key) + bytes(12), dtype=torch.int32).to(device, non_blocking=True)
    return put[:8], put[8:]

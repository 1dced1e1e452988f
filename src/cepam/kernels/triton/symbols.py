"""Symbols (H, M) from a vector on a GPU, and back, without coding: what launches the quantizers' kernels.

A lattice goes in waves of sub-vectors, so that latent radii and fractions of only some millions are held at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton

from cepam.errors import MalformedMessage
from cepam.kernels.model.plan import Accept, Plan
from cepam.kernels.triton.plan import DevicePlan, device_plan
from cepam.kernels.triton.refusals import fill_fractions, skip_refused
from cepam.kernels.triton.scalar_symbols import Kind, quantize_scalars, reconstruct_scalars
from cepam.kernels.triton.vector_quantizer import fill_radii
from cepam.kernels.triton.vector_symbols import WaveDraws, quantize_vectors, reconstruct_vectors
from cepam.kernels.triton.waves import announce, look_at
from cepam.noise.lattices import Search

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

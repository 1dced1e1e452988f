"""The search of `model.row_period` on a device: the same whole numbers for many blocks at once, so the same layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cepam.kernels.model import row_period as s

_BATCH = 1024


def find_periods(values: Any, per_unit: float, length: int) -> Any:
    """The layout that each block of updates (clients, m) announces, (clients, blocks) as int32."""
    clients, count = values.shape
    blocks = -(-count // length)
    groups = -(-blocks // s.SHARED_BLOCKS)
    found = torch.zeros((clients, groups), dtype=torch.int64, device=values.device)
    starts = [group * s.SHARED_BLOCKS * length for group in range(groups)]
    whole = sum(start + length <= count for start in starts)
    step = s.SHARED_BLOCKS * length
    for client in range(0, clients, _BATCH):
        rows = values[client : client + _BATCH]
        for group in range(0, whole, max(_BATCH // len(rows), 1)):
            last = min(group + max(_BATCH // len(rows), 1), whole)
            heads = rows.as_strided(
                (len(rows), last - group, length), (rows.stride(0), step, 1), rows.storage_offset() + group * step
            )
            part = _find(heads.reshape(-1, length), per_unit)
            found[client : client + _BATCH, group:last] = part.reshape(len(rows), -1)
        if whole < groups:
            found[client : client + _BATCH, whole] = _find(rows[:, starts[whole] :], per_unit)
    return found.repeat_interleave(s.SHARED_BLOCKS, dim=1)[:, :blocks].to(torch.int32)


def _find(heads: Any, per_unit: float) -> Any:
    """One period a row; all rows have the same length."""
    count = heads.shape[1]
    size = (heads.to(torch.float64) * per_unit).to(torch.int64).abs_().clamp_(max=1 << 48)
    mean = size.sum(dim=1, keepdim=True) // max(count, 1)
    if count < 4 * s.SHORTEST:
        return torch.full_like(mean[:, 0], s.FLAT)
    size = _divide(torch.minimum(size, 4 * mean) * s.UNIT, mean.clamp(min=1))
    total = size.sum(dim=1, keepdim=True)
    even = (10 * total * total)[:, 0] >= 3 * count * (size * size).sum(dim=1)
    apart = size - _divide(total, count)
    ahead = (apart[:, 1:] * apart[:, :-1]).sum(dim=1).to(torch.float64)
    alike = ahead / (apart * apart).sum(dim=1).clamp(min=1).to(torch.float64)
    local = (alike > s.NEIGHBOURLY) & ((mean[:, 0] >= s.QUIET) | ~even)
    plain = torch.where(local, s.LOCAL, s.FLAT)
    longest = min(s.LARGEST_PERIOD, count // 3)
    if longest < s.SHORTEST:
        return torch.where(mean[:, 0] == 0, s.FLAT, plain)
    score = _score(_correlate(_flatten(size), longest))
    at = _first(score >= s.FIRST_OF_EQUALS * score.amax(dim=1, keepdim=True))
    near = torch.nn.functional.pad(score, (0, 2), value=-np.inf).gather(1, at[:, None] + _span(3, at))
    at = at + _first(near >= near.amax(dim=1, keepdim=True))
    best = score.gather(1, at[:, None])[:, 0]
    rows = (best > s.EVIDENCE) & (mean[:, 0] >= s.QUIET)
    return torch.where(mean[:, 0] == 0, s.FLAT, torch.where(rows, at + s.SHORTEST, plain))


def _divide(over: Any, under: Any) -> Any:
    return torch.div(over, under, rounding_mode="floor")


def _span(count: int, like: Any) -> Any:
    return torch.arange(count, device=like.device)


def _first(holds: Any) -> Any:
    """The first column in which a row's condition holds, or 0: argmax breaks ties as it likes on a GPU."""
    columns = holds.shape[1]
    return torch.where(holds, _span(columns, holds), columns).amin(dim=1) % columns


def _flatten(size: Any) -> Any:
    total = size.cumsum(dim=1)
    before, after = torch.zeros_like(total[:, : s.WINDOW]), total[:, -1:].expand(-1, s.WINDOW)
    total = torch.cat([before, total, after], dim=1)
    local = _divide(total[:, 2 * s.WINDOW :] - total[:, : -2 * s.WINDOW], 2 * s.WINDOW)
    ratio = _divide((size - local) * s.RATIO, local + s.UNIT // 4).clamp(-s.LARGEST_RATIO, s.LARGEST_RATIO)
    ratio = ratio * (size > 0)
    return ratio - _divide(ratio.sum(dim=1, keepdim=True), size.shape[1])


def _correlate(values: Any, longest: int) -> Any:
    length = values.shape[1]
    count = min(fast for fast in s.FOURIER_LENGTHS if fast > length + longest)
    spectrum = torch.fft.rfft(values.to(torch.float64), count)
    power = spectrum.real * spectrum.real + spectrum.imag * spectrum.imag
    product = torch.fft.irfft(power.to(torch.complex128), count)[:, : longest + 1].round()
    return product / product[:, :1].clamp(min=1.0) * length / (length - _span(longest + 1, values))


def _score(correlation: Any) -> Any:
    longest = correlation.shape[1] - 1
    total = torch.zeros_like(correlation)
    count = np.zeros(longest + 1)
    for multiple in range(1, s.MULTIPLES + 1):
        inside = longest // multiple + 1
        total[:, :inside] += correlation[:, : (inside - 1) * multiple + 1 : multiple]
        count[:inside] += 1
    noise = torch.from_numpy(np.sqrt(count[s.SHORTEST :] * s.MULTIPLES)).to(correlation.device)
    return total[:, s.SHORTEST :] / noise

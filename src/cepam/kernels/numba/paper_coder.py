"""The paper's code for (H, M), compiled: the same bits as `paper_code`."""

from __future__ import annotations

from typing import Any

import numpy as np

from cepam.kernels.format.plan import MOST_TRIALS
from cepam.kernels.numba.compiling import compiled, floor_divide, leading_zeros
from cepam.kernels.numba.keystream import start_lanes
from cepam.kernels.numba.quantizer import draw_radii, layer_of

WIDEST_ROW_BYTES = 96


@compiled
def put(out: Any, at: Any, value: Any, width: Any) -> Any:
    """The position after writing `width` bits of value at bit position `at` of a zeroed buffer."""
    for k in range(width - 1, -1, -1):
        out[at >> 3] |= np.uint8(((value >> k) & 1) << (7 - (at & 7)))
        at += 1
    return at


@compiled
def get(data: Any, at: Any, width: Any) -> Any:
    """The number in `width` bits at position `at`, which must lie inside the data."""
    value = np.int64(0)
    for k in range(at, at + width):
        value = (value << 1) | np.int64((data[k >> 3] >> (7 - (k & 7))) & 1)
    return value


@compiled
def width_of(count: Any) -> Any:
    """Bits that tell apart `count` values."""
    return np.int64(64) - np.int64(leading_zeros(np.uint64(count - 1)))


@compiled
def box_of(p: Any, b: Any, bound: Any, low: Any, count: Any) -> Any:
    """Fills a row's box of lattice coordinates; the number of its points, or 0 if coordinates are coded one by one."""
    side = np.float64(b)
    if p.search == 0:
        least = floor_divide(-bound - (b - 1) + (b >> 1), b)
        most = floor_divide(bound + (b >> 1), b)
        for i in range(p.n):
            low[i] = least
            count[i] = most - least + 1
    else:
        reach = np.float64(bound) / side
        spread = 1.0 / p.inverse_ball + 1e-6
        for i in range(p.n):
            below = 0.0
            above = 0.0
            for k in range(p.n):
                weight = p.inverse[i, k]
                under = -(reach + np.float64(p.box[k])) - spread
                over = reach + spread
                below += weight * (under if weight > 0 else over)
                above += weight * (over if weight > 0 else under)
            low[i] = np.int64(np.floor(below - 1e-6))
            count[i] = np.int64(np.ceil(above + 1e-6)) - low[i] + 1
    total = 1.0
    product = np.int64(1)
    for i in range(p.n):
        total *= np.float64(count[i])
        product *= count[i]
    return product if total <= 2.0**62 else np.int64(0)


@compiled
def encode_paper(p: Any, w: Any, key: Any, h: Any, m: Any, first: Any, bound: Any, run: Any, out: Any) -> Any:
    """The number of bits written for a block; -1 if a point lies outside its box."""
    start_lanes(key, w.state)
    low, count = w.work[0, : p.n], w.work[1, : p.n]
    full = width_of(run) if run > 1 else np.int64(0)
    short = (np.int64(1) << full) - run
    at = np.int64(0)
    for r in range(len(h)):
        row = first + r
        if r == 0 or row & 127 == 0:
            draw_radii(p, w, row)
        _, b = layer_of(p, w, row)
        if run > 0:
            quotient, rest = (h[r] - 1) // run, (h[r] - 1) % run
            for _ in range(quotient):
                at = put(out, at, 1, 1)
            at += 1
            if rest < short:
                at = put(out, at, rest, max(full - 1, 0))
            else:
                at = put(out, at, rest + short, full)
        product = box_of(p, b, bound, low, count)
        number = np.int64(0)
        for i in range(p.n):
            digit = m[r, i] - low[i]
            if digit < 0 or digit >= count[i]:
                return np.int64(-1)
            number = number * count[i] + digit
            if product == 0:
                at = put(out, at, digit, width_of(count[i]))
        if product:
            at = put(out, at, number, width_of(product))
    return at


@compiled
def read_trials(data: Any, at: Any, total: Any, run: Any) -> Any:
    """H and the position after it; H = 0 if the bits make no sense."""
    full = width_of(run) if run > 1 else np.int64(0)
    short = (np.int64(1) << full) - run
    quotient = np.int64(0)
    while at < total and get(data, at, 1) == 1:
        quotient += 1
        at += 1
        if quotient > MOST_TRIALS // run:
            return np.int64(0), at
    at += 1
    lead = max(full - 1, 0)
    if at + lead > total:
        return np.int64(0), at
    rest = get(data, at, lead)
    at += lead
    if rest >= short and full > 0:
        if at + 1 > total:
            return np.int64(0), at
        rest = 2 * rest + get(data, at, 1) - short
        at += 1
    trials = quotient * run + rest + 1
    return (trials if trials <= MOST_TRIALS else np.int64(0)), at


@compiled
def decode_paper(p: Any, w: Any, key: Any, data: Any, first: Any, bound: Any, run: Any, h: Any, m: Any) -> Any:
    """True, and (H, M) filled, if the data is a whole block."""
    start_lanes(key, w.state)
    low, count = w.work[0, : p.n], w.work[1, : p.n]
    at, total = np.int64(0), np.int64(8 * len(data))
    for r in range(len(h)):
        row = first + r
        if r == 0 or row & 127 == 0:
            draw_radii(p, w, row)
        _, b = layer_of(p, w, row)
        h[r] = 1
        if run > 0:
            h[r], at = read_trials(data, at, total, run)
            if h[r] == 0:
                return False
        at = read_point(data, at, total, box_of(p, b, bound, low, count), low, count, m[r])
        if at < 0:
            return False
    return total - at < 8 and get(data, at, total - at) == 0


@compiled
def read_point(data: Any, at: Any, total: Any, product: Any, low: Any, count: Any, j: Any) -> Any:
    """The position after a lattice point, filled into j; -1 if it is cut off or outside its box."""
    if product:
        width = width_of(product)
        if at + width > total:
            return np.int64(-1)
        number = get(data, at, width)
        at += width
        for i in range(len(count) - 1, -1, -1):
            j[i] = low[i] + number % count[i]
            number //= count[i]
        return at if number == 0 else np.int64(-1)
    for i in range(len(count)):
        width = width_of(count[i])
        if at + width > total:
            return np.int64(-1)
        digit = get(data, at, width)
        at += width
        if digit >= count[i]:
            return np.int64(-1)
        j[i] = low[i] + digit
    return at

"""The adaptive coder for vector lattices, compiled: trials, contexts and range coder in one pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from cepam.kernels import contexts as c
from cepam.kernels.lanes import start_lanes
from cepam.kernels.numbers import compiled, inlined, leading_zeros
from cepam.kernels.ranging import finish, get_bit, put_bit, start
from cepam.kernels.vector import (
    draw_dither,
    first_words,
    is_accepted,
    layer_of,
    nearest,
    place,
    square_length,
)

FIRST, RATES, THRESHOLDS = c.FIRST, c.RATES, c.THRESHOLDS
LEVELS, ACTIVITIES, LENGTH, SIGN, TOP, ZERO, SAME = c.LEVELS, c.ACTIVITIES, c.LENGTH, c.SIGN, c.TOP, c.ZERO, c.SAME
LEAST, MOST = c.LEAST, c.ONE - c.LEAST
SLOWEST, FINE, ACTIVITY_STEP, MAGNITUDES = c.SLOWEST, c.FINE, c.ACTIVITY_STEP, c.MAGNITUDES
ROW_BYTES = 192


@inlined
def learn(p: Any, seen: Any, at: Any, bit: Any) -> None:
    """Moves a context toward what it saw: fast at first, then slowly."""
    goal = np.int64(65536) if bit else np.int64(0)
    moved = p[at] + (((goal - p[at]) * RATES[seen[at]]) >> 16)
    p[at] = min(max(moved, LEAST), MOST)
    seen[at] = min(seen[at] + 1, SLOWEST)


@inlined
def code(writing: Any, data: Any, coder: Any, p: Any, seen: Any, at: Any, bit: Any) -> Any:
    """The decision, written (bit given) or read; `coder` holds low or code, span and position."""
    if writing:
        coder[0], coder[1], place = put_bit(data, coder[0], coder[1], np.int64(coder[2]), bit, p[at])
        coder[2] = np.uint64(place)
        out = bit
    else:
        coder[0], coder[1], place, read = get_bit(data, coder[0], coder[1], np.int64(coder[2]), p[at])
        coder[2] = np.uint64(place)
        out = np.int64(read)
    learn(p, seen, at, out)
    return out


@inlined
def code_plain(writing: Any, data: Any, coder: Any, bit: Any) -> Any:
    """A decision of even odds."""
    if writing:
        coder[0], coder[1], place = put_bit(data, coder[0], coder[1], np.int64(coder[2]), bit, 32768)
        coder[2] = np.uint64(place)
        return bit
    coder[0], coder[1], place, read = get_bit(data, coder[0], coder[1], np.int64(coder[2]), 32768)
    coder[2] = np.uint64(place)
    return np.int64(read)


@inlined
def margin_context(p: Any, error: Any, radius: Any, b: Any, activity: Any) -> Any:
    """The context number of a trial whose error at x = 0 is this one."""
    reach = radius
    if p.accept == 0:
        total = np.int64(0)
        for i in range(p.n):
            total += abs(error[i])
        size = np.float64(total)
    else:
        size = np.sqrt(square_length(error, p.n))
    if p.accept == 2:
        reach = np.float64(b) / p.inverse_ball
    fine = np.int64(abs(reach - size) / reach * FINE)
    length = np.int64(64) - np.int64(leading_zeros(np.uint64(fine)))
    half = (fine >> (length - 2)) & 1 if length >= 2 else np.int64(0)
    level = min(2 * length + half, np.int64(LEVELS - 1))
    return ((np.int64(size <= reach)) * LEVELS + level) * ACTIVITIES + activity


@inlined
def code_difference(writing: Any, data: Any, coder: Any, p: Any, seen: Any, i: Any, activity: Any, v: Any) -> Any:
    """One coordinate of M - M0: zero?, bit length in unary, sign, then the bits below the top one."""
    flag = code(writing, data, coder, p, seen, ZERO + i * ACTIVITIES + activity, np.int64(v == 0))
    if flag:
        return np.int64(0)
    size = abs(v)
    length = np.int64(64) - np.int64(leading_zeros(np.uint64(size)))
    k = np.int64(1)
    while k < MAGNITUDES - 1:
        if not code(writing, data, coder, p, seen, LENGTH + k * ACTIVITIES + activity, np.int64(length > k)):
            break
        k += 1
    negative = code(writing, data, coder, p, seen, SIGN + i, np.int64(v < 0))
    value = np.int64(1)
    for bit in range(k - 2, -1, -1):
        if bit == k - 2:
            value = 2 * value + code(writing, data, coder, p, seen, TOP + k, (size >> bit) & 1)
        else:
            value = 2 * value + code_plain(writing, data, coder, (size >> bit) & 1)
    return -value if negative else value


@inlined
def activity_level(activity: Any) -> Any:
    """The context that a running activity falls in."""
    level = np.int64(0)
    for threshold in THRESHOLDS:
        level += np.int64(activity >= threshold)
    return level


@compiled
def code_rows(p: Any, w: Any, key: Any, x: Any, first: Any, rows: Any, writing: Any, data: Any, units: Any) -> Any:
    """Writes x to data (the number of bytes comes back) or reads units from data (0, or -1 if it makes no sense)."""
    start_lanes(key, w.state)
    d, j, error, j0, error0, target = w.work[0], w.work[1], w.work[2], w.work[3], w.work[4], w.work[5]
    for i in range(len(FIRST)):
        w.chances[i] = FIRST[i]
        w.seen[i] = 0
    w.coder[0], w.coder[1], w.coder[2] = np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(0)
    if not writing:
        head, span, at = start(data)
        w.coder[0], w.coder[1], w.coder[2] = head, span, np.uint64(at)
    activity = np.int64(0)
    for r in range(rows):
        row = first + r
        if r == 0 or row & 127 == 0:
            first_words(p, w.state, row, w.latent, w.dithers)
        radius, b = layer_of(p, w.latent.view(np.uint64)[row & 127])
        level = activity_level(activity)
        surprise, accept, context = np.int64(0), np.int64(0), np.int64(0)
        for trial in range(p.trials):
            draw_dither(p, w, row, trial, b, d)
            for i in range(p.n):
                target[i] = -d[i]
            nearest(p, target, b, j0, error0, w.spare)
            context = margin_context(p, error0, radius, b, level)
            accept = np.int64(1)
            if writing:
                for i in range(p.n):
                    target[i] = x[r, i] - d[i]
                nearest(p, target, b, j, error, w.spare)
                accept = np.int64(is_accepted(p, error, radius))
            if p.accept != 2:
                accept = code(writing, data, w.coder, w.chances, w.seen, context, accept)
                surprise |= accept ^ np.int64(context >= LEVELS * ACTIVITIES)
            if accept:
                break
        if not accept:
            return np.int64(-1)
        longest = code_point(writing, data, w.coder, w.chances, w.seen, context, level, p.n, j, j0)
        activity += ((surprise + longest) * ACTIVITY_STEP - activity) >> 2
        if not writing and not place(p, b, d, j, units[r]):
            return np.int64(-1)
    return finish(data, w.coder[0], w.coder[1], np.int64(w.coder[2])) if writing else np.int64(0)


@inlined
def code_point(
    writing: Any, data: Any, coder: Any, p: Any, seen: Any, context: Any, level: Any, n: Any, j: Any, j0: Any
) -> Any:
    """The activity of an accepted point (0 if it is M0), after j was written or read."""
    same = np.int64(1)
    if writing:
        for i in range(n):
            same &= np.int64(j[i] == j0[i])
    same = code(writing, data, coder, p, seen, SAME + context, same)
    longest = np.int64(0)
    for i in range(n):
        if same:
            j[i] = j0[i]
        else:
            v = code_difference(writing, data, coder, p, seen, i, level, j[i] - j0[i])
            j[i] = j0[i] + v
            longest = max(longest, np.int64(65) - np.int64(leading_zeros(np.uint64(abs(v)))))
    return longest

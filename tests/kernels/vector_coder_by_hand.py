"""The vector model once more, in plain Python from docs/models.md: an oracle for the kernels' bytes.

The quantizer comes from the reference kernels; what is written down here again is the code.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from cepam.kernels.format.plan import Plan
from cepam.kernels.numpy.quantizer import accepted, dither, layers, nearest
from tests.kernels.scalar_coder_by_hand import Coder, log, power, within


def walk(basis: list[list[int]]) -> tuple[list[int], list[list[float]], list[list[float]], list[int]]:
    """(order, axes, shear, spacing)."""
    n = len(basis)
    columns = [[Fraction(basis[k][i]) for k in range(n)] for i in range(n)]
    lower = all(basis[k][i] == 0 for k in range(n) for i in range(k + 1, n))
    done = list(reversed(range(n))) if lower else list(range(n))
    g: dict[int, list[Fraction]] = {}
    for i in done:
        v = list(columns[i])
        for other in g.values():
            share = sum(a * b for a, b in zip(columns[i], other)) / sum(b * b for b in other)
            v = [a - share * b for a, b in zip(v, other)]
        g[i] = v
    square = {i: sum(a * a for a in v) for i, v in g.items()}
    axes = [[float(a / square[i]) for a in g[i]] for i in range(n)]
    shear = [[float(sum(a * b for a, b in zip(columns[k], g[i])) / square[i]) for k in range(n)] for i in range(n)]
    spacing = []
    for i in range(n):
        root = math.isqrt(math.floor(square[i] * 2**40))
        length = root.bit_length() - 1
        spacing.append(256 * length + (((root << 8) >> length) & 255) - 20 * 256)
    return done[::-1], axes, shear, spacing


def length_of(plan: Plan, v: list[int]) -> float:
    if plan.accept == 0:
        return float(sum(map(abs, v)))
    total = 0.0
    for a in v:
        total += float(a) * float(a)
    return math.sqrt(total)


def encode(plan: Plan, key: bytes, x: np.ndarray, prior: list, means: list) -> bytes:
    n, odds, coder = plan.n, list(prior), Coder()
    order, axes, shear, spacing = walk(plan.basis.tolist())

    def put(bit: bool, at: int, rate: int) -> None:
        coder.put(bit, min(max(odds[at], 32), 65504))
        odds[at] += ((65535 if bit else 0) - odds[at]) >> rate

    def put_size(value: int, base: int, skip: int) -> None:
        rest = (value >> skip) + (1 if skip else 0)
        length = rest.bit_length() - 1
        for j in range(min(length + 1, 52 - skip)):
            put(j < length, base + min(j, 19), 5)
        for j in reversed(range(length)):
            bit = bool(rest >> j & 1)
            if j == length - 1:
                put(bit, base + 20 + min(length, 4) - 1, 5)
            else:
                coder.put(bit)
        for j in reversed(range(skip)):
            coder.put(bool(value >> j & 1))

    mean = sum(min(abs(int(v)), 2**48) for v in x.reshape(-1)) // max(x.size, 1)
    scale = min(max((log(mean) + 64) >> 7, 1), 126)
    for place in reversed(range(7)):
        coder.put(bool(scale >> place & 1))
    shift, anchor = (scale >> 1) - 16, 4096 + 128 * (scale & 1)
    sized, surprised = power(anchor), False
    ids = np.arange(len(x), dtype=np.int64)
    radii, widths = layers(plan, key, ids)
    for row in range(len(x)):
        one, b = ids[row : row + 1], widths[row : row + 1]
        B = int(b[0])
        r = B / plan.inverse_ball if plan.accept == 2 else float(radii[row])
        z = within((15 * log(sized) + anchor) >> 4, 7935)
        offset = 256 * shift + z
        w = within((log(int(r)) - offset + 512) >> 8, 7)
        for trial in range(1 << 16):
            d = dither(plan, key, trial, one, b)
            j0, e0 = nearest(plan, -d, b)
            j, e = nearest(plan, x[row : row + 1] - d, b)
            inside, ends = (bool(accepted(plan, v, np.array([r]))[0]) for v in (e0, e))
            size0 = length_of(plan, e0[0].tolist())
            mark = within((log(int(abs(r - size0))) - offset + 1536) >> 7, 17)
            c = ((18 if inside else 0) + mark) * 8 + w
            if plan.accept != 2:
                put(ends, c, 6)
                surprised |= ends != inside
            if ends:
                break
        t = [int(a - b0) for a, b0 in zip(j[0], j0[0])]
        put(not any(t), 288 + c, 6)
        size = size0
        if any(t):
            surprised = True
            for told, i in enumerate(order):
                centre = 0.0
                for k in range(n):
                    centre -= axes[i][k] * float(e0[0][k])
                centre /= float(B)
                for k in order[:told]:
                    centre -= shear[i][k] * float(t[k])
                goal = math.floor(centre + 0.5)
                rest = centre - goal
                untouched = goal == 0 and not any(t[k] for k in order[:told])
                stage = (2 if told == n - 1 else 1) if untouched else 0
                gap = log(B) + spacing[i] - offset
                cell = min(int(8 * abs(rest)), 3) * 8 + within((gap + 512) >> 8, 7)
                put(t[i] == goal, 576 + 32 * stage + cell, 6)
                if t[i] != goal:
                    put((t[i] > goal) == (rest >= 0), 672 + cell, 6)
                    skip = within((-gap - 1280) >> 8, 48)
                    put_size(abs(t[i] - goal), 704 + 24 * within((gap + 256 * skip + 1536) >> 7, 23), skip)
            y = [int(x[row, i]) + int(e[0][i]) for i in range(n)]
            size = length_of(plan, y)
        mark = within((log(int(abs(r - size))) - offset + 1536) >> 7, 29)
        e_mean = (power(z) * means[((30 if size <= r else 0) + mark) * 8 + w]) >> 8
        sized += ((min(max(e_mean, 1), 2**31 - 1) - sized) * 5) >> 4
    return coder.finish() if surprised else b""

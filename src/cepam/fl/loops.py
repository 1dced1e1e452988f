"""The loops of a small network, one example at a time, compiled for the CPU.

A convolution is written as long runs over whole rows (axpy forward and to the input, dot products to the weights), so
that the compiler vectorises them and an example's activations never leave the first-level cache. PyTorch's own
operators are the oracle: `tests/fl/test_compiled.py` compares the two.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int32]
REORDER = {"reassoc", "contract", "nsz"}

loop = numba.njit(fastmath=REORDER, cache=True, inline="never", error_model="numpy", nogil=True)


@loop
def spread(source: Floats, planes: Floats, channels: int, height: int, width: int, stride: int, pad: int) -> None:
    """Fills `planes` with the padded input, split by phase of the stride so that every tap reads a contiguous run."""
    rows = (height + 2 * pad + stride - 1) // stride
    pitch = (width + 2 * pad + stride - 1) // stride
    if pad > 0 or stride > 1:
        planes[:] = np.float32(0.0)
    for c in range(channels):
        for y in range(height):
            row = source[(c * height + y) * width : (c * height + y + 1) * width]
            at_y, phase_y = (y + pad) // stride, (y + pad) % stride
            for phase_x in range(stride):
                first = (phase_x - pad) % stride
                base = (((c * stride + phase_y) * stride + phase_x) * rows + at_y) * pitch + (first + pad) // stride
                for x in range((width - first + stride - 1) // stride):
                    planes[base + x] = row[first + x * stride]


@loop
def gather(planes: Floats, source: Floats, channels: int, height: int, width: int, stride: int, pad: int) -> None:
    """Fills `source` with what `spread` took from it: the inverse reading, for gradients."""
    rows = (height + 2 * pad + stride - 1) // stride
    pitch = (width + 2 * pad + stride - 1) // stride
    for c in range(channels):
        for y in range(height):
            row = source[(c * height + y) * width : (c * height + y + 1) * width]
            at_y, phase_y = (y + pad) // stride, (y + pad) % stride
            for phase_x in range(stride):
                first = (phase_x - pad) % stride
                base = (((c * stride + phase_y) * stride + phase_x) * rows + at_y) * pitch + (first + pad) // stride
                for x in range((width - first + stride - 1) // stride):
                    row[first + x * stride] = planes[base + x]


@loop
def taps(starts: Integers, ins: int, rows: int, pitch: int, kernel: int, stride: int) -> None:
    """Fills `starts` with the place in the planes where each tap of the kernel begins its run."""
    for c in range(ins):
        for i in range(kernel):
            for j in range(kernel):
                plane = (c * stride + i % stride) * stride + j % stride
                starts[(c * kernel + i) * kernel + j] = (plane * rows + i // stride) * pitch + j // stride


@loop
def convolve_pair(planes: Floats, w: Floats, v: Floats, starts: Integers, p: Floats, q: Floats) -> None:
    """Adds to `p` and `q` the correlations with two kernels: four taps and two outputs at a time keep loads few."""
    count, run = starts.size, p.size
    for k in range(0, count - 3, 4):
        a, b = planes[starts[k] : starts[k] + run], planes[starts[k + 1] : starts[k + 1] + run]
        c, d = planes[starts[k + 2] : starts[k + 2] + run], planes[starts[k + 3] : starts[k + 3] + run]
        wa, wb, wc, wd = w[k], w[k + 1], w[k + 2], w[k + 3]
        va, vb, vc, vd = v[k], v[k + 1], v[k + 2], v[k + 3]
        for t in range(run):
            p[t] += wa * a[t] + wb * b[t] + wc * c[t] + wd * d[t]
            q[t] += va * a[t] + vb * b[t] + vc * c[t] + vd * d[t]
    for k in range(count - count % 4, count):
        a, wa, va = planes[starts[k] : starts[k] + run], w[k], v[k]
        for t in range(run):
            p[t] += wa * a[t]
            q[t] += va * a[t]


@loop
def convolve(planes: Floats, weight: Floats, starts: Integers, out: Floats, outs: int, run: int) -> None:
    """Adds to `out`, whose rows keep the input's pitch, the correlation of `planes` with `weight`."""
    count = starts.size
    for o in range(0, outs - 1, 2):
        w, v = weight[o * count : (o + 1) * count], weight[(o + 1) * count : (o + 2) * count]
        convolve_pair(planes, w, v, starts, out[o * run : (o + 1) * run], out[(o + 1) * run : (o + 2) * run])
    if outs % 2:
        w, target = weight[(outs - 1) * count :], out[(outs - 1) * run :]
        for k in range(count):
            a, wa = planes[starts[k] : starts[k] + run], w[k]
            for t in range(run):
                target[t] += wa * a[t]


@loop
def correlate(planes: Floats, ahead: Floats, starts: Integers, gradient: Floats, outs: int, run: int) -> None:
    """Fills `gradient` with the derivative to the weights, given that to the pitched output."""
    count, zero = starts.size, np.float32(0.0)
    for k in range(count):
        a = planes[starts[k] : starts[k] + run]
        for o in range(0, outs - 3, 4):
            p, q = ahead[o * run : (o + 1) * run], ahead[(o + 1) * run : (o + 2) * run]
            r, s = ahead[(o + 2) * run : (o + 3) * run], ahead[(o + 3) * run : (o + 4) * run]
            sp, sq, sr, ss = zero, zero, zero, zero
            for t in range(run):
                sp += p[t] * a[t]
                sq += q[t] * a[t]
                sr += r[t] * a[t]
                ss += s[t] * a[t]
            gradient[o * count + k], gradient[(o + 1) * count + k] = sp, sq
            gradient[(o + 2) * count + k], gradient[(o + 3) * count + k] = sr, ss
        for o in range(outs - outs % 4, outs):
            p, sp = ahead[o * run : (o + 1) * run], zero
            for t in range(run):
                sp += p[t] * a[t]
            gradient[o * count + k] = sp


@loop
def convolve_back(ahead: Floats, weight: Floats, starts: Integers, planes: Floats, outs: int, run: int) -> None:
    """Fills `planes` with the derivative to the spread input, given that to the pitched output."""
    planes[:] = np.float32(0.0)
    count = starts.size
    for k in range(count):
        target = planes[starts[k] : starts[k] + run]
        for o in range(0, outs - 3, 4):
            p, q = ahead[o * run : (o + 1) * run], ahead[(o + 1) * run : (o + 2) * run]
            r, s = ahead[(o + 2) * run : (o + 3) * run], ahead[(o + 3) * run : (o + 4) * run]
            wp, wq = weight[o * count + k], weight[(o + 1) * count + k]
            wr, ws = weight[(o + 2) * count + k], weight[(o + 3) * count + k]
            for t in range(run):
                target[t] += wp * p[t] + wq * q[t] + wr * r[t] + ws * s[t]
        for o in range(outs - outs % 4, outs):
            p, wp = ahead[o * run : (o + 1) * run], weight[o * count + k]
            for t in range(run):
                target[t] += wp * p[t]


@loop
def pool_halves(source: Floats, out: Floats, winner: Integers, channels: int, height: int, width: int) -> None:
    """As `pool` for windows of two by two side by side, in a form that vectorises."""
    rows, columns = height // 2, width // 2
    for c in range(channels):
        for y in range(rows):
            corner = np.int32((c * height + 2 * y) * width)
            upper = source[corner : corner + 2 * columns]
            lower = source[corner + width : corner + width + 2 * columns]
            best = out[(c * rows + y) * columns : (c * rows + y + 1) * columns]
            where = winner[(c * rows + y) * columns : (c * rows + y + 1) * columns]
            for x in range(columns):
                p, q, r, s = upper[2 * x], upper[2 * x + 1], lower[2 * x], lower[2 * x + 1]
                top, low = (q if q > p else p), (s if s > r else r)
                at_top, at_low = np.int32(q > p), np.int32(s > r) + np.int32(width)
                best[x] = low if low > top else top
                where[x] = corner + np.int32(2 * x) + (at_low if low > top else at_top)


@loop
def pool(
    source: Floats, out: Floats, winner: Integers, channels: int, height: int, width: int, size: int, stride: int
) -> None:
    """Fills `out` with the largest value of each window and `winner` with where it stood (the first of equals)."""
    if size == 2 and stride == 2:
        pool_halves(source, out, winner, channels, height, width)
        return
    rows, columns = (height - size) // stride + 1, (width - size) // stride + 1
    for c in range(channels):
        for y in range(rows):
            for x in range(columns):
                corner = (c * height + y * stride) * width + x * stride
                best, where = source[corner], corner
                for i in range(size):
                    for j in range(size):
                        value = source[corner + i * width + j]
                        larger = value > best
                        best = value if larger else best
                        where = corner + i * width + j if larger else where
                at = (c * rows + y) * columns + x
                out[at] = best
                winner[at] = where


@loop
def pool_back(ahead: Floats, winner: Integers, back: Floats) -> None:
    """Fills `back` with each window's derivative at its winner."""
    back[:] = np.float32(0.0)
    for t in range(ahead.size):
        back[winner[t]] += ahead[t]


@loop
def tanh(source: Floats, out: Floats) -> None:
    """Fills `out` with tanh, as a ratio of polynomials so that it vectorises (error below 4e-7)."""
    for t in range(source.size):
        x = min(max(source[t], np.float32(-7.9)), np.float32(7.9))
        s = x * x
        p = np.float32(-2.76076847742355e-16) * s + np.float32(2.00018790482477e-13)
        p = p * s + np.float32(-8.60467152213735e-11)
        p = p * s + np.float32(5.12229709037114e-08)
        p = p * s + np.float32(1.48572235717979e-05)
        p = p * s + np.float32(6.37261928875436e-04)
        p = p * s + np.float32(4.89352455891786e-03)
        q = np.float32(1.19825839466702e-06) * s + np.float32(1.18534705686654e-04)
        q = q * s + np.float32(2.26843463243900e-03)
        q = q * s + np.float32(4.89352518554385e-03)
        out[t] = x * p / q


@loop
def dense(source: Floats, weight: Floats, out: Floats) -> None:
    """Adds to `out` the product of the row-major `weight` with `source`."""
    for o in range(out.size):
        row = weight[o * source.size : (o + 1) * source.size]
        total = np.float32(0.0)
        for t in range(source.size):
            total += row[t] * source[t]
        out[o] += total


@loop
def dense_back(source: Floats, weight: Floats, ahead: Floats, gradient: Floats, back: Floats) -> None:
    """Fills `gradient` and `back` with the derivatives to the weights and to the input."""
    back[:] = np.float32(0.0)
    for o in range(ahead.size):
        g = ahead[o]
        row = weight[o * source.size : (o + 1) * source.size]
        line = gradient[o * source.size : (o + 1) * source.size]
        for t in range(source.size):
            line[t] = g * source[t]
            back[t] += g * row[t]


@loop
def cross_entropy(logits: Floats, label: int, back: Floats) -> float:
    """The loss of one example, with its derivative to the logits left in `back`."""
    top = logits.max()
    total = np.float32(0.0)
    for t in range(logits.size):
        back[t] = np.exp(logits[t] - top)
        total += back[t]
    for t in range(logits.size):
        back[t] /= total
    back[label] -= np.float32(1.0)
    return float(np.log(total) + top - logits[label])

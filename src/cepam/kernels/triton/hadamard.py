"""Walsh-Hadamard transforms of the search coder in Triton, and the likelihood ratios that are made of them.

A tensor holds parts of 2^size coordinates, groups of eight `below_each_other`: coordinate 8 l + k of all parts stands
at k times the groups, plus l. As a cube of two places in each direction, every bit of a coordinate's number is an axis.
No value moves between threads for the first three steps. Launch with `enable_fp_fusion=False`.
"""

from __future__ import annotations

import triton
import triton.language as tl

_LN2_HIGH, _LN2_LOW = tl.constexpr(0.693147180369123816490), tl.constexpr(1.90821492927058770002e-10)
_PER_LN2, _FURTHEST = tl.constexpr(1.4426950408889634), tl.constexpr(700.0)
_TERMS = 12
_FACTORS = [1.0]
for _i in range(1, _TERMS):
    _FACTORS.append(_FACTORS[-1] / _i)
_EXP = tl.constexpr(tuple(_FACTORS))
_LAST = tl.constexpr(_TERMS - 1)


@triton.constexpr_function
def log_of(places):
    """The binary logarithm of a power of two."""
    return int(places).bit_length() - 1


@triton.constexpr_function
def axis_of(bit, axes):
    """The axis of the cube along which this bit of a coordinate's number changes."""
    return 2 - bit if bit < 3 else axes + 2 - bit


@triton.constexpr_function
def along(axis, axes):
    """The shape of what differs along one axis of the cube only."""
    return [2 if i == axis else 1 for i in range(axes)]


@triton.jit
def exact(number: tl.constexpr):
    """A float64 constant: Triton takes most literals for float32."""
    return tl.full((), number, tl.float64)


@triton.jit
def step_along(cube, axis: tl.constexpr, axes: tl.constexpr):
    """Sums and differences of neighbours along an axis."""
    bits = cube.to(tl.int64, bitcast=True)
    # Of two numbers' sum, less one of them, the compiler makes the other one.
    other = (tl.sum(bits, axis, keep_dims=True) - bits).to(tl.float64, bitcast=True)
    minus = tl.reshape(tl.arange(0, 2).to(tl.int64) << 63, along(axis, axes))
    return other + (bits ^ minus).to(tl.float64, bitcast=True)


@triton.jit
def transform(values, size: tl.constexpr):
    """The transforms of parts of 2^size coordinates, not normalised: steps of 1, 2, 4, … places."""
    places: tl.constexpr = values.shape[0]
    axes: tl.constexpr = log_of(places)
    cube = tl.reshape(values, [2] * axes)
    for bit in tl.static_range(size):
        cube = step_along(cube, axis_of(bit, axes), axes)
    return tl.reshape(cube, (places,))


@triton.jit
def add_up(values, size: tl.constexpr):
    """The sum of each part: the second half is added to the first, until one number is left."""
    places: tl.constexpr = values.shape[0]
    axes: tl.constexpr = log_of(places)
    cube = tl.reshape(values, [2] * axes)
    for step in tl.static_range(size):
        cube = tl.sum(cube, axis_of(size - 1 - step, axes), keep_dims=True)
    return tl.reshape(cube, (places >> size,))


@triton.jit
def largest_of(values, size: tl.constexpr):
    """The largest number of each part."""
    parts: tl.constexpr = values.shape[0] >> size
    return tl.max(tl.max(tl.reshape(values, (8, parts, 1 << (size - 3))), 2), 0)


@triton.jit
def exponential(v):
    """e^v for v from -700 to 700, of + and * alone: right to 2^-46."""
    v = tl.minimum(tl.maximum(v, -exact(_FURTHEST)), exact(_FURTHEST))
    k = tl.floor(v * exact(_PER_LN2) + 0.5)
    r = (v - k * exact(_LN2_HIGH)) - k * exact(_LN2_LOW)
    total = tl.zeros_like(v) + exact(_EXP[_LAST])
    for i in tl.static_range(1, _LAST + 1):
        total = total * r + exact(_EXP[_LAST - i])
    return total * ((k.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)

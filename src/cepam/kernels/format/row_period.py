"""How an update's coordinates hang together: the layout that the scalar coder's encoder announces.

A gradient of a dense layer is a sum of outer products, so a coordinate resembles the one a row earlier. The codec knows
no shapes; the encoder finds the row length from the autocorrelation of |X|. A poor choice costs bits, never
correctness. Still every backend must make the same one: all values are small integers, so that the Fourier transform's
rounding errors vanish when its result is rounded, whoever computed it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cepam.kernels.format.plan import SCALE_BITS, Ints

Floats = npt.NDArray[np.float64]

FLAT, LOCAL, LARGEST_PERIOD = 0, 1, 2047
SHARED_BLOCKS = 64
"""So many blocks share the layout found on the first of them: the search costs as much as coding some blocks."""

WINDOW = 8
SHORTEST = 8
FIRST_OF_EQUALS = 0.85
MULTIPLES = 8
EVIDENCE = 0.04
NEIGHBOURLY = 0.05
QUIET = 1 << (SCALE_BITS - 4)
"""Below a sixteenth of the noise scale, rows are worth less than 1 % of the message: not searched for. Neighbours tell
little there, since nearly all of them are zeros: `LOCAL` pays where sizes differ widely, the squared mean under 0.3 of
the mean square, and else costs 5 % more than `FLAT`."""

FOURIER_LENGTHS = (64, 128, 256, 512, 1024, 2048, 3072, 4096, 5120, 6144, 7680, 8640, 9216, 10240)
"""Products of small primes, for a fast transform; the last is enough for a block and the longest period."""

UNIT, RATIO, LARGEST_RATIO = 1024, 64, 32


def find_period(x: Ints) -> int:
    """`FLAT` (i.i.d.), `LOCAL` (neighbours alike) or a row length in 8..2047, whichever the block's |X| supports.

    i.i.d. entries reach a score of 0.02 to 0.03, dense and convolutional layers 0.05 to 0.4.
    """
    size = np.minimum(np.abs(x), np.int64(1) << 48)
    mean = int(size.sum()) // max(len(size), 1)
    if len(size) < 4 * SHORTEST or mean == 0:
        return FLAT
    size = (np.minimum(size, 4 * mean) * UNIT) // mean
    longest = min(LARGEST_PERIOD, len(size) // 3)
    if longest >= SHORTEST and mean >= QUIET:
        score = score_lags(correlate(flatten(size), longest))
        at = int(np.argmax(score >= FIRST_OF_EQUALS * score.max()))
        at += int(np.argmax(score[at : at + 3]))
        if score[at] > EVIDENCE:
            return SHORTEST + at
    total = int(size.sum())
    if mean < QUIET and 10 * total * total >= 3 * len(size) * int(size @ size):
        return FLAT
    apart = size - total // len(size)
    neighbours = int(apart[1:] @ apart[:-1]) / max(int(apart @ apart), 1)
    return LOCAL if neighbours > NEIGHBOURLY else FLAT


def seem_flat(data: npt.NDArray[np.uint8], lengths: Ints) -> bool:
    """Whether all blocks of these streams, one after the other, are `FLAT`, as far as their first bytes tell.

    A header is 18 plain bits, zeros as ones: 7 of the scale, 11 of the layout. A block of nothing is an empty stream.
    Guarantee: right for every stream that an encoder wrote (tests/kernels/test_row_period.py).
    """
    at = (np.cumsum(lengths) - lengths)[lengths > 0]
    if lengths.max(initial=0) and lengths[lengths > 0].min() < 3:
        return False
    return bool(((data[at] & 1 == 1) & (data[at + 1] == 255) & (data[at + 2] >= 192)).all())


def flatten(size: Ints) -> Ints:
    """|X| over its moving average, cut off and centred: the pattern inside a row, not the rows' own levels.

    Cut off, so that a layer of few large entries does not outvote one of many; and zeros say nothing, or else every
    entry of a sparse vector would cast a shadow of the window's width.
    """
    total = np.zeros(len(size) + 2 * WINDOW, dtype=np.int64)
    np.cumsum(size, out=total[WINDOW:-WINDOW])
    total[-WINDOW:] = total[-WINDOW - 1]
    local = (total[2 * WINDOW :] - total[: -2 * WINDOW]) // (2 * WINDOW)
    ratio = np.clip(((size - local) * RATIO) // (local + UNIT // 4), -LARGEST_RATIO, LARGEST_RATIO)
    ratio *= size > 0
    return np.asarray(ratio - int(ratio.sum()) // len(ratio))


def correlate(values: Ints, longest: int) -> Floats:
    """The autocorrelation at lags 0..longest, each divided by what lag 0 would give with as many terms."""
    count = min(length for length in FOURIER_LENGTHS if length > len(values) + longest)
    spectrum = np.fft.rfft(values.astype(np.float64), count)
    power = spectrum.real * spectrum.real + spectrum.imag * spectrum.imag
    product = np.rint(np.fft.irfft(power, count)[: longest + 1])
    terms = len(values) - np.arange(longest + 1)
    return np.asarray(product / max(float(product[0]), 1.0) * len(values) / terms)


def score_lags(correlation: Floats) -> Floats:
    """For lags from `SHORTEST` on: the correlation summed over a lag's first multiples, over the noise they carry."""
    longest = len(correlation) - 1
    total, count = np.zeros(longest + 1), np.zeros(longest + 1)
    for multiple in range(1, MULTIPLES + 1):
        inside = longest // multiple + 1
        total[:inside] += correlation[: (inside - 1) * multiple + 1 : multiple]
        count[:inside] += 1
    return np.asarray(total[SHORTEST:] / np.sqrt(count[SHORTEST:] * MULTIPLES))

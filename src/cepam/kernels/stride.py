"""How an update's coordinates hang together: the layout that the margin coder's encoder announces.

A gradient of a dense layer is a sum of outer products, so a coordinate resembles the one a row earlier. The codec knows
no shapes; the encoder finds the row length from the autocorrelation of |X|. A poor choice costs bits, never
correctness. Still every backend must make the same one: all values are small integers, so that the Fourier transform's
rounding errors vanish when its result is rounded, whoever computed it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cepam.plan import Ints

Floats = npt.NDArray[np.float64]

FLAT, LOCAL, LARGEST_STRIDE = 0, 1, 2047
SHARED_BLOCKS = 64
"""So many blocks share the layout found on the first of them: the search costs as much as coding some blocks."""

WINDOW = 16
SHORTEST = 8
MULTIPLES = 8
EVIDENCE = 0.04
NEIGHBOURLY = 0.05
UNIT, RATIO, LARGEST_RATIO = 1024, 64, 255


def find_stride(x: Ints) -> int:
    """`FLAT` (i.i.d.), `LOCAL` (neighbours alike) or a row length in 8..2047, whichever the block's |X| supports.

    i.i.d. entries reach a score of about 0.02, dense and convolutional layers 0.05 to 0.4.
    """
    size = np.minimum(np.abs(x), np.int64(1) << 48)
    mean = int(size.sum()) // max(len(size), 1)
    if len(size) < 4 * SHORTEST or mean == 0:
        return FLAT
    size = (np.minimum(size, 4 * mean) * UNIT) // mean
    lags = np.arange(SHORTEST, min(LARGEST_STRIDE, len(size) // 3) + 1)
    if len(lags):
        score = score_lags(correlate(flatten(size)), lags)
        at = int(np.argmax(score >= 0.8 * score.max()))
        at += int(np.argmax(score[at : at + 3]))
        if score[at] > EVIDENCE:
            return int(lags[at])
    apart = size - int(size.sum()) // len(size)
    neighbours = int(apart[1:] @ apart[:-1]) / max(int(apart @ apart), 1)
    return LOCAL if neighbours > NEIGHBOURLY else FLAT


def flatten(size: Ints) -> Ints:
    """|X| over its moving average, centred: what is left is the pattern inside a row, not the rows' own levels."""
    total = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(size)])
    at = np.arange(len(size))
    first, last = np.maximum(at - WINDOW, 0), np.minimum(at + WINDOW, len(size))
    local = (total[last] - total[first]) // (last - first)
    ratio = np.clip(((size - local) * RATIO) // (local + UNIT // 4), -LARGEST_RATIO, LARGEST_RATIO)
    return np.asarray(ratio - int(ratio.sum()) // len(ratio))


def correlate(values: Ints) -> Floats:
    """The autocorrelation at lags 0..2047, each divided by what lag 0 would give with as many terms."""
    count = 1 << (len(values) + LARGEST_STRIDE).bit_length()
    spectrum = np.fft.rfft(values.astype(np.float64), count)
    power = spectrum.real * spectrum.real + spectrum.imag * spectrum.imag
    product = np.rint(np.fft.irfft(power, count)[: LARGEST_STRIDE + 1])
    terms = np.maximum(len(values) - np.arange(LARGEST_STRIDE + 1), 1)
    return np.asarray(product / max(float(product[0]), 1.0) * len(values) / terms)


def score_lags(correlation: Floats, lags: Ints) -> Floats:
    """The correlation summed over a lag's first multiples, over the noise that so many terms carry."""
    total, count = np.zeros(len(lags)), np.zeros(len(lags))
    for multiple in range(1, MULTIPLES + 1):
        inside = lags * multiple <= lags[-1]
        total[inside] += correlation[lags[inside] * multiple]
        count += inside
    return np.asarray(total / np.sqrt(count * MULTIPLES))

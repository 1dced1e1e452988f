"""How an update's coordinates hang together: the layout that the margin coder's encoder announces.

A gradient of a dense layer is a sum of outer products, so a coordinate resembles the one a row earlier. The
codec knows no shapes; the encoder finds the row length from the autocorrelation of |X|. Only the encoder
runs this: a poor choice costs bits, never correctness, so floating point is allowed here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cepam.kernels.margin import FLAT, LARGEST_STRIDE, LOCAL

WINDOW = 16
SHORTEST = 8
MULTIPLES = 8
EVIDENCE = 0.04
NEIGHBOURLY = 0.05


def find_stride(X: npt.NDArray[np.int64]) -> int:
    """`FLAT` (i.i.d.), `LOCAL` (neighbours alike) or a row length in 8..2047, as the block's |X| suggests.

    i.i.d. entries reach a score of about 0.02, dense and convolutional layers 0.05 to 0.4.
    """
    size = np.minimum(np.abs(X), np.int64(1) << 60).astype(np.float64)
    mean = float(size.mean()) if size.size else 0.0
    if size.size < 4 * SHORTEST or mean == 0.0:
        return FLAT
    size = np.minimum(size, 4.0 * mean)
    lags = np.arange(SHORTEST, min(LARGEST_STRIDE, size.size // 3) + 1)
    if lags.size:
        score = score_lags(correlate(flatten(size, mean)), lags)
        at = int(np.argmax(score >= 0.8 * score.max()))
        at += int(np.argmax(score[at : at + 3]))
        if score[at] > EVIDENCE:
            return int(lags[at])
    apart = size - size.mean()
    neighbours = float(apart[1:] @ apart[:-1]) / max(float(apart @ apart), 1e-300)
    return LOCAL if neighbours > NEIGHBOURLY else FLAT


def flatten(size: npt.NDArray[np.float64], mean: float) -> npt.NDArray[np.float64]:
    """|X| over its moving average, centred: the pattern inside a row stays, the rows' own levels go."""
    total = np.concatenate([[0.0], np.cumsum(size)])
    at = np.arange(size.size)
    first, last = np.maximum(at - WINDOW, 0), np.minimum(at + WINDOW, size.size)
    local = (total[last] - total[first]) / (last - first)
    ratio = (size - local) / (local + mean / 4.0)
    return np.asarray(ratio - ratio.mean())


def correlate(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The autocorrelation at lags 0..2047, each divided by what lag 0 would give with as many terms."""
    count = 1 << (values.size + LARGEST_STRIDE).bit_length()
    spectrum = np.fft.rfft(values, count)
    product = np.fft.irfft(np.abs(spectrum) ** 2, count)[: LARGEST_STRIDE + 1]
    terms = np.maximum(values.size - np.arange(LARGEST_STRIDE + 1), 1)
    return np.asarray(product / max(product[0], 1e-300) * values.size / terms)


def score_lags(correlation: npt.NDArray[np.float64], lags: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The correlation summed over a lag's first multiples, over the noise that so many terms carry."""
    total, count = np.zeros(lags.size), np.zeros(lags.size)
    for multiple in range(1, MULTIPLES + 1):
        inside = lags * multiple <= lags[-1]
        total[inside] += correlation[lags[inside] * multiple]
        count += inside
    return np.asarray(total / np.sqrt(count * MULTIPLES))

"""The ChaCha keystream in NumPy, found by (stream, word): the shared randomness of the reference backend.

State layout of D. J. Bernstein's original: words 12-13 a 64-bit block counter, words 14-15 the stream's number; the
layout of RFC 8439 differs only in how words 12-15 are named, so its test vectors apply. 64-bit word k of a stream is
32-bit words 2(k mod 8) and 2(k mod 8)+1, little-endian, of block k div 8.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cepam.kernels.format.plan import CONSTANTS, ROUNDS, Half, key_words

Words = npt.NDArray[np.uint64]


def chacha(key: bytes, tail: Half, rounds: int = ROUNDS) -> Half:
    """The keystream blocks (N, 16) whose state ends in the rows of tail (N, 4)."""
    start = np.empty((16, len(tail)), dtype=np.uint32)
    start[:4] = CONSTANTS[:, None]
    start[4:12] = key_words(key)[:, None]
    start[12:] = tail.T
    state = start.copy()
    for _ in range(rounds // 2):
        for a, b, c, d in ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)):
            _quarter_round(state, a, b, c, d)
        for a, b, c, d in ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)):
            _quarter_round(state, a, b, c, d)
    return (state + start).T


def _quarter_round(s: Half, a: int, b: int, c: int, d: int) -> None:
    for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        s[x] += s[y]
        s[z] ^= s[x]
        s[z] = (s[z] << np.uint32(turn)) | (s[z] >> np.uint32(32 - turn))


def stream_words(key: bytes, stream: int, index: npt.NDArray[np.int64]) -> Words:
    """The 64-bit words of a stream at these indices, in the shape of `index`."""
    words: Words = words_of_streams(key, [stream], index)[0]
    return words


def words_of_streams(key: bytes, streams: Sequence[int], index: npt.NDArray[np.int64]) -> Words:
    """The words of several streams at the same indices, one stream after the other."""
    blocks, place = np.unique(index >> 3, return_inverse=True)
    tail = np.empty((len(streams), len(blocks), 4), dtype=np.uint32)
    tail[:, :, 0] = blocks & 0xFFFFFFFF
    tail[:, :, 1] = blocks >> 32
    for tails, stream in zip(tail, streams):
        tails[:, 2:] = stream & 0xFFFFFFFF, stream >> 32
    pairs = np.ascontiguousarray(chacha(key, tail.reshape(-1, 4))).reshape(*tail.shape[:2], 8, 2).astype(np.uint64)
    words = pairs[..., 0] | (pairs[..., 1] << np.uint64(32))
    return words[:, place.reshape(index.shape), index & 7]

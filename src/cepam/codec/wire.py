"""The message: header, seal, and the table of blocks; the only owner of byte offsets (docs/wire.md).

A vertical bar is concatenation, a number in parentheses a count of bytes:

    message = version and flags (1) | tag (1) | seal( payload ) with 16 bytes of authentication a seal
    payload = size (varint, unless both ends know it) | block lengths (varints) | blocks | zero padding

A payload that is longer than a chunk has several seals (`sealing`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from cepam.codec import sealing
from cepam.codec.sealing import SEAL_BYTES, Pieces, Room
from cepam.errors import MalformedMessage, WrongAddress
from cepam.kernels.format.blocks import JoinedBlocks, joined
from cepam.kernels.format.search import SEGMENT
from cepam.keys import StreamKeys

VERSION = 5
"""In the upper half of the first byte; messages of versions 1 to 4 began with that number as a whole byte."""
HEAD_BYTES = 2
BLOCK_COORDINATES = 8192
LARGEST_SIZE = 2**40
_LONGEST = 1 << 32
"""Bytes of a block that a table may speak of: more than any has, and so few that no sum of them overflows."""
_NOTHING = b"\0"
"""In the place of an empty payload, which the cipher does not seal: zeros behind a block mean nothing."""
_FEW = 16
"""Numbers of a block table up to which Python is faster than NumPy."""
DOUBLE, PADDED, SEARCHED, TRAVELS = 1, 2, 4, 8
"""Flags: float64; padded; blocks are segments of the search coder; the size stands in the payload."""


@dataclass(frozen=True)
class Contents:
    """What a sealed message holds: the vector's size and type, and the blocks, or segments of the search coder."""

    size: int
    double: bool
    searched: bool
    blocks: Sequence[bytes]


def rows_per_block(n: int) -> int:
    """Sub-vectors of dimension n in a block: a multiple of 128, so that blocks start on whole keystream blocks."""
    return max(BLOCK_COORDINATES // n // 128, 1) * 128


def count_blocks(size: int, n: int) -> int:
    """The number of blocks of a vector of this size cut into sub-vectors of dimension n."""
    rows = -(-size // n)
    return -(-rows // rows_per_block(n))


def seal(
    contents: Contents, keys: StreamKeys, fingerprint: bytes, padding: int | None = None, threads: int | None = None,
    travels: bool = True,
) -> bytes:  # fmt: skip
    """The message; its length is a multiple of `padding` if one is given. `travels`: no reader knows the size."""
    flags = DOUBLE * contents.double | SEARCHED * contents.searched
    flags |= PADDED * (padding is not None) | TRAVELS * travels
    head = bytes([VERSION << 4 | flags]) + _tag(fingerprint)
    return sealing.encrypt(keys.seal, _join(contents, padding, travels), head, head + fingerprint, threads)


def open_sealed(
    message: bytes, keys: StreamKeys, fingerprint: bytes, dimension: int, searches: bool = False,
    size: int | None = None, room: Room | None = None, threads: int | None = None,
) -> Contents:  # fmt: skip
    """The contents, verified whole before anything is read; raises rather than return what was not sealed here.

    `size` is that of every message of the codec, where it has one. `room` gives the memory in which a long payload is
    opened.
    """
    check_version(message)
    head, flags = message[:HEAD_BYTES], message[0] & 15
    if head[1:] != _tag(fingerprint):
        raise WrongAddress("the message was made by another codec: law, lattice, coder or size differ")
    if bool(flags & TRAVELS) != (size is None):
        raise WrongAddress("the message was made by another codec: one that has a size, and one without")
    if flags & SEARCHED and not searches:
        raise WrongAddress("the message was made by another codec: it is of the search coder, which this has not")
    payload = sealing.decrypt(keys.seal, memoryview(message)[HEAD_BYTES:], head + fingerprint, room, threads)
    return _split(payload, flags, dimension, size)


def check_version(message: bytes) -> None:
    """Raise `MalformedMessage` for what is too short, or of a version that this package does not read."""
    if len(message) <= HEAD_BYTES + SEAL_BYTES:
        raise MalformedMessage(f"a message has at least {HEAD_BYTES + SEAL_BYTES + 1} bytes, got {len(message)}")
    if message[0] >> 4 != VERSION:
        found = message[0] >> 4 or message[0]
        raise MalformedMessage(f"this package reads messages of version {VERSION}, got version {found}")


@lru_cache(maxsize=64)
def _tag(fingerprint: bytes) -> bytes:
    return hashlib.sha256(b"cepam tag" + fingerprint).digest()[: HEAD_BYTES - 1]


def _join(contents: Contents, padding: int | None, travels: bool) -> Pieces:
    blocks = joined(contents.blocks)
    head = varint(contents.size) if travels else b""
    head += _varints(blocks.lengths if padding is not None else blocks.lengths[:-1])
    data = memoryview(blocks.data)
    if padding is not None:
        return Pieces([head, data, bytes(_padding(len(head) + len(data), padding))])
    return Pieces([head, data] if head or len(data) else [_NOTHING])


def _padding(size: int, padding: int) -> int:
    """The fewest bytes that make the message of a payload of this size a multiple of `padding`."""
    length = HEAD_BYTES + size + SEAL_BYTES * sealing.count_chunks(size)
    while True:
        length += -length % padding
        padded = sealing.payload_size(length - HEAD_BYTES)
        # Where a chunk begins, some lengths belong to no payload: the next multiple then.
        if padded >= size and HEAD_BYTES + padded + SEAL_BYTES * sealing.count_chunks(padded) == length:
            return padded - size
        length += 1


def _split(payload: memoryview, flags: int, dimension: int, known: int | None) -> Contents:
    """The contents of a payload."""
    searched, double, padded, held = bool(flags & SEARCHED), bool(flags & DOUBLE), bool(flags & PADDED), len(payload)
    size, at = read_varint(payload, 0) if known is None else (known, 0)
    total = -(-size // SEGMENT) if searched else count_blocks(size, dimension)
    if size > LARGEST_SIZE or total > held - at + 1:
        raise MalformedMessage(f"a payload of {held} bytes cannot hold {size} coordinates")
    if total == 1 and not padded:
        return Contents(size, double, searched, JoinedBlocks(payload[at:], np.array([held - at])))
    lengths, whole, at = _read_lengths(payload, at, total if padded else max(total - 1, 0))
    left = held - at - whole
    if total and not padded:  # the last block has what is left
        lengths, left = np.concatenate([lengths, [left]]), min(left, 0)
    if left < 0 or (left and not (padded and not np.frombuffer(payload[held - left :], dtype=np.uint8).any())):
        raise MalformedMessage("the block table does not match the payload")
    return Contents(size, double, searched, JoinedBlocks(payload[at : held - left], lengths))


def _varints(values: npt.NDArray[np.int64]) -> bytes:
    """The varints of many numbers, without a loop over them; for a few a loop is faster."""
    if len(values) <= _FEW:
        return b"".join(map(varint, values.tolist()))
    if values.min() >= 128 and values.max() < 1 << 14:  # as blocks of 8,192 coordinates have
        return bytes((values & 127 | 128 | values >> 7 << 8).astype("<u2").tobytes())
    shifts = np.arange(0, max(int(values.max()).bit_length(), 1), 7)
    digits = (values[:, None] >> shifts & 127).astype(np.uint8)
    here = (shifts == 0) | (values[:, None] >> shifts > 0)
    digits[:, :-1] |= here[:, 1:].astype(np.uint8) << 7
    return bytes(digits[here].tobytes())


def _read_lengths(data: memoryview, at: int, count: int) -> tuple[npt.NDArray[np.int64], int, int]:
    """So many numbers, their sum and where they end, without a loop over them; for a few a loop is faster."""
    if count <= _FEW:
        few = []
        for _ in range(count):
            value, at = read_varint(data, at)
            few.append(value)
        return np.array(few, dtype=np.int64), sum(few), at
    found = np.frombuffer(data, dtype=np.uint8, offset=at, count=min(9 * count, len(data) - at))
    pairs = found[: 2 * count].view("<u2") if len(found) >= 2 * count else None
    if pairs is not None and ((pairs & 0x8080) == 0x80).all():  # as blocks of 8,192 coordinates have
        short = (pairs & 127 | pairs >> 8 << 7).astype(np.int64)
        return short, int(short.sum()), at + 2 * count
    last = np.flatnonzero(found < 128)[:count]
    starts = np.concatenate([[0], last[:-1] + 1])
    if len(last) < count or int((last - starts).max()) > 8:
        raise MalformedMessage("a number in the payload does not end")
    digits = found[: int(last[-1]) + 1].astype(np.int64) & 127
    shifts = 7 * (np.arange(len(digits)) - np.repeat(starts, last - starts + 1))
    values: npt.NDArray[np.int64] = np.add.reduceat(digits << shifts, starts)
    if int(values.max()) > _LONGEST:
        raise MalformedMessage("the block table does not match the payload")
    return values, int(values.sum()), at + len(digits)


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 63, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise MalformedMessage("a number in the payload does not end")

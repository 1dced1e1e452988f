"""The message: header, seal, and the table of blocks; the only owner of byte offsets (docs/wire.md).

A vertical bar is concatenation, a number in parentheses a count of bytes:

    message = version (1) | tag (2) | seal( payload ) with 16 bytes of authentication
    payload = flags (1) | size (varint) | block lengths (varints) | blocks | zero padding
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cepam.errors import MalformedMessage, SealBroken, WrongAddress
from cepam.kernels.model.blocks import JoinedBlocks, joined
from cepam.keys import StreamKeys

VERSION = 1
HEAD_BYTES = 3
SEAL_BYTES = 16
BLOCK_COORDINATES = 8192
LARGEST_SIZE = 2**40
LARGEST_PAYLOAD = 2**31 - 64
_DOUBLE, _PADDED, _LATTICE_SHIFT = 1, 2, 2
_NONCE = bytes(12)


@dataclass(frozen=True)
class Contents:
    """What a sealed payload holds: the vector's size and type, which lattice of the codec's list, and the blocks."""

    size: int
    double: bool
    lattice: int
    blocks: Sequence[bytes]


def rows_per_block(n: int) -> int:
    """Sub-vectors of dimension n in a block: a multiple of 128, so that blocks start on whole keystream blocks."""
    return max(BLOCK_COORDINATES // n // 128, 1) * 128


def count_blocks(size: int, n: int) -> int:
    """The number of blocks of a vector of this size cut into sub-vectors of dimension n."""
    rows = -(-size // n)
    return -(-rows // rows_per_block(n))


def seal(contents: Contents, keys: StreamKeys, fingerprint: bytes, bucket: int | None = None) -> bytes:
    """The message; its length is a multiple of `bucket` if one is given."""
    payload = _join(contents, bucket)
    if len(payload) > LARGEST_PAYLOAD:
        raise ValueError(f"a message of {len(payload):,} bytes is too long for one seal: cut the update in parts")
    head = bytes([VERSION]) + _tag(fingerprint)
    return head + _encrypt(keys, payload, head + fingerprint)


def open_sealed(message: bytes, keys: StreamKeys, fingerprint: bytes, dimensions: list[int]) -> Contents:
    """The contents, verified whole before anything is read; raises rather than return what was not sealed here."""
    if len(message) < HEAD_BYTES + SEAL_BYTES + 2:
        raise MalformedMessage(f"a message has at least {HEAD_BYTES + SEAL_BYTES + 2} bytes, got {len(message)}")
    if message[0] != VERSION:
        raise MalformedMessage(f"this package reads messages of version {VERSION}, got version {message[0]}")
    head = bytes([VERSION]) + _tag(fingerprint)
    if message[:HEAD_BYTES] != head:
        raise WrongAddress("the message was made by another codec: law, lattice or coder differ")
    return _split(_decrypt(keys, memoryview(message)[HEAD_BYTES:], head + fingerprint), dimensions)


def _tag(fingerprint: bytes) -> bytes:
    return hashlib.sha256(b"cepam tag" + fingerprint).digest()[: HEAD_BYTES - 1]


def _encrypt(keys: StreamKeys, payload: bytes, context: bytes) -> bytes:
    # AES-256-GCM-SIV (RFC 8452): the key is fresh for each address, so the nonce can be constant, and an address
    # used twice by mistake does not break the cipher.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

    return AESGCMSIV(keys.seal).encrypt(_NONCE, payload, context)


def _decrypt(keys: StreamKeys, sealed: bytes | memoryview, context: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

    try:
        return AESGCMSIV(keys.seal).decrypt(_NONCE, sealed, context)
    except (InvalidTag, OverflowError) as broken:
        raise SealBroken("the seal does not open: another key, round, client or codec, or damaged bytes") from broken


def _join(contents: Contents, bucket: int | None) -> bytes:
    padded, blocks = bucket is not None, joined(contents.blocks)
    flags = (_DOUBLE if contents.double else 0) | (_PADDED if padded else 0) | contents.lattice << _LATTICE_SHIFT
    table = _varints(blocks.lengths if padded else blocks.lengths[:-1])
    head = bytes([flags]) + varint(contents.size) + table
    size = len(head) + int(blocks.lengths.sum()) + HEAD_BYTES + SEAL_BYTES
    return b"".join([head, memoryview(blocks.data), bytes(-size % bucket if bucket else 0)])


def _split(payload: bytes, dimensions: list[int]) -> Contents:
    flags = payload[0]
    lattice = flags >> _LATTICE_SHIFT
    if lattice >= len(dimensions):
        raise MalformedMessage(f"lattice number {lattice} is not one of this codec's {len(dimensions)}")
    size, at = read_varint(payload, 1)
    total = count_blocks(size, dimensions[lattice])
    if size > LARGEST_SIZE or total > len(payload) - at + 1:
        raise MalformedMessage(f"a payload of {len(payload)} bytes cannot hold {size} coordinates")
    padded = bool(flags & _PADDED)
    lengths, at = _read_varints(payload, at, total if padded else max(total - 1, 0))
    if len(lengths) and int(lengths.max()) > len(payload):
        raise MalformedMessage("the block table does not match the payload")
    end = at + int(lengths.sum())
    if not padded and total:
        lengths, end = np.append(lengths, len(payload) - end), len(payload)
    rest = len(payload) - end
    if (total and int(lengths.min()) < 0) or rest < 0 or payload.count(0, end) < rest or (rest and not padded):
        raise MalformedMessage("the block table does not match the payload")
    return Contents(size, bool(flags & _DOUBLE), lattice, JoinedBlocks(memoryview(payload)[at:end], lengths))


def _varints(values: npt.NDArray[np.int64]) -> bytes:
    """The varints of many numbers, without a loop over them."""
    sizes = np.ones(len(values), dtype=np.int64)
    for shift in range(7, 63, 7):
        sizes += values >> shift > 0
    starts, out = np.cumsum(sizes) - sizes, np.zeros(int(sizes.sum()), dtype=np.uint8)
    for k in range(int(sizes.max(initial=0))):
        here = sizes > k
        out[starts[here] + k] = (values[here] >> 7 * k & 127) | np.where(sizes[here] > k + 1, 128, 0)
    return out.tobytes()


def _read_varints(data: bytes, at: int, count: int) -> tuple[npt.NDArray[np.int64], int]:
    """So many numbers and where they end, without a loop over them."""
    if not count:
        return np.zeros(0, dtype=np.int64), at
    found = np.frombuffer(data, dtype=np.uint8, offset=at, count=min(9 * count, len(data) - at))
    last = np.flatnonzero(found < 128)[:count]
    starts = np.concatenate([[0], last[:-1] + 1])
    if len(last) < count or int((last - starts).max()) > 8:
        raise MalformedMessage("a number in the payload does not end")
    digits = found[: int(last[-1]) + 1].astype(np.int64) & 127
    shifts = 7 * (np.arange(len(digits)) - np.repeat(starts, last - starts + 1))
    values: npt.NDArray[np.int64] = np.add.reduceat(digits << shifts, starts)
    return values, at + len(digits)


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
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

"""The message: header, seal, and the table of blocks; the only owner of byte offsets (docs/wire.md).

A vertical bar is concatenation, a number in parentheses a count of bytes:

    message = version (1) | tag (2) | seal( payload ) with 16 bytes of authentication
    payload = flags (1) | size (varint) | block lengths (varints) | blocks | zero padding
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from cepam.errors import MalformedMessage, SealBroken, WrongAddress
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
    blocks: tuple[bytes, ...] | list[bytes]


def rows_per_block(n: int) -> int:
    """Sub-vectors of dimension n in a block: a multiple of 128, so that blocks start on whole keystream blocks."""
    return max(BLOCK_COORDINATES // n // 128, 1) * 128


def count_blocks(size: int, n: int) -> int:
    """The number of blocks of a vector of this size cut into sub-vectors of dimension n."""
    rows = -(-size // n)
    return -(-rows // rows_per_block(n))


def seal(contents: Contents, keys: StreamKeys, fingerprint: bytes, bucket: int | None = None) -> bytes:
    """The message; its length is a multiple of `bucket` if one is given."""
    payload = _join(contents, padded=bucket is not None)
    if bucket is not None:
        payload += bytes(-(len(payload) + HEAD_BYTES + SEAL_BYTES) % bucket)
    if len(payload) > LARGEST_PAYLOAD:
        raise ValueError(f"a message of {len(payload):,} bytes is too long for one seal: cut the update in parts")
    head = bytes([VERSION]) + _tag(fingerprint)
    return head + _encrypt(keys, bytes(payload), head + fingerprint)


def open_sealed(message: bytes, keys: StreamKeys, fingerprint: bytes, dimensions: list[int]) -> Contents:
    """The contents, verified whole before anything is read; raises rather than return what was not sealed here."""
    if len(message) < HEAD_BYTES + SEAL_BYTES + 2:
        raise MalformedMessage(f"a message has at least {HEAD_BYTES + SEAL_BYTES + 2} bytes, got {len(message)}")
    if message[0] != VERSION:
        raise MalformedMessage(f"this package reads messages of version {VERSION}, got version {message[0]}")
    head = bytes([VERSION]) + _tag(fingerprint)
    if message[:HEAD_BYTES] != head:
        raise WrongAddress("the message was made by another codec: law, lattice or coder differ")
    return _split(_decrypt(keys, message[HEAD_BYTES:], head + fingerprint), dimensions)


def _tag(fingerprint: bytes) -> bytes:
    return hashlib.sha256(b"cepam tag" + fingerprint).digest()[: HEAD_BYTES - 1]


def _encrypt(keys: StreamKeys, payload: bytes, context: bytes) -> bytes:
    # AES-256-GCM-SIV (RFC 8452): the key is fresh for each address, so the nonce can be constant, and an address
    # used twice by mistake does not break the cipher.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

    return AESGCMSIV(keys.seal).encrypt(_NONCE, payload, context)


def _decrypt(keys: StreamKeys, sealed: bytes, context: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

    try:
        return AESGCMSIV(keys.seal).decrypt(_NONCE, sealed, context)
    except (InvalidTag, OverflowError) as broken:
        raise SealBroken("the seal does not open: another key, round, client or codec, or damaged bytes") from broken


def _join(contents: Contents, padded: bool) -> bytearray:
    flags = (_DOUBLE if contents.double else 0) | (_PADDED if padded else 0) | contents.lattice << _LATTICE_SHIFT
    payload = bytearray([flags])
    payload += varint(contents.size)
    listed = contents.blocks if padded else contents.blocks[:-1]
    for block in listed:
        payload += varint(len(block))
    for block in contents.blocks:
        payload += block
    return payload


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
    lengths = []
    for _ in range(total if padded else total - 1):
        length, at = read_varint(payload, at)
        lengths.append(length)
    if not padded and total:
        lengths.append(len(payload) - at - sum(lengths))
    end = at + sum(lengths)
    if (
        (lengths and min(lengths) < 0)
        or end > len(payload)
        or any(payload[end:])
        or (end < len(payload) and not padded)
    ):
        raise MalformedMessage("the block table does not match the payload")
    blocks = []
    for length in lengths:
        blocks.append(payload[at : at + length])
        at += length
    return Contents(size, bool(flags & _DOUBLE), lattice, blocks)


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

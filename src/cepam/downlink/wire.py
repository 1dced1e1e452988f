"""The wire format of a broadcast: header, check value and blocks.

A number in parentheses is a count of bytes:

    message = format (1) | kind (1) | shift (1) | tag (2) | from (varint) | rounds (varint) | size (varint)
              | mark (16) | lengths of all blocks but the last (varints) | blocks
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass

from cepam.codec.wire import BLOCK_COORDINATES, LARGEST_SIZE, count_blocks, read_varint, varint
from cepam.downlink.grid import Grid
from cepam.errors import CheckFailed, MalformedMessage, WrongAddress
from cepam.kernels.format.broadcast_contexts import BYTES_A_COORDINATE, DITHER_BITS

FORMAT = 1
DIFFERENCE, SNAPSHOT = 0, 1
HEAD_BYTES, TAG_BYTES, MARK_BYTES = 5, 2, 16
LARGEST_VERSION = 2**62


@dataclass(frozen=True)
class BroadcastFrame:
    """What a message says: the version it starts from (None: from nothing), the one it leads to, and the blocks."""

    start: int | None
    version: int
    shift: int
    size: int
    blocks: Sequence[bytes]


def write_frame(frame: BroadcastFrame, grid: Grid, check: bytes) -> bytes:
    """The message, marked with the check of its result."""
    kind, start = (SNAPSHOT, 0) if frame.start is None else (DIFFERENCE, frame.start)
    head = bytes([FORMAT, kind, frame.shift]) + grid.name[:TAG_BYTES]
    head += varint(start) + varint(frame.version - start) + varint(frame.size)
    body = b"".join([*(varint(len(block)) for block in frame.blocks[:-1]), *frame.blocks])
    return head + _mark(grid, check, head, body) + body


def verify_frame(message: bytes, grid: Grid, check: bytes) -> None:
    """Raise `CheckFailed` unless the message is, to the last byte, the one that leads to this check."""
    at = HEAD_BYTES
    for _ in range(3):
        _, at = read_varint(message, at)
    mark, body = message[at : at + MARK_BYTES], message[at + MARK_BYTES :]
    if not hmac.compare_digest(mark, _mark(grid, check, message[:at], body)):
        raise CheckFailed("the broadcast does not lead to what its mark says: damaged, or this receiver has diverged")


def _mark(grid: Grid, check: bytes, head: bytes, body: bytes) -> bytes:
    return hashlib.sha256(b"cepam broadcast mark v1" + grid.name + check + head + body).digest()[:MARK_BYTES]


def read_frame(message: bytes, grid: Grid, size: int | None) -> BroadcastFrame:
    """What a message says, its table of blocks checked; raises `MalformedMessage` or `WrongAddress`."""
    if len(message) < HEAD_BYTES + 3 + MARK_BYTES:
        raise MalformedMessage(f"a broadcast has at least {HEAD_BYTES + 3 + MARK_BYTES} bytes, got {len(message)}")
    if message[0] != FORMAT or message[1] not in (DIFFERENCE, SNAPSHOT) or message[2] > DITHER_BITS:
        raise MalformedMessage(f"this package reads broadcasts of format {FORMAT}, got {message[:3].hex()}")
    if message[3:HEAD_BYTES] != grid.name[:TAG_BYTES]:
        raise WrongAddress("the broadcast belongs to another run")
    start, at = read_varint(message, HEAD_BYTES)
    rounds, at = read_varint(message, at)
    claimed, at = read_varint(message, at)
    if size is not None and claimed != size:
        raise MalformedMessage(f"a broadcast of {size} coordinates was expected, this one has {claimed}")
    if claimed > LARGEST_SIZE or start + rounds > LARGEST_VERSION or (start and message[1] == SNAPSHOT):
        raise MalformedMessage(f"{claimed} coordinates from version {start} by {rounds} is beyond the format")
    blocks = _split(message, at + MARK_BYTES, claimed)
    return BroadcastFrame(None if message[1] == SNAPSHOT else start, start + rounds, message[2], claimed, blocks)


def _split(data: bytes, at: int, size: int) -> tuple[bytes, ...]:
    total = count_blocks(size, 1)
    if total > len(data) - at + 1:
        raise MalformedMessage(f"a broadcast of {len(data)} bytes cannot hold {size} coordinates")
    lengths = []
    for _ in range(total - 1):
        length, at = read_varint(data, at)
        lengths.append(length)
    last = len(data) - at - sum(lengths)
    if last < 0 or (last > 0 and not total):
        raise MalformedMessage("the block table does not match the broadcast")
    blocks = []
    for length in [*lengths, last][:total]:
        if length > BLOCK_COORDINATES * BYTES_A_COORDINATE:
            raise MalformedMessage(f"a block of {length} bytes is longer than any that this package writes")
        blocks.append(data[at : at + length])
        at += length
    return tuple(blocks)

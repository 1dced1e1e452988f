"""The message: header, seal, and the table of blocks; the only owner of byte offsets (docs/wire.md).

A vertical bar is concatenation, a number in parentheses a count of bytes:

    message = version and flags (1) | tag (1) | seal( payload ) with 16 bytes of authentication a seal
    payload = size (varint, unless both ends know it) | block lengths (varints) | blocks | zero padding

A payload that is longer than a chunk has several seals.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.errors import MalformedMessage, SealBroken, WrongAddress
from cepam.kernels.dispatch import cores
from cepam.kernels.format.plan import JoinedBlocks, joined
from cepam.kernels.format.search import SEGMENT
from cepam.keys import StreamKeys

# The seal of a payload: AES-256-GCM-SIV, whole or in chunks that threads seal and open side by side (docs/wire.md).
#
# A long payload takes seconds a gigabyte on one core. Its chunks are sealed under their numbers; the last one's
# associated data hold the tags of all others, so that chunks open together or not at all.


SEAL_BYTES = 16
CHUNK_BYTES = 1 << 16
"""A payload of more bytes is sealed in chunks of so many; the last one has what is left, at least a byte."""
MOST_THREADS = 12
"""Sixteen were slower to seal on sixteen cores: between two chunks a thread needs the interpreter, and there is one."""

_LARGE_PAGE = 1 << 21

Bytes = npt.NDArray[np.uint8]
Allocator = Callable[[int], Bytes]


class Pieces:
    """A payload that lies in several buffers, one after the other; `starts`: where each begins, and the last ends."""

    def __init__(self, buffers: Sequence[Any]) -> None:
        self.buffers, self.starts = buffers, [0, *accumulate(map(len, buffers))]

    @property
    def size(self) -> int:
        """Bytes of the payload."""
        return self.starts[-1]

    def between(self, begin: int, end: int) -> Any:
        """The bytes from `begin` to before `end`: a view where they lie in one buffer."""
        parts = [
            memoryview(each)[max(begin - start, 0) : end - start]
            for each, start in zip(self.buffers, self.starts)
            if start < end and start + len(each) > begin
        ]
        return parts[0] if len(parts) == 1 else b"".join(parts)


def cipher_of(key: bytes) -> Any:
    """AES-256-GCM-SIV (RFC 8452): an address used twice by mistake does not break it."""
    return _cryptography()[0](key)


@cache
def _cryptography() -> tuple[Any, Any]:
    """The cipher, and what it raises where a seal does not open; looked up once: a short seal takes microseconds."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

    return AESGCMSIV, InvalidTag


def count_chunks(size: int) -> int:
    """The number of seals of a payload of so many bytes."""
    return max(-(-size // CHUNK_BYTES), 1)


def payload_size(sealed: int) -> int:
    """The payload of so many sealed bytes, at most: their length says how many chunks there are."""
    return sealed - SEAL_BYTES * max(-(-sealed // (CHUNK_BYTES + SEAL_BYTES)), 1)


def encrypt(key: bytes, payload: Pieces, head: bytes, context: bytes, threads: int | None = None) -> bytes:
    """The head and the sealed payload behind it."""
    cipher, size = cipher_of(key), payload.size
    chunks = count_chunks(size)
    if chunks == 1:
        sealed_whole: bytes = cipher.encrypt(nonce(0, last=True), payload.between(0, size), context)
        return head + sealed_whole
    message, sealed = begin_message(head, size)

    def seal_chunk(i: int, context: bytes = context, last: bool = False) -> None:
        clear = payload.between(i * CHUNK_BYTES, min((i + 1) * CHUNK_BYTES, size))
        _into(cipher, "encrypt", nonce(i, last), clear, context, _chunk(sealed, i))

    deal(threads, seal_chunk, chunks - 1)
    seal_chunk(chunks - 1, context + tags_of(sealed, chunks), last=True)
    return message


def begin_message(head: bytes, size: int) -> tuple[bytes, Bytes]:
    """A message that begins with the head, and the memory behind it for the chunks of a payload of so many bytes."""
    message, left = _new_bytes(len(head) + size + SEAL_BYTES * count_chunks(size))
    left[: len(head)] = np.frombuffer(head, dtype=np.uint8)
    return message, left[len(head) :]


def decrypt(
    key: bytes, sealed: memoryview, context: bytes, allocate: Allocator | None = None, threads: int | None = None
) -> memoryview:
    """The payload, in memory of `allocate` where it has several chunks; raises unless every one of them opens."""
    cipher = cipher_of(key)
    if len(sealed) <= CHUNK_BYTES + SEAL_BYTES:
        return memoryview(opened(lambda: cipher.decrypt(nonce(0, last=True), sealed, context)))
    found = np.frombuffer(sealed, dtype=np.uint8)
    size, chunks = size_of_chunks(len(found))
    payload = allocate(size) if allocate is not None else np.empty(size, dtype=np.uint8)
    end = context + tags_of(found, chunks)

    def open_chunk(i: int) -> None:
        clear, last = payload[i * CHUNK_BYTES : (i + 1) * CHUNK_BYTES], i == chunks - 1
        _into(cipher, "decrypt", nonce(i, last), _chunk(found, i), end if last else context, clear)

    opened(lambda: deal(threads, open_chunk, chunks))
    return memoryview(payload.data)


def size_of_chunks(sealed: int) -> tuple[int, int]:
    """(bytes, chunks) of the payload of so many sealed bytes; raises `MalformedMessage` where no payload has them."""
    size = payload_size(sealed)
    chunks = count_chunks(size)
    if chunks < 2 or sealed != size + SEAL_BYTES * chunks:
        raise MalformedMessage(f"{sealed} bytes are no chunks of {CHUNK_BYTES}: damaged or cut off")
    return size, chunks


def opened(work: Callable[[], Any]) -> Any:
    """What the work gives; `SealBroken` where a seal does not open."""
    try:
        return work()
    except (_cryptography()[1], OverflowError) as broken:
        raise SealBroken("the seal does not open: another key, round, client or codec, or damaged bytes") from broken


def nonce(number: int, last: bool) -> bytes:
    """The nonce of a chunk: its number, and whether it is the last (as in STREAM: the rest cannot be cut off)."""
    return number.to_bytes(11, "little") + bytes([last])


def _chunk(sealed: Bytes, i: int) -> Bytes:
    step = CHUNK_BYTES + SEAL_BYTES
    return sealed[i * step : (i + 1) * step]


def tags_of(sealed: Bytes, chunks: int) -> bytes:
    """The tags of all chunks but the last."""
    step = CHUNK_BYTES + SEAL_BYTES
    return sealed[: (chunks - 1) * step].reshape(-1, step)[:, CHUNK_BYTES:].tobytes()


def deal(threads: int | None, work: Callable[[int], None], count: int) -> None:
    """Does the work of every chunk; whoever is ready takes the next one, this thread too while others wake up."""
    workers, left = min(threads or cores(), count, MOST_THREADS), deque(range(count))
    if workers <= 1:  # as for a message of ten million coordinates, while a GPU waits
        for i in left:
            work(i)
        return

    def work_on() -> None:
        while left:
            try:
                i = left.popleft()
            except IndexError:  # another thread took the last one
                return
            work(i)

    others = [_pool().submit(work_on) for _ in range(workers - 1)]
    try:
        work_on()
    finally:
        wait(others)
    for done in others:
        done.result()


@cache
def _pool() -> ThreadPoolExecutor:
    """Threads that stay: to start some takes as long as to seal a megabyte. Their tasks never wait for other tasks."""
    return ThreadPoolExecutor(MOST_THREADS - 1, "cepam-seal")


if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=_pool.cache_clear)


def _into(cipher: Any, way: str, nonce: bytes, source: Any, context: bytes, out: Bytes) -> None:
    """Fills out with the sealed or opened source; older releases of `cryptography` cannot without a copy."""
    direct = getattr(cipher, f"{way}_into", None)
    if direct is not None:
        direct(nonce, source, context, out)
    else:
        out[:] = np.frombuffer(getattr(cipher, way)(nonce, source, context), dtype=np.uint8)


def _new_bytes(size: int) -> tuple[bytes, Bytes]:
    """A new bytes object and its memory, to be filled before anybody else sees it.

    The C API allows this for exactly such an object. A join would copy everything once more on one core, and touching
    so much new memory takes longer than sealing it.
    """
    make, find = _calls_for_bytes()
    made: bytes = make(None, size)
    address: int = find(made)
    _ask_for_large_pages(address, size)
    return made, np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


@cache
def _calls_for_bytes() -> tuple[Any, Any]:
    """What makes a bytes object of a size, and what finds the memory of one."""
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)
    find = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)
    return make(("PyBytes_FromStringAndSize", ctypes.pythonapi)), find(("PyBytes_AsString", ctypes.pythonapi))


def _ask_for_large_pages(address: int, size: int) -> None:
    """Ask the system for large pages behind new memory, which takes far less time than many small ones."""
    advise, advice = getattr(_libc(), "madvise", None), getattr(mmap, "MADV_HUGEPAGE", None)
    begin, end = -(-address // _LARGE_PAGE) * _LARGE_PAGE, (address + size) // _LARGE_PAGE * _LARGE_PAGE
    if advise is not None and advice is not None and end > begin:
        advise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), advice)


@cache
def _libc() -> Any:
    return ctypes.CDLL(None) if os.name == "posix" else None


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
    return encrypt(keys.seal, _join(contents, padding, travels), head, head + fingerprint, threads)


def open_sealed(
    message: bytes, keys: StreamKeys, fingerprint: bytes, dimension: int, searches: bool = False,
    size: int | None = None, allocate: Allocator | None = None, threads: int | None = None,
) -> Contents:  # fmt: skip
    """The contents, verified whole before anything is read; raises rather than return what was not sealed here.

    `size` is that of every message of the codec, where it has one. `allocate` gives the memory in which a long payload
    is opened.
    """
    check_version(message)
    head, flags = message[:HEAD_BYTES], message[0] & 15
    if head[1:] != _tag(fingerprint):
        raise WrongAddress("the message was made by another codec: law, lattice, coder or size differ")
    if bool(flags & TRAVELS) != (size is None):
        raise WrongAddress("the message was made by another codec: one that has a size, and one without")
    if flags & SEARCHED and not searches:
        raise WrongAddress("the message was made by another codec: it is of the search coder, which this has not")
    payload = decrypt(keys.seal, memoryview(message)[HEAD_BYTES:], head + fingerprint, allocate, threads)
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
    length = HEAD_BYTES + size + SEAL_BYTES * count_chunks(size)
    while True:
        length += -length % padding
        padded = payload_size(length - HEAD_BYTES)
        # Where a chunk begins, some lengths belong to no payload: the next multiple then.
        if padded >= size and HEAD_BYTES + padded + SEAL_BYTES * count_chunks(padded) == length:
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

"""The seal of a payload: AES-256-GCM-SIV, whole or in chunks that threads seal and open side by side (docs/wire.md).

A long payload takes seconds a gigabyte on one core. Its chunks are sealed under their numbers; the last one's
associated data hold the tags of all others, so that chunks open together or not at all.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.errors import MalformedMessage, SealBroken
from cepam.kernels.threads import cores

SEAL_BYTES = 16
CHUNK_BYTES = 1 << 16
"""A payload of more bytes is sealed in chunks of so many; the last one has what is left, at least a byte."""
MOST_THREADS = 12
"""Sixteen were slower to seal on sixteen cores: between two chunks a thread needs the interpreter, and there is one."""

_LARGE_PAGE = 1 << 21

Bytes = npt.NDArray[np.uint8]
Room = Callable[[int], Bytes]


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
    message, room = _new_bytes(len(head) + size + SEAL_BYTES * count_chunks(size))
    room[: len(head)] = np.frombuffer(head, dtype=np.uint8)
    return message, room[len(head) :]


def decrypt(
    key: bytes, sealed: memoryview, context: bytes, room: Room | None = None, threads: int | None = None
) -> memoryview:
    """The payload, in memory that `room` gives where it has several chunks; raises unless every one of them opens."""
    cipher = cipher_of(key)
    if len(sealed) <= CHUNK_BYTES + SEAL_BYTES:
        return memoryview(opened(lambda: cipher.decrypt(nonce(0, last=True), sealed, context)))
    found = np.frombuffer(sealed, dtype=np.uint8)
    size, chunks = size_of_chunks(len(found))
    payload = room(size) if room is not None else np.empty(size, dtype=np.uint8)
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

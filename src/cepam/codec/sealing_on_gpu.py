"""The seal of a long payload on the GPU where its blocks are: the bytes of `sealing`.

All chunks but the last are sealed and opened there. The last one, whose associated data hold the tags of the others, is
the host's: no message is accepted whose end and whose tags the library did not accept.
Guarantee: the same messages, and the same are refused (tests/identity/test_triton_seal.py, bench/gpu_identity.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.codec import sealing
from cepam.codec.sealing import SEAL_BYTES, Bytes, Pieces, deal, nonce, tags_of
from cepam.errors import SealBroken

_COPIED = 1 << 21
"""Bytes that a thread copies before it takes the next ones."""


def encrypt(key: bytes, payload: Pieces, head: bytes, context: bytes, threads: int | None = None) -> bytes:
    """The head and the sealed payload, of several chunks, behind it."""
    from cepam.kernels.triton import backend as gpu

    size = payload.size
    whole = sealing.count_chunks(size) - 1
    chunks, rest, wait = gpu.seal_chunks(payload.buffers, chunk_keys(key, whole), context, sealing.CHUNK_BYTES)
    message, sealed = sealing.begin_message(head, size)
    _each_part(threads, lambda part: sealed[part][::4096].fill(0), len(chunks))  # takes memory while the GPU is busy
    wait()
    _each_part(threads, lambda part: np.copyto(sealed[part], chunks[part]), len(chunks))
    last = sealing.cipher_of(key).encrypt(nonce(whole), rest, context + tags_of(sealed, whole + 1))
    sealed[len(chunks) :] = np.frombuffer(last, dtype=np.uint8)
    return message


def decrypt_chunks(key: bytes, sealed: memoryview, context: bytes, device: str, threads: int | None = None) -> Any:
    """The payload as a tensor on the device; raises unless every chunk opens."""
    from cepam.kernels.triton import backend as gpu

    found = np.frombuffer(sealed, dtype=np.uint8)
    size, chunks = sealing.size_of_chunks(len(found))
    whole = chunks - 1
    staged: Bytes = gpu.pinned(whole * (sealing.CHUNK_BYTES + SEAL_BYTES))
    _each_part(threads, lambda part: np.copyto(staged[part], found[part]), len(staged))
    payload, finish = gpu.open_chunks(staged, chunk_keys(key, whole), context, sealing.CHUNK_BYTES, device)
    ending = context + tags_of(found, chunks)
    rest = sealing.opened(lambda: sealing.cipher_of(key).decrypt(nonce(whole), found[len(staged) :], ending))
    if not finish(rest):
        raise SealBroken("the seal does not open: another key, round, client or codec, or damaged bytes")
    return payload[:size]


def on_host(found: Any) -> memoryview:
    """Bytes of a payload in memory of the host, copied there if they are not."""
    return memoryview(found.cpu().numpy() if hasattr(found, "is_cuda") else found)


def chunk_keys(key: bytes, chunks: int) -> npt.NDArray[np.int32]:
    """The keys of each chunk, POLYVAL's and AES's, as words (chunks, 12): the derivation of RFC 8452, section 4."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    asked = np.zeros((chunks, 6, 4), dtype="<u4")
    asked[:, :, 0], asked[:, :, 1] = np.arange(6), np.arange(chunks)[:, None]
    made = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(asked.tobytes())
    return np.frombuffer(made, dtype=np.int32).reshape(chunks, 6, 4)[:, :, :2].reshape(chunks, 12)


def _each_part(threads: int | None, work: Any, size: int) -> None:
    parts = [slice(begin, min(begin + _COPIED, size)) for begin in range(0, size, _COPIED)]
    deal(threads, lambda i: work(parts[i]), len(parts))

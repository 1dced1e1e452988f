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


def prepare(key: bytes, context: bytes, size: int, device: Any) -> Any:
    """What the GPU seals or opens a payload of at most so many bytes with, asked of it before the payload is there."""
    from cepam.kernels.triton import backend as gpu

    keys = chunk_keys(key, sealing.count_chunks(size) - 1)
    return gpu.prepare_chunks(keys, context, sealing.CHUNK_BYTES, device)


def encrypt(
    key: bytes, payload: Pieces, head: bytes, context: bytes, threads: int | None = None, ready: Any = None
) -> bytes:
    """The head and the sealed payload, of several chunks, behind it; `ready` is what `prepare` gave, if asked."""
    from cepam.kernels.triton import backend as gpu

    size = payload.size
    whole = sealing.count_chunks(size) - 1
    if ready is None or len(ready.each) < whole:
        ready = prepare(key, context, size, payload.device)
    made = gpu.seal_chunks(payload.buffers, ready, whole, sealing.CHUNK_BYTES)
    message, sealed = sealing.begin_message(head, size)
    parts = _parts_of(len(made.chunks))
    deal(threads, lambda i: sealed[parts[i]][::4096].fill(0), len(parts))  # takes memory while the GPU is busy

    # The last chunk needs the tags alone: it is sealed while the GPU masks the others.
    made.wait_for_tags()
    last = sealing.cipher_of(key).encrypt(nonce(whole), made.rest, context + made.tags.tobytes())
    sealed[len(made.chunks) :] = np.frombuffer(last, dtype=np.uint8)
    made.wait()
    deal(threads, lambda i: np.copyto(sealed[parts[i]], made.chunks[parts[i]]), len(parts))
    return message


def decrypt_chunks(
    key: bytes, sealed: memoryview, context: bytes, device: str, wanted: int, threads: int | None = None
) -> tuple[Any, memoryview]:
    """The payload as a tensor on the device, and its first bytes, so many, on the host; raises unless every chunk
    opens."""
    from cepam.kernels.triton import backend as gpu

    gpu.check_device(device)
    found = np.frombuffer(sealed, dtype=np.uint8)
    size, chunks = sealing.size_of_chunks(len(found))
    whole = chunks - 1
    staged: Bytes = gpu.pinned(whole * (sealing.CHUNK_BYTES + SEAL_BYTES))
    parts = _parts_of(len(staged))
    deal(threads, lambda i: np.copyto(staged[parts[i]], found[parts[i]]), len(parts))
    payload, finish = gpu.open_chunks(staged, prepare(key, context, size, device), sealing.CHUNK_BYTES)
    ending = context + tags_of(found, chunks)
    rest = sealing.opened(lambda: sealing.cipher_of(key).decrypt(nonce(whole), found[len(staged) :], ending))
    first = finish(rest, wanted)
    if first is None:
        raise SealBroken("the seal does not open: another key, round, client or codec, or damaged bytes")
    return payload[:size], memoryview(first)


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


def _parts_of(size: int) -> list[slice]:
    return [slice(begin, min(begin + _COPIED, size)) for begin in range(0, size, _COPIED)]

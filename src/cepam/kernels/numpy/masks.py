"""The loops of secure aggregation in NumPy: the reference for the compiled ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cepam.kernels.format.plan import Ints, Plan
from cepam.kernels.numpy import quantizer as reference
from cepam.kernels.numpy.keystream import chacha

Words = npt.NDArray[np.uint32]
_CHUNK = 1 << 12


def grid_multiples(plan: Plan, key: bytes, units: Ints) -> Ints:
    """The public grid's multiples that the layered quantizer of one dimension decodes to, as integers."""
    h, m = reference.quantize(plan, key, units.reshape(-1, 1))
    return reference.to_grid(reference.reconstruct(plan, key, h, m)).reshape(-1)


def keystream(key: bytes, count: int) -> Words:
    """The first `count` 32-bit words of ChaCha20 under this key, nonce zero, counter from zero."""
    blocks = -(-count // 16)
    tail = np.zeros((blocks, 4), dtype=np.uint32)
    tail[:, 0] = np.arange(blocks)
    rows = [chacha(key, tail[start : start + _CHUNK], rounds=20) for start in range(0, blocks, _CHUNK)]
    return np.concatenate(rows).reshape(-1)[:count] if rows else np.zeros(0, dtype=np.uint32)


def mask_sum(masks: Sequence[tuple[bytes, int]], count: int) -> Words:
    """The signed sum of the masks' keystreams modulo 2^32."""
    total = np.zeros(count, dtype=np.uint32)
    for key, sign in masks:
        total += keystream(key, count) if sign > 0 else -keystream(key, count)
    return total


def pack(values: Words, bits: int) -> bytes:
    """Numbers of `bits` bits, one after the other from the lowest bit on."""
    planes = (values[:, None] >> np.arange(bits, dtype=np.uint32)) & np.uint32(1)
    return np.packbits(planes.astype(np.uint8).reshape(-1), bitorder="little").tobytes()


def unpack(packed: bytes, bits: int, count: int) -> Words:
    """The inverse of `pack`."""
    planes = np.unpackbits(np.frombuffer(packed, dtype=np.uint8), count=count * bits, bitorder="little")
    weights = np.uint32(1) << np.arange(bits, dtype=np.uint32)
    return np.asarray((planes.reshape(count, bits) * weights).sum(axis=1, dtype=np.uint32))

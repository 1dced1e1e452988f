"""What several tests share: one key, a spread of laws, lattices and updates, and a seal written from docs/wire.md."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

import cepam
from cepam.codec.codec import MessageCodec
from cepam.distributions.laws import Law
from cepam.errors import CepamError
from cepam.lattices.lattice import Lattice

SECRET = bytes(range(32))
AT = cepam.Address(SECRET, round=7, client=3, run=b"tests", attempt=1)
SCALE = 0.01
BOUND = 4.0

# A generator with no small integer multiple, so that rounding it and searching it are exercised.
SKEW = cepam.Lattice([[1.0, 0.37, 0.11], [0.0, 1.09, -0.41], [0.0, 0.0, 0.97]])

LAWS: dict[str, Law] = {
    "gaussian": cepam.Gaussian(SCALE),
    "laplace": cepam.Laplace(SCALE),
    "ball": cepam.UniformBall(SCALE),
}
LATTICES: dict[str, Lattice] = {
    "Z1": cepam.Integer(1),
    "Z2": cepam.Integer(2),
    "Z3": cepam.Integer(3),
    "A2": cepam.A2,
    "D4": cepam.D4,
    "E8": cepam.E8,
    "skew": SKEW,
}
CODERS = ("layered", "paper")


def make_codec(law: str = "gaussian", lattice: str = "Z1", coder: str = "layered", **options: Any) -> cepam.Codec:
    """The codec of these names; the paper's coder gets a bound that every update here keeps."""
    bound = BOUND if coder == "paper" else None
    return cepam.Codec(LAWS[law], LATTICES[lattice], coder=coder, bound=bound, **options)  # type: ignore[arg-type]


def sparse_update(size: int, dtype: Any = np.float64, seed: int = 1) -> npt.NDArray[Any]:
    """A heavy-tailed update with zeros, denormals, tiny values and values of many noise scales, as gradients have."""
    rng = np.random.default_rng(seed)
    x = rng.standard_t(2, size=size) * SCALE * rng.choice([0.0, 1e-6, 0.1, 1.0, 10.0], size=size)
    x[rng.random(size) < 0.02] = np.finfo(dtype).smallest_subnormal
    x[rng.random(size) < 0.01] = -1e-6 * SCALE
    return np.clip(x, -BOUND, BOUND).astype(dtype)


TRAVELS, SEARCHED, PADDED, DOUBLE = 8, 4, 2, 1
"""Flags of the first byte."""


def seal_payload(payload: bytes, codec: MessageCodec, at: cepam.Address = AT, flags: int = TRAVELS) -> bytes:
    """A message that opens and holds exactly this payload: what a hostile client with the right key can send."""
    head = bytes([5 << 4 | flags]) + hashlib.sha256(b"cepam tag" + codec.fingerprint).digest()[:1]
    return head + AESGCMSIV(at.derive().seal).encrypt(bytes(11) + b"\1", payload, head + codec.fingerprint)


def open_payload(message: bytes, codec: MessageCodec, at: cepam.Address = AT) -> bytes:
    """The payload of a message."""
    return AESGCMSIV(at.derive().seal).decrypt(bytes(11) + b"\1", message[2:], message[:2] + codec.fingerprint)


def varint(value: int) -> bytes:
    """Seven bits a byte, the least significant first; the high bit says that more follow."""
    out = b""
    while value > 127:
        out += bytes([value % 128 + 128])
        value //= 128
    return out + bytes([value])


def outcome(codec: MessageCodec, message: bytes, at: cepam.Address = AT) -> tuple[str, bytes]:
    """How decoding ends: a vector's dtype and bytes, or `refused`; any other exception is a failure of the test."""
    try:
        vector = codec.decode(message, at)
    except CepamError:
        return "refused", b""
    return str(vector.dtype), vector.tobytes()

"""The paper's baselines behind the codec's two methods, with real bytes.

Their noise is drawn in floating point from NumPy, addressed by the same key, round and client: good for comparing
accuracy and size, not for protecting anybody (`cepam.Codec` is).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from cepam.codec import wire
from cepam.codec.codec import DitheredCodec
from cepam.distributions.laws import Gaussian, Laplace, Law
from cepam.errors import MalformedMessage
from cepam.keys import Address

Vector = npt.NDArray[np.float32]


def draw_noise(law: Law, size: int, at: Address) -> Vector:
    """A draw of the law for this address, in floating point."""
    words = np.frombuffer(hashlib.sha256(b"cepam baseline" + at.derive().noise).digest(), dtype=np.uint64)
    draw = np.random.Generator(np.random.Philox(key=words[:2]))
    if isinstance(law, Gaussian):
        return (law.scale * draw.standard_normal(size, dtype=np.float32)).astype(np.float32)
    if isinstance(law, Laplace):
        return draw.laplace(0.0, law.scale, size).astype(np.float32)
    raise ValueError(f"the baselines draw Gaussian or Laplace noise, got {law!r}")


def _check(update: Vector) -> Vector:
    values = np.ascontiguousarray(update, dtype="<f4")
    if values.ndim != 1 or not np.isfinite(values).all():
        raise ValueError(f"an update must be one finite row of numbers, got shape {values.shape}")
    return values


@dataclass(frozen=True)
class PlainFloats:
    """32 bits per coordinate: the update itself, or with noise of the law.

    Paper: FL, FL+Gaussian and FL+Laplace (Section V-A). No entropy coder: the low bits of such floats are noise.
    """

    law: Law | None = None

    @cached_property
    def _fingerprint(self) -> bytes:
        return hashlib.sha256(f"cepam plain floats v1 {self.law!r}".encode()).digest()

    def encode(self, update: Vector, at: Address) -> bytes:
        """The sealed message: the floats as they are."""
        values = _check(update)
        if self.law is not None:
            values = values + draw_noise(self.law, len(values), at)
        step = wire.rows_per_block(1)
        blocks = [values[i : i + step].tobytes() for i in range(0, len(values), step)]
        return wire.seal(wire.Contents(len(values), False, False, blocks), at.derive(), self._fingerprint, None)

    def decode(self, message: bytes, at: Address) -> Vector:
        """The floats; raises `MalformedMessage` or `WrongAddress` like a codec."""
        contents = wire.open_sealed(message, at.derive(), self._fingerprint, 1)
        raw = b"".join(contents.blocks)
        if len(raw) != 4 * contents.size:
            raise MalformedMessage(f"{len(raw)} bytes do not hold {contents.size} floats")
        return np.frombuffer(raw, dtype="<f4").astype(np.float32)


@dataclass(frozen=True)
class NoisyDithered:
    """Noise of the law first, dithered quantization second: FL+Gaussian+SDQ and FL+Laplace+SDQ.

    Paper: Section V-A. The quantizer comes after the noise, so it costs bits for the noise too.
    """

    law: Law
    step: float

    @cached_property
    def _codec(self) -> DitheredCodec:
        return DitheredCodec(self.step)

    def encode(self, update: Vector, at: Address) -> bytes:
        """The sealed message of the noisy update."""
        values = _check(update)
        return self._codec.encode(values + draw_noise(self.law, len(values), at), at)

    def decode(self, message: bytes, at: Address) -> Vector:
        """The noisy update, less than a cell away."""
        return np.asarray(self._codec.decode(message, at), dtype=np.float32)

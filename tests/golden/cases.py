"""The codecs and updates whose messages are pinned; `tools/make_golden.py` writes them to messages.json."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import cepam
from cepam.codec.codec import MessageCodec

FILE = Path(__file__).parent / "messages.json"
AT = cepam.Address(bytes(range(32)), round=12, client=34, run=b"golden", attempt=0)
SIGMA = 0.01
SIZE = 40
SKEW = cepam.Lattice([[1.0, 0.37, 0.11], [0.0, 1.09, -0.41], [0.0, 0.0, 0.97]])


@dataclass(frozen=True)
class Case:
    """A codec and an update."""

    name: str
    codec: MessageCodec
    update: npt.NDArray[Any]


def update(size: int, scale: float = SIGMA, dtype: Any = np.float64) -> npt.NDArray[Any]:
    """A fixed update from integer arithmetic alone: quiet, loud, zero and of both signs."""
    steps = [(i * i * 7919 + i * 104729) % 2003 - 1001 for i in range(size)]
    loud = [(0, 1, 8, 64)[i % 4] for i in range(size)]
    return np.array([s * w * scale / 8192 for s, w in zip(steps, loud)], dtype=dtype)


def cases() -> Iterator[Case]:
    """Every case, by name."""
    gaussian = cepam.Gaussian(SIGMA)
    lattices = {"Z1": cepam.Integer(1), "Z2": cepam.Integer(2), "Z3": cepam.Integer(3)}
    lattices |= {"A2": cepam.A2, "D4": cepam.D4, "E8": cepam.E8, "skew": SKEW}
    for name, lattice in lattices.items():
        yield Case(f"gaussian {name} layered", cepam.Codec(gaussian, lattice, coder="layered"), update(SIZE))
        paper = cepam.Codec(gaussian, lattice, coder="paper", bound=1.0)
        yield Case(f"gaussian {name} paper", paper, update(SIZE, dtype=np.float32))
    for law in (cepam.Laplace(SIGMA), cepam.UniformBall(SIGMA)):
        for name in ("Z1", "A2", "D4", "E8"):
            yield Case(f"{law.name} {name} layered", cepam.Codec(law, lattices[name]), update(SIZE))
    yield Case("gaussian short", cepam.Codec(gaussian), update(SIZE))
    yield Case("gaussian E8 size", cepam.Codec(gaussian, cepam.E8, size=SIZE), update(SIZE))
    yield Case("gaussian Z1 paper size", cepam.Codec(gaussian, coder="paper", bound=1.0, size=SIZE), update(SIZE))
    yield Case("gaussian Z1 nothing", cepam.Codec(gaussian, lattices["Z1"]), update(0, dtype=np.float32))
    yield Case("gaussian Z1 zeros", cepam.Codec(gaussian, lattices["Z1"]), np.zeros(SIZE, dtype=np.float32))
    yield Case("gaussian E8 one", cepam.Codec(gaussian, cepam.E8), update(2)[1:])
    yield Case("gaussian Z1 huge", cepam.Codec(gaussian, lattices["Z1"]), update(SIZE, scale=1e5 * SIGMA))
    yield Case("gaussian E8 padding", cepam.Codec(gaussian, cepam.E8, padding=64), update(SIZE))
    yield Case("gaussian D4 two blocks", cepam.Codec(cepam.Gaussian(1.0), cepam.D4), update(8200, scale=1e-4))
    rows = update(9000) * np.abs(np.arange(9000) % 37 - 18) / 64
    yield Case("gaussian Z1 rows", cepam.Codec(cepam.Gaussian(0.25), lattices["Z1"]), rows)
    yield Case("dithered Z1 layered", cepam.DitheredCodec(SIGMA), update(SIZE))
    yield Case("dithered E8 layered", cepam.DitheredCodec(SIGMA, cepam.E8), update(SIZE))
    yield Case("dithered Z1 paper", cepam.DitheredCodec(SIGMA, coder="paper", bound=1.0), update(SIZE))
    search = cepam.Codec(gaussian)
    yield Case("gaussian search quiet", search, update(9000, scale=SIGMA / 64, dtype=np.float32))
    yield Case("gaussian search parts", search, update(1000, scale=SIGMA / 16))
    yield Case("gaussian search padding", cepam.Codec(gaussian, padding=64), update(600, SIGMA / 30))
    yield Case("gaussian search loud", search, update(600))
    yield Case("gaussian search size", search.sized(1000), update(1000, scale=SIGMA / 40, dtype=np.float32))


def measure(case: Case) -> dict[str, Any]:
    """What is pinned of a case: fingerprint, message, the vector's hash, type and first values."""
    message = case.codec.encode(case.update, AT)
    vector = case.codec.decode(message, AT)
    return {
        "name": case.name,
        "fingerprint": case.codec.fingerprint.hex(),
        "message": message.hex(),
        "dtype": str(vector.dtype),
        "vector": hashlib.sha256(vector.astype(vector.dtype.newbyteorder("<")).tobytes()).hexdigest(),
        "first": [float(v).hex() for v in vector[:2]],
    }


def pinned() -> dict[str, dict[str, Any]]:
    """The pinned cases, by name."""
    return {entry["name"]: entry for entry in json.loads(FILE.read_text())}

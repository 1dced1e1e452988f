"""docs/wire.md and docs/models.md say enough to write a decoder: one written from them reads our messages."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import numpy as np
import pytest

import cepam
from cepam.kernels.format.plan import model_fingerprint
from tests.corpus import AT, SEARCHED, make_codec, sparse_update
from tests.oracle.wire_reader import read_message

MODEL = model_fingerprint()
DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "wire.md"


@pytest.mark.parametrize("lattice", ["Z1", "Z2", "Z3"])
@pytest.mark.parametrize("law", ["gaussian", "laplace", "ball"])
def test_the_papers_code(law: str, lattice: str) -> None:
    codec, x = make_codec(law, lattice, "paper"), sparse_update(100)
    message = codec.encode(x, AT)
    assert read_message(message, codec, AT, MODEL) == codec.decode(message, AT).tolist()


@pytest.mark.parametrize("kind", ["sparse", "zeros", "rows", "neighbours", "huge", "tiny"])
@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_the_adaptive_code_of_one_dimension(law: str, kind: str) -> None:
    size = 400
    wave = np.abs(np.sin(np.arange(size) * 2 * np.pi / 37)) ** 8
    updates = {
        "sparse": sparse_update(size),
        "zeros": np.zeros(size),
        "rows": wave * 0.05 * np.random.default_rng(1).normal(size=size),
        "neighbours": np.repeat(np.random.default_rng(2).normal(size=size // 20) * 0.02, 20),
        "huge": sparse_update(size) * 1e3,
        "tiny": sparse_update(size) * 1e-3,
    }
    codec = make_codec(law, "Z1")
    message = codec.encode(updates[kind], AT)
    with np.load(resources.files("cepam.kernels.format") / "tables" / "scalar.npz") as tables:
        assert read_message(message, codec, AT, MODEL, tables) == codec.decode(message, AT).tolist()


def test_several_blocks() -> None:
    codec, x = make_codec(lattice="Z1", padding=None), sparse_update(8200) * 1e-3
    message = codec.encode(x, AT)
    with np.load(resources.files("cepam.kernels.format") / "tables" / "scalar.npz") as tables:
        assert read_message(message, codec, AT, MODEL, tables) == codec.decode(message, AT).tolist()


@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize("kind", ["quiet", "parts", "spiky", "padded", "loud"])
def test_the_default_coder(kind: str, sized: bool) -> None:
    rng = np.random.default_rng(3)
    updates = {
        "quiet": rng.normal(size=900) * 0.0003,
        "parts": rng.normal(size=700) * 0.002,
        "spiky": np.where(np.arange(800) % 100 == 7, 0.02, rng.normal(size=800) * 0.0005),
        "padded": rng.normal(size=600) * 0.001,
        "loud": rng.normal(size=600) * 0.02,
    }
    codec = make_codec("gaussian", "Z1", "auto", padding=32 if kind == "padded" else None)
    codec = codec.sized(len(updates[kind])) if sized else codec
    message = codec.encode(updates[kind], AT)
    assert bool(message[0] & SEARCHED) == (kind != "loud")
    folder = resources.files("cepam.kernels.format") / "tables"
    with np.load(folder / "scalar.npz") as tables, np.load(folder / "search.npz") as search:
        found = read_message(message, codec, AT, MODEL, tables, search["odds"])
    assert found == codec.decode(message, AT).tolist()


def test_the_example_of_the_document() -> None:
    codec = cepam.Codec(cepam.Gaussian(0.5), cepam.Integer(1), coder="paper", bound=1.0)
    at = cepam.Address(bytes(range(32)), round=1, client=2, run=b"demo")
    message = codec.encode(np.array([0.25, -1.0, 0.0], dtype=np.float32), at)
    text = DOCUMENT.read_text()
    assert message.hex() == "58e0d33e680e418cd7f7868c24c9551057a9d272"
    for value in (message.hex()[4:], at.derive().noise.hex(), at.derive().seal.hex(), codec.fingerprint.hex()):
        assert value in text
    vector = codec.decode(message, at)
    assert vector.tolist() == read_message(message, codec, at, MODEL) == [4146 / 8192, -7379 / 8192, 785 / 8192]
    for value in vector:
        assert repr(float(value)) in text

"""One suite that every backend inherits: the same bytes and the same vectors as the NumPy reference.

A new backend is one subclass with its name; what it cannot run here it skips in `setup_class`.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest

import cepam
from cepam.codec.codec import MessageCodec
from cepam.kernels.dispatch import BackendName
from tests.corpus import AT, BOUND, CODERS, LATTICES, LAWS, SCALE, make_codec, sparse_update

DIMENSIONS = {name: lattice.dimension for name, lattice in LATTICES.items()}
SPANS = 600_000
"""More coordinates than the compiled backend takes in a call, 64 blocks of 8,192: two spans, a thread each."""
SMALL = ("0", "1", "n-1", "n", "n+1", "257")


def size_of(label: str, n: int) -> int:
    return n + int(label[1:] or 0) if label.startswith("n") else int(label)


def edge_update(kind: str, size: int, dtype: Any) -> npt.NDArray[Any]:
    """Updates at the edges of what floats and the format carry."""
    rng = np.random.default_rng(2)
    finfo = np.finfo(dtype)
    signs = rng.choice([-1.0, 1.0], size=size)
    values = {
        "zeros": np.zeros(size),
        "negative zeros": np.full(size, -0.0),
        "denormals": signs * finfo.smallest_subnormal * rng.integers(1, 9, size=size),
        "tiny": signs * SCALE * 1e-6,
        "one": signs * SCALE,
        "huge": signs * SCALE * 1e6,
        "growing": signs * SCALE * np.geomspace(1e-9, 1e6, size),
        "one spike": np.where(np.arange(size) == size // 2, SCALE * 1e6, 0.0),
        "constant": np.full(size, 0.3 * SCALE),
        "halves": signs * SCALE * 0.5,
    }
    return values[kind].astype(dtype)


EDGES = ("zeros", "negative zeros", "denormals", "tiny", "one", "huge", "growing", "one spike", "constant", "halves")


def network_cases() -> list[Any]:
    """Every combination; the reference takes too long for the ordinary suite where many trials are refused."""
    ordinary = {("laplace", "Z1"), ("laplace", "Z2"), ("ball", "Z1"), ("ball", "D4")}
    return [
        pytest.param(law, lattice, coder, marks=() if quick else pytest.mark.slow)
        for law, lattice, coder in itertools.product(LAWS, LATTICES, CODERS)
        for quick in [law == "gaussian" or coder == "paper" or (law, lattice) in ordinary]
    ]


class BackendIdentity:
    """The contract of a backend."""

    backend: ClassVar[BackendName]

    def same(self, codec: MessageCodec, x: npt.NDArray[Any]) -> bytes:
        """The message, once both backends made the same one and decoded it to the same vector."""
        reference, other = on(codec, "numpy"), on(codec, self.backend)
        message = reference.encode(x, AT)
        assert other.encode(x, AT) == message
        vector = reference.decode(message, AT)
        found = other.decode(message, AT)
        assert vector.dtype == found.dtype == x.dtype
        assert vector.shape == found.shape == x.shape
        assert vector.tobytes() == found.tobytes()
        return message

    @pytest.mark.parametrize("size", SMALL)
    @pytest.mark.parametrize("coder", CODERS)
    @pytest.mark.parametrize("lattice", LATTICES)
    @pytest.mark.parametrize("law", LAWS)
    def test_small_sizes(self, law: str, lattice: str, coder: str, size: str) -> None:
        x = sparse_update(size_of(size, DIMENSIONS[lattice]))
        self.same(make_codec(law, lattice, coder), x)

    @pytest.mark.parametrize(("law", "lattice", "coder"), network_cases())
    def test_update_of_the_papers_network(self, law: str, lattice: str, coder: str) -> None:
        dtype = np.float32 if (len(law) + len(lattice)) % 2 else np.float64
        self.same(make_codec(law, lattice, coder), sparse_update(6422, dtype))

    @pytest.mark.parametrize("kind", EDGES)
    @pytest.mark.parametrize("lattice", LATTICES)
    def test_edges(self, lattice: str, kind: str) -> None:
        for dtype in (np.float32, np.float64):
            self.same(make_codec("gaussian", lattice), edge_update(kind, 100, dtype))

    @pytest.mark.parametrize("kind", EDGES)
    @pytest.mark.parametrize("lattice", LATTICES)
    def test_edges_of_the_papers_coder(self, lattice: str, kind: str) -> None:
        law = cepam.Laplace(SCALE)
        codec = cepam.Codec(law, LATTICES[lattice], coder="paper", bound=1.1e6 * SCALE)
        self.same(codec, edge_update(kind, 100, np.float64))

    @pytest.mark.parametrize("scale", [1e-30, 3e-7, 1.0, 5e11, 1e30])
    @pytest.mark.parametrize("lattice", ["Z1", "E8", "skew"])
    def test_every_noise_scale(self, lattice: str, scale: float) -> None:
        for dtype in (np.float32, np.float64):
            x = (sparse_update(50) * (scale / SCALE)).astype(dtype)
            self.same(cepam.Codec(cepam.Gaussian(scale), LATTICES[lattice]), x)

    @pytest.mark.parametrize("n", [5, 7, 8, 10])
    def test_cubic_lattices_of_many_dimensions(self, n: int) -> None:
        # A law of one layer: the Gaussian tables of these dimensions are not shipped and take a minute to compute.
        self.same(cepam.Codec(cepam.UniformBall(SCALE), cepam.Integer(n)), sparse_update(3 * n + 1))

    @pytest.mark.parametrize("lattice", LATTICES)
    def test_plain_dithering(self, lattice: str) -> None:
        self.same(cepam.DitheredCodec(SCALE, LATTICES[lattice]), sparse_update(500))

    def test_spans_on_a_vector_lattice(self) -> None:
        self.same(cepam.DitheredCodec(SCALE, cepam.E8), sparse_update(SPANS, np.float32))

    def test_plain_dithering_with_the_papers_coder(self) -> None:
        codec = cepam.DitheredCodec(SCALE, coder="paper", bound=BOUND)
        self.same(codec, sparse_update(500))

    @pytest.mark.parametrize("lattice", ["Z1", "D4"])
    def test_threads_change_nothing(self, lattice: str) -> None:
        x = sparse_update(SPANS, np.float32)
        one, two = (on(make_codec(lattice=lattice, threads=count), self.backend) for count in (1, 2))
        message = one.encode(x, AT)
        assert two.encode(x, AT) == message
        assert one.decode(message, AT).tobytes() == two.decode(message, AT).tobytes()

    @pytest.mark.parametrize("lattice", ["Z1", pytest.param("E8", marks=pytest.mark.slow)])
    def test_spans(self, lattice: str) -> None:
        self.same(make_codec(lattice=lattice), sparse_update(SPANS, np.float32))

    @pytest.mark.slow
    @pytest.mark.parametrize("coder", CODERS)
    @pytest.mark.parametrize("lattice", LATTICES)
    @pytest.mark.parametrize("law", LAWS)
    def test_million_everywhere(self, law: str, lattice: str, coder: str) -> None:
        if (law, lattice, coder) == ("laplace", "E8", "layered"):
            pytest.skip("the reference keeps every trial of every row: at an acceptance of 2/315 that takes 22 GB")
        self.same(make_codec(law, lattice, coder), sparse_update(1_000_000))

    @pytest.mark.slow
    def test_million_of_plain_dithering(self) -> None:
        self.same(cepam.DitheredCodec(SCALE, cepam.E8), sparse_update(1_000_000, np.float32))


def on(codec: MessageCodec, backend: BackendName) -> MessageCodec:
    """The same codec on another backend."""
    return replace(codec, backend=backend)  # type: ignore[type-var]

"""Encode and decode at the door: what goes in, what is refused, what comes out."""

from __future__ import annotations

import pickle
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import cepam
from cepam.codec import wire
from cepam.codec.codec import MessageCodec
from tests.corpus import AT, CODERS, LATTICES, LAWS, SCALE, make_codec, open_payload, sparse_update


@pytest.mark.parametrize("coder", CODERS)
@pytest.mark.parametrize("lattice", LATTICES)
@pytest.mark.parametrize("law", LAWS)
def test_decoded_is_update_plus_noise_on_the_grid(law: str, lattice: str, coder: str) -> None:
    codec, x = make_codec(law, lattice, coder), sparse_update(700)
    vector = codec.decode(codec.encode(x, AT), AT)
    steps = vector / codec.grid
    assert np.array_equal(steps, np.rint(steps))
    reach = 60 * SCALE  # beyond what 700 draws of any of these laws come to
    assert np.abs(vector - x).max() < reach
    assert np.abs(vector - x).max() > 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 100])
def test_length_and_type_are_kept(size: int, dtype: Any) -> None:
    codec, x = make_codec(lattice="E8"), sparse_update(size, dtype)
    vector = codec.decode(codec.encode(x, AT), AT)
    assert vector.dtype == dtype
    assert vector.shape == (size,)


def test_type_changes_the_flag_only() -> None:
    codec, x = make_codec(), sparse_update(100, np.float32)
    narrow, wide = (open_payload(codec.encode(x.astype(t), AT), codec) for t in (np.float32, np.float64))
    assert narrow[1:] == wide[1:]


def test_update_is_not_touched() -> None:
    x = sparse_update(100)
    before = x.copy()
    make_codec().encode(x, AT)
    assert np.array_equal(x, before)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    arrays(
        st.sampled_from([np.float32, np.float64]),
        st.integers(0, 30),
        elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=True),
    ),
    st.sampled_from(sorted(LATTICES)),
)
def test_round_trip_stays_near(x: np.ndarray, lattice: str) -> None:
    codec = cepam.Codec(cepam.Gaussian(1.0), LATTICES[lattice])
    vector = codec.decode(codec.encode(x, AT), AT)
    assert np.isfinite(vector).all()
    assert len(x) == len(vector)
    assert not len(x) or np.abs(vector.astype(np.float64) - x).max() < 40


@pytest.mark.parametrize(
    "view",
    [
        lambda x: np.concatenate([x, x])[::2],
        lambda x: x[::-1],
        lambda x: np.asfortranarray(np.stack([x, x], axis=1))[:, 0],
        lambda x: x.tolist(),
        lambda x: tuple(x.tolist()),
        memoryview,
    ],
)
def test_any_float_sequence_is_taken(view: Any) -> None:
    codec, x = make_codec(), view(sparse_update(50))
    assert codec.encode(x, AT) == codec.encode(np.array(x, dtype=np.float64), AT)


def test_read_only_updates_are_taken() -> None:
    x = sparse_update(50)
    x.setflags(write=False)
    make_codec().encode(x, AT)


@pytest.mark.parametrize(
    "update",
    [
        np.zeros((2, 2)),
        np.zeros((1, 5)),
        np.float64(1.0),
        1.0,
        np.zeros(3, dtype=np.int64),
        [1, 2, 3],
        [True, False],
        np.zeros(3, dtype=np.longdouble),
        np.zeros(3, dtype=np.complex128),
        np.zeros(3, dtype=">f8"),
        np.zeros(3, dtype=">f2"),
        np.zeros(3, dtype=object),
        np.array(["a"]),
        "text",
        b"bytes",
        None,
        [1.0, None],
        [[1.0], [2.0, 3.0]],
        {"a": 1.0},
        object(),
    ],
)
def test_updates_of_another_kind_are_refused(update: Any) -> None:
    with pytest.raises(ValueError, match="the update must"):
        make_codec().encode(update, AT)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("coder", CODERS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_that_are_not_finite_are_refused(bad: float, coder: str, dtype: Any) -> None:
    for place in (0, 50, 99):
        x = np.zeros(100, dtype=dtype)
        x[place] = bad
        with pytest.raises(ValueError, match="NaN or infinite"):
            make_codec(coder=coder).encode(x, AT)


def test_values_out_of_reach_are_refused() -> None:
    codec = cepam.Codec(cepam.Gaussian(1.0), cepam.Integer(1))
    reach = codec.plan.reach
    assert reach >= 1e6
    for value in (reach, -reach):
        vector = codec.decode(codec.encode(np.array([value]), AT), AT)
        assert abs(vector[0] - value) < 40
    for value in (np.nextafter(reach, np.inf), -np.nextafter(reach, np.inf), 1e300):
        with pytest.raises(ValueError, match="beyond"):
            codec.encode(np.array([0.0, value]), AT)


@pytest.mark.parametrize("law", LAWS)
def test_whole_sub_vectors_at_the_end_of_the_range_travel(law: str) -> None:
    """The l1 norm of eight such coordinates is beyond 63 bits: Numba took it for a failure, NumPy did not."""
    codec = make_codec(law, "E8")
    x = np.full(64, 0.7 * codec.plan.reach)
    x[::3] *= -1.0
    messages = [replace(codec, backend=backend).encode(x, AT) for backend in ("numba", "numpy")]
    assert messages[0] == messages[1]
    decoded = [replace(codec, backend=backend).decode(messages[0], AT) for backend in ("numba", "numpy")]
    assert np.array_equal(decoded[0], decoded[1])
    assert np.abs(decoded[0] - x).max() < 60 * SCALE + 1e-6 * codec.plan.reach


def test_the_papers_coder_keeps_its_bound() -> None:
    codec = cepam.Codec(cepam.Gaussian(1.0), cepam.Integer(1), coder="paper", bound=2.0)
    for backend in ("numpy", "numba"):
        on = replace(codec, backend=backend)
        on.decode(on.encode(np.array([2.0, -2.0]), AT), AT)
        with pytest.raises(ValueError, match="bound"):
            on.encode(np.array([np.nextafter(2.0, 3.0)]), AT)


class TestTorch:
    """CPU tensors come in through the array protocol; what has no such array is refused in words."""

    def tensor(self, **options: Any) -> Any:
        torch = pytest.importorskip("torch")
        return torch.linspace(-0.1, 0.1, 50, **options)

    @pytest.mark.parametrize("name", ["float32", "float64"])
    def test_tensors_are_taken(self, name: str) -> None:
        torch = pytest.importorskip("torch")
        x = self.tensor(dtype=getattr(torch, name))
        codec = make_codec()
        assert codec.encode(x, AT) == codec.encode(x.numpy(), AT)
        assert codec.decode(codec.encode(x, AT), AT).dtype == name

    @pytest.mark.parametrize("name", ["int64", "complex64"])
    def test_other_types_are_refused(self, name: str) -> None:
        torch = pytest.importorskip("torch")
        with pytest.raises(ValueError, match="float32 or float64"):
            make_codec().encode(self.tensor(dtype=torch.float32).to(getattr(torch, name)), AT)

    def test_tensors_that_need_gradients_are_refused(self) -> None:
        with pytest.raises(ValueError, match="the update must"):
            make_codec().encode(self.tensor(requires_grad=True), AT)

    def test_tensors_elsewhere_are_refused(self) -> None:
        with pytest.raises(ValueError, match="the update must"):
            make_codec().encode(self.tensor(device="meta"), AT)

    def test_matrices_are_refused(self) -> None:
        with pytest.raises(ValueError, match="one dimension"):
            make_codec().encode(self.tensor().reshape(5, 10), AT)


@pytest.mark.parametrize("make", [cepam.Gaussian, cepam.Laplace, cepam.UniformBall])
@pytest.mark.parametrize("scale", [0, -1.0, np.nan, np.inf, -np.inf, 1e-31, 1e31, "1", None, True, [1.0], 1j])
def test_laws_refuse_scales(make: Any, scale: Any) -> None:
    with pytest.raises(ValueError, match="must"):
        make(scale)


GOOD = cepam.Gaussian(1.0)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"law": 0.1}, "law"),
        ({"law": cepam.Gaussian}, "law"),
        ({"law": None}, "law"),
        ({"lattice": "E9"}, "lattice"),
        ({"lattice": None}, "lattice"),
        ({"lattice": 3}, "lattice"),
        ({"coder": "zip"}, "coder"),
        ({"coder": None}, "coder"),
        ({"backend": "cuda"}, "backend"),
        ({"coder": "paper"}, "bound"),
        ({"coder": "paper", "bound": -1.0}, "bound"),
        ({"coder": "paper", "bound": 0}, "bound"),
        ({"coder": "paper", "bound": np.nan}, "bound"),
        ({"coder": "paper", "bound": 1e20}, "bound"),
        ({"bound": 1.0}, "bound"),
        ({"padding": 0}, "padding"),
        ({"padding": -5}, "padding"),
        ({"padding": 2.5}, "padding"),
        ({"padding": 2**25}, "padding"),
        ({"threads": 0}, "threads"),
        ({"threads": 1.5}, "threads"),
        ({"law": cepam.Laplace(1.0), "lattice": cepam.Integer(8)}, "lattice of lower dimension"),
    ],
)
def test_codec_refuses_at_the_door(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        cepam.Codec(**{"law": GOOD, **options})


def test_codec_refuses_a_bare_generator() -> None:
    with pytest.raises(ValueError, match="lattice must be"):
        cepam.Codec(GOOD, np.eye(2))  # type: ignore[arg-type]


@pytest.mark.parametrize("step", [0, -1.0, np.nan, None])
def test_dithered_codec_refuses_steps(step: Any) -> None:
    with pytest.raises(ValueError, match="step"):
        cepam.DitheredCodec(step)


def test_dithered_codec_refuses_what_is_no_lattice() -> None:
    with pytest.raises(ValueError, match="lattice"):
        cepam.DitheredCodec(0.1, lattice="auto")  # type: ignore[arg-type]


def test_the_papers_coder_covers_plain_dithering_in_one_dimension() -> None:
    with pytest.raises(ValueError, match="one dimension"):
        cepam.DitheredCodec(0.1, cepam.E8, coder="paper", bound=1.0)


@pytest.mark.parametrize("at", [None, 5, b"key", ("key", 1, 2), cepam.Key(bytes(32))])
def test_address_is_asked_for(at: Any) -> None:
    codec = make_codec()
    with pytest.raises(ValueError, match="Address"):
        codec.encode(np.zeros(1), at)
    with pytest.raises(ValueError, match="Address"):
        codec.decode(codec.encode(np.zeros(1), AT), at)


def test_codecs_compare_hash_print_and_pickle() -> None:
    one, two = make_codec(), make_codec(backend="numpy", threads=1)
    assert one == two
    assert hash(one) == hash(two)
    assert one != make_codec("laplace")
    assert "gaussian" in repr(one).lower()
    assert "Z1" in repr(one)
    for codec in (one, make_codec(lattice="skew"), cepam.DitheredCodec(0.1)):
        again: MessageCodec = pickle.loads(pickle.dumps(codec))
        assert again == codec
        assert again.fingerprint == codec.fingerprint


def test_fingerprint_is_about_meaning() -> None:
    assert make_codec().fingerprint == make_codec(backend="numpy", padding=64, threads=2).fingerprint
    by_rows = cepam.Codec(GOOD, cepam.Lattice([[2.0, 0.0], [0.0, 2.0]]))
    assert by_rows.fingerprint == cepam.Codec(GOOD, cepam.Lattice([[1.0, 0.0], [0.0, 1.0]])).fingerprint


@pytest.mark.parametrize("padding", [1, 16, 100, 4096])
@pytest.mark.parametrize("size", [0, 5, 9000])
def test_buckets_hide_the_length(size: int, padding: int) -> None:
    codec, x = make_codec(padding=padding), sparse_update(size)
    message = codec.encode(x, AT)
    assert len(message) % padding == 0
    assert codec.decode(message, AT).tobytes() == make_codec().decode(make_codec().encode(x, AT), AT).tobytes()
    assert make_codec().decode(message, AT).tobytes() == codec.decode(message, AT).tobytes()


@pytest.mark.parametrize("coder", CODERS)
@pytest.mark.parametrize("lattice", LATTICES)
def test_blocks_stand_by_themselves(lattice: str, coder: str) -> None:
    """A block's bytes and its part of the vector do not depend on what stands in other blocks."""
    codec = make_codec("gaussian", lattice, coder)
    n = LATTICES[lattice].dimension
    edge = n * wire.rows_per_block(n)
    x = sparse_update(2 * edge + 5)
    changed = x.copy()
    changed[edge : 2 * edge] = 0.5
    vectors = [codec.decode(codec.encode(v, AT), AT) for v in (x, changed)]
    assert np.array_equal(vectors[0][:edge], vectors[1][:edge])
    assert np.array_equal(vectors[0][2 * edge :], vectors[1][2 * edge :])
    keys = AT.derive()
    blocks = [wire.open_sealed(codec.encode(v, AT), keys, codec.fingerprint, n).blocks for v in (x, changed)]
    assert len(blocks[0]) == 3
    assert blocks[0][0] == blocks[1][0]
    assert blocks[0][2] == blocks[1][2]


@pytest.mark.parametrize("lattice", ["Z1", "E8"])
def test_memory_stays_bounded(lattice: str) -> None:
    """Beyond input and output, encoding and decoding hold a few blocks and the message."""
    codec = make_codec(lattice=lattice, backend="numba", threads=1)
    small = sparse_update(1000, np.float32)
    codec.decode(codec.encode(small, AT), AT)  # compiled and planned before it is measured
    x = np.zeros(2_000_000, dtype=np.float32)
    tracemalloc.start()
    message = codec.encode(x, AT)
    _, encoding = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    codec.decode(message, AT)
    _, decoding = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert encoding < 4 * 2**20
    assert decoding < x.nbytes + 4 * 2**20


def test_same_address_same_message() -> None:
    codec, x = make_codec(), sparse_update(100)
    assert codec.encode(x, AT) == codec.encode(x, AT)

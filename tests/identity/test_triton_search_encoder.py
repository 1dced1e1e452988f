"""Messages of the search coder encoded on a GPU beside the CPU's, byte for byte, through Triton's interpreter."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

from typing import Any

import numpy as np
import pytest

import cepam
from cepam.codec.batch import encode_each
from cepam.codec.wire import SEARCHED
from cepam.kernels import dispatch
from cepam.kernels.format import search as f
from cepam.kernels.format.plan import CodingTask, layered_plan
from cepam.kernels.numpy import search_coder as reference
from tests.corpus import AT
from tests.identity.interpreter import quick  # noqa: F401
from tests.identity.test_search import updates

torch = pytest.importorskip("torch", reason="the GPU path needs PyTorch")
triton = pytest.importorskip("triton", reason="the GPU path needs Triton")

from cepam.kernels.triton import backend, search_encode  # noqa: E402
from cepam.kernels.triton.hadamard import add_up, exponential, largest_of, transform  # noqa: E402
from cepam.kernels.triton.plan import device_keys  # noqa: E402
from cepam.kernels.triton.search_races import (  # noqa: E402
    CHOICES,
    TIMES,
    add_arrivals,
    keys_of,
    next_words,
    no_arrivals,
    steps_of,
)

tl = triton.language
SIGMA = 0.01
CODEC = cepam.Codec(cepam.Gaussian(SIGMA), backend="numpy")
KINDS = ("loud", "many spikes")


@pytest.fixture(autouse=True)
def tensors_are_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "on_gpu", torch.is_tensor)
    monkeypatch.setattr(dispatch, "LEAST_SEARCHED_ON_GPU", 0)
    monkeypatch.setattr(dispatch, "searches_alike", lambda device: True)


@triton.jit
def score(x: Any, out: Any, size: tl.constexpr, places: tl.constexpr) -> None:
    """Of parts of 2^size numbers their transforms, the exponentials of these, and of those sums and maxima."""
    at, each = tl.arange(0, places), tl.arange(0, places >> size)
    at = at % (places // 8) * 8 + at // (places // 8)
    found = transform(tl.load(x + at), size)
    tl.store(out + at, found)
    ratios = exponential(found)
    tl.store(out + places + at, ratios)
    tl.store(out + 2 * places + each, add_up(ratios, size))
    tl.store(out + 2 * places + (places >> size) + each, largest_of(ratios, size))


@pytest.mark.parametrize(("size", "parts"), [(5, 1), (6, 4), (13, 1)])
def test_transforms_and_ratios_are_the_references(size: int, parts: int) -> None:
    places = parts << size
    x = np.random.default_rng(size).normal(size=(parts, 1 << size)) * 40.0 / 2 ** (size / 2)
    out = torch.zeros(2 * places + 2 * parts, dtype=torch.float64)
    score[(1,)](torch.from_numpy(x), out, size, places)
    found = reference.transform(x)
    ratios = reference.exponential(found)
    sums = [reference.add_up(row) for row in ratios]
    assert (out.numpy() == np.concatenate([found.reshape(-1), ratios.reshape(-1), sums, ratios.max(axis=1)])).all()


@triton.jit
def follow_arrivals(drawn: Any, times: Any, number: Any, words: tl.constexpr) -> None:
    """Two tiles of one process."""
    place, found = tl.arange(0, words)[None, :], no_arrivals(1, words)
    for tile in tl.static_range(2):
        steps, ends = steps_of(tl.load(drawn + tile * words + place).to(tl.uint64, bitcast=True))
        found = add_arrivals(found, steps, ends)
        tl.store(times + tile * words + place, found.times)
        tl.store(number + tile * words + place, found.number)


def test_arrivals_are_the_references_also_where_a_step_goes_on_in_the_next_word() -> None:
    drawn = np.random.default_rng(1).integers(0, 1 << 64, 128, dtype=np.uint64)
    drawn[[0, 7, 8, 63, 64, 100]] >>= np.uint64(17)
    drawn[3], drawn[4] = 1 << 48, (1 << 64) - 1
    times, number = torch.zeros(128, dtype=torch.float64), torch.zeros(128, dtype=torch.int32)
    follow_arrivals[(1,)](torch.from_numpy(drawn.view(np.int64)), times, number, 64)
    expected = reference.arrivals(drawn)
    assert len(expected) == 122
    assert (times.numpy()[number.numpy() > 0] == expected).all()
    assert (number.numpy()[number.numpy() > 0] == np.arange(1, 123)).all()


@triton.jit
def draw_words(keys: Any, streams: Any, out: Any, turn: Any, kind: tl.constexpr, opening: tl.constexpr,
               words: tl.constexpr) -> None:  # fmt: skip
    """A tile of the words of two parts."""
    part = tl.arange(0, 2)
    found = next_words(keys_of(keys, part, words // 8), tl.load(streams + part), part * 0 + turn.to(tl.int64), kind,
                       opening, words)  # fmt: skip
    at = part[:, None] * words + tl.arange(0, words)[None, :]
    tl.store(out + at, found.to(tl.int64, bitcast=True))


@pytest.mark.parametrize(("kind", "opening", "words"), [(TIMES, 0, 64), (CHOICES, 64, 64), (CHOICES, 64, 256)])
def test_words_of_a_race_begin_in_the_opening_stream(kind: Any, opening: int, words: int) -> None:
    """Both parts have streams and clients of their own; the second tile is not the first."""
    plan, kind = layered_plan(cepam.Gaussian(1.0), cepam.Integer(1)), int(kind.value)
    parts = [reference.Part(plan, (bytes(32), bytes([i]) * 32), 3 + i, 6, 5) for i in range(2)]
    streams = [f.stream_number(3 + i, 6, 5, 0, 0) for i in range(2)]
    keys, out = device_keys([part.keys[1] for part in parts], "cpu"), torch.zeros((2, words), dtype=torch.int64)
    for turn in range(3):
        draw_words[(1,)](keys, torch.tensor(streams), out, turn, kind, opening // 8, words)
        for part, found in zip(parts, out.numpy().view(np.uint64)):
            own = np.concatenate([
                part._words(False, 0, f.OPENING, np.arange(opening, opening + 64)),
                part._words(False, 0, kind, np.arange(3 * words)),
            ])  # fmt: skip
            assert (found == own[turn * words : (turn + 1) * words]).all()


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *zip(KINDS, (np.float32, np.float64)),
        *(pytest.param(kind, np.float32, marks=pytest.mark.slow) for kind in updates(1) if kind not in KINDS),
    ],
)
def test_messages_are_the_cpus(kind: str, dtype: Any) -> None:
    """Parts of many sizes, halves, coordinates that fill up a block, and some for the layered quantizer."""
    x = (SIGMA * updates(520)[kind]).astype(dtype)
    message = CODEC.encode(torch.from_numpy(x), AT)
    assert message[0] & SEARCHED
    assert message == CODEC.encode(x, AT)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_messages_of_many_clients() -> None:
    """Of several energies, and thus sizes of blocks; one is not searched, one is refused."""
    x = np.random.default_rng(2).normal(size=(5, 520)) * np.array([[0.02], [0.03], [2.0], [0.2], [0.1]]) * SIGMA
    x[4, 7] = np.nan
    places = [cepam.Address(bytes([i]) * 32, round=3, client=i) for i in range(5)]
    made = encode_each(CODEC, torch.from_numpy(x), places)
    assert isinstance(made[4], ValueError)
    assert [message[0] & SEARCHED > 0 for message in made[:4]] == [True, True, False, True]
    assert made[:4] == [CODEC.encode(row, at) for row, at in zip(x[:4], places)]


def two_segments() -> tuple[CodingTask, Any]:
    """The second of them is short and not zero."""
    task = CodingTask(layered_plan(cepam.Gaussian(1.0), cepam.Integer(1)), "search", bytes(32), f.SEGMENT)
    x = np.zeros(f.SEGMENT + 300)
    x[f.SEGMENT :] = 0.06 * np.random.default_rng(3).normal(size=300)
    return task, x


def test_sums_of_segments() -> None:
    task, x = two_segments()
    found = search_encode.measure_updates(task.plan, [task.key], torch.from_numpy(x)[None])
    units = (x / task.plan.unit).astype(np.int64)
    assert found.sums.tolist() == [[0, f.coarse_sum(units[f.SEGMENT :])]]
    assert found.largest == abs(x).max()


@pytest.mark.slow
def test_two_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_encode, "PLACES", 8192)
    (task, x), done = two_segments(), [0]
    found = backend.measure_rows([task], torch.from_numpy(x)[None])
    made = backend.encode_rows(found, lambda: done.append(1))
    assert done == [0, 1]
    assert list(made[0]) == reference.encode_span(task, (x / task.plan.unit).astype(np.int64), 0)


TRY = dispatch.searches_alike.__wrapped__


def test_a_device_that_searches_otherwise_leaves_it_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_TRIALS", ((300, 0.2),))
    assert TRY("cpu")
    plain = backend.encode_rows
    monkeypatch.setattr(backend, "encode_rows", lambda found: [[b"other"] for _ in plain(found)])
    with pytest.warns(UserWarning, match="the CPU searches: its bytes differ"):
        assert not TRY("cpu")
    monkeypatch.setattr(dispatch, "searches_alike", TRY)
    x = np.random.default_rng(7).normal(0.0, 0.1 * SIGMA, 600).astype(np.float32)
    with pytest.warns(UserWarning, match="the CPU searches"):
        assert encode_each(CODEC, torch.from_numpy(x)[None], [AT]) == [CODEC.encode(x, AT)]

"""The entropy coder of the GPU beside the compiled one, through Triton's interpreter: the same bytes and vectors.

Blocks are short here, since the interpreter takes a tenth of a second for a coordinate of all lanes. `bench/gpu.py`
runs the same comparison on a GPU, with whole blocks.
"""

from __future__ import annotations

import os
import weakref

os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

from typing import Any

import numpy as np
import pytest

import cepam
from cepam.errors import MalformedMessage, SealBroken
from cepam.kernels.format import row_period as stride
from cepam.kernels.format.plan import CodingTask, Plan, cell_plan, layered_plan
from cepam.kernels.numba.backend import NumbaBackend
from cepam.kernels.numpy import quantizer as reference
from cepam.kernels.numpy import scalar_coder as margin_reference
from tests.corpus import AT, sparse_update
from tests.identity.interpreter import quick  # noqa: F401

torch = pytest.importorskip("torch", reason="the GPU path needs PyTorch")
triton = pytest.importorskip("triton", reason="the GPU path needs Triton")
tl = pytest.importorskip("triton.language")
tl = pytest.importorskip("triton.language")

from cepam.codec import wire  # noqa: E402
from cepam.kernels import dispatch  # noqa: E402
from cepam.kernels.triton import backend as triton_backend  # noqa: E402
from cepam.kernels.triton import batch  # noqa: E402
from cepam.kernels.triton import launch as waves  # noqa: E402
from cepam.kernels.triton import range_coder as triton_ranging  # noqa: E402
from cepam.kernels.triton import row_period as triton_stride  # noqa: E402
from cepam.kernels.triton import scalar_launch as scalar_wave  # noqa: E402
from cepam.kernels.triton.plan import device_whole  # noqa: E402

SCALE = 0.01
KEYS = [bytes(range(i, i + 32)) for i in (1, 77)]
GAUSSIAN = layered_plan(cepam.Gaussian(SCALE), cepam.Integer(1))
LENGTH = 32


def compiled_blocks(plan: Plan, key: bytes, x: np.ndarray, length: int = LENGTH) -> list[bytes]:
    """The blocks by the compiled backend, group by group."""
    task, step = CodingTask(plan, "adaptive", key, length), length * stride.SHARED_BLOCKS
    return [block for i in range(0, len(x), step) for block in NumbaBackend().encode_span(task, x[i : i + step], i)]


def compiled_values(plan: Plan, key: bytes, blocks: list[bytes], like: np.ndarray) -> np.ndarray:
    out = np.empty_like(like)
    NumbaBackend().decode_span(CodingTask(plan, "adaptive", key, LENGTH), blocks, 0, out)
    return out


def same_bytes(plan: Plan, x: np.ndarray, **options: Any) -> list[list[bytes]]:
    """Each client's blocks (x: clients, m), once both made the same ones."""
    coded = waves.encode_measured(waves.measure(plan, KEYS[: len(x)], torch.from_numpy(x), LENGTH), **options)
    made = [list(blocks) for blocks in triton_backend.to_host(coded)]
    for key, row, blocks in zip(KEYS, x, made):
        assert blocks == compiled_blocks(plan, key, row)
    return made


def same_values(plan: Plan, blocks: list[list[bytes]], x: np.ndarray) -> None:
    """Decoding gives the same bits."""
    dtype = torch.float64 if x.dtype == np.float64 else torch.float32
    on = triton_backend.to_device(blocks, "cpu")
    back = waves.decode_blocks(plan, KEYS[: len(x)], on, x.shape[1], dtype, LENGTH).numpy()
    for key, row, mine, found in zip(KEYS, x, blocks, back):
        assert compiled_values(plan, key, mine, row).tobytes() == found.tobytes()


def test_clients_sizes_and_empty_blocks() -> None:
    """Several blocks of two clients, the last one short; a block of zeros under little noise needs no bytes."""
    rng = np.random.default_rng(1)
    x = rng.normal(0, SCALE, (2, 4 * LENGTH + 11)) * np.exp(rng.normal(0, 1.5, (2, 4 * LENGTH + 11)))
    x[:, LENGTH : 2 * LENGTH] = 0.0
    x[1, -30:] = 0.0
    blocks = same_bytes(GAUSSIAN, x.astype(np.float32))
    assert blocks[0][1] == b"" != blocks[0][0]
    same_values(GAUSSIAN, blocks, x.astype(np.float32))


def test_layouts_over_the_whole_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group for every kind of layout, sizes from one unit to the format's end, blocks coded in two segments."""
    monkeypatch.setattr(stride, "SHARED_BLOCKS", 2)
    monkeypatch.setattr(batch, "_LEAST_MEMORY", 1)
    monkeypatch.setattr(scalar_wave, "SHORTEST_SEGMENT", 16)
    plan, rng = layered_plan(cepam.Laplace(0.3), cepam.Integer(1)), np.random.default_rng(3)
    x = rng.normal(0, 0.3, 6 * LENGTH)
    x[: 2 * LENGTH] *= np.tile(np.where(np.arange(8) == 3, 9.0, 0.1), 2 * LENGTH // 8)
    x[2 * LENGTH : 4 * LENGTH] *= np.repeat([1.0, 0.02, 5.0, 0.02], LENGTH // 2)
    units = np.trunc(x / plan.unit).astype(np.int64)
    found = [stride.find_period(units[start : start + LENGTH]) for start in (0, 2 * LENGTH, 4 * LENGTH)]
    assert found == [8, stride.LOCAL, stride.FLAT]
    x[2 * LENGTH - 1 :: 31], x[2 * LENGTH - 2 :: 37] = plan.unit, -plan.reach
    same_values(plan, same_bytes(plan, x[None]), x[None])


@pytest.mark.parametrize(
    ("seen", "passes"),
    [("truly", [0, None, None, 0, 0]), (True, [0, 0, None, 0, None, 0, 0]), (False, [None] * 5)],
)
def test_an_update_that_has_rows_after_all_is_decoded_again(
    seen: bool | str, passes: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the host sees in the blocks is right, and if it were wrong, the values would be right all the same."""
    if seen != "truly":
        monkeypatch.setattr(triton_backend, "seem_flat", lambda *_: seen)
    plan, rng = layered_plan(cepam.Gaussian(0.02), cepam.Integer(1)), np.random.default_rng(8)
    flat = rng.normal(0, 0.02, (1, 2 * LENGTH)).astype(np.float32)
    rowed = flat * np.tile(np.where(np.arange(8) == 3, 9.0, 0.1), 2 * LENGTH // 8).astype(np.float32)
    coded = {name: same_bytes(plan, x) for name, x in (("flat", flat), ("rowed", rowed))}
    found: list[int | None] = []
    decode = scalar_wave.ScalarLaunch.decode
    noted = lambda *args: (found.append(args[-1]), decode(*args))[1]  # noqa: E731
    monkeypatch.setattr(scalar_wave.ScalarLaunch, "decode", noted)
    for name in ("flat", "rowed", "rowed", "flat", "flat"):
        same_values(plan, coded[name], flat if name == "flat" else rowed)
    assert found == passes


def test_small_slots_and_waves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams that outgrow their slots are coded again, and a wave of one program follows another, whose slots may have
    the memory of the one before."""
    monkeypatch.setattr(batch, "_LEAST_MEMORY", 1)
    slots: list[weakref.ref[Any]] = []
    streams = batch.Wave._streams

    def watched(self: Any, room: int) -> Any:
        assert all(each() is None for each in slots)
        made = streams(self, room)
        slots.append(weakref.ref(made[0]))
        return made

    monkeypatch.setattr(batch.Wave, "_streams", watched)
    x = np.random.default_rng(3).normal(0, 300 * SCALE, (1, 33 * 8))
    found = waves.measure(GAUSSIAN, KEYS[:1], torch.from_numpy(x), 8)
    made = list(triton_backend.to_host(waves.encode_measured(found, room=2))[0])
    assert made == compiled_blocks(GAUSSIAN, KEYS[0], x[0], 8)
    assert max(map(len, made)) > 8
    assert len(slots) > 2


def test_fixed_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain dithering; and a program for each block, as on a GPU that has few of them."""
    monkeypatch.setattr(batch, "FEW_LANES", 1)
    plan = cell_plan(cepam.Integer(1), 0.02)
    x = np.random.default_rng(4).normal(0, 0.1, (1, 20)).astype(np.float32)
    same_values(plan, same_bytes(plan, x), x)


def test_hostile_bytes() -> None:
    """Any bytes decode to what the CPU makes of them, or are refused by both; every block is a client of its own."""
    rng = np.random.default_rng(5)
    made = [b"", b"\0" * 9, b"\xff" * 40, b"\xfd", rng.bytes(3), rng.bytes(30), b"\x01" + b"\xff" * 90]
    found = {block: decode_compiled(block) for block in made}
    good, bad = ([block for block in made if (found[block] is None) == refused] for refused in (False, True))
    values = decode_triton(good)
    assert values is not None
    assert [row.tobytes() for row in values] == [found[block] for block in good]
    assert decode_triton(made) is None or not bad


def decode_compiled(block: bytes) -> bytes | None:
    """The values of one block, or nothing if it is refused."""
    try:
        return compiled_values(GAUSSIAN, KEYS[0], [block], np.empty(LENGTH, dtype=np.float64)).tobytes()
    except MalformedMessage:
        return None


def decode_triton(blocks: list[bytes]) -> Any:
    """The values of many blocks, one a row, or nothing if one of them is refused."""
    on, keys = triton_backend.to_device([[block] for block in blocks], "cpu"), [KEYS[0]] * len(blocks)
    try:
        return waves.decode_blocks(GAUSSIAN, keys, on, LENGTH, torch.float64, LENGTH).numpy()
    except MalformedMessage:
        return None


def test_points_outside_the_format_are_refused() -> None:
    """A stream of quotients that no update gives: both decoders refuse it."""
    ids = np.arange(LENGTH)
    _, b = reference.layers(GAUSSIAN, KEYS[0], ids)
    d = reference.dither(GAUSSIAN, KEYS[0], 0, ids, b)[:, 0]
    m, scale, flat = np.full(LENGTH, 1 << 40), np.array([120]), np.array([stride.FLAT])
    block = margin_reference.encode_span(m, b, d, scale, flat, LENGTH)[0]
    assert decode_compiled(block) is None
    assert decode_triton([block]) is None


def test_codec_takes_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message of a tensor is the array's, and decodes to a tensor of the same bits."""
    monkeypatch.setattr(dispatch, "on_gpu", torch.is_tensor)
    codec, x = cepam.Codec(cepam.Gaussian(SCALE), cepam.Integer(1)), sparse_update(21, np.float32)
    message = codec.encode(torch.from_numpy(x), AT)
    assert message == codec.encode(x, AT)
    assert codec.decode(message, AT, device="cpu").numpy().tobytes() == codec.decode(message, AT).tobytes()
    assert codec.encode(torch.zeros(0), AT) == codec.encode(np.zeros(0, dtype=np.float32), AT)
    with pytest.raises(ValueError, match="one dimension"):
        codec.encode(torch.zeros((2, 3)), AT)
    with pytest.raises(ValueError, match="float32 or float64"):
        codec.encode(torch.zeros(3, dtype=torch.int32), AT)
    used = cepam.UsedAddresses()
    for dtype, sign in ((torch.float32, 1.0), (torch.float64, -1.0)):
        with pytest.raises(ValueError, match="NaN"):
            codec.encode(torch.tensor([0.0, np.copysign(np.nan, sign), 1.0], dtype=dtype), AT, used)
        with pytest.raises(ValueError, match="range"):
            codec.encode(torch.tensor([0.0, -1e30, 1.0], dtype=dtype), AT, used)
    used.claim(AT)  # what was refused has used nothing


def test_long_messages_are_sealed_in_chunks_by_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of the CPU, several chunks of them; opened on the way to a device, damaged ones are refused."""
    monkeypatch.setattr(dispatch, "on_gpu", torch.is_tensor)
    monkeypatch.setattr(wire, "CHUNK_BYTES", 16)
    codec, x = cepam.Codec(cepam.Gaussian(SCALE), cepam.Integer(1), padding=7), sparse_update(120, np.float32)
    message = codec.encode(torch.from_numpy(x), AT)
    assert message == codec.encode(x, AT)
    assert wire.count_chunks(wire.payload_size(len(message) - wire.HEAD_BYTES)) > 1
    assert codec.decode(message, AT, device="cpu").numpy().tobytes() == codec.decode(message, AT).tobytes()
    for at in (2, 2 + 16, len(message) - 17, len(message) - 1):
        with pytest.raises(SealBroken):
            codec.decode(message[:at] + bytes([message[at] ^ 4]) + message[at + 1 :], AT, device="cpu")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_no_value_hides_from_the_largest_magnitude() -> None:
    """NaN of both signs, quiet and signalling, counts as larger than all, infinities as larger than what is finite;
    the last value of the second of two clients, in a last block that is short."""
    plan = layered_plan(cepam.Gaussian(SCALE), cepam.A2)

    def largest(x: np.ndarray) -> float:
        return waves.measure(plan, KEYS, torch.from_numpy(x), 8).largest

    for kind, bits, above in ((np.float32, np.uint32, 22), (np.float64, np.uint64, 51)):
        x = np.full((2, 37), -1.0, dtype=kind)
        x[1, 36] = -1.5
        assert largest(x) == 1.5
        x[0, 0], x[1, 36] = np.finfo(kind).max, -np.inf
        assert largest(x) == np.inf
        infinite = int(x.view(bits)[1, 36])
        for nan in (infinite | 1 << above, infinite | 1):
            for sign in (0, 1 << 8 * x.itemsize - 1):
                x.view(bits)[1, 36] = nan ^ sign
                assert np.isnan(largest(x))


@triton.jit
def settle_lanes(data, words, carried, out):  # type: ignore[no-untyped-def]
    lane = tl.arange(0, 4)
    word = tl.load(words + lane).to(tl.uint32, bitcast=True)
    word = triton_ranging.settle(data + lane * 3, lane * 0 + 4, word, lane * 0 + 3, tl.load(carried + lane) > 0)
    tl.store(out + lane, word.to(tl.int32, bitcast=True))


def test_carries_run_back_through_words_of_ones() -> None:
    """This takes 2^32 carries to meet by chance: lanes with and without a carry, ones in the last word and before."""
    data = torch.tensor([[1, 2, 3], [1, 2, 3], [1, -1, -1], [-1, 7, -1]], dtype=torch.int32)
    words, out = torch.tensor([5, -1, -1, -1], dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    settle_lanes[(1,)](data, words, torch.tensor([1, 0, 1, 1], dtype=torch.int32), out)
    assert out.tolist() == [6, -1, 0, 0]
    assert data.tolist() == [[1, 2, 3], [1, 2, 3], [2, 0, 0], [-1, 8, 0]]


@pytest.mark.parametrize(
    "codec",
    [
        cepam.Codec(cepam.Gaussian(SCALE), cepam.Integer(1), coder="paper", bound=1.0),
        cepam.DitheredCodec(SCALE, cepam.Lattice([[1.0, 0.3], [0.0, 1.1]])),
    ],
    ids=["paper's coder", "own lattice"],
)
def test_what_a_gpu_does_not_code_goes_over_the_cpu(monkeypatch: pytest.MonkeyPatch, codec: Any) -> None:
    """The default never refuses: same bytes and vectors, and a warning that says where they were made."""
    monkeypatch.setattr(dispatch, "on_gpu", torch.is_tensor)
    dispatch._warn_cpu.cache_clear()
    x = sparse_update(21, np.float32)
    with pytest.warns(UserWarning, match="coded on the CPU"):
        message = codec.encode(torch.from_numpy(x), AT)
    assert message == codec.encode(x, AT)
    assert codec.decode(message, AT, device="cpu").numpy().tobytes() == codec.decode(message, AT).tobytes()


def test_autocorrelations_are_whole_numbers() -> None:
    """Sums of products of patterns of the largest values, at every lag of a program, some of them beyond the end."""
    pattern, size = np.random.default_rng(5).choice([-64, 64], (2, 500)).astype(np.int8), 500
    heads, sums = triton_stride.Heads(size, 0, 1, 0, 1, size, size, 0, 0), torch.zeros((2, 512), dtype=torch.int32)
    triton_stride.correlate_heads[2, 1](torch.from_numpy(pattern), sums, device_whole(heads, "cpu"))
    for row, found in zip(pattern.astype(np.int64), sums.tolist()):
        assert found == [int(row[lag:] @ row[: max(size - lag, 0)]) for lag in range(512)]


@pytest.mark.parametrize("length", [8, 100, 2048])
def test_strides_are_the_cpus(length: int) -> None:
    """Layouts of the groups of five clients, the last group short; the last two are quiet, alike and not alike."""
    rng, per_unit = np.random.default_rng(6), 1.0 / GAUSSIAN.unit
    count = stride.SHARED_BLOCKS * length + length // 2 + 1
    x = rng.normal(0, SCALE, (5, count)) * (1 + 9 * (np.arange(count) % 17 == 3))
    x[1] = np.repeat(rng.normal(0, SCALE, count // 16 + 1), 16)[:count]
    x[2] = rng.normal(0, SCALE, count)
    x[2, :length] = 0.0
    x[3] = 0.03 * x[1]
    x[4] = x[3] * np.repeat(np.exp(rng.normal(0, 2.0, count // 16 + 1)), 16)[:count]
    found = triton_stride.find_periods(torch.from_numpy(x), per_unit, length).numpy()
    for row, strides in zip(x, found):
        units = np.trunc(row * per_unit).astype(np.int64)
        starts = (0, stride.SHARED_BLOCKS * length)
        assert strides.tolist() == [stride.find_period(units[start:][:length]) for start in starts]

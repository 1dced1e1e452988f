"""Batches of updates on a GPU beside the CPU's messages one by one, through Triton's interpreter."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

import numpy as np
import pytest

import cepam
from cepam.codec import codec as codec_module
from cepam.codec.batch import decode_each, encode_each
from cepam.errors import MalformedMessage, SealBroken
from cepam.kernels import dispatch
from tests.corpus import SEARCHED
from tests.identity.interpreter import quick  # noqa: F401

torch = pytest.importorskip("torch", reason="the GPU path needs PyTorch")
pytest.importorskip("triton", reason="the GPU path needs Triton")

from cepam.kernels.triton import backend as triton_backend  # noqa: E402
from cepam.kernels.triton import launch as waves  # noqa: E402
from cepam.kernels.triton.plan import device_plan  # noqa: E402

PLACES = [cepam.Address(bytes([i]) * 32, round=3, client=i) for i in range(4)]
SCALE = 0.01


@pytest.fixture(autouse=True)
def tensors_are_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "on_gpu", torch.is_tensor)


@pytest.mark.parametrize(
    ("codec", "dtype"),
    [
        (cepam.Codec(cepam.Gaussian(SCALE), cepam.Integer(1)), np.float32),
        (cepam.DitheredCodec(SCALE, padding=32), np.float64),
    ],
)
def test_messages_and_vectors_are_the_cpus(codec: codec_module.MessageCodec, dtype: type) -> None:
    """A row refused in the middle, a broken seal: the others are as if alone."""
    x = np.random.default_rng(2).normal(0, 2 * SCALE, (4, 18)).astype(dtype)
    x[1, 3] = np.inf
    made = encode_each(codec, torch.from_numpy(x), PLACES)
    alone = [codec.encode(x[i], PLACES[i]) for i in (0, 2, 3)]
    assert [made[i] for i in (0, 2, 3)] == alone
    assert "infinite" in str(made[1])
    torn = [alone[0], alone[1][:-1] + b"?", alone[2]]
    places = [PLACES[i] for i in (0, 2, 3)]
    found = decode_each(codec, torn, places, device="cpu")
    assert isinstance(found[1], SealBroken)
    assert found[0].numpy().tobytes() == codec.decode(alone[0], places[0]).tobytes()
    assert found[2].numpy().tobytes() == codec.decode(alone[2], places[2]).tobytes()


def test_a_point_outside_the_format_is_laid_at_its_own_door(monkeypatch: pytest.MonkeyPatch) -> None:
    """One hostile block in a batch: its message alone is refused."""
    codec = cepam.Codec(cepam.Gaussian(SCALE), cepam.Integer(1))
    messages = cepam.encode_many(codec, np.full((3, 8), 0.5, dtype=np.float32), PLACES[:3])
    genuine = triton_backend.decode_blocks

    def refusing(plan, keys, *rest):  # type: ignore[no-untyped-def]
        if PLACES[1].derive().noise in keys:
            raise MalformedMessage("outside")
        return genuine(plan, keys, *rest)

    monkeypatch.setattr(triton_backend, "decode_blocks", refusing)
    found = decode_each(codec, messages, PLACES[:3], device="cpu")
    assert [isinstance(each, MalformedMessage) for each in found] == [False, True, False]


def test_rows_of_two_coders() -> None:
    """The default codec takes a coder for each row: the messages of one by one."""
    codec, draw = cepam.Codec(cepam.Gaussian(SCALE)), np.random.default_rng(4)
    quiet = draw.normal(0, 0.02 * SCALE, 600)
    x = np.stack([quiet, np.where(np.arange(600) == 4, 50 * SCALE, 0.0)]).astype(np.float32)
    made = cepam.encode_many(codec, torch.from_numpy(x), PLACES[:2])
    assert [bool(message[0] & SEARCHED) for message in made] == [True, False]
    assert made == [codec.encode(row, at) for row, at in zip(x, PLACES)]
    found = cepam.decode_many(codec, made, PLACES[:2], device="cpu", out_dtype=torch.bfloat16)
    alone = torch.stack([torch.from_numpy(codec.decode(m, at)) for m, at in zip(made, PLACES)])
    assert torch.equal(found, alone.bfloat16())


def test_shapes_are_checked() -> None:
    codec = cepam.Codec(cepam.Gaussian(SCALE), cepam.Integer(1))
    with pytest.raises(ValueError, match=r"rows \(clients, m\)"):
        cepam.encode_many(codec, torch.zeros(2), PLACES[:2])
    empty = cepam.encode_many(codec, torch.zeros((2, 0)), PLACES[:2])
    assert empty == [codec.encode(np.zeros(0, dtype=np.float32), at) for at in PLACES[:2]]
    assert cepam.decode_many(codec, empty, PLACES[:2], device="cpu").shape == (2, 0)


@pytest.mark.parametrize("codec", [cepam.Codec(cepam.Gaussian(SCALE), each) for each in (cepam.Integer(1), cepam.D4)])
def test_what_is_launched_to_be_compiled_runs(codec: cepam.Codec) -> None:
    """Zeros, measured, coded and decoded with rows and without; on a GPU nobody would hear of an error there."""
    task = codec.task(False, bytes(32))
    kernels = waves.Kernels(device_plan(task.plan, "cpu"), 8, False)
    for way in (waves.MEASURING, *waves.ENCODING.values(), *waves.DECODING.values()):
        kernels._launch(way)


def test_something_is_done_while_a_gpu_codes() -> None:
    """Once a batch, however many launches it takes; a batch that is refused as a whole has no such time."""
    codec, done = cepam.Codec(cepam.Gaussian(SCALE), coder="layered"), []
    x = np.stack([np.full(9, SCALE), np.where(np.arange(9) == 4, 50 * SCALE, 0.0)]).astype(np.float32)
    made = encode_each(codec, torch.from_numpy(x), PLACES[:2], meanwhile=lambda: done.append(1))
    assert made == [codec.encode(row, at) for row, at in zip(x, PLACES)]
    assert done == [1]
    codec = cepam.Codec(cepam.Gaussian(SCALE), cepam.Integer(1))
    made = encode_each(codec, torch.full((2, 9), float("nan")), PLACES[:2], meanwhile=lambda: done.append(1))
    assert all(isinstance(each, ValueError) for each in made)
    assert done == [1]
    assert codec.encode(x[0], PLACES[0]) == encode_each(codec, torch.from_numpy(x[:1]), PLACES[:1])[0]

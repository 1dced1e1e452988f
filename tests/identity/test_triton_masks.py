"""Masked sums of tensors on a GPU beside the CPU's, through Triton's interpreter: the same integers, bytes and sums."""

from __future__ import annotations

import math
import os
import random

os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

import numpy as np
import pytest

import cepam
from cepam.kernels import dispatch
from cepam.secure_aggregation import MaskedSumCodec
from tests.identity.interpreter import quick  # noqa: F401
from tests.secure_aggregation.sums import cohort, hello, run_round, settings

torch = pytest.importorskip("torch", reason="the GPU path needs PyTorch")
pytest.importorskip("triton", reason="the GPU path needs Triton")

LAW = cepam.Gaussian(0.18)
KEY = bytes(range(3, 35))


@pytest.fixture(autouse=True)
def tensors_are_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "on_gpu", torch.is_tensor)


@pytest.mark.parametrize(("size", "dtype"), [(1, np.float32), (1025, np.float64)])
def test_the_noise_is_the_cpus_integer_for_integer(size: int, dtype: type) -> None:
    code = MaskedSumCodec(LAW, size, 7, 6000)
    update = np.random.default_rng(size).normal(0, 3, size).astype(dtype)
    found = code.noised(torch.from_numpy(update), KEY)
    assert found.dtype == torch.int64
    assert np.array_equal(found.numpy(), code.noised(update, KEY))


@pytest.mark.parametrize("bits", [1, 5, 7, 8, 13, 31, 32])
def test_packing_and_adding_up_are_the_cpus(bits: int) -> None:
    code = MaskedSumCodec(LAW, 1100, bits, 2**32 - 5)
    multiples = np.random.default_rng(bits).integers(-(2**33), 2**33, 1100)
    messages = [code.mask(torch.from_numpy(part), []) for part in (multiples, -multiples, multiples // 3)]
    assert messages == [code.mask(part, []) for part in (multiples, -multiples, multiples // 3)]
    opened = code.open(messages, [], device="cpu")
    assert opened.dtype == torch.float64
    assert np.array_equal(opened.numpy(), code.open(messages, []))


@pytest.mark.parametrize("size", [1, 2063])
def test_masks_are_the_cpus(size: int) -> None:
    code, masks = MaskedSumCodec(LAW, size, 7, 6000), [(bytes([5]) * 32, -1), (KEY, 1)]
    multiples = np.random.default_rng(size).integers(-(2**13), 2**13, size)
    message = code.mask(torch.from_numpy(multiples), masks)
    assert message == code.mask(multiples, masks)
    assert np.array_equal(code.open([message], masks, device="cpu").numpy(), code.open([message], masks))
    assert message != code.mask(multiples, [(bytes([5]) * 32, 1), (KEY, 1)])


def test_no_messages_are_no_sum() -> None:
    code = MaskedSumCodec(LAW, 40, 7, 3)
    assert np.array_equal(code.open([], [], device="cpu").numpy(), code.open([], []))


def test_a_node_masks_a_tensor_where_it_lies() -> None:
    """A whole round of tensors opens as that of arrays; one too long is clipped, one that is not finite counts zero."""
    sums = []
    for lay in (np.asarray, torch.from_numpy):
        drawn, group = random.Random(5), cohort(3)
        for member, times in zip(group.nodes.values(), (1.0, 50.0, math.nan)):
            member.draw = drawn.randbytes
            group.updates[member.node] = lay((group.updates[member.node] * times).astype(np.float32))
        group.roster = hello(group.nodes.values(), 2)
        asked = settings(3, clients=3, epoch=2, bits=32)
        round_, total = run_round(group, asked)
        sums.append(total)
    # Signatures differ, and with them masks and what they round.
    assert np.abs(sums[0] - sums[1]).max() <= 3 * asked.codec.cell
    assert np.array_equal(round_.open(device="cpu").numpy(), total)


def test_doors() -> None:
    code = MaskedSumCodec(LAW, 5, 7, 1)
    for update in (
        torch.zeros(4),
        torch.zeros(5, dtype=torch.int64),
        torch.full((5,), torch.nan),
        torch.full((5,), 1e30),
    ):
        with pytest.raises(ValueError, match="update"):
            code.noised(update, KEY)
    with pytest.raises(ValueError, match="multiples"):
        code.mask(torch.zeros(5), [])

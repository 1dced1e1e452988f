"""Trees: one message, the structure bound, the same numbers as the flat message at the tree's own address."""

from __future__ import annotations

import hashlib
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest

import cepam
from cepam.errors import SealBroken, WrongAddress

CODEC = cepam.Codec(cepam.Gaussian(0.01), cepam.Integer(1))
AT = cepam.Address(cepam.Key(bytes(range(32))), round=1, client=2, run=b"demo")


def tree(kind: Any = np.float32) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {
        "b": [rng.normal(size=(3, 4)).astype(kind), (rng.normal(size=()).astype(kind), rng.normal(size=(0, 5)))],
        "a": {2: rng.normal(size=(2, 1, 2)).astype(kind), "x": rng.normal(size=7).astype(kind)},
    }


def test_a_tree_comes_back_as_it_went() -> None:
    sent = tree()
    back = cepam.decode_tree(CODEC, cepam.encode_tree(CODEC, sent, AT, unclipped=True), AT, like=sent)
    assert list(back) == ["b", "a"]
    assert isinstance(back["b"], list)
    assert isinstance(back["b"][1], tuple)
    assert back["b"][0].shape == (3, 4)
    assert back["b"][1][0].shape == ()
    assert back["b"][1][1].shape == (0, 5)
    assert back["a"]["x"].dtype == np.float32
    assert 0 < np.abs(back["b"][0] - sent["b"][0]).max() < 0.1


def test_control_the_message_is_the_flat_one_of_the_written_rule() -> None:
    """The rule of docs/wire.md, written a second time: outline by hand, address, order of the arrays."""
    sent = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), 7: np.float32([9.0]), "ä": [np.float32([1.0, 2.0])]}
    outline = b'["d",[7,["a",1]],["w",["a",2,3]],["\\u00e4",["l",["a",2]]]]'
    inner = hashlib.sha256(b"cepam tree v1" + outline).digest()
    run = hashlib.sha256(b"cepam tree run" + inner + b"demo").digest()
    flat = np.float32([9, 0, 1, 2, 3, 4, 5, 1, 2])
    place = cepam.Address(AT.key, 1, 2, run)
    assert cepam.encode_tree(CODEC, sent, AT, unclipped=True) == CODEC.sized(9).encode(flat, place)


def test_order_of_keys_and_kind_of_sequence_do_not_matter() -> None:
    a = {"x": np.ones(2, np.float32), "y": [np.zeros(3, np.float32)]}
    b = OrderedDict(y=(a["y"][0],), x=a["x"])
    assert cepam.structure_of(a) == cepam.structure_of(b)
    assert cepam.encode_tree(CODEC, a, AT, unclipped=True) == cepam.encode_tree(CODEC, b, AT, unclipped=True)


@pytest.mark.parametrize(
    "other",
    [
        {"w": np.zeros((3, 2))},
        {"w": np.zeros(6)},
        {"v": np.zeros((2, 3))},
        [np.zeros((2, 3))],
        np.zeros((2, 3)),
        {"w": [np.zeros((2, 3))]},
        {"w": np.zeros((2, 2)), "x": np.zeros(2)},
        {0: np.zeros((2, 3))},
    ],
)
def test_another_structure_is_refused(other: Any) -> None:
    message = cepam.encode_tree(CODEC, {"w": np.zeros((2, 3), np.float32)}, AT, unclipped=True)
    with pytest.raises(SealBroken, match="another structure"):
        cepam.decode_tree(CODEC, message, AT, like=other)
    with pytest.raises(WrongAddress):
        CODEC.decode(message, AT)


def test_text_and_integer_keys_differ() -> None:
    assert cepam.structure_of({"0": np.zeros(1)}) != cepam.structure_of({0: np.zeros(1)})


def test_an_address_is_used_once_by_trees_and_vectors_together() -> None:
    used, sent = cepam.UsedAddresses(), {"w": np.zeros(3)}
    message = cepam.encode_tree(CODEC, sent, AT, used, unclipped=True)
    with pytest.raises(WrongAddress, match="used before"):
        cepam.encode_tree(CODEC, {"v": np.zeros(3)}, AT, used, unclipped=True)
    with pytest.raises(WrongAddress, match="used before"):
        CODEC.encode(np.zeros(3), AT, used)
    received = cepam.UsedAddresses()
    with pytest.raises(WrongAddress):
        cepam.decode_tree(CODEC, message, AT, {"v": np.zeros(3)}, received)
    cepam.decode_tree(CODEC, message, AT, sent, received)
    with pytest.raises(WrongAddress, match="used before"):
        cepam.decode_tree(CODEC, message, AT, sent, received)


def test_a_tree_without_a_clip_is_refused_unless_told() -> None:
    sent, used = {"w": np.ones(3)}, cepam.UsedAddresses()
    with pytest.raises(ValueError, match="give either clip"):
        cepam.encode_tree(CODEC, sent, AT, used)
    with pytest.raises(ValueError, match="give either clip"):
        cepam.encode_tree(CODEC, sent, AT, used, clip=cepam.L2(1.0), unclipped=True)
    assert AT not in used
    cepam.encode_tree(CODEC, sent, AT, used, unclipped=True)


def test_the_clip_bounds_all_arrays_together() -> None:
    exact = cepam.DitheredCodec(1e-4)
    sent = {"a": np.full((2, 2), 3.0), "b": np.full(4, 4.0)}
    back = cepam.decode_tree(exact, cepam.encode_tree(exact, sent, AT, clip=cepam.L2(1.0)), AT, sent)
    norm = np.sqrt(sum((each**2).sum() for each in back.values()))
    assert norm == pytest.approx(1.0, abs=1e-3)
    assert back["b"][0] / back["a"][0, 0] == pytest.approx(4 / 3, abs=1e-2)


def test_float64_anywhere_makes_the_message_float64() -> None:
    sent = {"a": np.zeros(2, np.float32), "b": np.zeros(2, np.float64)}
    message = cepam.encode_tree(CODEC, sent, AT, unclipped=True)
    back = cepam.decode_tree(CODEC, message, AT, sent)
    assert (back["a"].dtype, back["b"].dtype) == (np.float32, np.float64)
    dense = cepam.decode_tree(CODEC, message, AT, sent, dense=True)
    assert dense["a"].dtype == np.float64
    assert np.array_equal(np.rint(dense["a"] / CODEC.grid) * CODEC.grid, dense["a"])


def test_half_precision_is_widened_exactly() -> None:
    torch = pytest.importorskip("torch")
    values = torch.randn(50, generator=torch.Generator().manual_seed(1))
    for kind in (torch.bfloat16, torch.float16):
        half = {"w": values.to(kind).reshape(5, 10)}
        message = cepam.encode_tree(CODEC, half, AT, unclipped=True)
        assert message == cepam.encode_tree(CODEC, {"w": half["w"].float()}, AT, unclipped=True)
        back = cepam.decode_tree(CODEC, message, AT, half)
        assert back["w"].dtype == kind
        dense = cepam.decode_tree(CODEC, message, AT, half, dense=True)
        assert dense["w"].dtype == torch.float32
        assert torch.equal(dense["w"].to(kind), back["w"])


def test_arrays_and_tensors_make_the_same_message() -> None:
    torch = pytest.importorskip("torch")
    sent = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, np.float32)}
    tensors = {name: torch.nn.Parameter(torch.from_numpy(each)) for name, each in sent.items()}
    message = cepam.encode_tree(CODEC, tensors, AT, unclipped=True)
    assert message == cepam.encode_tree(CODEC, sent, AT, unclipped=True)
    made = cepam.decode_tree(CODEC, message, AT, tensors)
    assert np.array_equal(made["a"].numpy(), cepam.decode_tree(CODEC, message, AT, sent)["a"])
    made["a"].zero_()
    assert made["b"].abs().sum() > 0
    assert not made["a"].requires_grad


def test_named_tuples_keep_their_names() -> None:
    pair = namedtuple("pair", "left right")(np.zeros(2), np.zeros(3))
    assert cepam.decode_tree(CODEC, cepam.encode_tree(CODEC, pair, AT, unclipped=True), AT, pair).right.shape == (3,)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"bn": {"seen": np.int64([1])}}, "bn.seen must be .* got int64: leave it out"),
        ({"a": [1.5]}, r"a\[0\] must be .* got float"),
        ({}, "no arrays"),
        ({(1, 2): np.zeros(2)}, "keys of the tree must be text or integers"),
        ({"a": np.array([np.nan])}, "NaN"),
    ],
)
def test_what_cannot_be_sent_is_refused_and_spends_nothing(bad: Any, reason: str) -> None:
    used = cepam.UsedAddresses()
    with pytest.raises(ValueError, match=reason):
        cepam.encode_tree(CODEC, bad, AT, used, unclipped=True)
    assert len(used) == 0

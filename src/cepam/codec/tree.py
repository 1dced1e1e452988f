"""Whole models as one message: dicts, lists and tuples of arrays or tensors, of any shape and floating-point type.

A tree's arrays are joined, in the order of its structure, to one vector, which is an ordinary message at an address of
its own: `run` is replaced by a hash of it and of the structure's fingerprint (docs/wire.md, section 1). Whoever decodes
with another structure looks at another address, where the seal does not open.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from cepam.clip import Clip, is_tensor
from cepam.codec.batch import why_not_on_gpu
from cepam.codec.codec import MessageCodec
from cepam.errors import SealBroken, WrongAddress
from cepam.kernels.dispatch import shared_gpu
from cepam.keys import Address, UsedAddresses

_WIDE, _TYPES = "float64", ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class Structure:
    """The structure of a tree: names, order and shapes of its arrays, but not their types.

    Dicts are read in the order of their keys (text or integers), so two equal dicts have one structure. Lists and
    tuples are alike.
    """

    outline: str
    shapes: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """The number of coordinates of all arrays together."""
        return sum(math.prod(shape) for shape in self.shapes)

    @cached_property
    def fingerprint(self) -> bytes:
        """32 bytes that differ where names, order or shapes differ."""
        return hashlib.sha256(b"cepam tree v1" + self.outline.encode()).digest()

    def address(self, at: Address) -> Address:
        """The address under which a tree of this structure is encoded when it is sent at `at`."""
        if not isinstance(at, Address):
            raise ValueError(f"at must be a cepam.Address, got {type(at).__name__}")
        return replace(at, run=hashlib.sha256(b"cepam tree run" + self.fingerprint + at.run).digest())


def structure_of(tree: Any) -> Structure:
    """Return the structure of a tree.

    Args:
        tree: An array or tensor, or any nesting of dicts, lists and tuples of them.

    Returns:
        The structure; its `fingerprint` is equal for trees that can be exchanged.

    Raises:
        ValueError: The tree holds no arrays, or something that is not an array of floats.
    """
    return _read(tree)[0]


def encode_tree(
    codec: MessageCodec, tree: Any, at: Address, used: UsedAddresses | None = None, clip: Clip | None = None, *,
    unclipped: bool = False,
) -> bytes:  # fmt: skip
    """Encode a tree of arrays or tensors to one sealed message.

    Half precision is widened, which is exact; one float64 array makes the whole message float64. The address counts as
    used for any other message.

    Args:
        codec: The codec that both ends hold.
        tree: Any nesting of dicts, lists and tuples of arrays or tensors, half to double precision.
        at: The address of the message, to be used once.
        used: Addresses that were used before; a second use raises.
        clip: The bound on the norm of all arrays together, which are scaled down to it first.
        unclipped: Send the tree as it is. The message is private only if the tree was clipped before.

    Returns:
        The message.

    Raises:
        ValueError: Neither `clip` nor `unclipped` is given, or both; the tree holds what cannot be sent.
        WrongAddress: The address is in `used`.
    """
    if (clip is None) != unclipped:
        raise ValueError(
            "give either clip (a bound on the norm of all arrays together, without which noise promises nothing) or "
            "unclipped=True (the tree was clipped before, or needs no guarantee)"
        )
    structure, leaves = _read(tree)
    place = structure.address(at)
    if used is not None and at in used:
        used.claim(at)  # which says so
    vector = _joined(leaves, _one_device(leaves, codec))
    message = codec.sized(structure.size).encode(vector if clip is None else clip.apply(vector), place)
    if used is not None:
        used.claim(at)
    return message


def decode_tree(
    codec: MessageCodec, message: bytes, at: Address, like: Any, used: UsedAddresses | None = None, dense: bool = False
) -> Any:
    """Decode the message of a tree to the tree plus noise of the codec's distribution.

    Args:
        codec: The codec that both ends hold.
        message: What `encode_tree` returned.
        at: The address that the client used.
        like: A tree of the same structure, whose nesting, shapes, types and devices the result has.
        used: Addresses that this end has decoded; this one is added.
        dense: Return float32 (float64, if the message is) instead of the types of `like`: the public grid before it is
            rounded to half precision.

    Returns:
        The tree.

    Raises:
        MalformedMessage: The bytes are not a message.
        WrongAddress: Another codec, address or structure, or an address in `used`.
        SealBroken: The seal does not verify; both of the above.
    """
    structure, leaves = _read(like)
    place = structure.address(at)
    if used is not None and at in used:
        used.claim(at)  # which says so
    device = _one_device(leaves, codec)
    where: dict[str, Any] = {} if device is None else {"device": device}
    try:
        vector = codec.sized(structure.size).decode(message, place, **where)
    except SealBroken as broken:
        raise SealBroken(
            "the seal does not open: another key, round, client or codec, a tree of another structure, or damaged bytes"
        ) from broken
    except WrongAddress as other:
        raise WrongAddress(f"{other}, or it is a tree of another structure") from other
    if used is not None:
        used.claim(at)
    ends = np.cumsum([0, *(math.prod(shape) for shape in structure.shapes)]).tolist()
    made = iter([_alike(vector[a:b], leaf, dense) for a, b, leaf in zip(ends, ends[1:], leaves)])
    return _rebuilt(like, made)


def _read(tree: Any) -> tuple[Structure, list[Any]]:
    leaves: list[Any] = []
    outline = json.dumps(_outline(tree, "", leaves), separators=(",", ":"))
    if not leaves:
        raise ValueError("the tree holds no arrays: nothing to send")
    return Structure(outline, tuple(tuple(map(int, leaf.shape)) for leaf in leaves)), leaves


def _outline(node: Any, name: str, leaves: list[Any]) -> Any:
    """The tree's outline as plain lists, a letter first; its arrays are appended to `leaves` in their order."""
    if isinstance(node, Mapping):
        inside = ((key, _outline(node[key], f"{name}.{key}".lstrip("."), leaves)) for key in _ordered(node, name))
        return ["d", *map(list, inside)]
    if isinstance(node, list | tuple):
        return ["l", *(_outline(each, f"{name}[{i}]", leaves) for i, each in enumerate(node))]
    kind = str(getattr(node, "dtype", type(node).__name__)).removeprefix("torch.")
    if kind not in _TYPES or not hasattr(node, "shape"):
        shown = name or "the tree"
        remedy = "leave it out"
        if hasattr(node, "named_parameters"):
            remedy = "send cepam.torch.update_between(start, model) or cepam.torch.gradients(model)"
        elif not name:
            remedy = "a tree is an array, or dicts, lists and tuples of arrays"
        raise ValueError(f"{shown} must be an array or tensor of {', '.join(_TYPES)}, got {kind}: {remedy}")
    leaves.append(node)
    return ["a", *map(int, node.shape)]


def _ordered(node: Mapping[Any, Any], name: str) -> list[Any]:
    for key in node:
        if type(key) not in (str, int):
            raise ValueError(f"keys of {name or 'the tree'} must be text or integers, got {key!r}")
    return sorted(node, key=lambda key: (isinstance(key, str), key))


def _rebuilt(node: Any, made: Any) -> Any:
    """The like's own nesting and order of keys around the arrays made, which come in the structure's order."""
    if isinstance(node, Mapping):
        found = {key: _rebuilt(node[key], made) for key in _ordered(node, "")}
        return {key: found[key] for key in node}
    if isinstance(node, list | tuple):
        inside = [_rebuilt(each, made) for each in node]
        named = isinstance(node, tuple) and hasattr(node, "_fields")
        return type(node)(*inside) if named else tuple(inside) if isinstance(node, tuple) else inside
    return next(made)


def _one_device(leaves: list[Any], codec: MessageCodec) -> str | None:
    """The GPU that all arrays lie on and that can code them, else nothing: the host."""
    return shared_gpu(leaves) if why_not_on_gpu(codec) is None else None


def _joined(leaves: list[Any], device: str | None) -> Any:
    wide = any(str(leaf.dtype).removeprefix("torch.") == _WIDE for leaf in leaves)
    if device is not None:
        torch = sys.modules["torch"]
        kind = torch.float64 if wide else torch.float32
        return torch.cat([leaf.detach().to(kind).reshape(-1) for leaf in leaves])
    kind = np.float64 if wide else np.float32
    return np.concatenate([_host(leaf).astype(kind, copy=False).reshape(-1) for leaf in leaves])


def _host(leaf: Any) -> Any:
    if not is_tensor(leaf):
        return np.asarray(leaf)
    torch = sys.modules["torch"]
    wide = leaf.detach().to("cpu", torch.float64 if leaf.dtype == torch.float64 else torch.float32)
    return wide.numpy()


def _alike(piece: Any, leaf: Any, dense: bool) -> Any:
    """A piece of the decoded vector in the shape, and unless `dense` in the type, of an array; on its device."""
    if is_tensor(leaf):
        torch = sys.modules["torch"]
        held = piece if is_tensor(piece) else torch.from_numpy(np.ascontiguousarray(piece))
        made = held.reshape(tuple(leaf.shape)).to(leaf.device, None if dense else leaf.dtype)
        return made.clone() if made.data_ptr() == held.data_ptr() else made
    with np.errstate(over="ignore"):
        return piece.reshape(leaf.shape).astype(piece.dtype if dense else leaf.dtype)

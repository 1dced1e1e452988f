"""Many updates at once, one message a row: for simulators, and for servers that open a round's messages together.

Rows on a GPU go through one launch of each stage, each row under its own key; seals are made and opened on the host,
where the bytes are. Rows on the CPU are dealt to threads.

Guarantee: the messages and vectors are those of `codec.encode` and `codec.decode`, one by one
(tests/codec/test_batch.py, tests/identity/test_triton_batch.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from cepam.codec import codec as codecs
from cepam.codec import wire
from cepam.codec.codec import MessageCodec, Vector
from cepam.errors import CepamError, MalformedMessage
from cepam.kernels.model.task import CodingTask, cpu_only
from cepam.keys import Address, UsedAddresses

if TYPE_CHECKING:
    import torch

Refused = ValueError | CepamError
Made = TypeVar("Made")


def encode_many(
    codec: MessageCodec,
    updates: Sequence[Vector] | Vector | torch.Tensor,
    addresses: Sequence[Address],
    used: UsedAddresses | None = None,
) -> list[bytes]:
    """The sealed message of each row, under the address of the same place.

    `updates` is an array (clients, m), a list of vectors, or a tensor (clients, m) on a GPU, which is coded there.
    Raises what `codec.encode` raises for the first row that is refused; no two addresses may be equal.
    """
    return [_accepted(each) for each in encode_each(codec, updates, addresses, used)]


@overload
def decode_many(
    codec: MessageCodec, messages: Sequence[bytes], addresses: Sequence[Address], used: UsedAddresses | None = None,
    size: int | None = None, device: None = None,
) -> Vector: ...  # fmt: skip


@overload
def decode_many(
    codec: MessageCodec, messages: Sequence[bytes], addresses: Sequence[Address], used: UsedAddresses | None = None,
    size: int | None = None, *, device: str,
) -> torch.Tensor: ...  # fmt: skip


def decode_many(
    codec: MessageCodec, messages: Sequence[bytes], addresses: Sequence[Address], used: UsedAddresses | None = None,
    size: int | None = None, device: str | None = None,
) -> Vector | torch.Tensor:  # fmt: skip
    """The decoded vectors (clients, m), with `device="cuda"` as a tensor on that GPU.

    Raises what `codec.decode` raises for the first message that is refused, and `MalformedMessage` where messages
    differ in size or type.
    """
    vectors = [_accepted(each) for each in decode_each(codec, messages, addresses, used, size, device)]
    kinds = {(len(each), str(each.dtype)) for each in vectors}
    if len(kinds) > 1:
        raise MalformedMessage(f"messages of one batch must have one size and type, got {sorted(kinds)}")
    if device is None:
        return np.stack(vectors) if vectors else np.empty((0, size or 0), dtype=np.float32)
    import torch

    return torch.stack(vectors) if vectors else torch.empty((0, size or 0), device=device)


def encode_each(
    codec: MessageCodec,
    updates: Sequence[Vector] | Vector | torch.Tensor,
    addresses: Sequence[Address],
    used: UsedAddresses | None = None,
) -> list[bytes | Refused]:
    """Like `encode_many`, but a row that is refused gives its exception in its place, and the others their messages."""
    _check_lengths("updates", updates, addresses)
    gpu = codecs.gpu_of(updates)
    if gpu is not None:
        return _encode_rows(gpu, codec, gpu.check_update(updates, 2), addresses, used)
    return _side_by_side(lambda update, at: codec.encode(update, at, used), updates, addresses)


def decode_each(
    codec: MessageCodec, messages: Sequence[bytes], addresses: Sequence[Address], used: UsedAddresses | None = None,
    size: int | None = None, device: str | None = None,
) -> list[Any]:  # fmt: skip
    """Like `decode_many`, but row by row: a vector, or the exception of a message that is refused."""
    _check_lengths("messages", messages, addresses)
    if device is None:
        return _side_by_side(lambda message, at: codec.decode(message, at, used, size), messages, addresses)
    return _decode_rows(codec, messages, addresses, used, size, device)


def why_not_on_gpu(codec: object) -> str | None:
    """What keeps this codec's messages off a GPU, or None where every one of them can be coded there."""
    if not isinstance(codec, MessageCodec):
        return f"{type(codec).__name__} has no GPU form"
    reasons = (cpu_only(codec.coder, lattice.dimension) for lattice in codec.lattices)
    return next((f"{reason} has no GPU form" for reason in reasons if reason is not None), None)


def _encode_rows(
    gpu: Any, codec: MessageCodec, rows: Any, addresses: Sequence[Address], used: UsedAddresses | None
) -> list[bytes | Refused]:
    keys = [at.derive() for at in addresses]
    several = len(codec.lattices) > 1
    choices = [codec.choose(gpu.HostRuns(row)) if several else 0 for row in rows]
    jobs = [codec.task(choice, key.noise) for choice, key in zip(choices, keys)]
    for task in jobs:
        gpu.check_job(task)
    made: list[Any] = [
        _tried(_admit, codec, task, ends, at, used) for task, ends, at in zip(jobs, gpu.ends_of_rows(rows), addresses)
    ]
    sound = [i for i, refusal in enumerate(made) if refusal is None]
    if not sound:
        return made
    # One plan for all: a codec has one lattice that a GPU codes.
    blocks = gpu.encode_rows([jobs[i] for i in sound], rows if len(sound) == len(rows) else rows[sound])
    for i, mine in zip(sound, blocks):
        contents = wire.Contents(rows.shape[1], rows.element_size() == 8, choices[i], mine)
        made[i] = _tried(wire.seal, contents, keys[i], codec.fingerprint, codec.bucket)
    return made


def _admit(
    codec: MessageCodec, task: CodingTask, ends: tuple[float, float], at: Address, used: UsedAddresses | None
) -> None:
    codec.check_range(*ends, task.plan)
    if used is not None:
        used.claim(at)


def _decode_rows(
    codec: MessageCodec, messages: Sequence[bytes], addresses: Sequence[Address], used: UsedAddresses | None,
    size: int | None, device: str,
) -> list[Any]:  # fmt: skip
    from cepam.kernels.triton import backend as triton_backend

    found: list[Any] = [_tried(codec.open, m, at, used, size) for m, at in zip(messages, addresses)]
    alike: dict[tuple[int, bool], list[int]] = {}
    for i, opened in enumerate(found):
        if isinstance(opened, tuple):
            alike.setdefault((opened[0].size, opened[0].double), []).append(i)
    for (count, double), places in alike.items():
        jobs, blocks = [found[i][1] for i in places], [found[i][0].blocks for i in places]
        rows = _tried(triton_backend.decode_rows, jobs, blocks, count, double, device)
        if isinstance(rows, Exception):
            # Some point of the batch lies outside the format; row by row tells whose.
            rows = [_tried(triton_backend.decode_values, j, b, count, double, device) for j, b in zip(jobs, blocks)]
        for i, row in zip(places, rows):
            found[i] = row
    return found


def _side_by_side(work: Callable[..., Any], *parts: Any) -> list[Any]:
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(lambda *items: _tried(work, *items), *parts))


def _tried(work: Callable[..., Made], *items: Any) -> Made | Refused:
    try:
        return work(*items)
    except (ValueError, CepamError) as refused:
        return refused


def _accepted(outcome: Any) -> Any:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _check_lengths(name: str, rows: Any, addresses: Sequence[Address]) -> None:
    if len(rows) != len(addresses):
        raise ValueError(f"{name} and addresses must be as many, got {len(rows)} and {len(addresses)}")
    if len(set(addresses)) != len(addresses):
        raise ValueError("an address is used once: two of this batch are equal")

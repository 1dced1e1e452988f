"""Many updates at once, one message a row: for simulators, and for servers that open a round's messages together.

Rows on a GPU go through one launch of each stage, each row under its own key; seals are made and opened on the host,
where the bytes are. Rows on the CPU are dealt to threads.

Guarantee: the messages and vectors are those of `codec.encode` and `codec.decode`, one by one
(tests/codec/test_batch.py, tests/identity/test_triton_batch.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from cepam._internal.prefetch import start_ahead
from cepam.codec import codec as codecs
from cepam.codec import wire
from cepam.codec.codec import MessageCodec
from cepam.codec.vectors import Vector, name_of_dtype, note_cpu, picked, room_on, to_host
from cepam.errors import CepamError, MalformedMessage
from cepam.kernels.format.task import CodingTask, cpu_only
from cepam.kernels.threads import encode_spans, side_by_side
from cepam.keys import Address, UsedAddresses
from cepam.lattices.automatic import sample_of

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
    size: int | None = None, device: None = None, out_dtype: Any = None,
) -> Vector: ...  # fmt: skip


@overload
def decode_many(
    codec: MessageCodec, messages: Sequence[bytes], addresses: Sequence[Address], used: UsedAddresses | None = None,
    size: int | None = None, *, device: str, out_dtype: Any = None,
) -> torch.Tensor: ...  # fmt: skip


def decode_many(
    codec: MessageCodec, messages: Sequence[bytes], addresses: Sequence[Address], used: UsedAddresses | None = None,
    size: int | None = None, device: str | None = None, out_dtype: Any = None,
) -> Vector | torch.Tensor:  # fmt: skip
    """The decoded vectors (clients, m), with `device="cuda"` as a tensor on that GPU; `out_dtype` as in `decode`.

    Raises what `codec.decode` raises for the first message that is refused, and `MalformedMessage` where messages
    differ in size or type.
    """
    vectors = [_accepted(each) for each in decode_each(codec, messages, addresses, used, size, device, out_dtype)]
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
    meanwhile: Callable[[], None] | None = None,
) -> list[bytes | Refused]:
    """Like `encode_many`, but a row that is refused gives its exception in its place, and the others their messages.

    While a GPU codes, `meanwhile` is done.
    """
    _check_lengths("updates", updates, addresses)
    gpu = codecs.gpu_of(updates)
    if gpu is not None:
        return _encode_rows(gpu, codec, gpu.check_update(updates, 2), addresses, used, meanwhile)
    return _side_by_side(lambda update, at: codec.encode(update, at, used), updates, addresses)


def decode_each(
    codec: MessageCodec, messages: Sequence[bytes], addresses: Sequence[Address], used: UsedAddresses | None = None,
    size: int | None = None, device: str | None = None, out_dtype: Any = None,
) -> list[Any]:  # fmt: skip
    """Like `decode_many`, but row by row: a vector, or the exception of a message that is refused."""
    _check_lengths("messages", messages, addresses)
    wanted = name_of_dtype(out_dtype, device)
    if device is None:
        work = lambda message, at: codec.decode(message, at, used, size, out_dtype=wanted)  # noqa: E731
        return _side_by_side(work, messages, addresses)
    return _decode_rows(codec, messages, addresses, used, size, device, wanted)


def why_not_on_gpu(codec: object) -> str | None:
    """What keeps this codec's messages off a GPU, or None where every one of them can be coded there."""
    if not isinstance(codec, MessageCodec):
        return f"{type(codec).__name__} has no GPU form"
    reasons = (cpu_only(codec.coder, lattice.search, lattice.dimension) for lattice in codec.lattices)
    return next((f"{reason} has no GPU form" for reason in reasons if reason is not None), None)


def expect_updates(codec: object, clients: int, size: int, device: str) -> None:
    """Nothing; what a GPU codes and decodes so many updates of this size with is compiled in threads, unless it is on
    the disk. Where each update chooses its lattice, that waits until one has."""
    if isinstance(codec, MessageCodec) and why_not_on_gpu(codec) is None and len(codec.lattices) == 1:
        task, dimension = codec.task(0, bytes(32)), codec.lattices[0].dimension
        start_ahead(_expect_blocks, task, clients * wire.count_blocks(size, dimension), device)


def _expect_blocks(task: CodingTask, blocks: int, device: str) -> None:
    from cepam.kernels.triton import backend as gpu  # half a second of imports, for the thread beside too

    gpu.expect_blocks(task, blocks, device)


def _encode_rows(
    gpu: Any, codec: MessageCodec, rows: Any, addresses: Sequence[Address], used: UsedAddresses | None,
    meanwhile: Callable[[], None] | None,
) -> list[bytes | Refused]:  # fmt: skip
    keys = [at.derive() for at in addresses]
    several = len(codec.lattices) > 1
    choices = [codec.choose(to_host(sample_of(row))) if several else 0 for row in rows]
    jobs = [codec.task(choice, key.noise) for choice, key in zip(choices, keys)]
    # One look at all rows, which coding them needs too; only where a value is out of range it matters whose it is.
    measured = None if several or not jobs or jobs[0].cpu_only else gpu.measure_rows(jobs, rows)
    if measured is not None and measured.largest <= jobs[0].plan.reach:
        ends = [(-measured.largest, measured.largest)] * len(jobs)
    else:
        ends = gpu.ends_of_rows(rows)
    made: list[Any] = [_tried(_admit, codec, task, each, at, used) for task, each, at in zip(jobs, ends, addresses)]
    alike: dict[int, list[int]] = {}
    for i, refusal in enumerate(made):
        if refusal is None:
            alike.setdefault(choices[i], []).append(i)
    for choice, places in alike.items():
        if measured is None or len(places) < len(rows):
            blocks = _encode_alike(gpu, codec, [jobs[i] for i in places], picked(rows, places), meanwhile)
        else:
            blocks = gpu.encode_rows(measured, meanwhile)
        meanwhile = None
        double = rows.element_size() == 8
        held = [wire.Contents(rows.shape[1], double, choice, each) for each in blocks]
        sealed = _one_by_one(
            lambda contents, key: wire.seal(contents, key, codec.fingerprint, codec.bucket, codec.threads),
            held, [keys[i] for i in places],
        )  # fmt: skip
        for i, each in zip(places, sealed):
            made[i] = each
    return made


def _encode_alike(
    gpu: Any, codec: MessageCodec, jobs: list[CodingTask], rows: Any, meanwhile: Callable[[], None] | None
) -> Any:
    """The blocks of rows whose tasks differ in their keys only."""
    if not jobs[0].cpu_only:
        return gpu.encode_rows(gpu.measure_rows(jobs, rows), meanwhile)
    note_cpu(jobs[0].cpu_only)
    return _side_by_side(lambda task, row: encode_spans(codec.backend, 1, task, row), jobs, to_host(rows))


def _admit(
    codec: MessageCodec, task: CodingTask, ends: tuple[float, float], at: Address, used: UsedAddresses | None
) -> None:
    codec.check_range(*ends, task.plan)
    if used is not None:
        used.claim(at)


def _decode_rows(
    codec: MessageCodec, messages: Sequence[bytes], addresses: Sequence[Address], used: UsedAddresses | None,
    size: int | None, device: str, wanted: str | None,
) -> list[Any]:  # fmt: skip
    from cepam.kernels.triton import backend as gpu

    room = room_on(device)
    found = _one_by_one(lambda message, at: codec.open(message, at, used, size, room), messages, addresses)
    alike: dict[tuple[int, bool, int], list[int]] = {}
    for i, opened in enumerate(found):
        if isinstance(opened, tuple):
            alike.setdefault((opened[0].size, opened[0].double, opened[0].lattice), []).append(i)
    for (count, double, _), places in alike.items():
        opened, rows = [found[i] for i in places], None
        jobs, blocks = [task for _, task in opened], [contents.blocks for contents, _ in opened]
        if not jobs[0].cpu_only:
            kept = wanted or ("float64" if double else "float32")
            rows = _tried(gpu.decode_rows, jobs, blocks, count, kept, device)
        if rows is None or isinstance(rows, Exception):
            # On the CPU, or some block of the batch makes no sense: row by row tells whose.
            rows = [_tried(codec.decode_opened, *each, device, wanted) for each in opened]
        for i, row in zip(places, rows):
            found[i] = row
    return found


def _one_by_one(work: Callable[..., Any], *parts: Any) -> list[Any]:
    """For seals: most of a short one is the interpreter's, for which threads wait, and a long one has its own."""
    return [_tried(work, *items) for items in zip(*parts)]


def _side_by_side(work: Callable[..., Any], *parts: Any) -> list[Any]:
    return side_by_side(None, lambda *items: _tried(work, *items), *parts)


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

"""Many updates at once, one message a row: for simulators, and for servers that open a round's messages together.

Rows on a GPU go through one launch of each stage, each row under its own key; seals are made and opened on the host.
Rows on the CPU are dealt to threads (`kernels.dispatch`).

Guarantee: the messages and vectors are those of `codec.encode` and `codec.decode`, one by one
(tests/codec/test_batch.py, tests/identity/test_triton_batch.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from cepam._internal.prefetch import start_ahead
from cepam.codec import wire
from cepam.codec.codec import MessageCodec, Refused, Vector, accepted, name_of_dtype, tried
from cepam.errors import MalformedMessage
from cepam.kernels.dispatch import Meanwhile, device_named, device_of, expect_blocks, side_by_side
from cepam.kernels.format.plan import Coder, cpu_only
from cepam.keys import Address, UsedAddresses

if TYPE_CHECKING:
    import torch


def encode_many(
    codec: MessageCodec,
    updates: Sequence[Vector] | Vector | torch.Tensor,
    addresses: Sequence[Address],
    used: UsedAddresses | None = None,
) -> list[bytes]:
    """Encode the updates of many clients in one call.

    Args:
        codec: The codec of all messages.
        updates: An array (clients, m), a list of vectors, or a tensor (clients, m) on a GPU, which is coded there.
        addresses: The address of each row, no two equal.
        used: Addresses that this end has used; these are added.

    Returns:
        The message of each row, the same bytes as by `codec.encode`.

    Raises:
        ValueError: Rows and addresses differ in number, two addresses are equal, or a row is refused (the first one's
            exception, as of `codec.encode`).
        WrongAddress: An address is in `used`.
    """
    return [accepted(each) for each in encode_each(codec, updates, addresses, used)]


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
    """Decode the messages of many clients in one call.

    Args:
        codec: The codec of all messages.
        messages: One message per client, all of one size and type.
        addresses: The address of each message, no two equal.
        used: Addresses that this end has decoded; these are added.
        size: The number of coordinates expected; see `Codec.decode`.
        device: A GPU such as `"cuda"`, where the vectors are wanted.
        out_dtype: The type of the vectors; see `Codec.decode`.

    Returns:
        An array (clients, m), or with `device` a tensor there.

    Raises:
        MalformedMessage: Messages differ in size or type, or one is refused (the first one's exception, as of
            `codec.decode`).
        WrongAddress: A message belongs to another address, or an address is in `used`.
    """
    vectors = [accepted(each) for each in decode_each(codec, messages, addresses, used, size, device, out_dtype)]
    kinds = {(len(each), str(each.dtype)) for each in vectors}
    if len(kinds) > 1:
        raise MalformedMessage(f"messages of one batch must have one size and type, got {sorted(kinds)}")
    stacked: Vector | torch.Tensor = device_named(device, codec.backend, codec.threads).stack(vectors, size or 0)
    return stacked


def encode_each(
    codec: MessageCodec,
    updates: Sequence[Vector] | Vector | torch.Tensor,
    addresses: Sequence[Address],
    used: UsedAddresses | None = None,
    meanwhile: Meanwhile = None,
) -> list[bytes | Refused]:
    """Like `encode_many`, but a row that is refused gives its exception in its place, and the others their messages.

    While a GPU codes, `meanwhile` is done.
    """
    _check_lengths("updates", updates, addresses)
    device = device_of(updates, codec.backend, codec.threads)

    def encode(batch: Any, ats: Sequence[Address]) -> list[Any]:
        coded = tried(lambda: codec.code(device, device.check_rows(batch), ats, used, meanwhile))
        if isinstance(coded, Exception):
            return [coded] * len(ats)
        # One by one: most of a short seal is the interpreter's, for which threads wait, and a long one has its own.
        return [each if isinstance(each, Exception) else codec.seal(each, at) for each, at in zip(coded, ats)]

    return _joined(side_by_side(None, encode, device.split(updates), device.split(addresses)))


def decode_each(
    codec: MessageCodec, messages: Sequence[bytes], addresses: Sequence[Address], used: UsedAddresses | None = None,
    size: int | None = None, device: str | None = None, out_dtype: Any = None,
) -> list[Any]:  # fmt: skip
    """Like `decode_many`, but row by row: a vector, or the exception of a message that is refused."""
    _check_lengths("messages", messages, addresses)
    wanted = name_of_dtype(out_dtype, device)
    on = device_named(device, codec.backend, codec.threads)

    def decode(batch: Sequence[bytes], ats: Sequence[Address]) -> list[Any]:
        found: list[Any] = [tried(codec.open, message, at, used, size, on.allocate) for message, at in zip(batch, ats)]
        places = [i for i, opened in enumerate(found) if not isinstance(opened, Exception)]
        for i, row in zip(places, codec.decode_opened(on, [found[i] for i in places], wanted)):
            found[i] = row
        return found

    return _joined(side_by_side(None, decode, on.split(messages), on.split(addresses)))


def why_not_on_gpu(codec: object) -> str | None:
    """What keeps this codec's messages off a GPU, or None where every one of them can be coded there."""
    if not isinstance(codec, MessageCodec):
        return f"{type(codec).__name__} has no GPU form"
    coders: list[Coder] = ["paper" if codec.coder == "paper" else "adaptive"]
    coders += ["search"] if codec.searches else []
    reasons = (cpu_only(coder, codec.on.search, codec.on.dimension) for coder in coders)
    return next((f"{reason} has no GPU form" for reason in reasons if reason is not None), None)


def expect_updates(codec: object, clients: int, size: int, device: str) -> None:
    """Compile in threads what a GPU codes and decodes so many updates of this size with, unless it is on
    the disk. Where each update chooses its coder, that waits until one has."""
    if isinstance(codec, MessageCodec) and why_not_on_gpu(codec) is None and not codec.searches:
        task, dimension = codec.task(False, bytes(32)), codec.on.dimension
        start_ahead(expect_blocks, task, clients * wire.count_blocks(size, dimension), device)


def _joined(parts: Sequence[list[Any]]) -> list[Any]:
    return [each for part in parts for each in part]


def _check_lengths(name: str, rows: Any, addresses: Sequence[Address]) -> None:
    if len(rows) != len(addresses):
        raise ValueError(f"{name} and addresses must be as many, got {len(rows)} and {len(addresses)}")
    if len(set(addresses)) != len(addresses):
        raise ValueError("an address is used once: two of this batch are equal")

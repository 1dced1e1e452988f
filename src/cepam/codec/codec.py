"""Encode and decode: an update to a message, a message to the update plus noise of exactly the codec's law."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import numpy as np
import numpy.typing as npt

from cepam.codec import wire
from cepam.codec.sealing import Room
from cepam.codec.vectors import Vector, name_of_dtype
from cepam.distributions.laws import Gaussian, Law, check_scale
from cepam.errors import CepamError, MalformedMessage, WrongSize
from cepam.kernels.dispatch import Device, Meanwhile, device_named, device_of, picked
from cepam.kernels.format.blocks import joined
from cepam.kernels.format.plan import Accept, Plan, cell_plan, layered_plan
from cepam.kernels.format.search import SEGMENT, search_fingerprint, suits_search
from cepam.kernels.format.task import Coder, CodingTask, model_fingerprint
from cepam.kernels.threads import BackendName
from cepam.keys import Address, UsedAddresses
from cepam.lattices.automatic import suits_eight
from cepam.lattices.lattice import E8, Integer, Lattice, Search, lattice_named

if TYPE_CHECKING:
    import torch

LARGEST_BYTES_A_COORDINATE = 192
Refused = ValueError | CepamError
Made = TypeVar("Made")
Kind = TypeVar("Kind", bound=Hashable)


class MessageCodec(ABC):
    """Updates to messages and back, for any quantizer."""

    coder: Coder
    backend: BackendName
    bound: float | None
    padding: int | None
    threads: int | None

    @property
    @abstractmethod
    def lattices(self) -> tuple[Lattice, ...]:
        """The lattices that a message of this codec may use; the message says which."""

    @abstractmethod
    def plan_on(self, lattice: Lattice) -> Plan:
        """The quantizer on one of these lattices."""

    @abstractmethod
    def choose(self, update: Vector) -> int:
        """Which of the lattices suits this update, or `wire.SEARCHED`."""

    @property
    def searches(self) -> bool:
        """Whether an update may take the search coder."""
        return False

    @cached_property
    def search_fingerprint(self) -> bytes | None:
        """The fingerprint of messages of the search coder, or None where this codec neither writes nor reads any."""
        if not self.searches:
            return None
        return hashlib.sha256(b"cepam codec v1search" + search_fingerprint() + self.fingerprint).digest()

    @cached_property
    def fingerprint(self) -> bytes:
        """32 bytes that both ends must share: distribution, lattices, coder, and every bit of their tables.

        A codec that searches has that of the layered quantizer's messages, which it writes and reads too.
        """
        coder = b"paper" if self.coder == "paper" else b"adaptive"
        digest = hashlib.sha256(b"cepam codec v1" + coder + model_fingerprint())
        digest.update(np.array([self.bound or 0.0], dtype="<f8").tobytes())
        for lattice in self.lattices:
            digest.update(self.plan_on(lattice).fingerprint())
        return digest.digest()

    def encode(self, update: npt.ArrayLike, at: Address, used: UsedAddresses | None = None) -> bytes:
        """Encode an update to a sealed message.

        The noise protects the update only if its norm was bounded before: clip it first (`L1`, `L2`).

        Args:
            update: One-dimensional array or tensor of floats. Half precision is widened to float32, which is exact. A
                tensor on a GPU is coded there, to the same bytes; what has no kernels there is coded on the CPU, with a
                warning.
            at: The address of the message. Use each address once: two messages at one address share their noise.
            used: Addresses that this end has used; this one is added.

        Returns:
            The message. Its length depends on the update; `padding` makes that coarser.

        Raises:
            ValueError: The update is not a one-dimensional array of floats, holds NaN or infinities, or a coordinate
                beyond a million noise scales (with `coder="paper"`: beyond `bound`).
            WrongAddress: The address is in `used`.
        """
        device = device_of(update, self.backend, self.threads)
        rows = device.check_one(update)
        return self.seal(accepted(self.code(device, rows, [at], used)[0]), at)

    def code(
        self, device: Device, rows: Any, addresses: Sequence[Address], used: UsedAddresses | None = None,
        meanwhile: Meanwhile = None,
    ) -> list[Any]:  # fmt: skip
        """What the message of each row holds, or the exception of a row that is refused.

        `device` checked the rows. While a GPU codes, `meanwhile` is done.
        """
        for at in addresses:
            _check_address(at)
        several = len(self.lattices) > 1 or self.searches
        choices = [self.choose(device.sample(row)) if several else 0 for row in rows]
        made: list[Any] = [None] * len(choices)
        for choice, places in _alike(choices).items():
            tasks = [self.task(choice, addresses[i].derive().noise) for i in places]
            measured = device.measure(tasks, picked(rows, places))
            for i, task, ends in zip(places, tasks, measured.ends()):
                made[i] = tried(self._admit, task.plan, ends, addresses[i], used)
            admitted = [place for place, i in enumerate(places) if made[i] is None]
            if not admitted:
                continue
            blocks, meanwhile = measured.encode(admitted, meanwhile), None
            for place, each in zip(admitted, blocks):
                i, row = places[place], rows[places[place]]
                refused = isinstance(each, Exception)
                made[i] = each if refused else wire.Contents(len(row), row.itemsize == 8, choice, each)
        return made

    def _admit(self, plan: Plan, ends: tuple[float, float], at: Address, used: UsedAddresses | None) -> None:
        self.check_range(*ends, plan)
        if used is not None:
            used.claim(at)

    def seal(self, contents: wire.Contents, at: Address) -> bytes:
        """The message of what was coded at this address."""
        searched = contents.lattice == wire.SEARCHED
        fingerprint = self.search_fingerprint if searched else self.fingerprint
        assert fingerprint is not None
        return wire.seal(contents, at.derive(), fingerprint, self.padding, self.threads)

    @overload
    def decode(
        self, message: bytes, at: Address, used: UsedAddresses | None = None, size: int | None = None,
        device: None = None, out_dtype: Any = None,
    ) -> Vector: ...  # fmt: skip

    @overload
    def decode(
        self, message: bytes, at: Address, used: UsedAddresses | None = None, size: int | None = None, *, device: str,
        out_dtype: Any = None,
    ) -> torch.Tensor: ...  # fmt: skip

    def decode(
        self, message: bytes, at: Address, used: UsedAddresses | None = None, size: int | None = None,
        device: str | None = None, out_dtype: Any = None,
    ) -> Vector | torch.Tensor:  # fmt: skip
        """Decode a message to the update plus noise of the codec's distribution.

        Args:
            message: What `encode` returned.
            at: The address that the client used.
            used: Addresses that this end has decoded; this one is added, so that a replay is refused.
            size: The number of coordinates expected. Give it where it is known: a few bytes may stand for many
                coordinates, so without it the sender decides how much memory is allocated.
            device: A GPU such as `"cuda"`: the same vector comes as a tensor there.
            out_dtype: float64 or float32, or float16 and (tensors only) bfloat16, rounded from float32. Default: the
                type of the update.

        Returns:
            The vector, on the public grid, with the length of the update. It was sealed at this address by this codec.

        Raises:
            MalformedMessage: The bytes are not a message of this package.
            WrongAddress: Another codec or address, or an address in `used`.
            SealBroken: The seal does not verify; both of the above.
            WrongSize: The message has another size than `size`.
        """
        wanted = name_of_dtype(out_dtype, device)
        on = device_named(device, self.backend, self.threads)
        opened = self.open(message, at, used, size, on.room)
        found: Vector | torch.Tensor = accepted(self.decode_opened(on, [opened], wanted)[0])
        return found

    def decode_opened(
        self, device: Device, opened: Sequence[tuple[wire.Contents, CodingTask]], wanted: str | None
    ) -> list[Any]:
        """The vector of each message that was opened, or its exception; `wanted` names another type."""
        found: list[Any] = [None] * len(opened)
        kinds = [(contents.size, contents.double, contents.lattice) for contents, _ in opened]
        for (size, double, _), places in _alike(kinds).items():
            group = [opened[i] for i in places]
            tasks, blocks = [task for _, task in group], [contents.blocks for contents, _ in group]
            rows = tried(device.decode, tasks, blocks, size, wanted or ("float64" if double else "float32"))
            if isinstance(rows, Exception):  # some block of the batch makes no sense: row by row tells whose
                alone = len(group) == 1
                rows = [rows] if alone else [self.decode_opened(device, [each], wanted)[0] for each in group]
            for i, row in zip(places, rows):
                found[i] = row
        return found

    def open(
        self, message: bytes, at: Address, used: UsedAddresses | None = None, size: int | None = None,
        room: Room | None = None,
    ) -> tuple[wire.Contents, CodingTask]:  # fmt: skip
        """What a message holds once its seal is verified, and the task of its blocks; `room` gives memory for it."""
        if not isinstance(message, bytes | bytearray | memoryview):
            raise ValueError(f"a message is bytes, got {type(message).__name__}")
        _check_address(at)
        keys = at.derive()
        dimensions = [lattice.dimension for lattice in self.lattices]
        contents = wire.open_sealed(
            bytes(message), keys, self.fingerprint, dimensions, room, self.threads, self.search_fingerprint
        )
        if size is not None and contents.size != size:
            raise WrongSize(f"a message of {size} coordinates was expected, this one has {contents.size}")
        if used is not None:
            used.claim(at)
        task = self.task(contents.lattice, keys.noise)
        blocks, most = joined(contents.blocks), task.plan.n * task.per_block * LARGEST_BYTES_A_COORDINATE
        if len(blocks.data) > most and (longest := int(blocks.lengths.max())) > most:
            raise MalformedMessage(f"a block of {longest} bytes is longer than any that this codec writes")
        return contents, task

    def task(self, choice: int, key: bytes) -> CodingTask:
        """What a backend is asked to do with the lattice of this number, or by the search coder, under this key."""
        if choice == wire.SEARCHED:
            return CodingTask(self.plan_on(self.lattices[0]), "search", key, SEGMENT)
        lattice = self.lattices[choice]
        plan, bound, acceptance = self.plan_on(lattice), 0, 1.0
        if self.coder == "paper":
            bound = int(self.bound / plan.unit) if self.bound is not None else 0
            norm: Literal["l1", "l2"] = "l1" if plan.accept is Accept.L1_BALL else "l2"
            acceptance = lattice.acceptance(norm)
        coder: Coder = "paper" if self.coder == "paper" else "adaptive"
        return CodingTask(plan, coder, key, wire.rows_per_block(plan.n), bound, acceptance)

    def check_range(self, low: float, high: float, plan: Plan) -> None:
        """Raise `ValueError` unless all values from `low` to `high` are finite and within the range."""
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ValueError("the update holds NaN or infinite values")
        size = max(-low, high)
        if size > plan.reach:
            raise ValueError(
                f"a coordinate of {size:.3g} is beyond {plan.reach:.3g}, the quantization range of this noise scale"
            )
        if self.coder == "paper" and self.bound is not None and size > self.bound:
            raise ValueError(f"a coordinate of {size:.6g} exceeds the bound {self.bound:.6g} of the paper's coder")


@dataclass(frozen=True)
class Codec(MessageCodec):
    """A codec: noise distribution, lattice and entropy coder, on which both ends agree.

    Args:
        law: The distribution of the noise, such as `Gaussian(0.01)`.
        lattice: A lattice or its name. `"auto"` lets every message use the one that costs least for its update
            (docs/rate.md has the rule).
        coder: `"adaptive"`, the layered quantizer with a small code; `"search"`, far fewer bytes where Gaussian noise
            drowns the update (below -8.5 dB, docs/search.md), and the adaptive one elsewhere; or `"paper"`, the paper's
            Golomb and fixed-length code.
        backend: `"auto"`, `"numba"` or `"numpy"`. Changes speed only.
        bound: Bound on the norm of updates; `coder="paper"` needs it.
        padding: Pad messages to a multiple of so many bytes, so that their length reveals less.
        threads: Threads of one call. Default: as many as the process has cores. Changes speed only.

    Raises:
        ValueError: An argument is out of range, or `bound` does not fit the coder.

    Paper: LRSUQ with entropy coding.

    Guarantee: The decoded vector is update + noise. The noise is distributed exactly as `law` and independent of the
    update, then the sum is rounded to the public grid. Condition: every address is used once, and its key is secret
    (docs/proofs/finite-precision.md; tests/statistical).
    """

    law: Law
    lattice: Lattice | str = "auto"
    coder: Coder = "adaptive"
    backend: BackendName = field(default="auto", compare=False)
    bound: float | None = None
    padding: int | None = None
    threads: int | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.law, Law):
            raise ValueError(f"law must be a noise law such as cepam.Gaussian(0.01), got {self.law!r}")
        if isinstance(self.lattice, str) and self.lattice != "auto":
            object.__setattr__(self, "lattice", lattice_named(self.lattice))
        if not isinstance(self.lattice, Lattice | str):
            raise ValueError(f"lattice must be 'auto' or a lattice such as cepam.E8, got {self.lattice!r}")
        _check_options(self)
        for lattice in self.lattices:
            self.plan_on(lattice)

    @cached_property
    def lattices(self) -> tuple[Lattice, ...]:
        if isinstance(self.lattice, Lattice):
            return (self.lattice,)
        return tuple(lattice for lattice in (Integer(1), E8) if lattice.acceptance(self.law.norm) > 0.1)

    def plan_on(self, lattice: Lattice) -> Plan:
        return layered_plan(self.law, lattice)

    def choose(self, update: Vector) -> int:
        """Which of the lattices suits this update: the rule of `cepam.lattices.automatic`, or the only one there is.

        `wire.SEARCHED` where the search coder suits it better (`kernels.format.search`).
        """
        if self.searches and suits_search(update, self.law.scale):
            return wire.SEARCHED
        return int(len(self.lattices) > 1 and suits_eight(update, self.law.scale))

    @cached_property
    def searches(self) -> bool:
        """Whether an update may take the search coder: Gaussian noise, and no lattice named but the integers."""
        line = self.lattices[0].dimension == 1 and self.lattices[0].search is Search.CUBIC
        return self.coder == "search" and type(self.law) is Gaussian and line

    @property
    def grid(self) -> float:
        """The public grid: every decoded value is a multiple of it."""
        return self.plan_on(self.lattices[0]).grid


@dataclass(frozen=True)
class DitheredCodec(MessageCodec):
    """A codec without privacy: subtractive dithering with cells of volume step^n.

    Args:
        step: Side of a cube with the volume of a cell.
        lattice: The lattice.
        coder: `"adaptive"`, or in one dimension `"paper"`.
        backend: `"auto"`, `"numba"` or `"numpy"`. Changes speed only.
        bound: Bound on the norm of updates; `coder="paper"` needs it.
        padding: Pad messages to a multiple of so many bytes.
        threads: Threads of one call. Changes speed only.

    Raises:
        ValueError: An argument is out of range.

    Paper: SDQ.

    Guarantee: The error is uniform on the lattice's Voronoi cell and independent of the update.
    """

    step: float
    lattice: Lattice = field(default_factory=lambda: Integer(1))
    coder: Coder = "adaptive"
    backend: BackendName = field(default="auto", compare=False)
    bound: float | None = None
    padding: int | None = None
    threads: int | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_scale("step", self.step)
        if not isinstance(self.lattice, Lattice):
            raise ValueError(f"lattice must be a lattice such as cepam.E8, got {self.lattice!r}")
        _check_options(self)
        if self.coder == "search":
            raise ValueError("coder must be 'adaptive' or 'paper' for plain dithering, got 'search'")
        if self.coder == "paper" and self.lattice.dimension > 1:
            raise ValueError("the paper's coder covers plain dithering in one dimension only")

    @property
    def lattices(self) -> tuple[Lattice, ...]:
        return (self.lattice,)

    def plan_on(self, lattice: Lattice) -> Plan:
        return cell_plan(lattice, float(self.step))

    def choose(self, update: Vector) -> int:
        return 0


def _check_options(codec: MessageCodec) -> None:
    if codec.coder not in ("adaptive", "search", "paper"):
        raise ValueError(f"coder must be 'adaptive', 'search' or 'paper', got {codec.coder!r}")
    if codec.backend not in ("auto", "numba", "numpy"):
        raise ValueError(f"backend must be 'auto', 'numba' or 'numpy', got {codec.backend!r}")
    if codec.coder == "paper":
        if codec.bound is None:
            raise ValueError("coder='paper' needs bound=…, a bound on the update's norm")
        check_scale("bound", codec.bound)
        reach = codec.plan_on(codec.lattices[0]).reach
        if codec.bound > reach:
            raise ValueError(f"bound must be at most {reach:.3g} at this noise scale, got {codec.bound!r}")
    elif codec.bound is not None:
        raise ValueError("bound belongs to coder='paper'; the other coders need none")
    if codec.padding is not None and not (type(codec.padding) is int and 1 <= codec.padding <= 2**24):
        raise ValueError(f"padding must be a number of bytes from 1 to {2**24}, got {codec.padding!r}")
    if codec.threads is not None and not (type(codec.threads) is int and codec.threads >= 1):
        raise ValueError(f"threads must be a positive integer, got {codec.threads!r}")


def _check_address(at: Address) -> None:
    if not isinstance(at, Address):
        raise ValueError(f"at must be a cepam.Address, got {type(at).__name__}")


def tried(work: Callable[..., Made], *items: Any) -> Made | Refused:
    """What the work gives, or the exception by which it refuses the items."""
    try:
        return work(*items)
    except (ValueError, CepamError) as refused:
        return refused


def accepted(outcome: Any) -> Any:
    """The outcome; raises it if it is an exception."""
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _alike(kinds: Sequence[Kind]) -> dict[Kind, list[int]]:
    """The places of each kind, which ascend."""
    found: dict[Kind, list[int]] = {}
    for i, kind in enumerate(kinds):
        found.setdefault(kind, []).append(i)
    return found

"""Encode and decode: an update to a message, a message to the update plus noise of exactly the codec's law."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, get_args, overload

import numpy as np
import numpy.typing as npt

from cepam.codec import wire
from cepam.codec.wire import Allocator
from cepam.distributions.laws import Gaussian, Law, check_scale
from cepam.errors import CepamError, MalformedMessage, WrongSize
from cepam.kernels.dispatch import BackendName, Device, Meanwhile, device_named, device_of, picked, runs_of
from cepam.kernels.format.plan import (
    Accept,
    Coder,
    CodingTask,
    Plan,
    cell_plan,
    joined,
    layered_plan,
    model_fingerprint,
)
from cepam.kernels.format.search import LOUDEST, SEGMENT, SHORTEST, search_fingerprint
from cepam.keys import Address, UsedAddresses
from cepam.lattices.lattice import Integer, Lattice, Search, lattice_named

if TYPE_CHECKING:
    import torch


class UpdateCodec(Protocol):
    """Turns an update into the message of an address, and the message back into a vector."""

    def encode(self, update: Any, at: Address) -> bytes: ...

    def decode(self, message: bytes, at: Address) -> Any: ...


Vector = npt.NDArray[Any]


def name_of_dtype(out_dtype: Any, device: str | None) -> str | None:
    """The name of a type that decoded vectors may have, from a name, a NumPy dtype or a PyTorch one."""
    if out_dtype is None:
        return None
    name = getattr(out_dtype, "__name__", str(out_dtype)).removeprefix("torch.")
    if name not in ("float64", "float32", "float16", "bfloat16") or (name == "bfloat16" and device is None):
        raise ValueError(f"out_dtype must be float64, float32 or float16, or bfloat16 with device=…, got {out_dtype!r}")
    return name


_SAMPLE_BITS, _FARTHEST = 10, 2.0**10
"""Of the sample that chooses a coder: digits of |x| behind the point, in noise scales, and the largest there may be."""
_PLAIN, _DOUBTFUL = 1e-12, 0.02
"""The least noise scale, and the inverse of the largest, whose squares float32 holds with room to spare; how near to
the choice's edge plain products leave it open."""
LARGEST_BYTES_A_COORDINATE = 192
CoderName = Literal["auto", "layered", "paper"]
"""What a user chooses; a message is coded by one of `kernels.format.task.Coder`."""
Refused = ValueError | CepamError
Made = TypeVar("Made")
Kind = TypeVar("Kind", bound=Hashable)
Sized = TypeVar("Sized", bound="MessageCodec")


class MessageCodec(ABC):
    """Updates to messages and back, for any quantizer."""

    coder: CoderName
    backend: BackendName
    bound: float | None
    padding: int | None
    threads: int | None
    size: int | None

    @property
    @abstractmethod
    def on(self) -> Lattice:
        """The lattice itself, where it was given by name."""

    @property
    @abstractmethod
    def plan(self) -> Plan:
        """The quantizer's numbers."""

    @property
    def searches(self) -> bool:
        """Whether an update may take the search coder."""
        return False

    def suits_search(self, update: Vector) -> bool:
        """Whether this update takes the search coder; `update` may be its sample.

        Args:
            update: The update, or its sample.

        Returns:
            Whether it does; False for codecs without a search coder.
        """
        return False

    @cached_property
    def fingerprint(self) -> bytes:
        """32 bytes that both ends must share: distribution, lattice, coder, size, and every bit of their tables."""
        coder = b"paper" if self.coder == "paper" else b"adaptive"
        digest = hashlib.sha256(b"cepam codec v5" + coder + model_fingerprint())
        digest.update(np.array([self.bound or 0.0], dtype="<f8").tobytes() + self.plan.fingerprint())
        if self.searches:
            digest.update(search_fingerprint())
        if self.size is not None:
            digest.update(self.size.to_bytes(8, "little"))
        return digest.digest()

    def sized(self: Sized, size: int) -> Sized:
        """The same codec for updates of so many coordinates, whose size does not travel.

        Args:
            size: Coordinates of an update.

        Returns:
            The codec.

        Raises:
            ValueError: The codec is for another size.
        """
        if self.size == size:
            return self
        if self.size is not None:
            raise ValueError(f"the codec is for updates of {self.size} coordinates, got {size}")
        if size not in self._sized:
            self._sized.clear()  # one end has one size at a time
            self._sized[size] = replace(self, size=size)  # type: ignore[type-var]  # both are dataclasses
        found: Sized = self._sized[size]
        return found

    @cached_property
    def _sized(self) -> dict[int, Any]:
        return {}

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

        Args:
            device: The device that checked the rows and codes them.
            rows: One update per message.
            addresses: The address of each message.
            used: Addresses that this end has used; those of accepted rows are added.
            meanwhile: Done while a GPU codes.

        Returns:
            One entry per row: the contents of its message, or an exception.

        Raises:
            ValueError: A row has another size than the codec's, or an address is not an `Address`.
        """
        for at in addresses:
            _check_address(at)
        if self.size is not None and any(len(row) != self.size for row in rows):
            wrong = next(len(row) for row in rows if len(row) != self.size)
            raise ValueError(f"the codec is for updates of {self.size} coordinates (size), got {wrong}")
        choices = [self.searches and self.suits_search(device.sample(row)) for row in rows]
        made: list[Any] = [None] * len(choices)
        for searched, places in _alike(choices).items():
            tasks = [self.task(searched, addresses[i].derive().noise) for i in places]
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
                made[i] = each if refused else wire.Contents(len(row), row.itemsize == 8, searched, each)
        return made

    def _admit(self, plan: Plan, ends: tuple[float, float], at: Address, used: UsedAddresses | None) -> None:
        self.check_range(*ends, plan)
        if used is not None:
            used.claim(at)

    def seal(self, contents: wire.Contents, at: Address) -> bytes:
        """The message of what was coded at this address.

        Args:
            contents: What `code` returned for the update.
            at: The address that it was coded at.

        Returns:
            The sealed message.
        """
        return wire.seal(contents, at.derive(), self.fingerprint, self.padding, self.threads, travels=self.size is None)

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
            size: The number of coordinates expected. A few bytes may stand for many coordinates: with neither this nor
                the codec's `size` the sender decides how much memory is allocated.
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
        opened = self.open(message, at, used, size, on.allocate)
        found: Vector | torch.Tensor = accepted(self.decode_opened(on, [opened], wanted)[0])
        return found

    def decode_opened(
        self, device: Device, opened: Sequence[tuple[wire.Contents, CodingTask]], wanted: str | None
    ) -> list[Any]:
        """The vector of each message that was opened, or its exception.

        Args:
            device: The device that decodes.
            opened: What `open` returned for each message.
            wanted: The name of the type of the vectors; None keeps the type of each update.

        Returns:
            One vector or exception per message.
        """
        found: list[Any] = [None] * len(opened)
        kinds = [(contents.size, contents.double, contents.searched) for contents, _ in opened]
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
        allocate: Allocator | None = None,
    ) -> tuple[wire.Contents, CodingTask]:  # fmt: skip
        """What a message holds once its seal is verified, and the task of its blocks.

        Args:
            message: What `encode` returned.
            at: The address that the client used.
            used: Addresses that this end has decoded; this one is added.
            size: The number of coordinates expected.
            allocate: Gives memory for the opened bytes.

        Returns:
            The contents, and the task that decodes their blocks.

        Raises:
            ValueError: The message is not bytes, or the address is not an `Address`.
            MalformedMessage: The bytes are not a message of this package.
            WrongAddress: Another codec or address, or an address in `used`.
            SealBroken: The seal does not verify.
            WrongSize: The message has another size than `size`.
        """
        if not isinstance(message, bytes | bytearray | memoryview):
            raise ValueError(f"a message is bytes, got {type(message).__name__}")
        _check_address(at)
        keys = at.derive()
        contents = wire.open_sealed(
            bytes(message), keys, self.fingerprint, self.on.dimension, self.searches, self.size, allocate, self.threads
        )
        if size is not None and contents.size != size:
            raise WrongSize(f"a message of {size} coordinates was expected, this one has {contents.size}")
        if used is not None:
            used.claim(at)
        task = self.task(contents.searched, keys.noise)
        blocks, most = joined(contents.blocks), task.plan.n * task.per_block * LARGEST_BYTES_A_COORDINATE
        if len(blocks.data) > most and (longest := int(blocks.lengths.max())) > most:
            raise MalformedMessage(f"a block of {longest} bytes is longer than any that this codec writes")
        return contents, task

    def task(self, searched: bool, key: bytes) -> CodingTask:
        """What a backend is asked to do under a key.

        Args:
            searched: Whether by the search coder instead of the quantizer.
            key: 32 bytes, the key of the message's noise.

        Returns:
            The task.
        """
        plan, bound, acceptance = self.plan, 0, 1.0
        if searched:
            return CodingTask(plan, "search", key, SEGMENT)
        if self.coder == "paper":
            bound = int(self.bound / plan.unit) if self.bound is not None else 0
            norm: Literal["l1", "l2"] = "l1" if plan.accept is Accept.L1_BALL else "l2"
            acceptance = self.on.acceptance(norm)
        coder: Coder = "paper" if self.coder == "paper" else "adaptive"
        return CodingTask(plan, coder, key, wire.rows_per_block(plan.n), bound, acceptance)

    def check_range(self, low: float, high: float, plan: Plan) -> None:
        """Refuse values that are not finite or beyond the quantization range.

        Args:
            low: The smallest value of an update.
            high: The largest.
            plan: The quantizer that codes it.

        Raises:
            ValueError: A value is not finite, or is beyond the range of the noise scale or of the paper's coder.
        """
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
        lattice: A lattice or its name, such as `"E8"`.
        coder: `"auto"`: the search coder, of far fewer bytes, where Gaussian noise on Z1 drowns the update (below
            -8.5 dB, docs/search.md), and the layered quantizer elsewhere; `"layered"`: that quantizer always;
            `"paper"`: with the paper's Golomb and fixed-length code.
        backend: `"auto"`, `"numba"` or `"numpy"`. Changes speed only.
        bound: Bound on the norm of updates; `coder="paper"` needs it.
        padding: Pad messages to a multiple of so many bytes, so that their length reveals less.
        threads: Threads of one call. Default: as many as the process has cores. Changes speed only.
        size: The number of coordinates of every update, which then does not travel. Both ends give it.

    Raises:
        ValueError: An argument is out of range, or `bound` does not fit the coder.

    Paper: LRSUQ with entropy coding.

    Guarantee: The decoded vector is update + noise. The noise is distributed exactly as `law` and independent of the
    update, then the sum is rounded to the public grid. Condition: every address is used once, and its key is secret
    (docs/proofs/finite-precision.md; tests/statistical).
    """

    law: Law
    lattice: Lattice | str = "Z1"
    coder: CoderName = "auto"
    backend: BackendName = field(default="auto", compare=False)
    bound: float | None = None
    padding: int | None = None
    threads: int | None = field(default=None, compare=False, repr=False)
    size: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.law, Law):
            raise ValueError(f"law must be a noise law such as cepam.Gaussian(0.01), got {self.law!r}")
        if isinstance(self.lattice, str):
            object.__setattr__(self, "lattice", lattice_named(self.lattice))
        if not isinstance(self.lattice, Lattice):
            raise ValueError(f"lattice must be a lattice such as cepam.E8, or its name, got {self.lattice!r}")
        _check_options(self)

    @property
    def on(self) -> Lattice:
        assert isinstance(self.lattice, Lattice)
        return self.lattice

    @property
    def plan(self) -> Plan:
        return layered_plan(self.law, self.on)

    def suits_search(self, update: Vector) -> bool:
        """Whether the search coder is expected to cost less than the layered quantizer.

        Looks at the sample alone; runs have sums of integers under 2^53, which every machine finds.

        Args:
            update: The update, or its sample.

        Returns:
            Whether the search coder is used.
        """
        if len(update) < SHORTEST:
            return False
        runs = runs_of(update)
        count, scale = sum(len(run) for run in runs), self.law.scale
        if update.dtype in (np.float32, np.float64) and _PLAIN < scale < 1.0 / _PLAIN:
            # Plain products differ from the sums below by under a hundredth: mostly they decide. NaN goes on.
            rough = sum(float(np.dot(run, run)) for run in runs) / (LOUDEST * count * scale**2)
            if abs(rough - 1.0) > _DOUBTFUL:
                return rough < 1.0
        squares = 0.0
        for run in runs:
            whole = run.astype(np.float64) * (2.0**_SAMPLE_BITS / scale)
            if not max(float(whole.max()), -float(whole.min())) < _FARTHEST * 2.0**_SAMPLE_BITS:
                return False
            np.trunc(whole, out=whole)
            squares += float(whole @ whole)
        return squares <= LOUDEST * 4.0**_SAMPLE_BITS * count

    @cached_property
    def searches(self) -> bool:
        """Whether an update may take the search coder: `coder="auto"`, Gaussian noise, and the integers."""
        line = self.on.dimension == 1 and self.on.search is Search.CUBIC
        return self.coder == "auto" and type(self.law) is Gaussian and line

    @property
    def grid(self) -> float:
        """The public grid: every decoded value is a multiple of it."""
        return self.plan.grid


@dataclass(frozen=True)
class DitheredCodec(MessageCodec):
    """A codec without privacy: subtractive dithering with cells of volume step^n.

    Args:
        step: Side of a cube with the volume of a cell.
        lattice: The lattice.
        coder: `"auto"`, the adaptive code, or in one dimension `"paper"`.
        backend: `"auto"`, `"numba"` or `"numpy"`. Changes speed only.
        bound: Bound on the norm of updates; `coder="paper"` needs it.
        padding: Pad messages to a multiple of so many bytes.
        threads: Threads of one call. Changes speed only.
        size: The number of coordinates of every update, which then does not travel.

    Raises:
        ValueError: An argument is out of range.

    Paper: SDQ.

    Guarantee: The error is uniform on the lattice's Voronoi cell and independent of the update.
    """

    step: float
    lattice: Lattice = field(default_factory=lambda: Integer(1))
    coder: CoderName = "auto"
    backend: BackendName = field(default="auto", compare=False)
    bound: float | None = None
    padding: int | None = None
    threads: int | None = field(default=None, compare=False, repr=False)
    size: int | None = None

    def __post_init__(self) -> None:
        check_scale("step", self.step)
        if not isinstance(self.lattice, Lattice):
            raise ValueError(f"lattice must be a lattice such as cepam.E8, got {self.lattice!r}")
        _check_options(self)
        if self.coder == "paper" and self.lattice.dimension > 1:
            raise ValueError("the paper's coder covers plain dithering in one dimension only")

    @property
    def on(self) -> Lattice:
        return self.lattice

    @property
    def plan(self) -> Plan:
        return cell_plan(self.lattice, float(self.step))


def _check_options(codec: MessageCodec) -> None:
    if codec.coder not in get_args(CoderName):
        raise ValueError(f"coder must be 'auto', 'layered' or 'paper', got {codec.coder!r}")
    if codec.size is not None and not (type(codec.size) is int and 1 <= codec.size <= wire.LARGEST_SIZE):
        raise ValueError(f"size must be a number of coordinates from 1 to 2^40, got {codec.size!r}")
    plan = codec.plan
    if codec.backend not in ("auto", "numba", "numpy"):
        raise ValueError(f"backend must be 'auto', 'numba' or 'numpy', got {codec.backend!r}")
    if codec.coder == "paper":
        if codec.bound is None:
            raise ValueError("coder='paper' needs bound=…, a bound on the update's norm")
        check_scale("bound", codec.bound)
        if codec.bound > plan.reach:
            raise ValueError(f"bound must be at most {plan.reach:.3g} at this noise scale, got {codec.bound!r}")
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

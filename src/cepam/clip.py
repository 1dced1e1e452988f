"""Clips: a norm and its bound, applied to an update before it is encoded, for arrays and tensors alike.

The same object goes to the client that clips and to the accountant that charges (`sensitivity`), so what is charged is
what was sent. One rule of rounding, everywhere: norms are added up in float64; what exceeds its bound is scaled, in
float64, to 1 - `margin` of it, rounded to its own type, and measured again.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar, cast, get_args

import numpy as np

from cepam.distributions.laws import Norm, check_scale

Vector = TypeVar("Vector")
Adjacency = Literal["replace", "add-remove"]
ClippedUnit = Literal["update", "example"]
Unit = Literal["record", "client"]
"""What epsilon is for: one record of one client, or all that a client holds."""

SUMMATION = 2.0**-40
"""More than two machines that add up the same numbers in another order differ by, relative: some log2(n) · 2^-53."""


def margin(dtype: Any, roundings: int = 2) -> float:
    """How far under its bound a clipped vector is put, relative: so many roundings to its type, and `SUMMATION`.

    (1 - margin)(1 + eps/2)^roundings < 1 - `SUMMATION`/2. Two: the factor is rounded to the type, then the product.
    """
    kind = sys.modules["torch"] if _is_torch_dtype(dtype) else np
    return roundings / 2.0 * float(kind.finfo(dtype).eps) + SUMMATION


def clip_factors(norms: Vector, bounds: Any, dtype: Any, roundings: int = 2) -> Vector:
    """What to multiply vectors of these norms by: 1, or what brings them to 1 - `margin` of their bound.

    For code that clips where it computes (one gradient an example). Zero where a norm is not finite; such a vector may
    hold a NaN, which a product with zero leaves there: replace it by zeros.
    """
    kind, sizes = _library(norms), cast(Any, norms)
    over = sizes > bounds
    scaled = kind.where(over, bounds * (1.0 - margin(dtype, roundings)) / kind.where(over, sizes, 1.0), 1.0)
    return cast(Vector, kind.where(kind.isfinite(sizes), scaled, 0.0))


@dataclass(frozen=True)
class Clip:
    """A bound on one norm of a whole update; use `L1` or `L2`.

    Args:
        bound: The clipping norm.

    Raises:
        ValueError: `bound` is not a positive number.
    """

    bound: float
    norm: ClassVar[Norm]

    def __post_init__(self) -> None:
        if not hasattr(self, "norm"):
            raise TypeError("a clip is cepam.L1 or cepam.L2")
        check_scale("bound", self.bound)

    def measure(self, update: Any) -> float:
        """Return the norm of the update, added up in float64.

        Args:
            update: An array or tensor of floats.

        Returns:
            The norm, which may be infinite or NaN.
        """
        return float(_norms(_floating(update).reshape(1, -1), self.norm)[0])

    def apply(self, update: Vector, cuts: Sequence[int] | None = None) -> Vector:
        """Scale the update down so that its norm is at most `bound`.

        Args:
            update: An array or tensor of floats.
            cuts: The ends of its tensors, if each is to be clipped by itself to its share of the bound.

        Returns:
            The update, of the same type, on the same device; unchanged if its norm is within the bound.

        Raises:
            ValueError: The update is not floating point, or has no finite norm.

        Guarantee: `measure(apply(x)) <= bound` also after rounding (tests/test_clip.py).
        """
        clipped, norm = self._applied(update, cuts)
        if not math.isfinite(norm):
            raise ValueError(f"cannot clip an update whose {self.norm} norm is {norm}: it holds NaN or is too large")
        return clipped

    def apply_or_zero(self, update: Vector, cuts: Sequence[int] | None = None) -> Vector:
        """Clip as `apply` does, but return zeros if the update has no finite norm.

        For a client that must send something: silence would reveal, uncharged, that its data hold a NaN.

        Args:
            update: An array or tensor of floats.
            cuts: The ends of its tensors, if each is to be clipped by itself to its share of the bound.

        Returns:
            The clipped update, of the same type, on the same device.
        """
        return self._applied(update, cuts)[0]

    def _applied(self, update: Vector, cuts: Sequence[int] | None) -> tuple[Vector, float]:
        held = _floating(update)
        rows, norms = clip_rows(held.reshape(1, -1), [self], cuts)
        return rows[0].reshape(held.shape), float(norms[0])

    def whole(self, parts: int) -> Clip:
        """Return the clip of a vector of which each of `parts` tensors is within this clip.

        Args:
            parts: How many tensors are clipped one by one.

        Returns:
            A larger clip: sqrt(parts) bounds in l2, `parts` bounds in l1.
        """
        return type(self)(self.bound * whole_over_part(self.norm, parts))

    def sensitivity(
        self, adjacency: Adjacency = "replace", unit: ClippedUnit = "update", *, batch: float = 1.0, weight: float = 1.0
    ) -> float:
        """Return the sensitivity: how far one record moves what a client sends, in this norm.

        Args:
            adjacency: `"replace"` or `"add-remove"` one record.
            unit: What was clipped. `"update"`: any vector within the bound may take the place of another, so 2 bounds
                for either adjacency. `"example"`: a sum of clipped examples over the public `batch` moves by one bound
                over it, by two if a record is replaced.
            batch: The public divisor of a sum of examples.
            weight: The client's aggregation weight, which multiplies the result.

        Raises:
            ValueError: `unit` is unknown.

        Guarantee: Clipping the whole afterwards moves nothing further in l2, where it is a projection, and at most
        twice as far in l1, where scaling is 2-Lipschitz; never by over 2 bounds. Attacked in tests/test_clip.py and
        tests/privacy/test_mechanism.py.

        Returns:
            A distance in this norm.
        """
        if unit not in get_args(ClippedUnit):
            raise ValueError(f"clipped must be one of {', '.join(get_args(ClippedUnit))}, got {unit!r}")
        if unit == "update":
            return 2.0 * self.bound * weight
        summed = (2.0 if adjacency == "replace" else 1.0) * self.bound / batch
        if self.norm == "l1":
            summed = min(2.0 * summed, max(summed, 2.0 * self.bound))
        return summed * weight


class L2(Clip):
    """A bound on the Euclidean norm of the whole update (Paper: gamma). Gaussian noise needs it.

    Args:
        bound: The clipping norm.
    """

    norm: ClassVar[Norm] = "l2"


class L1(Clip):
    """A bound on the sum of absolute values of the whole update. Laplace noise needs it for pure DP.

    Args:
        bound: The clipping norm.
    """

    norm: ClassVar[Norm] = "l1"


CLIPS: dict[str, type[L1] | type[L2]] = {"l1": L1, "l2": L2}
"""From names of norms to clips: the one table."""


def whole_over_part(norm: Norm, parts: int) -> float:
    """How many times one part's bound the whole norm can reach where each of the parts is clipped by itself."""
    return float(parts) if norm == "l1" else math.sqrt(parts)


def clip_rows(rows: Vector, clips: Sequence[Clip], cuts: Sequence[int] | None = None) -> tuple[Vector, Any]:
    """Each row of a matrix within its own clip, zeros where a row has no finite norm; and the norms before, in float64.

    `cuts` as in `Clip.apply`. Guarantee: rows are clipped as `Clip.apply_or_zero` clips each (tests/test_clip.py).
    """
    held = _floating(rows)
    if held.ndim != 2 or len(clips) != len(held):
        raise ValueError(f"clips must give one clip for each row of a matrix, got {len(clips)} for {tuple(held.shape)}")
    if len({clip.norm for clip in clips}) > 1:
        raise ValueError("all clips of one call must bound the same norm, got l1 and l2")
    norm = clips[0].norm if clips else "l2"
    bounds, norms = _like(held, [float(clip.bound) for clip in clips]), _norms(held, norm)
    pieces = [_clip_piece(held[:, at], bounds / whole_over_part(norm, many), norm) for at, many in _cut(held, cuts)]
    kind = _library(held)
    clipped = pieces[0] if len(pieces) == 1 else kind.concatenate(pieces, 1)
    lost = ~kind.isfinite(norms)
    if bool(lost.any()):
        clipped = kind.where(lost[:, None], kind.zeros_like(clipped), clipped)
    return cast(Vector, clipped), norms


def _clip_piece(rows: Any, bounds: Any, norm: Norm) -> Any:
    """Rows of finite norm within their bounds; others as they are."""
    kind, sizes, clipped = _library(rows), _norms(rows, norm), rows
    over = (sizes > bounds) & kind.isfinite(sizes)
    room = margin(rows.dtype)
    while bool(over.any()):  # once; again only where rounding up to the type's smallest number made a row grow
        factors = kind.where(over, bounds * max(0.0, 1.0 - room) / kind.where(over, sizes, 1.0), 1.0)
        made = _as(_as(rows, kind.float64) * factors[:, None], rows.dtype)
        clipped = kind.where(over[:, None], made, clipped)
        over, room = over & (_norms(clipped, norm) > bounds), 2.0 * room
    return clipped


def _cut(rows: Any, cuts: Sequence[int] | None) -> Iterator[tuple[slice, int]]:
    """The columns of each tensor, with how many tensors there are."""
    ends = [rows.shape[1]] if cuts is None else list(cuts)
    if not ends or sorted(ends) != ends or ends[0] < 0 or ends[-1] != rows.shape[1]:
        raise ValueError(f"cuts must be the tensors' ends, rising to {rows.shape[1]}, got {ends}")
    yield from ((slice(begin, end), len(ends)) for begin, end in zip([0, *ends[:-1]], ends))


def _norms(rows: Any, norm: Norm) -> Any:
    order = 1 if norm == "l1" else 2
    if is_tensor(rows):
        torch = sys.modules["torch"]
        return torch.linalg.vector_norm(rows, ord=order, dim=1, dtype=torch.float64)
    # Row by row: no float64 copy of a whole matrix. An overflow is an infinite norm, which callers are told of.
    with np.errstate(over="ignore", invalid="ignore"):
        return np.array([_size(row.astype(np.float64), order) for row in rows], dtype=np.float64)


def _size(row: Any, order: int) -> Any:
    """The norm without BLAS: its threads would spin on beside those that encode, longer than the sum takes."""
    return np.abs(row).sum() if order == 1 else np.sqrt(np.einsum("i,i", row, row))


def _floating(update: Any) -> Any:
    """The update as an array or tensor, or a ValueError if it does not hold floating-point numbers."""
    if isinstance(update, Mapping):
        raise ValueError("a clip takes one array: cepam.encode_tree(…, clip=…) bounds all arrays of a dict together")
    held: Any = update.detach() if is_tensor(update) else np.asarray(update)
    floating = held.is_floating_point() if is_tensor(held) else np.issubdtype(held.dtype, np.floating)
    if not floating:
        raise ValueError(f"only floating-point updates can be clipped, got {held.dtype}: scaling would round them off")
    return held


def is_tensor(update: Any) -> bool:
    """Whether this is a tensor of PyTorch, which is not imported for that."""
    torch = sys.modules.get("torch")  # whoever hands over a tensor has imported it
    return torch is not None and isinstance(update, torch.Tensor)


def _is_torch_dtype(dtype: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(dtype, torch.dtype)


def _library(held: Any) -> Any:
    return sys.modules["torch"] if is_tensor(held) else np


def _like(held: Any, values: list[float]) -> Any:
    if is_tensor(held):
        return sys.modules["torch"].tensor(values, dtype=sys.modules["torch"].float64, device=held.device)
    return np.array(values, dtype=np.float64)


def _as(held: Any, dtype: Any) -> Any:
    return held.to(dtype) if is_tensor(held) else held.astype(dtype)

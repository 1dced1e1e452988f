"""Versions of the public weights: what both halves hold, compare by check value, and save."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from cepam.downlink.grid import LARGEST_STEPS, Floats, Grid, Origin, Point, Weights
from cepam.errors import CheckFailed
from cepam.kernels.format.broadcast_contexts import DITHER_BITS

CHECK_BYTES = 16


@dataclass(frozen=True, eq=False)
class Version:
    """A version of the public weights: its number, what a difference starts from it, 32 bytes that name it, its values.

    Version 0 is the public start, whose weights every receiver has by itself; all others are points of the grid.
    """

    number: int
    origin: Point | Weights
    check: bytes
    weights: Floats

    @property
    def shift(self) -> int:
        """The shift of the grid on which it lies; the start lies on the finest."""
        return self.origin.shift if isinstance(self.origin, Point) else 0


def version_at(grid: Grid, number: int, point: Point) -> Version:
    """The version of this number at a point of the grid."""
    steps = np.ascontiguousarray(point.steps, dtype="<i4")
    return Version(number, point, _check(grid, number, point.shift, steps), _frozen(grid.weights(point)))


def version_of_start(grid: Grid, start: Weights) -> Version:
    """Version 0: the weights of the public start, copied, so that whoever trains in place leaves it alone."""
    start, weights = start.copy(), start.astype(np.float32)
    return Version(0, start, _check(grid, 0, 0, np.ascontiguousarray(start, dtype="<f8")), _frozen(weights))


def _check(grid: Grid, number: int, shift: int, values: Any) -> bytes:
    head = b"cepam broadcast check v1" + grid.name + number.to_bytes(8, "little") + bytes([shift])
    digest = hashlib.sha256(head + values.size.to_bytes(8, "little"))
    digest.update(values.data)
    return digest.digest()


def _frozen(weights: Floats) -> Floats:
    weights.flags.writeable = False
    return weights


def save_version(version: Version | None) -> dict[str, Any]:
    """Numbers, bytes and an array that `restore_version` takes; the start is not saved, its owner gives it again."""
    if version is None:
        return {"version": -1}
    saved = {"version": version.number, "check": version.check}
    if isinstance(version.origin, Point):
        saved |= {"shift": version.origin.shift, "steps": version.origin.steps.copy()}
    return saved


def restore_version(grid: Grid, state: dict[str, Any], start: Version | None) -> Version | None:
    """The version that was saved, checked against its own check value; `start` is version 0 of this run, if it has one.

    Raises `CheckFailed` for a state of another run or another start, `ValueError` for what is no state.
    """
    if "version" not in state or ("steps" in state) != ("shift" in state):
        raise ValueError(f"a saved state has version, shift, steps and check, got {sorted(state)}")
    try:
        number, shift = int(state["version"]), int(state.get("shift", 0))
    except (TypeError, OverflowError) as odd:
        raise ValueError(f"version and shift of a saved state must be whole numbers: {odd}") from odd
    check = state.get("check", b"")
    if number >= 2**64 or isinstance(check, int | str):
        raise ValueError("a saved state has a version below 2^64 and a check of bytes")
    if number < 0:
        return None
    if "steps" in state:
        steps = np.array(state["steps"])
        whole = steps.ndim == 1 and steps.dtype.kind == "i" and 0 <= shift <= DITHER_BITS
        if not whole or (len(steps) and int(np.abs(steps.astype(np.int64)).max()) > LARGEST_STEPS):
            raise ValueError(f"steps must be a vector of whole numbers up to {LARGEST_STEPS}, at a shift, got {shift}")
        restored: Version | None = version_at(grid, number, Point(shift, steps.astype(np.int32)))
    else:
        restored = start
    if restored is None or restored.number != number or restored.check != bytes(check):
        raise CheckFailed(f"the saved version {number} does not match its check: of another run or start, or damaged")
    return restored


def origin_of(version: Version | None, size: int) -> Origin:
    """What a difference starts from: this version, or nothing."""
    return size if version is None else version.origin

"""Both ends of the downlink: new weights to one public message for all clients, and a client's copy of them."""

from __future__ import annotations

import hashlib
import math
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.downlink.grid import (
    LARGEST_STEPS,
    BroadcastFrame,
    Floats,
    Grid,
    Origin,
    Point,
    Weights,
    check_run,
    check_weights,
    read_frame,
    shift_of,
    verify_frame,
    write_frame,
)
from cepam.errors import CheckFailed, WrongVersion
from cepam.kernels.dispatch import BackendName
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
    if number >= 2**64 or not isinstance(check, bytes | bytearray | memoryview):
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


class Receiver:
    """The client's side of the quantized model broadcast: messages to the server's public weights.

    Args:
        run: The server's `run`.
        start: The server's `start`.
        size: The number of weights. Give it where there is no `start`: a message of another size is then refused
            before memory is allocated for it.
        backend: `"auto"`, `"numba"` or `"numpy"`. Changes speed only.
        threads: Threads of one call. Changes speed only.

    Guarantee: A message is applied whole or not at all. One that starts from another version, leads back, belongs to
    another run, is damaged, or does not match its check raises, and the receiver keeps what it held.
    """

    def __init__(
        self,
        run: bytes | str,
        start: npt.ArrayLike | None = None,
        size: int | None = None,
        backend: BackendName = "auto",
        threads: int | None = None,
    ) -> None:
        self._grid = Grid(check_run(run), backend, threads)
        self._start = None if start is None else version_of_start(self._grid, check_weights("start", start, size))
        self._size = size if self._start is None else len(self._start.weights)
        self._held: Version | None = self._start

    @property
    def version(self) -> int | None:
        """The version that is held; None before the first message where there is no start."""
        return None if self._held is None else self._held.number

    @property
    def check(self) -> bytes:
        """16 bytes that identify what is held; empty before the first message where there is no start."""
        return b"" if self._held is None else self._held.check[:CHECK_BYTES]

    @property
    def weights(self) -> Floats:
        """The public weights that are held."""
        if self._held is None:
            raise ValueError("no broadcast was received yet, and no start was given")
        return self._held.weights

    def apply(self, message: bytes) -> Floats:
        """Apply a message.

        Args:
            message: What `Broadcast.publish` or `message_from` returned.

        Returns:
            The public weights, which are now held.

        Raises:
            WrongVersion: The message starts from another version; ask the server for `message_from(self.version)`.
            CheckFailed: The result does not match; ask for `message_from(None)`.
            WrongAddress: The message belongs to another run.
            MalformedMessage: The bytes are not a message.
        """
        if not isinstance(message, bytes | bytearray | memoryview):
            raise ValueError(f"a message is bytes, got {type(message).__name__}")
        message = bytes(message)
        frame = read_frame(message, self._grid, self._size)
        origin = self._origin(frame.start, frame.version)
        point = self._grid.decode(origin_of(origin, frame.size), frame.shift, frame.blocks)
        version = version_at(self._grid, frame.version, point)
        verify_frame(message, self._grid, version.check)
        self._held, self._size = version, frame.size
        return version.weights

    def _origin(self, start: int | None, version: int) -> Version | None:
        held = self._held
        if held is not None and version < held.number:
            raise WrongVersion(f"the broadcast leads back to version {version}, this receiver holds {held.number}")
        if start is None:
            return None
        if held is not None and start < version == held.number:
            raise WrongVersion(f"the broadcast leads to version {version}, which this receiver holds already")
        for known in (held, self._start):
            if known is not None and known.number == start:
                return known
        holds = "nothing" if held is None else f"version {held.number}"
        raise WrongVersion(f"the broadcast leads from version {start} to {version}, this receiver holds {holds}")

    def forget(self) -> None:
        """Reset the receiver: it takes a snapshot of any version (of a server set back, say)."""
        self._held = self._start

    def state_dict(self) -> dict[str, Any]:
        """Return what is held, for a checkpoint.

        Returns:
            Numbers, bytes and an array.
        """
        return save_version(self._held)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state.

        Args:
            state: What `state_dict` gave.

        Raises:
            CheckFailed: The state is of another run or start.
        """
        self._held = restore_version(self._grid, state, self._start)
        if self._held is not None:
            self._size = len(self._held.weights)


STEP_FACTOR = 64.0
"""The default step, in learning rates times the noise of the average (docs/downlink.md)."""


class Broadcast:
    """The server's side of the quantized model broadcast: new weights to one public message for all clients.

    `publish` rounds the server's exact weights to the nearest point of the run's grid, and returns the difference from
    the version before. Clients compute at `weights`, so the server evaluates and saves these; the exact ones stay with
    its optimizer. `message_from` serves clients that missed messages.

    Args:
        run: The public name of the run, which fixes its grid.
        start: Weights that every receiver has from elsewhere, such as a public seed. They are version 0. Without them
            the first message codes all weights.
        history: The number of messages kept for receivers that missed them; older receivers get a snapshot.
        backend: `"auto"`, `"numba"` or `"numpy"`. Changes speed only.
        threads: Threads of one call. Changes speed only.

    Raises:
        ValueError: An argument is out of range.

    Guarantee: Every receiver that accepts a message holds the bits of `weights`, whatever it missed
    (tests/downlink/test_catching_up.py). `weights` is within half a step of what was published
    (tests/downlink/test_stability.py). The message costs no epsilon: it is a function of weights that are published.
    """

    def __init__(
        self,
        run: bytes | str,
        start: npt.ArrayLike | None = None,
        history: int = 64,
        backend: BackendName = "auto",
        threads: int | None = None,
    ) -> None:
        if isinstance(history, bool) or not isinstance(history, int) or history < 1:
            raise ValueError(f"history must be a whole number of at least 1, got {history!r}")
        self._grid = Grid(check_run(run), backend, threads)
        self._start = None if start is None else version_of_start(self._grid, check_weights("start", start))
        self._now: Version | None = self._start
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=history)
        self._made: dict[int | None, bytes] = {}
        self._points: dict[int, Point] = {}

    @staticmethod
    def step_for(
        rate: float, noise: float, factor: float = STEP_FACTOR, exponent: float = 1.0, first_rate: float | None = None
    ) -> float:
        """Give the step of a round: factor · first_rate · (rate / first_rate)^exponent · noise.

        Args:
            rate: Learning rate of this round.
            noise: Standard deviation per coordinate of the noise in the average that the rate multiplies.
            factor: The step in learning rates times noise. A larger one takes fewer bits and rounds more.
            exponent: Power of the learning-rate schedule that the step follows, in [0, 1]. With 1 the step halves when
                the rate has halved; with 0 it stays what it was in the first round.
            first_rate: Learning rate of the first round. Default: `rate`.

        Returns:
            The step for `publish`.

        Raises:
            ValueError: A rate, the noise or the factor is not a positive number, or the exponent is outside [0, 1].
        """
        first = rate if first_rate is None else first_rate
        for name, value in (("rate", rate), ("noise", noise), ("factor", factor), ("first_rate", first)):
            if not 0.0 < value < math.inf:
                raise ValueError(f"{name} must be a positive number, got {value!r}")
        if not 0.0 <= exponent <= 1.0:
            raise ValueError(f"exponent must lie in [0, 1], got {exponent!r}")
        return factor * rate * noise * math.pow(first / rate, 1.0 - exponent)

    @property
    def version(self) -> int:
        """The number of the current version, which counts the calls of `publish`."""
        return 0 if self._now is None else self._now.number

    @property
    def check(self) -> bytes:
        """16 bytes that identify the version and its weights: a receiver with the same `check` holds the same bits."""
        return b"" if self._now is None else self._now.check[:CHECK_BYTES]

    @property
    def weights(self) -> Floats:
        """The public weights of this version, as every receiver holds them."""
        if self._now is None:
            raise ValueError("nothing was published yet, and no start was given")
        return self._now.weights

    def nearest(self, weights: npt.ArrayLike, step: float) -> Floats:
        """Return the point of this step's grid nearest to some weights: what `publish` would make public.

        Args:
            weights: The exact weights, float32 or float64, finite.
            step: The step of the grid, rounded down to a power of two.

        Returns:
            The public weights.

        Raises:
            ValueError: As `publish`.
        """
        before = None if self._now is None else len(self._now.weights)
        return self._grid.weights(self._grid.nearest(check_weights("weights", weights, before), shift_of(step)))

    def publish(self, weights: npt.ArrayLike, step: float) -> bytes:
        """Publish new weights as the next version.

        Args:
            weights: The exact weights, float32 or float64, finite.
            step: The step of the grid, rounded down to a power of two (`step_for`). A step that grows again is allowed
                and ends the history: later receivers get a snapshot.

        Returns:
            The message from the version before to this one.

        Raises:
            ValueError: The weights have another length, are not finite or too large, or the step is out of range.
        """
        before = self._now
        values = check_weights("weights", weights, None if before is None else len(before.weights))
        now = version_at(self._grid, self.version + 1, self._grid.nearest(values, shift_of(step)))
        message = self._write(before, now)
        if before is not None and before is not self._start:
            if now.shift > before.shift:
                self._kept.clear()
            else:
                self._kept.append((before.shift, message))
        self._now, self._made = now, {None if before is None else before.number: message}
        self._points = {}
        return message

    def message_from(self, version: int | None) -> bytes:
        """Return the shortest message that brings a receiver to the current version.

        Args:
            version: The version that the receiver holds; None for a receiver that holds nothing.

        Returns:
            The difference between the two versions, or a snapshot where that is shorter or the server does not know
            the old version. It is made once for all who ask.

        Raises:
            ValueError: Nothing was published yet, or `version` is not a version.
        """
        if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 0):
            raise ValueError(f"version must be None or a whole number from 0 on, got {version!r}")
        if self._now is None or self._now is self._start:
            raise ValueError("nothing was published yet")
        if version in self._made:
            return self._made[version]
        snapshot = None if version is None or self._start is None else 0
        if version is None or not self.version - len(self._kept) <= version <= self.version:
            return self._message(snapshot)
        difference = self._message(version)
        return difference if version == self.version else min(difference, self._message(snapshot), key=len)

    def _message(self, start: int | None) -> bytes:
        if start not in self._made:
            assert self._now is not None
            known = self._start if start == 0 and self._start is not None else None
            if start is not None and known is None:
                known = self._version_back(start)
            self._made[start] = self._write(known, self._now)
        return self._made[start]

    def _write(self, before: Version | None, now: Version) -> bytes:
        assert isinstance(now.origin, Point)
        size = len(now.weights)
        blocks = self._grid.encode(origin_of(before, size), now.origin)
        frame = BroadcastFrame(None if before is None else before.number, now.number, now.shift, size, blocks)
        return write_frame(frame, self._grid, now.check)

    def _version_back(self, number: int) -> Version:
        """An earlier version: the current point, with the messages since then taken back, each once for all gaps."""
        assert self._now is not None
        assert isinstance(self._now.origin, Point)
        self._points[self.version] = self._now.origin
        nearest = min(known for known in self._points if known >= number)
        for at in range(nearest, number, -1):
            shift, message = self._kept[at - self.version - 1]
            blocks = read_frame(message, self._grid, None).blocks
            self._points[at - 1] = self._grid.before(self._points[at], blocks, shift)
        return version_at(self._grid, number, self._points[number])

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, without run and start.

        Returns:
            Numbers, bytes and arrays.
        """
        before = None if self.version <= 1 and self._start is None else self.version - 1
        return {
            **save_version(self._now),
            "kept_shifts": [shift for shift, _ in self._kept],
            "kept_messages": [message for _, message in self._kept],
            "latest": self._made.get(before, b""),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state, to the same bytes.

        Args:
            state: What `state_dict` gave.

        Raises:
            CheckFailed: The state is of another run or start.
        """
        now = restore_version(self._grid, state, self._start)
        self._now = now
        before = None if self.version <= 1 and self._start is None else self.version - 1
        self._made = {before: bytes(state["latest"])} if state["latest"] else {}
        self._points = {}
        self._kept.clear()
        self._kept.extend((int(a), bytes(b)) for a, b in zip(state["kept_shifts"], state["kept_messages"]))

"""The server's half of the downlink: new weights to one public message for all clients."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy.typing as npt

from cepam.downlink.grid import Floats, Grid, Point, check_run, check_weights, shift_of
from cepam.downlink.versions import (
    CHECK_BYTES,
    Version,
    origin_of,
    restore_version,
    save_version,
    version_at,
    version_of_start,
)
from cepam.downlink.wire import BroadcastFrame, read_frame, write_frame
from cepam.kernels.threads import BackendName

STEPS_OF_NOISE = 64.0
"""The step of the rule, in learning rates times the noise of the average (docs/downlink.md has the measurements)."""


class Broadcast:
    """Public weights for everybody, as small messages: the server keeps versions, not clients.

    `publish` takes the server's exact weights to the nearest point of the run's grid and gives the message that leads
    there from the version before. Clients compute at `weights`, so the server answers for these and saves these; the
    exact ones stay with its optimizer. `message_from` serves whoever missed something.

    `start` holds the weights that every receiver makes by itself (from a public seed, say); they are version 0 and cost
    nothing. Without it the first message codes all weights on the grid. The last `history` messages are kept, to be put
    together for receivers that missed them; older ones get a snapshot.

    Guarantee: every receiver that accepts a message holds the bits of `weights`, whatever it missed
    (tests/downlink/test_catching_up.py), and `weights` is within half a step of what was published, always
    (tests/downlink/test_stability.py).
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
    def step_for(rate: float, noise: float) -> float:
        """The step of the rule: 64 learning rates times the noise, a standard deviation a coordinate of the average."""
        if not (rate > 0.0 and noise > 0.0):
            raise ValueError(f"rate and noise must be positive, got {rate!r} and {noise!r}")
        return STEPS_OF_NOISE * rate * noise

    @property
    def version(self) -> int:
        """How often `publish` was called: the version that receivers should hold."""
        return 0 if self._now is None else self._now.number

    @property
    def check(self) -> bytes:
        """16 bytes that name the version and its weights: a receiver of the same `check` holds the same bits."""
        return b"" if self._now is None else self._now.check[:CHECK_BYTES]

    @property
    def weights(self) -> Floats:
        """The public weights of this version, as every receiver holds them."""
        if self._now is None:
            raise ValueError("nothing was published yet, and no start was given")
        return self._now.weights

    def publish(self, weights: npt.ArrayLike, step: float) -> bytes:
        """The message from the version before to the next, whose weights are the grid's nearest to these.

        The largest power of two that is not above `step` is the grid's step. A step that follows the learning rate
        (`step_for`) makes grids nest; one that grows again is allowed, and cuts the history.
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
        """The shortest message that brings a receiver of this version (None: of nothing) to the current one.

        That is the difference between the two if the server still knows the old version, or a snapshot. A version that
        it does not know (too old, or of a future that was lost) gets a snapshot. Made once for all who ask.
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
        bulletin = BroadcastFrame(None if before is None else before.number, now.number, now.shift, size, blocks)
        return write_frame(bulletin, self._grid, now.check)

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
        """All that a checkpoint must hold, as numbers, bytes and arrays; the caller gives run and start again."""
        before = None if self.version <= 1 and self._start is None else self.version - 1
        return {
            **save_version(self._now),
            "kept_shifts": [shift for shift, _ in self._kept],
            "kept_messages": [message for _, message in self._kept],
            "latest": self._made.get(before, b""),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing; goes on from what was saved, to the same bytes. Raises `CheckFailed` for another run or start."""
        now = restore_version(self._grid, state, self._start)
        self._now = now
        before = None if self.version <= 1 and self._start is None else self.version - 1
        self._made = {before: bytes(state["latest"])} if state["latest"] else {}
        self._points = {}
        self._kept.clear()
        self._kept.extend((int(a), bytes(b)) for a, b in zip(state["kept_shifts"], state["kept_messages"]))

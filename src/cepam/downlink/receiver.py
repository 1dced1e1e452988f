"""The client's half of the downlink: messages to public weights, or a clear error and nothing changed."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from cepam.downlink.grid import Floats, Grid, check_run, check_weights
from cepam.downlink.versions import (
    CHECK_BYTES,
    Version,
    origin_of,
    restore_version,
    save_version,
    version_at,
    version_of_start,
)
from cepam.downlink.wire import read_frame, verify_frame
from cepam.errors import WrongVersion
from cepam.kernels.threads import BackendName


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
        """Return what is held, as numbers, bytes and an array."""
        return save_version(self._held)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state. Raises `CheckFailed` for a state of another run or start."""
        self._held = restore_version(self._grid, state, self._start)
        if self._held is not None:
            self._size = len(self._held.weights)

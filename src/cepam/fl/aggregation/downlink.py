"""The downlink of a simulation: which weights clients compute at, and the bytes that bring them there.

`float32`: every sampled client is sent the server's weights, 32 bits per coordinate. `quantized`: public weights on one
grid for the run (`cepam.Broadcast`); an sampled client is sent what leads there from the version that it holds.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.downlink import Broadcast, Receiver
from cepam.downlink.grid import NEAREST, SMALLEST_STEP, Hysteresis, shift_of
from cepam.fl.config.settings import Settings

Floats = npt.NDArray[np.float32]
SEED_BYTES = 32
"""What a client needs to make the initial weights by itself: the public seed of the model."""
NEW = -1
"""The version of a client that was never reached."""


class Float32Downlink:
    """Every sampled client is sent all weights, in every round."""

    def __init__(self, start: Floats) -> None:
        self.bits_each = 32 * start.size

    def messages(self, sampled: Sequence[int]) -> dict[int, bytes]:
        """None: the weights go as they are."""
        return {}

    def bits(self, sampled: Sequence[int], sent: dict[int, bytes]) -> int:
        """What these clients were sent."""
        return self.bits_each * len(sampled)

    def reached(self, clients: Collection[int]) -> None:
        """Do nothing: no client's copy is relied on."""

    def check(self, weights: Floats) -> bytes:
        """32 bytes that name the weights which clients hold."""
        return hashlib.sha256(b"cepam float32 weights v1" + weights.astype("<f4").tobytes()).digest()

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state: there is none to keep."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: there is no state."""


class GridDownlink:
    """One row's broadcast, a receiver that follows it, and the version that each client says it holds.

    `step_of` gives the step of a round from its learning rate. `hysteresis` chooses the grid point to publish; without
    it that is the nearest one.

    The server keeps versions. `held` is what clients have and say when they are asked, as long as the clients that were
    ever reached: an sampled client that does not reply is taken to hold what it held, and is sent the
    difference from there when it is asked again. What clients compute at comes out of the receiver.

    Guarantee: whoever applies the messages it was sent holds the bits at which the run computes, whatever it missed
    (tests/fl/aggregation/test_downlink.py). No weight is off by more than half a step, or `farthest(zone)` steps with a
    hysteresis of `zone` (and the rounding of float32).
    """

    def __init__(
        self, run: bytes, start: Floats, step_of: Callable[[float], float], hysteresis: Hysteresis | None = None
    ) -> None:
        self.step_of, self.hysteresis = step_of, hysteresis
        self.broadcast, self.receiver = Broadcast(run, start), Receiver(run, start)
        self.held: dict[int, int] = {}

    def publish(self, weights: npt.NDArray[Any], rate: float, aggregate: npt.NDArray[Any]) -> Floats:
        """The public weights for these, as a receiver that missed nothing reads them from the message.

        `aggregate` is what the server's step was made of.
        """
        step = self.step_of(rate)
        if self.hysteresis is not None:
            whole = SMALLEST_STEP * 2.0 ** shift_of(step)
            held = self.broadcast.nearest(self.broadcast.weights, step)
            weights = self.hysteresis.choose(
                weights, held, aggregate, whole, lambda target: self.broadcast.nearest(target, step)
            ).astype(np.float32)
        return self.receiver.apply(self.broadcast.publish(weights, step))

    def messages(self, sampled: Sequence[int]) -> dict[int, bytes]:
        """For each sampled client what brings it to the current version: nothing where the start is all there is."""
        if self.broadcast.version == 0:
            return {}
        return {k: self.broadcast.message_from(max(self.held.get(k, NEW), 0)) for k in sampled}

    def bits(self, sampled: Sequence[int], sent: dict[int, bytes]) -> int:
        """What these clients were sent: their messages, and the seed of the start for whoever was never reached."""
        new = sum(1 for k in sampled if k not in self.held)
        return 8 * (SEED_BYTES * new + sum(len(sent.get(k, b"")) for k in sampled))

    def check(self, weights: Floats) -> bytes:
        """32 bytes that name the weights which clients hold: from the check value of the version as received."""
        return hashlib.sha256(b"cepam grid weights v1" + self.receiver.check).digest()

    def reached(self, clients: Collection[int]) -> None:
        """Note that these clients replied, so that they hold the current version."""
        self.held.update(dict.fromkeys(clients, self.broadcast.version))

    def state_dict(self) -> dict[str, Any]:
        """Numbers, bytes and arrays from which the run goes on to the same bytes."""
        held = np.array(list(self.held.items()), dtype=np.int64).reshape(-1, 2)
        further = {} if self.hysteresis is None else self.hysteresis.state_dict()
        return {"held": held, **self.broadcast.state_dict(), **further}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state. The receiver held what the broadcast had published."""
        self.held = {int(client): int(version) for client, version in state["held"]}
        self.broadcast.load_state_dict(state)
        self.receiver.load_state_dict(state)
        if self.hysteresis is not None:
            self.hysteresis.load_state_dict(state)


Downlink = Float32Downlink | GridDownlink


def downlink_of(
    settings: Settings, noise: float | None, first_rate: float, start: Floats, nonce: bytes, seed: int,
    tensors: Sequence[tuple[int, int]],
) -> Downlink:  # fmt: skip
    """The downlink of one seed's row; the grid's name is made of the run's nonce and the seed, both public.

    `first_rate` is the learning rate of the first round, from which the step's schedule starts. `tensors` are the
    model's: coordinates and rows of each.
    """
    if settings.compression.downlink == "float32":
        return Float32Downlink(start)
    if noise is None:
        raise ValueError(
            "compression.downlink quantized takes its step from the noise, and some clients add none: use float32"
        )
    chosen = settings.compression
    step_of = partial(
        Broadcast.step_for,
        noise=noise,
        factor=chosen.downlink_step_factor,
        exponent=chosen.downlink_step_exponent,
        first_rate=first_rate,
    )
    zone = chosen.downlink_hysteresis
    hysteresis = Hysteresis(zone, tensors) if zone > NEAREST else None
    return GridDownlink(nonce + struct.pack("<Q", seed), start, step_of, hysteresis)

"""How many bytes a client of a plan downloads per round: asked of the broadcast that sends them."""

from __future__ import annotations

import math

import numpy as np

from cepam import privacy
from cepam.downlink import Broadcast

ROUNDS, COORDINATES = 200, 1 << 12
"""What is simulated of longer runs and of larger models."""
RECEIVERS = 32
"""Clients that are followed where each takes part in some rounds only."""
START = 0.05
"""Standard deviation of the initial weights: it hardly matters."""
MOMENTUM, SECOND, FLOOR = 0.9, 0.999, 1e-8
"""Of the server optimizers that a plan's command names."""
STEPS = {"record": (256.0, 0.5), "client": (256.0, 0.25)}
"""`compression.downlink_step_factor` and `compression.downlink_step_exponent` of the presets `private` and `users`."""


def downlink_bytes(made: privacy.Plan) -> tuple[float, str]:
    """What a sampled client downloads per round, averaged over the run, and what the figure is of.

    A run of the plan's command without its data: weights move by the noise of the average alone, through the server
    optimizer and schedule of the command, and are published by `cepam.Broadcast` at the command's steps.

    Args:
        made: The plan.

    Returns:
        Bytes, and a sentence that says what was measured.
    """
    federation = made.federation
    if made.mode == "local-dp-sgd":
        return 4.0 * federation.coordinates, "float32 weights (compression.downlink of the command)"
    size, rounds = min(federation.coordinates, COORDINATES), min(federation.rounds, ROUNDS)
    sent = _sent(made, size, rounds)
    whole = sent if size == federation.coordinates else sent * federation.coordinates / size
    return round(whole, 3), (
        "the quantized model broadcast of the command, averaged over rounds whose updates are noise alone, without "
        "hysteresis; a model that moves further takes more. Flower sends float32 by default"
    )


def _noise_of_average(mechanism: privacy.Mechanism) -> float:
    """The standard deviation per coordinate of the noise in what the server's step is made of."""
    if isinstance(mechanism, privacy.CohortMechanism):
        return mechanism.compensation.total / mechanism.cohort.size
    return math.hypot(*(client.noise for client in mechanism.clients)) / sum(c.weight for c in mechanism.clients)


def _sent(made: privacy.Plan, size: int, rounds: int) -> float:
    """Mean bytes per sampled client and round, in a model of so many coordinates."""
    noise = _noise_of_average(made.mechanism)
    factor, exponent = STEPS[made.federation.unit]
    draws = np.random.default_rng(size)
    broadcast = Broadcast(b"cepam plan", draws.normal(size=size) * START)
    weights, mean, square = broadcast.weights.astype(np.float64), np.zeros(size), np.zeros(size)
    held = np.zeros(RECEIVERS if made.sampling_rate < 1.0 else 1, dtype=np.int64)
    total, messages = 0, 0
    for t in range(rounds):
        sampled = np.flatnonzero(draws.random(len(held)) < made.sampling_rate)
        messages += len(sampled)
        total += sum(len(broadcast.message_from(int(held[k]))) for k in sampled) if broadcast.version else 0
        held[sampled] = broadcast.version
        rate, aggregate = min(1.0, 2.0 * (1.0 - t / rounds)), noise * draws.normal(size=size)
        mean = MOMENTUM * mean + aggregate
        square = SECOND * square + (1.0 - SECOND) * aggregate**2
        if made.mode == "per-example":  # Adam, whose steps do not grow with the noise
            top = (1.0 - MOMENTUM) * mean / (1.0 - MOMENTUM ** (t + 1))
            weights -= rate * top / (np.sqrt(square / (1.0 - SECOND ** (t + 1))) + FLOOR)
        else:
            weights -= rate * mean
        broadcast.publish(weights, Broadcast.step_for(rate, noise, factor, exponent, 1.0))
    return total / max(messages, 1)

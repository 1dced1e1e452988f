"""How many bytes a client of a plan uploads per round: asked of the codec that sends them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cepam import privacy
from cepam.distributions.laws import Gaussian

SAMPLED = 1 << 14
"""Coordinates that are coded to measure a larger model by. Longer messages cost a little less per coordinate."""
MEASURED = 3
"""Noise scales that are measured where sites have more; sizes between them are interpolated."""
STEP, LOCAL_RATE = 1e-3, 0.1
"""`compression.sdq_step` and the local learning rate of a run that sets neither."""


def uplink_bytes(made: privacy.Plan) -> tuple[list[float], str]:
    """What each client uploads per round, by the largest update that the clip allows, and what the figures are of.

    Args:
        made: The plan.

    Returns:
        Bytes: one value where all clients send as much, else one per client; for secure aggregation the fewest, once
        released sums tell how large the next will be, and the most, in the first rounds. And a sentence that says what
        was measured.
    """
    federation, mechanism = made.federation, made.mechanism
    if federation.trust == "secure-aggregation":
        return _masked(made)
    scales = np.array([client.law.scale for client in mechanism.clients])
    if made.mode == "local-dp-sgd":
        assert isinstance(mechanism, privacy.LocalMechanism)
        steps = np.array([n / mechanism.sampling_of(0).draws for n in federation.records])
        sizes = _each(LOCAL_RATE * scales * np.sqrt(steps), lambda scale: _dithered(scale, federation.coordinates))
        return sizes, (
            f"the noise of one local epoch at learning rate {LOCAL_RATE:g}, quantized with step {STEP:g} "
            "(scheme fl+sdq); a Flower app of your own sends float32"
        )
    coder = "auto" if mechanism.clients[0].searched else "layered"
    norm = federation.clipping_norm
    sizes = _each(scales, lambda scale: _noised(scale, federation.coordinates, norm, coder))
    return sizes, f"updates at the clipping norm, sealed, by coder {coder}; smaller updates take no more"


def _each(scales: Any, measured: Any) -> list[float]:
    """A size for each scale, measured at a few of them."""
    known = np.unique(scales)
    if len(known) > MEASURED:
        known = np.geomspace(known[0], known[-1], MEASURED)
    sizes = [measured(float(scale)) for scale in known]
    if len(known) == 1:
        return sizes
    return [float(each) for each in np.exp(np.interp(np.log(scales), np.log(known), np.log(sizes)))]


def _noised(scale: float, coordinates: int, norm: float, coder: Any) -> float:
    import cepam

    return _grown(lambda size: cepam.Codec(Gaussian(scale), coder=coder, size=size), coordinates, norm**2 / coordinates)


def _dithered(scale: float, coordinates: int) -> float:
    from cepam.codec.codec import DitheredCodec

    return _grown(lambda size: DitheredCodec(STEP, size=size), coordinates, scale**2)


def _grown(codec: Any, coordinates: int, power: float) -> float:
    """The message of a random vector with so much power per coordinate; of a large one its part, scaled up."""
    import cepam

    at = cepam.Address(cepam.Key(bytes(range(32))), round=1, client=0)  # a key of no run: only lengths are used

    def sent(size: int) -> int:
        draw = np.random.default_rng(size).normal(size=size)
        return len(codec(size).encode(draw * math.sqrt(power * size) / np.linalg.norm(draw), at))

    if coordinates <= SAMPLED:
        return float(sent(coordinates))
    half, whole = sent(SAMPLED // 2), sent(SAMPLED)
    return whole + (coordinates - SAMPLED) * (whole - half) / (SAMPLED / 2)


def _masked(made: privacy.Plan) -> tuple[list[float], str]:
    """The masked vector: from the narrowest range of a sum to that of the first rounds."""
    from cepam.secure_aggregation.settings import fit

    federation, law = made.federation, made.mechanism.clients[0].law
    assert isinstance(law, Gaussian)
    many, rounds = federation.clients, made.mechanism.rounds
    sizes = [
        float(fit(law, many, federation.coordinates, reach, rounds).message_bytes)
        for reach in (0.0, many * federation.clipping_norm)
    ]
    return sizes, (
        "the masked vector in the first rounds, and at the fewest bits once released sums tell how large the next will "
        "be (bytes_up_later); keys and shares come on top"
    )

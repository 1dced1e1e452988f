"""The two ends together: an update is sealed, opens once, and nothing shows that it was not finite."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

import cepam
from cepam.protocol.agreement import Answer, Chain, Declined, Offer, Peer, Sealed, check_offer, seal_update
from cepam.protocol.correlated_noise import CorrelatedNoiseConfig
from cepam.protocol.server import Pending, Refused, ServerEnd
from cepam.protocol.settings import UplinkSettings

SIZE, SIGMA = 400, 0.01
SETTINGS = UplinkSettings(cepam.Gaussian(SIGMA), cepam.L2(1.0))
PEER = Peer(run=5, node=7)


def update(value: float = 0.01) -> np.ndarray:
    return np.full(SIZE, value, np.float32)


def exchanged(end: ServerEnd, kept: Chain | None = None, values=None) -> tuple[Pending, Sealed]:
    pending = end.offer(SETTINGS, PEER, SIZE)
    offer = Offer.from_fields(pending.offer.to_fields())
    return pending, seal_update(update() if values is None else values, offer, kept)


def test_an_update_arrives_with_its_noise_and_the_chain_goes_on() -> None:
    end, kept = ServerEnd(), None
    for turn in range(3):
        pending, sealed = exchanged(end, kept)
        assert bool(sealed.answer.public) == (turn == 0)
        vector = end.open(pending, Answer.from_fields(sealed.answer.to_fields()), sealed.message)
        assert np.linalg.norm(vector - update()) < SIGMA * (np.sqrt(SIZE) + 8)
        kept = sealed.chain


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_looks_like_a_zero_update(value: float) -> None:
    end = ServerEnd()
    spoiled = update()
    spoiled[3] = value
    pending, sealed = exchanged(end, values=spoiled)
    assert sealed.replaced
    vector = end.open(pending, sealed.answer, sealed.message)
    assert np.linalg.norm(vector) < SIGMA * (np.sqrt(SIZE) + 8)
    honest = exchanged(end, values=np.zeros(SIZE, np.float32))[1]
    assert set(sealed.answer.to_fields()) == set(honest.answer.to_fields())
    assert abs(len(sealed.message) - len(honest.message)) < 64  # some 20 standard deviations


def test_an_answer_opens_once_and_only_at_its_own_offer() -> None:
    end = ServerEnd()
    first, sealed = exchanged(end)
    end.open(first, sealed.answer, sealed.message)
    for pending in (first, end.offer(SETTINGS, PEER, SIZE)):
        with pytest.raises(Refused):
            end.open(pending, sealed.answer, sealed.message)
    other = end.offer(SETTINGS, replace(PEER, node=8), SIZE)
    with pytest.raises(Refused):
        end.open(other, replace(sealed.answer, position=0), sealed.message)


def test_other_sizes_and_values_beyond_the_clip_are_refused() -> None:
    end = ServerEnd()
    pending, sealed = exchanged(end, values=np.zeros(4, np.float32))
    with pytest.raises(Refused) as refused:
        end.open(pending, sealed.answer, sealed.message)
    assert refused.value.kind == "seal"  # the size does not travel: it is another codec's
    pending = end.offer(SETTINGS, PEER, SIZE)
    greedy = replace(pending.offer, settings=replace(SETTINGS, clip=cepam.L2(1000.0)))
    sealed = seal_update(update(30.0), greedy, None)
    with pytest.raises(Refused) as refused:
        end.open(pending, sealed.answer, sealed.message)
    assert refused.value.kind == "values"


def test_an_offer_that_expired_cannot_be_answered() -> None:
    end = ServerEnd()
    pending, sealed = exchanged(end)
    end.open(pending, sealed.answer, sealed.message)
    late, answer = exchanged(end, sealed.chain)
    end.expire(late)
    with pytest.raises(Refused):
        end.open(late, answer.answer, answer.message)


def test_offers_to_others_or_not_signed_by_the_known_server_are_declined() -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    stored = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    signed = ServerEnd(server_key=stored).offer(SETTINGS, PEER, SIZE).offer
    check_offer(signed, PEER.run, PEER.node, public)
    for offer, run, code in (
        (signed, 6, "elsewhere"),
        (replace(signed, position=9), PEER.run, "unsigned"),
        (ServerEnd().offer(SETTINGS, PEER, SIZE).offer, PEER.run, "unsigned"),
    ):
        with pytest.raises(Declined) as declined:
            check_offer(offer, run, PEER.node, public)
        assert declined.value.code == code


def test_a_clip_beyond_the_reach_of_the_noise_is_refused_at_the_door() -> None:
    with pytest.raises(ValueError, match="quantization range"):
        UplinkSettings(cepam.Gaussian(1e-9), cepam.L2(1.0))


def test_messages_are_padded_to_the_bucket() -> None:
    padded = replace(SETTINGS, padding=512)
    offer = ServerEnd().offer(padded, PEER, SIZE).offer
    lengths = {len(seal_update(update(value), offer, None).message) for value in (0.0, 0.001, 0.04)}
    assert lengths == {512}


def test_an_end_that_keeps_no_stream_declines_to_send_one() -> None:
    """As FLARE's filter: an update that left by itself would carry noise which nothing cancels, out of any order."""
    pending = ServerEnd().offer(replace(SETTINGS, correlated_noise=CorrelatedNoiseConfig(0.8, 3, 6)), PEER, SIZE)
    with pytest.raises(Declined) as refused:
        seal_update(update(), Offer.from_fields(pending.offer.to_fields()), None)
    assert refused.value.code == "policy"

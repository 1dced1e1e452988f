"""Keys: both ends agree, nothing else does, and positions are used once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from cepam import Key, KeyChain
from cepam.protocol.agreement import AgreementRefused, Chain, Peer, agree, new_pair, sign, verify

PEER = Peer(run=5, node=2**63 + 1, identity=b"node key")


def test_both_ends_derive_the_same_key_and_no_other_place_does() -> None:
    (a, a_public), (b, b_public) = new_pair(), new_pair()
    transcript = PEER.transcript(a_public, b_public)
    root = agree(a, b_public, transcript)
    assert root == agree(b, a_public, transcript)
    for other in (replace(PEER, run=6), replace(PEER, node=1), replace(PEER, identity=b"another")):
        assert agree(a, b_public, other.transcript(a_public, b_public)) != root
    assert agree(new_pair()[0], b_public, transcript) != root


@pytest.mark.parametrize("peer", [b"", b"short", bytes(32), bytes([1]) + bytes(31)])
def test_bad_public_keys_are_refused(peer: bytes) -> None:
    with pytest.raises(AgreementRefused):
        agree(new_pair()[0], peer, b"")


def test_a_position_is_used_once_and_old_keys_are_gone() -> None:
    root = Key.generate()
    chain = Chain.start(root, position=3)
    first = chain.take(3, 1, b"run", 0)
    assert first.key == root
    assert chain.position == 4
    with pytest.raises(AgreementRefused, match="used before"):
        chain.take(3, 1, b"run", 0)
    other = Chain.start(root, position=3)
    assert other.take(9, 1, b"run", 0).derive() == chain.take(9, 1, b"run", 0).derive()
    with pytest.raises(AgreementRefused, match="too far"):
        chain.take(10**7, 1, b"run", 0)
    restored = Chain(chain.name, KeyChain(Key(chain.secret), chain.position))
    assert restored.take(10, 1, b"run", 7).derive() == chain.take(10, 1, b"run", 7).derive()
    assert root.secret not in chain.name


def test_rounds_runs_and_attempts_have_keys_of_their_own() -> None:
    root = Key.generate()
    made = {
        Chain.start(root, 0).take(position, 1, Peer(run, 1).run_bytes(server_round), attempt).derive().noise
        for position in (0, 1)
        for run in (1, 2)
        for server_round in (1, 2)
        for attempt in (0, 1)
    }
    assert len(made) == 16


@pytest.mark.parametrize("form", [serialization.PrivateFormat.OpenSSH, serialization.PrivateFormat.PKCS8])
def test_signatures_verify_under_the_registered_key_alone(form: serialization.PrivateFormat) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    stored = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    pem = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    mine = key.public_key().public_bytes(*pem)
    other = ec.generate_private_key(ec.SECP384R1()).public_key().public_bytes(*pem)
    edwards = ed25519.Ed25519PrivateKey.generate()
    signature = sign(stored, b"transcript")
    assert verify(mine, b"transcript", signature)
    assert not verify(mine, b"another", signature)
    assert not verify(mine, b"transcript", b"")
    for wrong in (other, b"", b"not a key", edwards.public_key().public_bytes(*pem)):
        assert not verify(wrong, b"transcript", signature)
    with pytest.raises(ValueError, match="elliptic"):
        sign(
            edwards.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
            ),
            b"transcript",
        )

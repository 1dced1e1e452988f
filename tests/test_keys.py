"""Keys and addresses: derivation, separation, forward movement, and the record of what was used."""

from __future__ import annotations

import copy
import itertools
import pickle
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

import cepam
from cepam.errors import WrongAddress
from cepam.kernels.format.plan import layered_plan
from cepam.kernels.numpy import quantizer as reference
from cepam.keys import hkdf
from tests.corpus import AT, LATTICES, LAWS, SECRET, make_codec, sparse_update

# RFC 5869, appendix A.1 to A.3: key material, salt, info, output.
RFC_5869 = [
    (
        "0b" * 22,
        "000102030405060708090a0b0c",
        "f0f1f2f3f4f5f6f7f8f9",
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
    ),
    (
        bytes(range(0x50)).hex(),
        bytes(range(0x60, 0xB0)).hex(),
        bytes(range(0xB0, 0x100)).hex(),
        "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c65e590e09"
        "da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87",
    ),
    ("0b" * 22, "", "", "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"),
]


@pytest.mark.parametrize(("key", "salt", "info", "expected"), RFC_5869)
def test_hkdf_of_rfc_5869(key: str, salt: str, info: str, expected: str) -> None:
    found = hkdf(bytes.fromhex(key), bytes.fromhex(salt), bytes.fromhex(info), len(expected) // 2)
    assert found.hex() == expected


@pytest.mark.parametrize("length", [1, 31, 32, 33, 64, 200])
def test_hkdf_agrees_with_cryptography(length: int) -> None:
    other = HKDF(hashes.SHA256(), length, salt=b"salt", info=b"info").derive(SECRET)
    assert hkdf(SECRET, b"salt", b"info", length) == other


def neighbours() -> list[cepam.Address]:
    """Addresses that differ in one part each, and in ways that a careless encoding would confuse."""
    keys = (SECRET, bytes(32), SECRET[::-1])
    parts = itertools.product((0, 1, 256, 2**64 - 1), (0, 1, 256, 2**64 - 1), (b"", b"a", b"a\0"), (0, 1, 2**32 - 1))
    same_key = [cepam.Address(keys[0], round=r, client=c, run=run, attempt=a) for r, c, run, a in parts]
    return same_key + [cepam.Address(key, round=0, client=0) for key in keys[1:]]


def test_distinct_addresses_have_distinct_keys() -> None:
    derived = [at.derive() for at in neighbours()]
    every = {d.noise for d in derived} | {d.seal for d in derived}
    assert len(every) == 2 * len(derived)


@pytest.mark.parametrize("lattice", LATTICES)
def test_sub_vectors_and_trials_never_share_a_word(lattice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Structural: inside one address, every (sub-vector, trial) reads words that nothing else reads."""
    seen: list[tuple[int, int]] = []
    real = reference.stream_words

    def remember(key: bytes, stream: int, index: np.ndarray) -> np.ndarray:
        seen.extend((stream, int(i)) for i in index.ravel())
        return real(key, stream, index)

    monkeypatch.setattr(reference, "stream_words", remember)
    plan = layered_plan(LAWS["gaussian"], LATTICES[lattice])
    ids = np.array([0, 1, 2, 126, 127, 128, 10**6, 2**33], dtype=np.int64)
    _, b = reference.layers(plan, SECRET, ids)
    trials = (0, 1, 15, 16, 65535)
    for trial in trials:
        reference.dither(plan, SECRET, trial, ids, b)
    assert len(seen) == len(ids) * (1 + plan.words * len(trials))
    assert len(set(seen)) == len(seen)


def test_a_pickled_address_holds_no_keys_that_were_derived() -> None:
    """Its root alone, and it derives the same again; the control is the object, which keeps them."""
    keys = AT.derive()
    saved = pickle.dumps(AT)
    assert keys.noise not in saved
    assert keys.seal not in saved
    assert keys.noise in pickle.dumps(vars(AT))
    assert pickle.loads(saved) == copy.deepcopy(AT) == AT
    assert pickle.loads(saved).derive() == keys


def test_address_takes_text_and_numpy_integers() -> None:
    at = cepam.Address(bytearray(SECRET), round=np.int64(7), client=np.uint8(3), run="tests", attempt=1)  # type: ignore[arg-type]
    assert at == AT
    assert at.derive() == AT.derive()


@pytest.mark.parametrize(
    "parts",
    [
        {"round": -1},
        {"round": 2**64},
        {"round": 1.0},
        {"round": True},
        {"round": "1"},
        {"round": None},
        {"client": -1},
        {"client": 2**64},
        {"attempt": 2**32},
        {"attempt": -1},
        {"run": 5},
        {"run": None},
        {"key": b""},
        {"key": bytes(31)},
        {"key": bytes(33)},
        {"key": "k" * 32},
        {"key": None},
        {"key": 5},
    ],
)
def test_address_refuses_at_the_door(parts: dict[str, object]) -> None:
    good: dict[str, object] = {"key": SECRET, "round": 1, "client": 2}
    with pytest.raises(ValueError, match="must be"):
        cepam.Address(**{**good, **parts})  # type: ignore[arg-type]


def test_secrets_stay_out_of_print() -> None:
    at = cepam.Address(b"\xabSECRETsecretSECRETsecretSECRET!!"[:32], round=1, client=2)
    text = repr(at) + repr(at.key) + repr(at.derive()) + str(at.key)
    assert "SECRET" not in text
    assert at.key.secret.hex()[:8] not in text


def test_generated_keys_differ() -> None:
    assert cepam.Key.generate() != cepam.Key.generate()
    assert len(cepam.Key.generate().secret) == 32


def test_key_counts_bytes_not_items() -> None:
    with pytest.raises(ValueError, match="32"):
        cepam.Key(memoryview(np.zeros(32, dtype=np.int32)))  # type: ignore[arg-type]


def test_simulated_keys_are_apart_by_seed_and_client() -> None:
    first = cepam.Key.simulated(5, client=1)
    assert cepam.Key.simulated(5, client=1) == first
    assert cepam.Key.simulated(5, client=2) != first
    assert cepam.Key.simulated(6, client=1) != first


def test_key_chain_moves_both_ends_alike() -> None:
    client, server = cepam.KeyChain(SECRET), cepam.KeyChain(cepam.Key(SECRET))
    codec, x = make_codec(), sparse_update(100)
    secrets = set()
    for round in range(3):
        assert client.round == server.round == round
        message = codec.encode(x, client.address(client=4))
        assert len(codec.decode(message, server.address(client=4))) == 100
        secrets.add(client.address(4).key.secret)
        client.advance()
        server.advance()
        with pytest.raises(WrongAddress):
            codec.decode(message, server.address(client=4))
    assert len(secrets) == 3


def test_key_chain_is_a_one_way_step() -> None:
    chain = cepam.KeyChain(SECRET, round=5)
    chain.advance()
    expected = hkdf(SECRET, b"", b"cepam ratchet v1", 32)
    assert chain.address(1) == cepam.Address(expected, round=6, client=1)
    assert SECRET not in vars(chain).values()


def test_erased_key_chain_gives_no_address() -> None:
    chain = cepam.KeyChain(SECRET)
    chain.erase()
    with pytest.raises(WrongAddress, match="erased"):
        chain.address(1)


def test_erased_key_chain_stays_erased() -> None:
    chain = cepam.KeyChain(SECRET)
    chain.erase()
    with pytest.raises(WrongAddress, match="erased"):
        chain.advance()
    with pytest.raises(WrongAddress, match="erased"):
        chain.address(1)


def test_used_addresses_refuse_a_second_use() -> None:
    used = cepam.UsedAddresses()
    assert AT not in used
    used.claim(AT)
    assert AT in used
    with pytest.raises(WrongAddress, match="used before"):
        used.claim(AT)
    used.claim(cepam.Address(AT.key, AT.round, AT.client, AT.run, attempt=AT.attempt + 1))
    assert len(used) == 2


def test_used_addresses_survive_a_restart() -> None:
    used = cepam.UsedAddresses()
    for at in neighbours()[:20]:
        used.claim(at)
    again = cepam.UsedAddresses(bytes(used))
    assert len(again) == 20
    assert bytes(again) == bytes(used)
    assert all(at in again for at in neighbours()[:20])
    assert neighbours()[20] not in again
    with pytest.raises(ValueError, match="16 bytes"):
        cepam.UsedAddresses(bytes(17))


def test_saved_addresses_do_not_hold_keys() -> None:
    used = cepam.UsedAddresses()
    used.claim(AT)
    keys = AT.derive()
    assert keys.noise[:16] not in bytes(used)
    assert keys.seal[:16] not in bytes(used)


def test_codec_claims_what_it_uses() -> None:
    codec, x, sent, received = make_codec(), sparse_update(10), cepam.UsedAddresses(), cepam.UsedAddresses()
    message = codec.encode(x, AT, used=sent)
    with pytest.raises(WrongAddress):
        codec.encode(x, AT, used=sent)
    codec.decode(message, AT, used=received)
    with pytest.raises(WrongAddress):
        codec.decode(message, AT, used=received)


def test_refused_input_does_not_spend_an_address() -> None:
    codec, used = make_codec(), cepam.UsedAddresses()
    with pytest.raises(ValueError, match="NaN"):
        codec.encode(np.array([np.nan]), AT, used=used)
    with pytest.raises(cepam.errors.MalformedMessage):
        codec.decode(b"", AT, used=used)
    assert len(used) == 0


def test_a_saved_chain_goes_on_where_it_stood(tmp_path: Path) -> None:
    chain = cepam.KeyChain(SECRET, round=5)
    chain.advance()
    chain.save(tmp_path / "chain")
    assert stat.S_IMODE((tmp_path / "chain").stat().st_mode) == 0o600
    again = cepam.KeyChain.load(tmp_path / "chain")
    assert again.round == 6
    assert again.address(1) == chain.address(1)
    again.advance()
    again.save(tmp_path / "chain")
    assert cepam.KeyChain.load(tmp_path / "chain").round == 7
    assert [each.name for each in tmp_path.iterdir()] == ["chain"]
    chain.erase()
    with pytest.raises(WrongAddress, match="erased"):
        chain.save(tmp_path / "chain")


def test_a_damaged_chain_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "chain"
    cepam.KeyChain(SECRET, round=5).save(path)
    whole = path.read_bytes()
    for at in range(len(whole) - 1):
        path.write_bytes(whole[:at])
        with pytest.raises(ValueError, match="not a saved key chain"):
            cepam.KeyChain.load(path)
    path.write_bytes(whole.replace(b"round 5", b"round 4"))
    with pytest.raises(ValueError, match="damaged"):
        cepam.KeyChain.load(path)


def test_kept_addresses_outlive_an_error(tmp_path: Path) -> None:
    path = tmp_path / "used"
    with pytest.raises(WrongAddress), cepam.UsedAddresses.kept(path) as used:
        [used.claim(AT) for _ in range(2)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_bytes()) == 16
    with cepam.UsedAddresses.kept(path) as used:
        with pytest.raises(WrongAddress, match="used before"):
            used.claim(AT)
        used.claim(neighbours()[0])
    with cepam.UsedAddresses.kept(path) as used:
        assert len(used) == 2
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="cut: 31 bytes"), cepam.UsedAddresses.kept(path):
        pass


def test_two_holders_of_one_list_never_claim_one_address_both(tmp_path: Path) -> None:
    def claim(_: int) -> bool:
        with cepam.UsedAddresses.kept(tmp_path / "used") as used:
            if AT in used:
                return False
            time.sleep(0.002)  # without the lock the others would look before this one claims
            used.claim(AT)
            return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(claim, range(16))) == 1

"""Shamir's sharing against an interpolation that shares no code with it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cepam.secure_aggregation.channel import PRIME, SHARE_BYTES, combine, split


def drawer(seed: int) -> Callable[[int], bytes]:
    source = random.Random(seed)
    return lambda count: source.randbytes(count) if count else b""


def value_at(points: list[tuple[int, int]], x: int) -> int:
    """The value at x of the polynomial through the points: Newton's divided differences, modulo the prime."""
    xs, table = [a for a, _ in points], [b for _, b in points]
    for order in range(1, len(points)):
        for i in range(len(points) - 1, order - 1, -1):
            table[i] = (table[i] - table[i - 1]) * pow(xs[i] - xs[i - order], -1, PRIME) % PRIME
    value = 0
    for a, b in zip(reversed(xs), reversed(table)):
        value = (value * (x - a) + b) % PRIME
    return value


def test_the_modulus_is_prime() -> None:
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    source = random.Random(1)
    for _ in range(64):
        x = pow(source.randrange(2, PRIME - 1), odd, PRIME)
        chain = [x := x * x % PRIME if step else x for step in range(twos)]
        assert chain[0] == 1 or PRIME - 1 in chain


@settings(max_examples=80, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 12), st.integers(0, 8), st.integers(0, 2**32), st.data())
def test_any_threshold_of_shares_gives_the_secret(
    secret: bytes, threshold: int, more: int, seed: int, data: st.DataObject
) -> None:
    shares = split(secret, threshold, threshold + more, drawer(seed))
    places = data.draw(st.permutations(range(threshold + more)))[:threshold]
    assert combine(places, [shares[i] for i in places]) == secret
    points = [(i + 1, int.from_bytes(shares[i], "little")) for i in places]
    assert value_at(points, 0) == int.from_bytes(secret, "little")
    for i, share in enumerate(shares):
        assert value_at(points, i + 1) == int.from_bytes(share, "little")
        assert len(share) == SHARE_BYTES


def test_fewer_shares_fit_every_secret() -> None:
    shares = split(b"\x07" * 32, 3, 5, drawer(2))
    for places in itertools.combinations(range(5), 2):
        for other in (bytes(32), b"\xff" * 32, b"\x07" * 32):
            points = [(i + 1, int.from_bytes(shares[i], "little")) for i in places]
            points.append((0, int.from_bytes(other, "little")))
            third = next(i for i in range(5) if i not in places)
            made = value_at(points, third + 1).to_bytes(SHARE_BYTES, "little")
            assert combine([*places, third], [shares[places[0]], shares[places[1]], made]) == other


def test_a_wrong_share_gives_another_secret_or_none() -> None:
    shares = split(b"\x01" * 32, 3, 4, drawer(3))
    wrong = (int.from_bytes(shares[0], "little") ^ 1).to_bytes(SHARE_BYTES, "little")
    assert combine([0, 1, 2], [wrong, shares[1], shares[2]]) != b"\x01" * 32


def test_doors() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        split(bytes(31), 2, 3, drawer(0))
    with pytest.raises(ValueError, match="threshold"):
        split(bytes(32), 4, 3, drawer(0))
    shares = split(bytes(32), 2, 3, drawer(0))
    for places, given_shares in (([0], shares), ([0, 0], shares[:2]), ([], []), ([0, 1], [shares[0], b"\xff" * 33])):
        with pytest.raises(ValueError, match=r"place|share"):
            combine(places, given_shares)

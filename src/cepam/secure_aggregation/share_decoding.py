"""Decoding of Shamir shares of which some are wrong: Reed-Solomon codes over the field of the shares.

The shares of a secret are values of a polynomial of degree below the threshold. Of n shares, up to (n - threshold) / 2
may be wrong: the polynomial that all others lie on is the only one. Paper: Gao 2003 (extended Euclidean algorithm).
"""

from __future__ import annotations

from collections.abc import Sequence

from cepam.secure_aggregation.channel import PRIME, SECRET_BYTES, share_value

Polynomial = list[int]
"""Coefficients by rising power, the last one not zero; an empty list is zero."""


def decode(places: Sequence[int], shares: Sequence[bytes], threshold: int) -> tuple[bytes, frozenset[int]]:
    """Find the secret of shares of which at most (shares - threshold) / 2 are wrong.

    Args:
        places: the place of each share, as `pairwise_keys.split` numbers them.
        shares: the shares, each below the prime.
        threshold: how many right ones fix the secret.

    Returns:
        The secret, and the places whose shares are wrong.

    Raises:
        ValueError: where no polynomial agrees with so many of the shares.
    """
    if len(places) != len(shares) or len(set(places)) != len(places) or not 1 <= threshold <= len(places):
        raise ValueError(f"{threshold} or more shares of different places are needed, got {len(shares)}")
    points, values = [place + 1 for place in places], [share_value(share) for share in shares]
    found = _through_most(points, values, threshold)
    wrong = frozenset(
        place for place, x, value in zip(places, points, values) if _value(found, x) != value
    )  # fewer than the bound by construction, unless there is no such polynomial
    secret = found[0] if found else 0
    if 2 * len(wrong) > len(places) - threshold or secret >= 2 ** (8 * SECRET_BYTES):
        raise ValueError("more of these shares are wrong than can be corrected")
    return secret.to_bytes(SECRET_BYTES, "little"), wrong


def _through_most(points: list[int], values: list[int], threshold: int) -> Polynomial:
    """The polynomial below this degree that Gao's decoder finds; ValueError where there is none."""
    above, below = _product(points), _interpolated(points, values)
    # Remainders of Euclid's algorithm, each with its multiple of the interpolant.
    older, newer = above, below
    factor_older: Polynomial = []
    factor_newer: Polynomial = [1]
    while 2 * (len(newer) - 1) >= len(points) + threshold:
        quotient, rest = _divided(older, newer)
        older, newer = newer, rest
        factor_older, factor_newer = factor_newer, _minus_product(factor_older, quotient, factor_newer)
    found, rest = _divided(newer, factor_newer)
    if rest or len(found) > threshold:
        raise ValueError("more of these shares are wrong than can be corrected")
    return found


def _value(polynomial: Polynomial, x: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * x + coefficient) % PRIME
    return value


def _product(points: list[int]) -> Polynomial:
    """The polynomial that is zero exactly at these points, its leading coefficient one."""
    made = [1]
    for x in points:
        made = [(low - x * high) % PRIME for low, high in zip([0, *made], [*made, 0])]
    return made


def _interpolated(points: list[int], values: list[int]) -> Polynomial:
    """The polynomial through all of these (Newton's divided differences)."""
    size, differences = len(points), list(values)
    for step in range(1, size):
        for i in range(size - 1, step - 1, -1):
            slope = (differences[i] - differences[i - 1]) * _inverse(points[i] - points[i - step])
            differences[i] = slope % PRIME
    made: Polynomial = []
    for x, difference in zip(reversed(points), reversed(differences)):
        made = [(low - x * high) % PRIME for low, high in zip([0, *made], [*made, 0])]
        made[0] = (made[0] + difference) % PRIME
    return _trimmed(made)


_inverses: dict[int, int] = {}


def _inverse(value: int) -> int:
    """1 / value; differences of places are few and come again."""
    if value not in _inverses:
        if len(_inverses) > 1 << 12:
            _inverses.clear()
        _inverses[value] = pow(value, -1, PRIME)
    return _inverses[value]


def _divided(above: Polynomial, below: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Quotient and remainder."""
    if len(above) < len(below):
        return [], above
    rest, lead = list(above), pow(below[-1], -1, PRIME)
    quotient = [0] * (len(above) - len(below) + 1)
    for shift in range(len(quotient) - 1, -1, -1):
        quotient[shift] = factor = rest[shift + len(below) - 1] * lead % PRIME
        for i, coefficient in enumerate(below):
            rest[shift + i] = (rest[shift + i] - factor * coefficient) % PRIME
    return _trimmed(quotient), _trimmed(rest[: len(below) - 1])


def _minus_product(first: Polynomial, second: Polynomial, third: Polynomial) -> Polynomial:
    """first - second * third."""
    made = first + [0] * max(0, len(second) + len(third) - 1 - len(first))
    for i, a in enumerate(second):
        for j, b in enumerate(third):
            made[i + j] = (made[i + j] - a * b) % PRIME
    return _trimmed(made)


def _trimmed(polynomial: Polynomial) -> Polynomial:
    while polynomial and not polynomial[-1]:
        polynomial.pop()
    return polynomial

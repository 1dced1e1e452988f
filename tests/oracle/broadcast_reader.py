"""A reader of broadcast messages written from docs/wire.md, section 12, alone, in plain Python and rational numbers.

It shares no code with the package; keystream, arithmetic code and logarithms are those of `wire_reader`.
"""

from __future__ import annotations

import hashlib
import math
import struct
from fractions import Fraction

from tests.oracle.wire_reader import Arithmetic, hkdf, keystream_word, log, read_varint, within


class Differences(Arithmetic):
    """The model of a block of differences."""

    def __init__(self, block: bytes) -> None:
        super().__init__(block)
        self.odds = first_odds()
        self.scale = 0
        for _ in range(7):
            self.scale = 2 * self.scale + self.plain(32768)
        self.whole = ((2 + self.scale % 2) << (self.scale // 2)) >> 1
        self.sized, self.last = self.whole, 0

    def decide(self, context: int, rate: int) -> int:
        p = self.odds[context]
        bit = self.plain(min(max(p, 32), 65504))
        self.odds[context] = p + ((65535 * bit - p) >> rate)
        return bit

    def next(self) -> int:
        code = within((log((self.sized + self.whole) >> 1) + 64) >> 7, 95)
        size = 0
        if self.decide(code, 7):
            positive = self.decide(97 + (self.last > 0) - (self.last < 0), 7)
            skip = max((code >> 1) - 20, 0)
            size = self.size(99 + 24 * within(code - 2 * skip - 24, 15), skip)
            self.last = size if positive else -size
        self.sized += ((size << 16) - self.sized) >> 5
        return self.last if size else 0

    def size(self, base: int, skip: int) -> int:
        length = 0
        while length < 32 - skip and self.decide(base + min(length, 19), 5):
            length += 1
        value = 1
        for place in range(length + skip):
            top = place == 0 and length > 0
            value = 2 * value + (self.decide(base + 19 + min(length, 4), 5) if top else self.plain(32768))
        return max(value - 2**skip, 1) if skip else value


def first_odds() -> list[int]:
    """The table of the page, line by line."""
    odds, thetas, mean = [32768] * (96 + 3 + 16 * 24), [], 2.0**-16
    for code in range(96):
        theta = mean / (math.sqrt(1.0 + mean * mean) + 1.0)
        odds[code] = min(max(math.floor(2.0 * theta / (1.0 + theta) * 65536.0), 1), 65535)
        thetas.append(theta)
        mean = mean * math.sqrt(2.0)
    for row in range(16):
        going = thetas[24 + row]
        for length in range(20):
            odds[99 + 24 * row + length] = min(max(math.floor(going * 65536.0), 1), 65535)
            going = going * going
    return odds


def read_broadcast(
    message: bytes, run: bytes, held: list[Fraction] | None
) -> tuple[int | None, int, list[Fraction], list[float]]:
    """(start, version, places, weights) of a message that begins at these places, in units of 2**-40 (None: zeros)."""
    key, name = (lambda m: (m[:32], m[32:]))(hkdf(run, b"cepam broadcast", b"cepam grid v1", 64))
    assert message[0] == 1
    assert message[3:5] == name[:2]
    kind, shift = message[1], message[2]
    start, rest = read_varint(message[5:])
    rounds, rest = read_varint(rest)
    size, rest = read_varint(rest)
    head, mark, body = message[: len(message) - len(rest)], rest[:16], rest[16:]
    blocks, rest = -(-size // 8192), body
    lengths = []
    for _ in range(blocks - 1):
        length, rest = read_varint(rest)
        lengths.append(length)
    steps, places, step = [], [], 2**shift
    for k in range(blocks):
        block, rest = (rest[: lengths[k]], rest[lengths[k] :]) if k < blocks - 1 else (rest, b"")
        model = Differences(block)
        for i in range(8192 * k, min(8192 * (k + 1), size)):
            dither = keystream_word(key, 0, i) % 2**48 % step
            origin = held[i] if held else Fraction(0)
            nearest = math.floor((origin - dither) / step + Fraction(1, 2))
            steps.append(nearest + (model.next() if model.scale < 96 else 0))
            places.append(Fraction(steps[-1] * step + dither))
    version = start + rounds
    numbers = struct.pack(f"<{size}i", *steps)
    check_head = b"cepam broadcast check v1" + name + struct.pack("<QBQ", version, shift, size)
    check = hashlib.sha256(check_head + numbers).digest()
    assert mark == hashlib.sha256(b"cepam broadcast mark v1" + name + check + head + body).digest()[:16]
    weights = [struct.unpack("<f", struct.pack("<f", float(place) * 2.0**-40))[0] for place in places]
    return (None if kind == 1 else start), version, places, weights

"""A decoder of messages written from docs/wire.md alone, in plain Python: slow, and sharing no code with the package.

It takes the numbers of a plan (table, basis, box, …) as given, and covers Z^n and D4 with both codes.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from functools import lru_cache
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

ALL = 2**64 - 1


def hkdf(key: bytes, salt: bytes, info: bytes, size: int) -> bytes:
    inner, block, out = hmac.digest(salt, key, "sha256"), b"", b""
    while len(out) < size:
        block = hmac.digest(inner, block + info + bytes([len(out) // 32 + 1]), "sha256")
        out += block
    return out[:size]


def stream_keys(key: bytes, round: int, client: int, run: bytes, attempt: int) -> tuple[bytes, bytes]:
    info = b"cepam address v1" + round.to_bytes(8, "little") + client.to_bytes(8, "little")
    salt = hashlib.sha256(b"cepam run" + run).digest()
    material = hkdf(key, salt, info + attempt.to_bytes(4, "little"), 64)
    return material[:32], material[32:]


def keystream_word(key: bytes, stream: int, k: int) -> int:
    words = keystream_block(key, stream, k // 8)
    return words[2 * (k % 8)] | words[2 * (k % 8) + 1] << 32


@lru_cache(maxsize=4096)
def keystream_block(key: bytes, stream: int, counter: int) -> list[int]:
    raw = b"expand 32-byte k" + key + counter.to_bytes(8, "little") + stream.to_bytes(8, "little")
    start = [int.from_bytes(raw[i : i + 4], "little") for i in range(0, 64, 4)]
    s = list(start)
    for turn in range(12):
        for q in range(4):
            a, b, c, d = (q, 4 + q, 8 + q, 12 + q)
            if turn % 2:
                b, c, d = 4 + (q + 1) % 4, 8 + (q + 2) % 4, 12 + (q + 3) % 4
            for x, y, z, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                s[x] = (s[x] + s[y]) % 2**32
                mixed = s[z] ^ s[x]
                s[z] = (mixed << bits | mixed >> (32 - bits)) % 2**32
    return [(u + v) % 2**32 for u, v in zip(s, start)]


class Numbers:
    """What the two ends computed from the description: a plan, and the unit of its section."""

    def __init__(self, plan: Any, noise: bytes) -> None:
        self.plan, self.noise, self.n = plan, noise, plan.n
        self.table = [float(c) for c in plan.table]
        self.basis = [[int(v) for v in row] for row in plan.basis]
        self.checkerboard = int(plan.search) == 1

    def layer(self, i: int) -> tuple[float, int]:
        u = keystream_word(self.noise, 0, i)
        o = (u << 1 | 1) & ALL
        z = 64 - o.bit_length()
        a = (o << z) & ALL
        row = ((u >> 63) * 64 + z) * 32 + ((a >> 58) & 31)
        t = float(((a << 6) & ALL) >> 11) * 2.0**-53
        value = 0.0
        for c in reversed(self.table[8 * row : 8 * row + 8]):
            value = value * t + c
        r = value * self.plan.scale
        if self.n == 1:
            return r, 2 * math.floor(r) + 1
        return r, math.floor(r * self.plan.inverse_ball) + 2

    def dither(self, i: int, trial: int, b: int) -> list[int]:
        words = [keystream_word(self.noise, 1 + trial, i * self.n + j) for j in range(self.n)]
        return [word * b * int(side) >> 64 for word, side in zip(words, self.plan.box)]

    def nearest(self, target: list[int], b: int) -> tuple[list[int], list[int]]:
        z = [(v + (b >> 1)) // b for v in target]
        error = [b * p - v for p, v in zip(z, target)]
        if self.checkerboard:
            if sum(z) % 2:
                worst = max(range(self.n), key=lambda k: abs(error[k]))
                step = 1 if error[worst] <= 0 else -1
                z[worst] += step
                error[worst] += step * b
            z[-1] = (z[-1] - sum(z[:-1])) // 2
        return z, error

    def decoded(self, i: int, trial: int, m: list[int]) -> list[float]:
        _, b = self.layer(i)
        point = [b * sum(g * v for g, v in zip(row, m)) for row in self.basis]
        y = [p + d for p, d in zip(point, self.dither(i, trial, b))]
        return [float((v + 2**27) // 2**28) * (self.plan.unit * 2**28) for v in y]


class BitReader:
    """Section 7: bits from the most significant on."""

    def __init__(self, data: bytes) -> None:
        self.bits = "".join(f"{byte:08b}" for byte in data)

    def take(self, width: int) -> int:
        field, self.bits = self.bits[:width], self.bits[width:]
        assert len(field) == width
        return int(field or "0", 2)

    def trials(self, golomb: int) -> int:
        ones = 0
        while self.take(1):
            ones += 1
        k = (golomb - 1).bit_length()
        short = 2**k - golomb
        rest = self.take(k - 1) if k else 0
        if k and rest >= short:
            rest = 2 * rest + self.take(1) - short
        return ones * golomb + rest + 1


def read_paper(numbers: Numbers, block: bytes, first: int, rows: int, bound: int, p: float) -> list[float]:
    """The coordinates of a block on Z^n."""
    reader, out = BitReader(block), []
    golomb = 0 if numbers.n == 1 else max(1, math.ceil(-math.log(2 - p) / math.log(1 - p)))
    for i in range(first, first + rows):
        _, b = numbers.layer(i)
        h = reader.trials(golomb) if golomb else 1
        low, high = (-bound - (b - 1) + (b >> 1)) // b, (bound + (b >> 1)) // b
        count = high - low + 1
        number = reader.take((count**numbers.n - 1).bit_length())
        m = []
        for _ in range(numbers.n):
            m.insert(0, low + number % count)
            number //= count
        out += numbers.decoded(i, h - 1, m)
    assert set(reader.bits) <= {"0"}
    assert len(reader.bits) < 8
    return out


class Model:
    """Section 8: the arithmetic code and its contexts."""

    def __init__(self, block: bytes) -> None:
        self.data, self.at, self.span = block + bytes(8), 8, ALL
        self.code = int.from_bytes(self.data[:8], "big")
        self.p, self.seen = first_chances(), [0] * 1984

    def plain(self, chance: int) -> int:
        bound = (self.span >> 16) * chance
        bit = int(self.code < bound)
        if bit:
            self.span = bound
        else:
            self.code, self.span = self.code - bound, self.span - bound
        if self.span < 2**32:
            more = (self.data[self.at : self.at + 4] + bytes(4))[:4]
            self.code, self.span, self.at = self.code << 32 | int.from_bytes(more, "big"), self.span << 32, self.at + 4
        return bit

    def decide(self, context: int) -> int:
        p, seen = self.p[context], self.seen[context]
        bit = self.plain(p)
        p += ((65536 * bit - p) * (65536 // (2 * seen + 3) * 2)) >> 16
        self.p[context], self.seen[context] = min(max(p, 32), 65504), min(seen + 1, 60)
        return bit

    def difference(self, i: int, a: int) -> int:
        if self.decide(1408 + 8 * i + a):
            return 0
        k = 1
        while k < 47 and self.decide(1536 + 8 * k + a):
            k += 1
        negative = self.decide(1920 + i)
        value = 1
        for bit in range(k - 1):
            value = 2 * value + (self.plain(32768) if bit else self.decide(1936 + k))
        return -value if negative else value


def first_chances() -> list[int]:
    p = [32768] * 1984
    quiet = (0.002, 0.01, 0.03, 0.08, 0.15, 0.25, 0.3, 0.35)
    for a in range(8):
        for level in range(44):
            doubt = min(max(2.0 ** -max(level / 2 - 6 - 2 * a, 0) / 2, quiet[a] / 4), 0.5)
            for side in (0, 1):
                context = (side * 44 + level) * 8 + a
                p[context] = round(65536 * (1 - doubt if side else 0.6 * doubt))
                p[704 + context] = round(65536 * (1 - min(max(doubt, 0.001), 0.6)))
    return [min(max(v, 32), 65504) for v in p]


def read_adaptive(numbers: Numbers, block: bytes, first: int, rows: int, l1: bool) -> list[float]:
    """The coordinates of a block on a vector lattice."""
    model, activity, out = Model(block), 0, []
    for i in range(first, first + rows):
        r, b = numbers.layer(i)
        a = sum(activity >= edge for edge in (8, 32, 64, 112, 160, 256, 448))
        trial, surprise, longest = 0, 0, 0
        while True:
            m0, error = numbers.nearest([-d for d in numbers.dither(i, trial, b)], b)
            context, side = margin(error, r, l1)
            accepted = model.decide(context + a)
            surprise |= accepted ^ side
            if accepted:
                break
            trial += 1
        m = list(m0)
        if not model.decide(704 + context + a):
            steps = [model.difference(j, a) for j in range(numbers.n)]
            m = [u + v for u, v in zip(m0, steps)]
            longest = 1 + max(abs(v).bit_length() for v in steps)
        activity += (64 * (surprise + longest) - activity) >> 2
        out += numbers.decoded(i, trial, m)
    return out


def margin(error: list[int], r: float, l1: bool) -> tuple[int, int]:
    total = 0.0
    for e in error:
        total += float(e) * float(e)
    size = float(sum(map(abs, error))) if l1 else math.sqrt(total)
    side = int(size <= r)
    fine = math.floor(abs(r - size) / r * 2.0**20)
    length = fine.bit_length()
    half = (fine >> (length - 2)) & 1 if length >= 2 else 0
    return (side * 44 + min(2 * length + half, 43)) * 8, side


def read_varint(data: bytes) -> tuple[int, bytes]:
    value = 0
    for i, byte in enumerate(data):
        value |= (byte & 127) << (7 * i)
        if byte < 128:
            return value, data[i + 1 :]
    raise AssertionError("a number without an end")


def read_message(message: bytes, codec: Any, at: Any) -> list[float]:
    """The vector of an unpadded or padded message."""
    noise, seal = stream_keys(at.key.secret, at.round, at.client, at.run, at.attempt)
    head = b"\x01" + hashlib.sha256(b"cepam tag" + codec.fingerprint).digest()[:2]
    assert message[:3] == head
    payload = AESGCMSIV(seal).decrypt(bytes(12), message[3:], head + codec.fingerprint)
    padded = bool(payload[0] & 2)
    lattice = codec.lattices[payload[0] >> 2]
    plan = codec.plan_on(lattice)
    size, rest = read_varint(payload[1:])
    rows, per_block = -(-size // plan.n), max(8192 // plan.n // 128, 1) * 128
    count = -(-rows // per_block)
    lengths: list[int] = []
    while len(lengths) < (count if padded else count - 1):
        length, rest = read_varint(rest)
        lengths.append(length)
    numbers, out = Numbers(plan, noise), []
    for k in range(count):
        block = rest[: lengths[k]] if k < len(lengths) else rest
        rest = rest[len(block) :]
        here = min(per_block, rows - k * per_block)
        if codec.coder == "paper":
            bound = math.floor(codec.bound / plan.unit)
            out += read_paper(numbers, block, k * per_block, here, bound, lattice.acceptance(codec.law.norm))
        else:
            out += read_adaptive(numbers, block, k * per_block, here, codec.law.norm == "l1")
    assert not any(rest)
    return out[:size]

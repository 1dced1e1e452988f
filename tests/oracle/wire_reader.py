"""A decoder of messages written from docs/wire.md and docs/models.md in plain Python: slow, without code of cepam.

It takes the numbers of a plan (table, basis, box, …) and the tables of Z^1 as given, and covers Z^n with both codes and
D4 with the adaptive one.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import struct
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


def radius(plan: Any, u: int) -> float:
    """The latent radius of a word, in units."""
    o = (u << 1 | 1) & ALL
    z = 64 - o.bit_length()
    a = (o << z) & ALL
    row = ((u >> 63) * 64 + z) * 32 + ((a >> 58) & 31)
    t = float(((a << 6) & ALL) >> 11) * 2.0**-53
    value = 0.0
    for c in plan.table[8 * row : 8 * row + 8][::-1]:
        value = value * t + float(c)
    return float(value * plan.scale)


class Numbers:
    """What the two ends computed from the description: a plan, and the unit of its section."""

    def __init__(self, plan: Any, noise: bytes) -> None:
        self.plan, self.noise, self.n = plan, noise, plan.n
        self.basis = [[int(v) for v in row] for row in plan.basis]
        self.checkerboard = int(plan.search) == 1

    def layer(self, i: int) -> tuple[float, int]:
        r = radius(self.plan, keystream_word(self.noise, 0, i))
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


class Arithmetic:
    """Section 8: the arithmetic code."""

    def __init__(self, block: bytes) -> None:
        self.data, self.at, self.span = block + bytes(8), 8, ALL
        self.code = int.from_bytes(self.data[:8], "big")

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


def log(value: int) -> int:
    value |= 1
    e = value.bit_length() - 1
    return 256 * e + (256 * value >> e) - 256


def power(z: int) -> int:
    return ((256 + z % 256) << (z // 256)) >> 8


def within(value: int, top: int) -> int:
    return min(max(value, 0), top)


class Margins(Arithmetic):
    """The scalar model of docs/models.md."""

    def __init__(self, block: bytes, tables: Any) -> None:
        super().__init__(block)
        self.odds = [int(p) for p in tables["prior"]]
        self.means = [int(v) for v in tables["means"]]
        self.scale = self.header(7)
        self.stride = 0 if self.scale == 127 else self.header(11)
        self.shift, self.anchor = (self.scale >> 1) - 16, 4096 + 128 * (self.scale % 2)
        self.sized = self.across = power(self.anchor)
        self.signed = 0
        self.column = [self.anchor] * max(self.stride, 1)

    def header(self, bits: int) -> int:
        value = 0
        for _ in range(bits):
            value = 2 * value + self.plain(32768)
        return value

    def decide(self, context: int, rate: int) -> int:
        p = self.odds[context]
        bit = self.plain(min(max(p, 32), 65504))
        self.odds[context] = p + ((65535 * bit - p) >> rate)
        return bit

    def coordinate(self, i: int, b: int, d: int) -> int:
        high = d + (b >> 1) + 1 if d <= b >> 1 else d - (b >> 1)
        below, stride = b - high, self.stride
        place = i % stride if stride > 1 else 0
        above, z = self.column[place], self.anchor
        if stride:
            z = 15 * log(self.sized) + self.anchor + (13 * (above - log(self.across)) if stride > 1 else 0)
            z = within(z >> 4, 7935)
        s, offset, rise = power(z), 256 * self.shift + z, high <= below
        level = self.level(rise) + 10 * (z < self.anchor - 512) + 20 * (z > self.anchor)
        near = within((log(min(high, below)) - offset + 1280) >> 7, 15)
        zero = (near * 6 + within((log(b) - offset + 256) >> 8, 5)) * 30 + level
        k = 0
        if self.decide(zero, 6):
            side = 2880 + 30 * within((log(abs(high - below)) - offset + 1024) >> 8, 7) + level
            positive = bool(self.decide(side, 6)) == rise
            skip = within((offset - log(b) - 1280) >> 8, 47)
            row = within((log(b) + 256 * skip - offset + 1536) >> 7, 23)
            size, most = self.size(row, skip), 2**31 - 1
            inner, wide = (self.moved(min(v, 2**44)) for v in (high if positive else below, b))
            e = min(inner, most) + min(size - 1, most) * min(wide, most) + (s * self.means[5760 + row] >> 8)
            e = min(e, most)
            k, v = (size, e) if positive else (-size, -e)
        else:
            e, v = max(s * self.means[zero] >> 8, 1), s * self.means[2880 + zero] >> 8
            v = v if rise else -v
        self.sized += (e - self.sized) >> 2
        self.signed += (v - self.signed) >> 2
        if stride > 1:
            was = power(above)
            self.across += (3 * (was - self.across)) >> 4
            self.column[place] = log(max(was + ((3 * (e - was)) >> 4), 1))
        return k

    def level(self, rise: bool) -> int:
        if not self.stride:
            return 9
        towards = self.signed if rise else -self.signed
        steps = sum(8 * abs(towards) > c * self.sized for c in (1, 3, 5, 7))
        return 4 + steps if towards > 0 else 4 - steps

    def moved(self, value: int) -> int:
        return value >> self.shift if self.shift >= 0 else value << -self.shift

    def size(self, row: int, skip: int) -> int:
        base, length = 3120 + 24 * row, 0
        while length < 51 - skip and self.decide(base + min(length, 19), 5):
            length += 1
        value = 1
        for place in range(length + skip):
            top = place == 0 and length > 0
            value = 2 * value + (self.decide(base + 19 + min(length, 4), 5) if top else self.plain(32768))
        return max(value - 2**skip, 1) if skip else value


def read_scalars(numbers: Numbers, block: bytes, first: int, rows: int, tables: Any) -> list[float]:
    """The coordinates of a block on Z^1."""
    model, out = Margins(block, tables), []
    for i in range(rows):
        _, b = numbers.layer(first + i)
        d = numbers.dither(first + i, 0, b)[0]
        k = 0 if model.scale == 127 else model.coordinate(i, b, d)
        out += numbers.decoded(first + i, 0, [k - (d > b >> 1)])
    return out


class Search(Arithmetic):
    """Section 11: the trees of a segment, and the vectors that they name."""

    def __init__(self, stream: bytes, plan: Any, noise: bytes, segment: int, odds: Any) -> None:
        super().__init__(stream)
        self.plan, self.segment, self.odds = plan, segment, odds
        self.key = hmac.digest(noise, b"cepam search v1 shared", "sha256")

    def number(self, odds: list[int], bits: int) -> int:
        length = 0
        while length < bits - 1 and self.plain(odds[length]):
            length += 1
        value = 1
        for place in range(length):
            value = 2 * value + self.plain(odds[bits - 1] if place == 0 else 32768)
        return value

    def part(self, i: int, p: int, depth: int, energy: int) -> list[int | None]:
        """The values of a part of 2^i coordinates, in units; None where the layered quantizer has them."""
        odds = [int(v) for v in self.odds[max(energy - 2 * depth, 0)]]
        if self.plain(odds[0]):
            j, k = self.number(odds[2:14], 12), self.number(odds[14:34], 20)
            return self.vector(i, p, j, k)
        if i == 5 or self.plain(odds[1]):
            return [None] * 2**i
        return self.part(i - 1, 2 * p, depth + 1, energy) + self.part(i - 1, 2 * p + 1, depth + 1, energy)

    def vector(self, i: int, p: int, j: int, k: int) -> list[int | None]:
        def word(candidate: int, kind: int, place: int) -> int:
            stream = self.segment << 38 | i << 34 | p << 18 | candidate << 2 | kind
            return keystream_word(self.key, stream, place)

        shift = word(0, 3, (k - 1) // 4) >> 16 * ((k - 1) % 4) & (2**i - 1)
        out: list[int | None] = []
        for n in range(2**i):
            place = n ^ shift
            r = radius(self.plan, word(j - 1, 0, place))
            b = 2 * math.floor(r) + 1
            d = word(j - 1, 1, place) * b >> 64
            value = d - b if d > b >> 1 else d
            negative = word(0, 2, n // 64) >> n % 64 & 1
            out.append(-value if negative else value)
        return out


def read_segment(data: bytes, plan: Any, noise: bytes, segment: int, count: int, tables: Any, odds: Any) -> list[float]:
    """The values of a segment."""
    numbers, first, values = Numbers(plan, noise), segment * 2**18, [None] * count
    stream, rest = data[1:], b""
    if data[0] < 252:
        if data[0] % 2:
            length, rest = read_varint(stream)
            stream, rest = rest[:length], rest[length:]
        energy, size = divmod(data[0] // 2, 9)
        i = size + 5
        blocks, reader = -(-count // 2**i), Search(stream, plan, noise, segment, odds)
        for block in range(blocks):
            for row, value in enumerate(reader.part(i, block, 0, energy)):
                if row * blocks + block < count:
                    values[row * blocks + block] = value  # type: ignore[call-overload]
    else:
        rest = stream
    left = [n for n, value in enumerate(values) if value is None]
    out = [0.0 if v is None else float((v + 2**27) // 2**28) * (plan.unit * 2**28) for v in values]
    if left:
        model = Margins(rest, tables)
        for place, n in enumerate(left):
            _, b = numbers.layer(first + n)
            d = numbers.dither(first + n, 0, b)[0]
            k = 0 if model.scale == 127 else model.coordinate(place, b, d)
            out[n] = numbers.decoded(first + n, 0, [k - (d > b >> 1)])[0]
    return out


def read_varint(data: bytes) -> tuple[int, bytes]:
    value = 0
    for i, byte in enumerate(data):
        value |= (byte & 127) << (7 * i)
        if byte < 128:
            return value, data[i + 1 :]
    raise AssertionError("a number without an end")


def open_seals(message: bytes, seal: bytes, fingerprint: bytes) -> bytes:
    """Section 3: the payload of all chunks; the nonce marks the last one, which names the tags of the others."""
    cipher, context, step = AESGCMSIV(seal), message[:2] + fingerprint, 2**16 + 16
    chunks = [message[start : start + step] for start in range(2, len(message), step)]
    payload = b""
    for number, chunk in enumerate(chunks):
        last = number == len(chunks) - 1
        tags = b"".join(each[-16:] for each in chunks[:-1]) if last else b""
        payload += cipher.decrypt(number.to_bytes(11, "little") + bytes([last]), chunk, context + tags)
    return payload


def codec_fingerprint(codec: Any, plan: Any, model: bytes, odds: Any) -> bytes:
    """Section 2, from the fingerprints of the plan and of the models."""
    code = b"paper" if codec.coder == "paper" else b"adaptive"
    digest = b"cepam codec v5" + code + model + struct.pack("<d", codec.bound or 0.0) + plan.fingerprint()
    if codec.searches:
        numbers = b"".join(n.to_bytes(8, "little") for n in (2**18, 5, 13, 14, 12, 20))
        table = b"".join(int(v).to_bytes(8, "little") for v in odds.reshape(-1))
        digest += hashlib.sha256(b"cepam search v1" + numbers + table).digest()
    if codec.size is not None:
        digest += struct.pack("<q", codec.size)
    return hashlib.sha256(digest).digest()


def read_message(
    message: bytes, codec: Any, at: Any, model: bytes, tables: Any = None, odds: Any = None
) -> list[float]:
    """The vector of an unpadded or padded message."""
    noise, seal = stream_keys(at.key.secret, at.round, at.client, at.run, at.attempt)
    plan = codec.plan
    fingerprint = codec_fingerprint(codec, plan, model, odds)
    assert message[0] >> 4 == 5
    assert message[1:2] == hashlib.sha256(b"cepam tag" + fingerprint).digest()[:1]
    rest, size = open_seals(message, seal, fingerprint), codec.size
    padded, searched, travels = (bool(message[0] >> bit & 1) for bit in (1, 2, 3))
    assert travels == (size is None)
    if travels:
        size, rest = read_varint(rest)
    rows, per_block = -(-size // plan.n), max(8192 // plan.n // 128, 1) * 128
    per_block = 2**18 if searched else per_block
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
        if searched:
            out += read_segment(block, plan, noise, k, here, tables, odds)
        elif codec.coder == "paper":
            bound, p = math.floor(codec.bound / plan.unit), codec.lattice.acceptance(codec.law.norm)
            out += read_paper(numbers, block, k * per_block, here, bound, p)
        else:
            assert plan.n == 1, "the code of vector lattices has its own oracle: tests/kernels/vector_coder_by_hand.py"
            out += read_scalars(numbers, block, k * per_block, here, tables)
    assert not any(rest)
    return out[:size]

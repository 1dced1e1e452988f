"""The margin coder once more, in plain Python integers from its description: an oracle for the kernels."""

from __future__ import annotations


def log(v: int) -> int:
    v |= 1
    length = v.bit_length() - 1
    return 256 * length + (((v << 8) >> length) & 255)


def power(q: int) -> int:
    return ((256 + (q & 255)) << (q >> 8)) >> 8


def within(v: int, top: int) -> int:
    return min(max(v, 0), top)


class Coder:
    """Exact interval arithmetic: the message is a number, so carries need no care."""

    def __init__(self) -> None:
        self.low, self.span, self.words = 0, 2**64 - 1, 0

    def put(self, bit: bool, p: int = 32768) -> None:
        bound = (self.span >> 16) * p
        if bit:
            self.span = bound
        else:
            self.low += bound
            self.span -= bound
        if self.span < 2**32:
            self.low <<= 32
            self.span <<= 32
            self.words += 1

    def finish(self) -> bytes:
        for kept in range(9):
            unit = 1 << (64 - 8 * kept)
            value = -(-self.low // unit) * unit
            if value < self.low + self.span:
                break
        return value.to_bytes(4 * self.words + 9, "big")[1:].rstrip(b"\0")


def encode(M: list, B: list, D: list, scale: int, period: int, prior: list, means: list) -> bytes:
    k = [m + (d > b >> 1) for m, b, d in zip(M, B, D)]
    if not any(k):
        return b""
    odds, coder = list(prior), Coder()

    def put(bit: bool, at: int, rate: int) -> None:
        coder.put(bit, min(max(odds[at], 32), 65504))
        odds[at] += ((65535 if bit else 0) - odds[at]) >> rate

    for value, bits in ((scale, 7), (period, 11)):
        for place in reversed(range(bits)):
            coder.put(bool(value >> place & 1))
    shift, anchor = (scale >> 1) - 16, 4096 + 128 * (scale & 1)
    sized = across = power(anchor)
    signed, column = 0, [anchor] * max(period, 1)
    for i in range(len(k)):
        place = i % max(period, 1)
        half = B[i] >> 1
        high = D[i] + half + 1 if D[i] <= half else D[i] - half
        below = B[i] - high
        up = high <= below
        z = anchor
        if period > 0:
            z = 15 * log(sized) + anchor + (13 * (column[place] - log(across)) if period > 1 else 0)
            z = within(z >> 4, 7935)
        s, offset = power(z), 256 * shift + z
        towards = signed if up else -signed
        level = sum(8 * abs(towards) > n * sized for n in (1, 3, 5, 7))
        level = 9 if period == 0 else 4 + (level if towards > 0 else -level)
        level += 10 * ((z < anchor - 512) + 2 * (z > anchor))
        near, wide = log(min(high, below)) - offset, log(B[i]) - offset
        at = (within((near + 1280) >> 7, 15) * 6 + within((wide + 256) >> 8, 5)) * 30 + level
        put(k[i] != 0, at, 6)
        if k[i]:
            positive, size = k[i] > 0, abs(k[i])
            tilt = within((log(abs(high - below)) - offset + 1024) >> 8, 7)
            put(positive == up, 2880 + tilt * 30 + level, 6)
            skip = within((-wide - 1280) >> 8, 45)
            row = within((wide + 256 * skip + 1536) >> 7, 23)
            rest = (size >> skip) + (1 if skip else 0)
            length = rest.bit_length() - 1
            for j in range(min(length + 1, 49 - skip)):
                put(j < length, 3120 + 24 * row + min(j, 19), 5)
            for j in reversed(range(length)):
                bit = bool(rest >> j & 1)
                if j == length - 1:
                    put(bit, 3120 + 24 * row + 20 + min(length, 4) - 1, 5)
                else:
                    coder.put(bit)
            for j in reversed(range(skip)):
                coder.put(bool(size >> j & 1))
            inner, width = min(high if positive else below, 2**44), min(B[i], 2**44)
            inner, width = (v >> shift if shift >= 0 else v << -shift for v in (inner, width))
            e = min(inner, 2**31 - 1) + min(size - 1, 2**31 - 1) * min(width, 2**31 - 1)
            e = min(e + (s * means[5760 + row] >> 8), 2**31 - 1)
            v = e if positive else -e
        else:
            e = max(s * means[at] >> 8, 1)
            v = s * means[2880 + at] >> 8
            v = v if up else -v
        sized += (e - sized) >> 2
        signed += (v - signed) >> 2
        if period > 1:
            was = power(column[place])
            across += ((was - across) * 3) >> 4
            column[place] = log(max(was + (((e - was) * 3) >> 4), 1))
    return coder.finish()

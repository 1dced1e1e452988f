"""AES-256 in Triton (FIPS 197), two blocks a lane, without tables or branches: no time depends on a key or a text.

Eight words hold two blocks, a word for each column, row 0 in its lowest byte. `slice_bits` makes planes of them: plane
i has bit i of every byte, that of row k and column j of block b at bit 8 k + 4 b + j.
"""

from __future__ import annotations

import triton
import triton.language as tl

ROUNDS = 14
ROUND_KEY_WORDS = 8 * (ROUNDS + 1)
"""Words of the planes of all round keys, each key twice side by side."""
_ROUNDS = tl.constexpr(ROUNDS)
# Bytes as pairs over the field of sixteen elements, y^4 = y + 1 and z^2 = z + y^3 + y: a matrix that takes a byte
# there, one that takes a pair back and through the S-box's affine map, and those of powers: columns, lowest bit first.
_PAIR, _BACK, _AFFINE = tl.constexpr(0xD342934828275001), tl.constexpr(0x056C65529DADAB1F), tl.constexpr(0x63)
_SQUARE, _FOURTH, _EIGHTH, _NORM = (tl.constexpr(each) for each in (0xC341, 0xF531, 0xA251, 0x1DEA))


@triton.jit
def trade(w, step: tl.constexpr, mask: tl.constexpr):
    """Words whose numbers differ by `step`, with half of their bits exchanged."""
    out = ()
    for i in tl.static_range(8):
        if i & step == 0:
            out += (w[i] ^ ((((w[i] >> step) ^ w[i + step]) & mask) << step),)
        else:
            out += (w[i] ^ (((w[i - step] >> step) ^ w[i]) & mask),)
    return out


@triton.jit
def slice_bits(w):
    """The planes of eight words, and the words of eight planes: bit j of byte k of word i goes to word j."""
    return trade(trade(trade(w, 1, 0x55555555), 2, 0x33333333), 4, 0x0F0F0F0F)


@triton.jit
def add(a, b):
    """Sums of four words each."""
    return a[0] ^ b[0], a[1] ^ b[1], a[2] ^ b[2], a[3] ^ b[3]


@triton.jit
def linear(a, matrix: tl.constexpr, count: tl.constexpr):
    """So many planes times a matrix of bits."""
    out = ()
    for i in tl.static_range(count):
        total = a[0] ^ a[0]
        for k in tl.static_range(count):
            if (matrix >> (count * k + i)) & 1:
                total = total ^ a[k]
        out += (total,)
    return out


@triton.jit
def multiply(a, b):
    """Products in the field of sixteen elements, four planes each."""
    c = ()
    for k in tl.static_range(7):
        total = a[0] ^ a[0]
        for i in tl.static_range(4):
            if (k - i) * (k - i - 3) <= 0:  # k - i in 0..3
                total = total ^ (a[i] & b[k - i])
        c += (total,)
    return c[0] ^ c[4], c[1] ^ c[4] ^ c[5], c[2] ^ c[5] ^ c[6], c[3] ^ c[6]


@triton.jit
def substitute(a):
    """The S-box of every byte: the inverse of its pair, by that of the pair's norm, which is its power 14."""
    t = linear(a, _PAIR, 8)
    low, high = (t[0], t[1], t[2], t[3]), (t[4], t[5], t[6], t[7])
    norm = add(add(linear(high, _NORM, 4), linear(low, _SQUARE, 4)), multiply(high, low))
    inverse = multiply(linear(norm, _SQUARE, 4), linear(norm, _FOURTH, 4))
    inverse = multiply(inverse, linear(norm, _EIGHTH, 4))
    b, h = multiply(add(low, high), inverse), multiply(high, inverse)
    found, out = linear((b[0], b[1], b[2], b[3], h[0], h[1], h[2], h[3]), _BACK, 8), ()
    for i in tl.static_range(8):
        out += (found[i] ^ 0xFFFFFFFF if (_AFFINE >> i) & 1 else found[i],)
    return out


@triton.jit
def shift_rows(a):
    """Row k turned by k columns."""
    out = ()
    for i in tl.static_range(8):
        x = a[i]
        one = ((x >> 1) & 0x00007700) | ((x << 3) & 0x00008800)
        two = ((x >> 2) & 0x00330000) | ((x << 2) & 0x00CC0000)
        three = ((x >> 3) & 0x11000000) | ((x << 1) & 0xEE000000)
        out += ((x & 0xFF) | one | two | three,)
    return out


@triton.jit
def mix_columns(a):
    """Each byte twice, the next of its column three times, the others once."""
    both, rest = (), ()
    for i in tl.static_range(8):
        following = (a[i] >> 8) | (a[i] << 24)
        pair = a[i] ^ following
        both += (pair,)
        rest += (following ^ ((pair >> 16) | (pair << 16)),)
    out = ()
    for i in tl.static_range(8):
        doubled = both[(i + 7) % 8]
        if (0x1A >> i) & 1:
            doubled = doubled ^ both[7]
        out += (doubled ^ rest[i],)
    return out


@triton.jit
def add_key(a, keys):
    """The planes plus those of a round key."""
    out = ()
    for i in tl.static_range(8):
        out += (a[i] ^ tl.load(keys + i).to(tl.uint32, bitcast=True),)
    return out


@triton.jit
def encrypt_words(w, keys):
    """Two blocks of eight words, encrypted under the round keys at `keys`."""
    a = add_key(slice_bits(w), keys)
    for done in range(_ROUNDS):
        a = shift_rows(substitute(a))
        mixed, last = mix_columns(a), done == _ROUNDS - 1
        chosen = ()
        for i in tl.static_range(8):
            chosen += (tl.where(last, a[i], mixed[i]),)
        a = add_key(chosen, keys + 8 * (done + 1))
    return slice_bits(a)


@triton.jit
def substitute_word(word):
    """The S-box of the four bytes of a word."""
    w = ()
    for _ in tl.static_range(8):
        w += (word,)
    return slice_bits(substitute(slice_bits(w)))[0]


@triton.jit
def expand_key(old, new, out):
    """Writes the planes of all round keys, each side by side for two blocks, of a key of twice four words."""
    for done in range(_ROUNDS + 1):
        planes = slice_bits((old[0], old[1], old[2], old[3], old[0], old[1], old[2], old[3]))
        for i in tl.static_range(8):
            tl.store(out + 8 * done + i, planes[i].to(tl.int32, bitcast=True))
        turned = done % 2 == 0
        word = substitute_word(tl.where(turned, (new[3] >> 8) | (new[3] << 24), new[3]))
        word = word ^ tl.where(turned, 1 << (done // 2), 0).to(tl.uint32)
        a = old[0] ^ word
        b = old[1] ^ a
        c = old[2] ^ b
        old, new = new, (a, b, c, old[3] ^ c)

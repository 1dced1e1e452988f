"""The ChaCha keystream in Triton: a lane computes one block, which is eight 64-bit words, and shares nothing."""

from __future__ import annotations

import triton
import triton.language as tl

from cepam.kernels.format import plan

ROUNDS = tl.constexpr(plan.ROUNDS)
LATENT_STREAM = tl.constexpr(plan.LATENT_STREAM)
_CONSTANTS = tl.constexpr(tuple(int(word) for word in plan.CONSTANTS))


@triton.jit
def load_key(keys, client):
    """The eight words of one client's key."""
    key = ()
    for i in tl.static_range(8):
        key += (tl.load(keys + client * 8 + i).to(tl.uint32, bitcast=True),)
    return key


@triton.jit
def turn(x, bits: tl.constexpr):
    """x rotated to the left."""
    return (x << bits) | (x >> (32 - bits))


@triton.jit
def quarter_round(a, b, c, d):
    """Four words, mixed (RFC 8439, 2.1)."""
    a = a + b
    d = turn(d ^ a, 16)
    c = c + d
    b = turn(b ^ c, 12)
    a = a + b
    d = turn(d ^ a, 8)
    c = c + d
    b = turn(b ^ c, 7)
    return a, b, c, d


@triton.jit
def double_round(s):
    """A round of columns and a round of diagonals."""
    a0, b0, c0, d0 = quarter_round(s[0], s[4], s[8], s[12])
    a1, b1, c1, d1 = quarter_round(s[1], s[5], s[9], s[13])
    a2, b2, c2, d2 = quarter_round(s[2], s[6], s[10], s[14])
    a3, b3, c3, d3 = quarter_round(s[3], s[7], s[11], s[15])
    a0, b1, c2, d3 = quarter_round(a0, b1, c2, d3)
    a1, b2, c3, d0 = quarter_round(a1, b2, c3, d0)
    a2, b3, c0, d1 = quarter_round(a2, b3, c0, d1)
    a3, b0, c1, d2 = quarter_round(a3, b0, c1, d2)
    return a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3


@triton.jit
def chacha_block(key, stream, block, rounds: tl.constexpr):
    """The sixteen words of keystream blocks; `stream` and `block` are 64-bit, one of them a tensor of lanes."""
    head = ()
    for i in tl.static_range(4):
        head += (tl.full((), _CONSTANTS[i], tl.uint32),)
    place = (block.to(tl.uint32), (block >> 32).to(tl.uint32), stream.to(tl.uint32), (stream >> 32).to(tl.uint32))
    start = head + key + place
    # The columns that hold no counter stay scalars through the first half of this round: computed once for all lanes.
    state = double_round(start)
    for _ in tl.static_range(rounds // 2 - 1):
        state = double_round(state)
    out = ()
    for i in tl.static_range(16):
        out += (state[i] + start[i],)
    return out


@triton.jit
def stream_words(key, stream, block, rounds: tl.constexpr):
    """The eight 64-bit words of keystream blocks, as a tuple."""
    half = chacha_block(key, stream, block, rounds)
    words = ()
    for i in tl.static_range(8):
        words += (half[2 * i].to(tl.uint64) | (half[2 * i + 1].to(tl.uint64) << 32),)
    return words


@triton.jit
def side_by_side(w, lanes: tl.constexpr):
    """Eight tensors of lanes as one (lanes, 8), the eight next to each other."""
    even = tl.join(tl.join(w[0], w[4]), tl.join(w[2], w[6]))
    odd = tl.join(tl.join(w[1], w[5]), tl.join(w[3], w[7]))
    return tl.reshape(tl.join(even, odd), (lanes, 8))


@triton.jit
def below_each_other(w, lanes: tl.constexpr):
    """Eight tensors of lanes as one (8 * lanes,), the second behind the first: every lane keeps its own eight, and no
    value passes between threads, as it would in two dimensions."""
    return tl.reshape(tl.permute(side_by_side(w, lanes), (1, 0)), (8 * lanes,))


@triton.jit
def in_rows(v, lanes: tl.constexpr):
    """What is `below_each_other` as (lanes, 8): where a lane's eight are neighbours in memory too, threads share out
    the accesses, and none is narrow."""
    return tl.permute(tl.reshape(v, (8, lanes)), (1, 0))


@triton.jit
def eight_times(v, lanes: tl.constexpr):
    """What each of a lane's eight have in common."""
    return below_each_other((v, v, v, v, v, v, v, v), lanes)


@triton.jit
def number_eight(lanes: tl.constexpr):
    """0 to 7: which of its lane's eight each is."""
    return tl.arange(0, 8 * lanes) // lanes


@triton.jit(noinline=True)
def stage_words(asked, out, keys, lanes: tl.constexpr):
    """Writes the eight words of one keystream block a lane; `asked` holds the lanes' clients, streams and blocks."""
    lane = tl.arange(0, lanes)
    stream, block = tl.load(asked + lanes + lane), tl.load(asked + 2 * lanes + lane)
    words = stream_words(load_key(keys, tl.load(asked + lane)), stream, block, ROUNDS)
    for i in tl.static_range(8):
        tl.store(out + i * lanes + lane, words[i].to(tl.int64, bitcast=True))


@triton.jit
def ask_words(asked, client, stream, block, lanes: tl.constexpr):
    """Writes what `stage_words` reads."""
    lane = tl.arange(0, lanes)
    tl.store(asked + lane, client)
    tl.store(asked + lanes + lane, stream)
    tl.store(asked + 2 * lanes + lane, block)

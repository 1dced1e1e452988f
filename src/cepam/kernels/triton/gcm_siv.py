"""AES-256-GCM-SIV (RFC 8452) of a payload's whole chunks on a GPU, each under keys of its own that the host derived.

A clear chunk is `blocks` blocks of four 32-bit words, a sealed one those of its cipher text, then its tag. POLYVAL is
a sum of blocks times powers of the chunk's key: a lane adds up every `lanes`-th block, then its sum gets the power of
its place. As in `aes`, no time depends on what is sealed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from cepam.kernels.triton.aes import ROUND_KEY_WORDS, add, encrypt_words, expand_key
from cepam.kernels.triton.compiling import compile_beside, wait_for

KEY_WORDS, SCHEDULE_WORDS = 12, ROUND_KEY_WORDS + 4
"""Words of a chunk's keys, POLYVAL's and AES's; and of its schedule, AES's round keys and POLYVAL's key."""
HASHED, MASKED = 256, 128
"""Lanes of a program that hashes a chunk, and of one that masks two blocks a lane."""
_KEY_WORDS, _SCHEDULE_WORDS, _HASH_KEY = (tl.constexpr(i) for i in (KEY_WORDS, SCHEDULE_WORDS, ROUND_KEY_WORDS))


class ChunkSchedules(NamedTuple):
    """What chunks are sealed and opened with, on a device: the schedule of each, at least as many as there are chunks,
    and what is hashed beside any of them, blocks of associated data and one of lengths."""

    each: Any
    ahead: Any


def prepare(keys: Any, context: bytes, blocks: int, device: Any) -> ChunkSchedules:
    """The schedules of chunks under keys of the host (chunks, 12): no chunk need be there yet."""
    wait_for(__name__)
    return _prepare(keys, context, blocks, device)


def seal_chunks(payload: Any, schedules: ChunkSchedules, blocks: int, tagged: Callable[[Any], None]) -> Any:
    """Sealed chunks (chunks, 4 * blocks + 4) of clear ones (chunks, 4 * blocks), as words, on the payload's device.
    Tags come first: `tagged` gets them before the rest is asked of the device."""
    sealed = payload.new_empty((len(payload), 4 * blocks + 4))
    tags = sealed[:, 4 * blocks :]
    _hash(payload, schedules, tags, blocks)
    tagged(tags)
    _mask(payload, sealed, tags, schedules, blocks)
    return sealed


def open_chunks(sealed: Any, schedules: ChunkSchedules, payload: Any, blocks: int) -> Any:
    """Fills the clear chunks; words that are zero where the tags are those of what was opened, (chunks, 4)."""
    tags, found = sealed.new_empty((len(sealed), 4)), sealed[:, 4 * blocks :]
    _mask(sealed, payload, found, schedules, blocks)
    _hash(payload, schedules, tags, blocks)
    return tags ^ found


def compile_ahead(device: Any) -> None:
    """Nothing; the kernels are compiled beside what is done next, unless they are there."""
    compile_beside(__name__, partial(_seal_nothing, device))


def _seal_nothing(device: Any) -> None:
    with torch.cuda.device(device):
        clear, blocks = torch.zeros((1, 16 * HASHED), dtype=torch.int32, device=device), 4 * HASHED
        seal_chunks(clear, _prepare(np.zeros((1, KEY_WORDS), np.int32), b"", blocks, device), blocks, lambda _: None)


def _prepare(keys: Any, context: bytes, blocks: int, device: Any) -> ChunkSchedules:
    padded = np.frombuffer(context + bytes(-len(context) % 16), dtype=np.int32)
    lengths = np.array([8 * len(context), 128 * blocks], dtype=np.int64).view(np.int32)
    put = torch.from_numpy(np.concatenate([keys.reshape(-1), padded, lengths])).to(device, non_blocking=True)
    schedule, lanes = put.new_empty((len(keys), SCHEDULE_WORDS)), 32
    expand_keys[(-(-len(keys) // lanes),)](put, schedule, len(keys), lanes=lanes, num_warps=1)
    return ChunkSchedules(schedule, put[keys.size :])


def _hash(text: Any, schedules: ChunkSchedules, tags: Any, blocks: int) -> None:
    lanes, (schedule, ahead) = min(HASHED, blocks), schedules
    hash_chunks[(len(text),)](
        text, schedule, ahead, tags, text.stride(0), tags.stride(0), len(ahead) // 4 - 1, lanes=lanes,
        num_warps=-(-lanes // 32),
    )  # fmt: skip


def _mask(source: Any, out: Any, tags: Any, schedules: ChunkSchedules, blocks: int) -> None:
    lanes = min(MASKED, blocks // 2)
    mask_chunks[(len(out), blocks // (2 * lanes))](
        source, out, tags, schedules.each, source.stride(0), out.stride(0), tags.stride(0), lanes=lanes,
        num_warps=-(-lanes // 32),
    )  # fmt: skip


@triton.jit
def load_words(at, count: tl.constexpr, inside):
    """So many words in a row, as a tuple."""
    out = ()
    for i in tl.static_range(count):
        out += (tl.load(at + i, mask=inside, other=0).to(tl.uint32, bitcast=True),)
    return out


@triton.jit
def store_words(at, words, count: tl.constexpr):
    """Writes so many words in a row."""
    for i in tl.static_range(count):
        tl.store(at + i, words[i].to(tl.int32, bitcast=True))


@triton.jit
def choose(wanted, a, b):
    """One of two elements, lane by lane."""
    return (
        tl.where(wanted, a[0], b[0]), tl.where(wanted, a[1], b[1]),
        tl.where(wanted, a[2], b[2]), tl.where(wanted, a[3], b[3]),
    )  # fmt: skip


@triton.jit
def thinned(x):
    """Every fourth bit of a word, from each of the lowest four, as words of 64 bits."""
    return (
        (x & 0x11111111).to(tl.uint64), (x & 0x22222222).to(tl.uint64),
        (x & 0x44444444).to(tl.uint64), (x & 0x88888888).to(tl.uint64),
    )  # fmt: skip


@triton.jit
def multiply_words(x, y):
    """The product of two polynomials of 32 bits, low and high word: sixteen products of `thinned` factors as whole
    numbers, in which at most eight ones meet, so that no sum reaches the next bit that is looked at.

    Guarantee: the product bit by bit, for all 2^20 pairs of such factors (tests/identity/test_triton_seal.py).
    """
    x, y, total = thinned(x), thinned(y), ()
    for k in tl.static_range(4):
        mixed = (x[0] * y[k]) ^ (x[1] * y[(k + 3) % 4]) ^ (x[2] * y[(k + 2) % 4]) ^ (x[3] * y[(k + 1) % 4])
        total += (mixed & (0x1111111111111111 << k),)
    total = total[0] | total[1] | total[2] | total[3]
    return total.to(tl.uint32), (total >> 32).to(tl.uint32)


@triton.jit
def multiply_pairs(a, b):
    """The product of two polynomials of two words each, four words: three products of words instead of four."""
    low, high, both = multiply_words(a[0], b[0]), multiply_words(a[1], b[1]), multiply_words(a[0] ^ a[1], b[0] ^ b[1])
    return low[0], low[1] ^ both[0] ^ low[0] ^ high[0], high[0] ^ both[1] ^ low[1] ^ high[1], high[1]


@triton.jit
def dot(a, b):
    """a b / x^128 modulo x^128 + x^127 + x^126 + x^121 + 1: the product, then its low words taken out one by one."""
    none = a[0] ^ a[0]
    low, high = multiply_pairs((a[0], a[1]), (b[0], b[1])), multiply_pairs((a[2], a[3]), (b[2], b[3]))
    both = multiply_pairs((a[0] ^ a[2], a[1] ^ a[3]), (b[0] ^ b[2], b[1] ^ b[3]))
    middle = add(both, add(low, high))
    low = (low[0], low[1], low[2] ^ middle[0], low[3] ^ middle[1])
    high = (high[0] ^ middle[2], high[1] ^ middle[3], high[2], high[3])
    for _ in tl.static_range(4):
        out = low[0]
        up = low[3] ^ (out << 31) ^ (out << 30) ^ (out << 25)
        next_up = high[0] ^ out ^ (out >> 1) ^ (out >> 2) ^ (out >> 7)
        low, high = (low[1], low[2], up, next_up), (high[1], high[2], high[3], none)
    return low


@triton.jit(do_not_specialize=["chunks"])
def expand_keys(keys, schedule, chunks, lanes: tl.constexpr):
    """Writes the round keys of every chunk; lanes past the end do the last one's again."""
    chunk = tl.minimum(tl.program_id(0) * lanes + tl.arange(0, lanes), chunks - 1)
    at = keys + chunk * _KEY_WORDS
    old, new = load_words(at + 4, 4, chunk >= 0), load_words(at + 8, 4, chunk >= 0)
    schedule = schedule + chunk * _SCHEDULE_WORDS
    expand_key(old, new, schedule)
    store_words(schedule + _HASH_KEY, load_words(at, 4, chunk >= 0), 4)


@triton.jit(
    do_not_specialize=["text_step", "tag_step", "before"],
    do_not_specialize_on_alignment=["text", "tags", "ahead"],
)
def hash_chunks(text, schedule, ahead, tags, text_step, tag_step, before, lanes: tl.constexpr):
    """Writes the tags of clear chunks; `ahead` has `before` blocks of associated data, then the block of lengths."""
    chunk, lane = tl.program_id(0).to(tl.int64), tl.arange(0, lanes)
    schedule = schedule + chunk * _SCHEDULE_WORDS
    key = load_words(schedule + _HASH_KEY, 4, chunk >= 0)
    none = lane.to(tl.uint32) ^ lane.to(tl.uint32)
    power, own = add(key, (none, none, none, none)), (none + 1, none, none, none + 0xC2000000)
    k = 1
    while k < lanes:
        times = dot(own, power)
        wanted = ((lanes - lane) & k) != 0
        own, power, k = choose(wanted, times, own), dot(power, power), 2 * k
    own = choose(lane == 0, power, own)
    place = lane - (lanes - before)
    total = load_words(ahead + place * 4, 4, place >= 0)
    at, left = text + chunk * text_step + lane * 4, text_step
    while left > 0:
        total = add(dot(total, power), load_words(at, 4, lane >= 0))
        at, left = at + 4 * lanes, left - 4 * lanes
    total = dot(total, own)
    total = (
        tl.xor_sum(total[0], 0), tl.xor_sum(total[1], 0), tl.xor_sum(total[2], 0), tl.xor_sum(total[3], 0)
    )  # fmt: skip
    total = dot(add(total, load_words(ahead + before * 4, 4, chunk >= 0)), key)
    block = (total[0] ^ chunk.to(tl.uint32), total[1], total[2], total[3] & 0x7FFFFFFF)
    store_words(tags + chunk * tag_step, encrypt_words(block + block, schedule), 4)


@triton.jit(
    do_not_specialize=["source_step", "out_step", "tag_step"],
    do_not_specialize_on_alignment=["source", "out", "tags"],
)
def mask_chunks(source, out, tags, schedule, source_step, out_step, tag_step, lanes: tl.constexpr):
    """Writes chunks plus the keystream that begins at their tags: clear ones become sealed ones, and back."""
    chunk = tl.program_id(0).to(tl.int64)
    tag = load_words(tags + chunk * tag_step, 4, chunk >= 0)
    first = tl.program_id(1) * 2 * lanes + tl.arange(0, lanes)
    one, two = first.to(tl.uint32) + tag[0], (first + lanes).to(tl.uint32) + tag[0]
    none = one ^ one
    b, c, d = none + tag[1], none + tag[2], none + (tag[3] | 0x80000000)
    mask = encrypt_words((one, b, c, d, two, b, c, d), schedule + chunk * _SCHEDULE_WORDS)
    source, out = source + chunk * source_step + first * 4, out + chunk * out_step + first * 4
    near, far = load_words(source, 4, first >= 0), load_words(source + 4 * lanes, 4, first >= 0)
    store_words(out, add(near, (mask[0], mask[1], mask[2], mask[3])), 4)
    store_words(out + 4 * lanes, add(far, (mask[4], mask[5], mask[6], mask[7])), 4)


KERNELS = (expand_keys, hash_chunks, mask_chunks)

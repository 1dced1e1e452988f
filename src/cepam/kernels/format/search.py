"""The search coder: numbers that both ends share, and how an encoder lays out a segment (docs/search.md).

A segment of an update is dealt to blocks of equal size, blocks are halved where need be, and each part that is searched
is one shared Gaussian vector, seen through public signs and one of all XOR shifts. All kernels share this file.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.errors import MalformedMessage
from cepam.kernels.format.plan import SCALE_BITS, Ints

SEGMENT = 1 << 18
"""Coordinates of a segment: coded by itself, in a thread of its own."""
SMALLEST, LARGEST = 5, 13
"""Binary logarithms of the least and the largest number of coordinates of a part."""
SIZES = LARGEST - SMALLEST + 1
CLASSES = 14
LAYERED_ONLY = 2 * SIZES * CLASSES
"""In the place of a class byte: the whole segment is the layered quantizer's."""
VECTOR_BITS, PROPOSAL_BITS = 12, 20
"""J and K have at most so many bits; an encoder needs more with chance under 2^-180 (docs/proofs/search-coder.md)."""
MOST_VECTORS, MOST_PROPOSALS = (1 << VECTOR_BITS) - 1, (1 << PROPOSAL_BITS) - 1
CAP, HALF_CAP = 1.5, 1.2
"""c of the theorem, of a block and of its halves: theirs are most often thrown away."""
SEARCHED_LEVELS = 2
"""Parts inside one another that are searched before the layered quantizer is what is left."""
HOTTEST = np.array([0.0] * SMALLEST + [5.5, 6.5, 7.2, 7.7, 8.6, 9.4, 10.2, 11.0, 12.0])
"""|x|^2 up to which a part of 2^i coordinates is searched, in noise variances."""
AIM = np.array([0.0] * SMALLEST + [5.2, 6.0, 6.6, 6.8, 7.8, 8.4, 9.2, 10.0, 11.0])
"""Mean |x|^2 up to which blocks of 2^i coordinates are made."""
LOUDEST = 0.14
"""Mean x^2 of an update, or of a segment, from which on all of it is the layered quantizer's: -8.5 dB."""
SHORTEST = 512
"""Coordinates of the shortest update that is searched."""
TIME_BITS = 52
"""Steps between arrivals count in 2^-52; they are added up in two halves of so many bits."""
PAD = 1 << 41
"""Numbers of the coordinates that fill up a block, beyond those of any update: never sent."""
STREAM_BITS = 16
LATENTS, DITHERS, SIGNS, PROPOSALS = 0, 1, 2, 3
OPENING, TIMES, CHOICES = 0, 1, 2
OPENING_TIMES, OPENING_CHOICES, OPENING_END = 2, 64, 128
"""Of an encoder's own streams: the opening one has a member, a coin, and the first steps of both races from these words
on; later ones are in streams of their own."""

CONTEXT_SPLIT, CONTEXT_LAYERED, CONTEXT_VECTOR = 0, 1, 2
CONTEXT_PROPOSAL = CONTEXT_VECTOR + VECTOR_BITS
CONTEXTS = CONTEXT_PROPOSAL + PROPOSAL_BITS
"""Of each energy class: searched? layered? then the lengths of J and of K in unary, and the bit below the highest."""


@dataclass(frozen=True)
class Layout:
    """How a segment's coordinates are dealt: block b has the coordinates b, b + blocks, b + 2 blocks, …"""

    count: int
    log_size: int
    blocks: int
    energy_class: int

    @property
    def size(self) -> int:
        """Coordinates of a block."""
        return 1 << self.log_size

    @property
    def places(self) -> int:
        """Coordinates of all blocks, those that fill up the last ones too."""
        return self.blocks << self.log_size

    def class_byte(self, layered: bool) -> int:
        """The first byte of the segment; `layered` says that some coordinates are the layered quantizer's."""
        return 2 * (self.energy_class * SIZES + self.log_size - SMALLEST) + layered


def read_class(byte: int, count: int) -> tuple[Layout, bool] | None:
    """The layout of a segment, and whether some coordinates are the layered quantizer's; None where all are.

    Raises `MalformedMessage` for a byte that no encoder writes for so many coordinates.
    """
    if byte == LAYERED_ONLY:
        return None
    energy_class, size = divmod(byte >> 1, SIZES)
    if byte > LAYERED_ONLY or SMALLEST + size > largest_log_size(count):
        raise MalformedMessage(f"a segment of {count} coordinates has no class {byte}")
    return layout_of(count, SMALLEST + size, energy_class), bool(byte & 1)


def short_number(value: int) -> bytes:
    """A varint."""
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def split_segment(data: bytes, layered: bool) -> tuple[bytes, bytes]:
    """The stream of the trees and that of the layered quantizer, behind the class byte."""
    if not layered:
        return data[1:], b""
    length = 0
    for at in range(1, min(len(data), 6)):
        length |= (data[at] & 127) << 7 * (at - 1)
        if data[at] < 128:
            if at + 1 + length > len(data):
                break
            return data[at + 1 : at + 1 + length], data[at + 1 + length :]
    raise MalformedMessage("the streams of a segment do not fit into it")


def largest_log_size(count: int) -> int:
    """The binary logarithm of the largest block that so many coordinates are dealt to."""
    return max(min(LARGEST, (count - 1).bit_length()), SMALLEST)


def layout_of(count: int, log_size: int, energy_class: int) -> Layout:
    """The layout of so many coordinates in blocks of this size."""
    return Layout(count, log_size, -(-count // (1 << log_size)), energy_class)


def cap_at(depth: int) -> float:
    """c of a part; a block has depth 0."""
    return HALF_CAP if depth == 1 else CAP


def stream_number(segment: int, log_size: int, part: int, candidate: int, kind: int) -> int:
    """The stream of a part of a segment: of its candidate vector, or of what the part has once (candidate 0)."""
    return (((segment << 4 | log_size) << STREAM_BITS | part) << STREAM_BITS | candidate) << 2 | kind


def search_keys(noise: bytes) -> tuple[bytes, bytes]:
    """(shared, private): the keys of the shared vectors, and of what only an encoder draws."""
    shared, private = (hmac.digest(noise, b"cepam search v1 " + name, "sha256") for name in (b"shared", b"private"))
    return shared, private


def choose_layout(x: Ints, scale: float) -> Layout | None:
    """The layout of a segment, from the update alone; None where the layered quantizer is to take all of it."""
    return layout_of_sum(coarse_sum(x), len(x), scale)


def layout_of_sum(total: int, count: int, scale: float) -> Layout | None:
    """The layout of a segment of so many coordinates and this `coarse_sum`."""
    ratio = 2.0**SCALE_BITS / scale
    energy = total / max(count, 1) * 2.0**-32 * ratio * ratio
    if energy > LOUDEST:
        return None
    sizes = range(SMALLEST, largest_log_size(count) + 1)
    log_size = max((i for i in sizes if energy * (1 << i) <= AIM[i]), default=SMALLEST)
    block = energy * (1 << log_size)
    steps = sum(block > 2.0 ** (step / 2 - 3) for step in range(CLASSES - 1))
    return layout_of(count, log_size, steps)


COARSE, LARGEST_COARSE = SCALE_BITS - 16, 1 << 22
"""Digits of a unit that a segment's energy leaves out, and what the others count at most."""


def coarse_sum(x: Ints) -> int:
    """The sum of x^2 in integers, so that every machine finds the same."""
    coarse = np.minimum(np.abs(x) >> COARSE, LARGEST_COARSE)
    return sum(int(part @ part) for part in np.split(coarse, range(1 << 16, len(coarse), 1 << 16)))


@cache
def load_odds() -> Any:
    """The chances of a 1, in 2^-16, of each energy class and context."""
    with np.load(Path(__file__).parent / "tables" / "search.npz") as table:
        odds: npt.NDArray[np.int64] = table["odds"].astype(np.int64)
        return odds


@cache
def search_fingerprint() -> bytes:
    """32 bytes that change with the numbers above and the shipped table."""
    numbers = [SEGMENT, SMALLEST, LARGEST, CLASSES, VECTOR_BITS, PROPOSAL_BITS]
    digest = hashlib.sha256(b"cepam search v1")
    digest.update(np.array(numbers, dtype="<i8").tobytes() + load_odds().astype("<i8").tobytes())
    return digest.digest()

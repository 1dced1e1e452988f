"""Which block of which client a lane of a wave codes, in Triton."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from cepam.kernels.triton.layers import load_whole


class Place(NamedTuple):
    """Which lanes of a batch a wave has, one for each block: numbers that kernels read from memory."""

    count: Any  # coordinates of a client's update
    begin: Any  # the wave's first lane in the batch, and the one behind its last
    total: Any
    blocks: Any  # blocks of a client
    per_block: Any  # sub-vectors of a block
    double: Any  # 1 where updates are float64 (`load_value`)


@triton.jit
def load_place(place):
    """The numbers of a `Place`."""
    return Place(*load_whole(place, 6))


@triton.jit
def lanes_of(place, n, mine):
    """(lane in the batch, client, block of the client, coordinates) of lanes `mine` of the wave."""
    # A message has at most 2^27 blocks: 32 bits are enough, and 64-bit quotients are slow.
    lane, length = mine + place.begin, place.per_block * n
    inside = lane < place.total
    client = tl.where(inside, lane // place.blocks, 0)
    block = tl.where(inside, lane - client * place.blocks, 0).to(tl.int64)
    size = tl.where(inside, tl.minimum(place.count - block * length, length), 0).to(tl.int32)
    return lane.to(tl.int64), client.to(tl.int64), block, size


@triton.jit
def first_of(place, n, client, block):
    """Where blocks begin among the coordinates of all clients."""
    return client * place.count + block * (place.per_block * n)


@triton.jit
def own_lanes(lanes: tl.constexpr):
    """The lanes of the wave that this program codes, one a thread."""
    return tl.program_id(0) * lanes + tl.arange(0, lanes)

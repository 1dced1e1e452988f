"""ChaCha on sixteen blocks at once, in vector registers: the shared randomness of the compiled backend.

The block function is emitted as LLVM vector code. A plain loop over lanes in Numba does not vectorise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from cepam.kernels.format.plan import CONSTANTS, ROUNDS
from cepam.kernels.numba.compiling import LONG, data_of, filled, stamped, transpose, vector_at

LANES = 16
LANE_WORDS = 16 * LANES
_PARTS = (
    ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)),
    ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)),
)


def _emit(builder: Any, source: Any, target: Any, rounds: int, lanes: int) -> None:
    vector = ir.VectorType(ir.IntType(32), lanes)
    start = [builder.load(vector_at(builder, source, LONG(LANES * i), vector), align=4) for i in range(16)]
    state = list(start)

    def turn(value: Any, bits: int) -> Any:
        return builder.or_(builder.shl(value, filled(vector, bits)), builder.lshr(value, filled(vector, 32 - bits)))

    for _ in range(rounds // 2):
        for part in _PARTS:
            for a, b, c, d in part:
                for x, y, z, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                    state[x] = builder.add(state[x], state[y])
                    state[z] = turn(builder.xor(state[z], state[x]), bits)
    words = [builder.add(s, t) for s, t in zip(state, start)]
    for first in range(0, 16, lanes):
        for lane, row in enumerate(transpose(builder, words[first : first + lanes])):
            builder.store(row, vector_at(builder, target, LONG(16 * lane + first), vector), align=4)


def _block_function(rounds: int, lanes: int = LANES) -> Any:
    """The blocks of the first lanes of a state, one after the other."""

    @intrinsic
    def block(typingctx: Any, source: Any, target: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            source, target = (data_of(context, builder, signature, arguments, i) for i in (0, 1))
            _emit(builder, source, target, rounds, lanes)
            return context.get_dummy_value()

        return types.void(source, target), codegen

    return block


chacha_lanes = _block_function(ROUNDS)
chacha_half = _block_function(ROUNDS, LANES // 2)
chacha20_lanes = _block_function(20)


@njit(cache=True, nogil=True, _nrt=False)
@stamped
def start_lanes(key: Any, state: Any) -> None:
    """Writes constants and key into the sixteen lanes of a state (256 words, word-major)."""
    for lane in range(16):
        for i in range(4):
            state[i * 16 + lane] = CONSTANTS[i]
        for i in range(8):
            state[(4 + i) * 16 + lane] = key[i]


@njit(cache=True, nogil=True, _nrt=False)
@stamped
def fill_words(state: Any, stream: Any, first: Any, out: Any) -> None:
    """Fills out (a multiple of 256 32-bit words) with the stream's blocks from number `first` on."""
    for lane in range(16):
        state[14 * 16 + lane] = np.uint32(stream & 0xFFFFFFFF)
        state[15 * 16 + lane] = np.uint32(stream >> 32)
    for group in range(len(out) // 256):
        for lane in range(16):
            counter = np.uint64(first + group * 16 + lane)
            state[12 * 16 + lane] = np.uint32(counter & np.uint64(0xFFFFFFFF))
            state[13 * 16 + lane] = np.uint32(counter >> np.uint64(32))
        chacha_lanes(state, out[group * 256 : group * 256 + 256])

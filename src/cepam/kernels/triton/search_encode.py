"""Updates encoded with the search coder on a GPU, many clients at a time: what launches its kernels.

Segments whose blocks have one size go together, in waves as large as the working memory allows. Parts are searched size
by size, the smallest first, as a part's draw is what its halves say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cepam.kernels.format import search as f
from cepam.kernels.format.plan import Plan
from cepam.kernels.triton.batch import BYTES_A_COORDINATE, tables_of
from cepam.kernels.triton.launch import announce, look_at
from cepam.kernels.triton.plan import DevicePlan, device_keys, device_plan
from cepam.kernels.triton.range_coder import gather_blocks
from cepam.kernels.triton.scalar_coder import finish_encoding, walk_flat
from cepam.kernels.triton.scalar_stage import STATE
from cepam.kernels.triton.search_coder import TILE, begin_left_encoding, mark_left, stage_left, write_trees
from cepam.kernels.triton.search_deal import fill_draws, fill_pads, measure_energies
from cepam.kernels.triton.search_deal import measure_segments as add_coarse
from cepam.kernels.triton.search_launch import LEAST_MEMORY, LONGEST, ONE, UNFUSED, Segment, grid_of, odds_on, put_on
from cepam.kernels.triton.search_races import bytes_of_signs, fill_sign_words, race_shifts, race_vectors, see_parts

look_at((add_coarse, measure_energies, fill_draws, fill_pads, fill_sign_words, race_vectors, race_shifts, see_parts,
         write_trees, begin_left_encoding))  # fmt: skip
PLACES = 512
"""Coordinates of the parts of a program, where one part has fewer."""
_VECTOR_WORDS, _SHIFT_WORDS = 16, 256
"""Words that a program takes at once: of each race for vectors, and of its races for shifts."""
_MOST_WARPS = 16
_BYTES_A_PLACE = 24
"""Working memory of a wave for each place of its segments: a draw, a ratio of one size, and what decoders take."""
_MOST_SEGMENTS = 65535  # of a grid's second axis
_CHUNK = 1024
_FIELDS = 2
_BROKEN = "nothing was found: this has chance under 2^-180 and means a broken keystream"


@dataclass(frozen=True, eq=False)
class MeasuredSegments:
    """Updates (clients, m) before they are searched; on the host the `coarse_sum` of every segment, and the largest
    magnitude of a value (NaN if there is one)."""

    on: DevicePlan
    keys: Sequence[bytes]
    x: Any
    sums: Any
    largest: float


def measure_updates(plan: Plan, keys: Sequence[bytes], x: Any) -> MeasuredSegments:
    """What must be known before updates (clients, m) are searched: the host waits for it once."""
    on, (clients, count) = device_plan(plan, str(x.device)), x.shape
    many = -(-count // f.SEGMENT)
    if not x.numel():
        return MeasuredSegments(on, keys, x, np.zeros((clients, many), dtype=np.int64), 0.0)
    announce("encode", plan.n, int(plan.search), int(plan.accept))
    found = x.new_zeros(clients * many + 1, dtype=torch.int64)
    add_coarse[(clients * many, -(-min(count, f.SEGMENT) // _CHUNK))](
        x.view(torch.float32), int(x.dtype == torch.float64), count, many, on.numbers, found, found[-1:], chunk=_CHUNK,
        **UNFUSED,
    )  # fmt: skip
    told = found.cpu().numpy()
    return MeasuredSegments(on, keys, x, told[:-1].reshape(clients, many), float(told[-1:].view(np.float64)[0]))


def encode_segments(found: MeasuredSegments, meanwhile: Callable[[], None] | None = None) -> list[list[bytes]]:
    """Each client's segments, all values within the plan's reach. While the device searches, `meanwhile` is done.

    Guarantee: the bytes of the other backends (tests/identity/test_triton_search_encoder.py).
    """
    encoder, (clients, many) = _Encoder(found, meanwhile), found.sums.shape
    count = int(found.x.shape[1])
    segments = []
    for client in range(clients):
        for number in range(many):
            size = min(count - number * f.SEGMENT, f.SEGMENT)
            layout = f.layout_of_sum(int(found.sums[client, number]), size, found.on.plan.scale)
            segments.append(Segment(client, number, size, layout))
    made: dict[tuple[int, int], bytes] = {}
    memory = max(BYTES_A_COORDINATE * found.x.numel(), LEAST_MEMORY)
    for log_size in sorted({each.layout.log_size for each in segments if each.layout}):
        some = [each for each in segments if each.layout and each.layout.log_size == log_size]
        stride = max(each.layout.places for each in some if each.layout)
        step = min(max(int(memory / (_BYTES_A_PLACE * stride)), 1), _MOST_SEGMENTS)
        for begin in range(0, len(some), step):
            made |= encoder.encode(some[begin : begin + step], log_size, stride)
    whole, step = [each for each in segments if each.layout is None], max(int(memory) >> 18, 1)
    for begin in range(0, len(whole), step):
        part = whole[begin : begin + step]
        rests = encoder.encode_left(part, [each.count for each in part], [-1] * len(part), encoder.nothing, f.SEGMENT)
        made |= {(each.client, each.number): bytes([f.LAYERED_ONLY]) + rest for each, rest in zip(part, rests)}
    encoder.go_on()
    if int(encoder.flags[0]):
        raise RuntimeError(_BROKEN)
    return [[made[client, number] for number in range(many)] for client in range(clients)]


class _Encoder:
    """Rows of values, and what encodes their segments."""

    def __init__(self, found: MeasuredSegments, meanwhile: Callable[[], None] | None) -> None:
        self.on, self.x, self.device, self._meanwhile = found.on, found.x, str(found.x.device), meanwhile
        self.words, self.double = found.x.view(torch.float32), int(found.x.dtype == torch.float64)
        self.count = int(found.x.shape[1])
        shared, private = zip(*(f.search_keys(key) for key in found.keys)) if found.keys else ((), ())
        self.keys, self.shared, self.private = (
            device_keys(each, self.device) for each in (found.keys, shared, private)
        )
        self.draws, self.shared_draws = self.on.draws(self.keys), self.on.draws(self.shared)
        self.flags = self._new(4, torch.int32).zero_()
        self.nothing = self._new(1, torch.int64).zero_()

    def _new(self, count: int, dtype: Any) -> Any:
        return self.x.new_empty(count, dtype=dtype)

    def go_on(self) -> None:
        """Do what waits for a device that is busy."""
        if self._meanwhile is not None:
            self._meanwhile()
        self._meanwhile = None

    def encode(self, segments: list[Segment], log_size: int, stride: int) -> dict[tuple[int, int], bytes]:
        """The bytes of segments with blocks of 2^log_size coordinates."""
        many = len(segments)
        table = put_on(np.array([each.row((0, 0), 0) for each in segments], dtype=np.int64), self.device)
        energies, found, listed = self._plan(table, many, stride, log_size)
        y = self._draw(table, many, stride, log_size)
        for size, own in zip(range(f.SMALLEST, log_size + 1), listed):
            if len(own):
                self._search(y, energies, found, table, own, many, stride, log_size, size)
        del y, energies
        entries = stride >> 4

        def write(slots: Any, lengths: Any, room: int) -> None:
            write_trees[(many,)](
                slots, lengths, table, found, odds_on(self.device), room, many, stride, log_size, lanes=1, **ONE
            )  # fmt: skip

        trees = self._written(write, many, 2 * entries + 4)
        sizes, coordinates = self._left(table, found, many, stride, log_size)
        starts, some = (np.cumsum(sizes) - sizes).tolist(), [i for i, size in enumerate(sizes) if size]
        rests = dict.fromkeys(range(many), b"")
        if some:
            own = [segments[i] for i in some], [sizes[i] for i in some], [starts[i] for i in some]
            rests |= dict(zip(some, self.encode_left(*own, coordinates, stride)))
        made = {}
        for i, (each, tree) in enumerate(zip(segments, trees)):
            length = f.short_number(len(tree)) if sizes[i] else b""
            first = bytes([each.layout.class_byte(bool(sizes[i]))]) if each.layout else b""
            made[each.client, each.number] = first + length + tree + rests[i]
        return made

    def _plan(self, table: Any, many: int, stride: int, log_size: int) -> tuple[Any, Any, list[Any]]:
        """(|x|^2 of all parts, what is found of them before any search, those of each size that are searched)."""
        least = self._new(many * (stride >> f.SMALLEST), torch.float64).zero_()
        measure_energies[(-(-(stride >> f.SMALLEST) // TILE), many)](
            self.words, self.double, self.count, least, table, self.on.numbers, stride, log_size, lanes=TILE, **UNFUSED
        )  # fmt: skip
        energies = [least.view(many, -1)]
        for _ in range(f.SMALLEST, log_size):
            energies.append(energies[-1][:, ::2] + energies[-1][:, 1::2])
        blocks = torch.arange(stride >> log_size, device=self.device)
        # How many searches are left to a part; 0 where it is not reached.
        levels = (blocks[None] < table[:, 3:4]).to(torch.int32) * f.SEARCHED_LEVELS
        found, tried = [], []
        for size in range(log_size, f.SMALLEST - 1, -1):
            cold = energies[size - f.SMALLEST] <= float(f.HOTTEST[size])
            tried.append((cold & (levels > 0)).view(-1))
            halved = (levels > 0) & (~cold | (levels > 1)) & (size > f.SMALLEST)
            found.append(-halved.to(torch.int32).view(-1))
            levels = torch.where(halved, levels - cold.to(torch.int32), 0).repeat_interleave(2, dim=1)
        both = torch.stack([torch.cat(found[::-1]), torch.zeros_like(torch.cat(found))], dim=1).contiguous()
        counts = torch.stack([each.sum() for each in tried[::-1]]).tolist()
        bases = np.cumsum([0, *(len(each) for each in tried[::-1])]).tolist()
        chosen: Any = torch.nonzero(torch.cat(tried[::-1])).view(-1)
        listed = [own - base for own, base in zip(chosen.split(counts), bases)]
        return torch.cat([each.reshape(-1) for each in energies]), both, listed

    def _draw(self, table: Any, many: int, stride: int, log_size: int) -> Any:
        """Draws of the layered quantizer at all places."""
        y, tiles = self._new(many * stride, torch.int64), (-(-stride // (8 * TILE)), many)
        fill_draws[tiles](
            self.words, self.double, self.count, y, table, self.draws, stride, log_size, lanes=TILE, **UNFUSED
        )  # fmt: skip
        fill_pads[tiles](y, table, self.draws, stride, log_size, lanes=TILE, **UNFUSED)
        return y

    def _search(
        self, y: Any, energies: Any, found: Any, table: Any, listed: Any, many: int, stride: int, log_size: int,
        size: int,
    ) -> None:  # fmt: skip
        """Searches the listed parts of 2^size coordinates; y becomes what they stand for, unless they are blocks."""
        total, lanes = len(listed), max(32, 1 << size >> 9)
        row = int(bytes_of_signs(size))
        signs = self._new(total * row, torch.uint8)
        ratios, most = self._new(total << size, torch.float64), self._new(total, torch.float64)
        shifts, rest = self._new(total, torch.int32), (total, many, stride)
        fill_sign_words[grid_of(total, lanes // max(1 << size >> 9, 1))](
            signs.view(torch.int64), listed, table, self.shared, *rest, size=size, lanes=lanes, **ONE
        )
        parts = max(PLACES >> size, 1)
        warps = min(max((parts << size) >> 8, 1), _MOST_WARPS)
        tiled = {"size": size, "parts": parts, "num_warps": warps} | UNFUSED
        race_vectors[grid_of(total, parts)](
            self.words, self.double, self.count, y, ratios, most, signs, energies, listed, table, found,
            self.shared_draws, self.private, self.flags, *rest, log_size, words=_VECTOR_WORDS, **tiled,
        )  # fmt: skip
        together = 4 if size < 9 else 1
        race_shifts[grid_of(total, together)](
            ratios, most, shifts, listed, table, found, self.shared, self.private, self.flags, *rest, size=size,
            parts=together, words=_SHIFT_WORDS // together, **ONE,
        )  # fmt: skip
        if size < log_size:
            see_parts[grid_of(total, parts)](y, shifts, signs, listed, table, found, self.shared_draws, *rest, **tiled)

    def _written(self, write: Callable[[Any, Any, int], None], many: int, room: int) -> list[bytes]:
        """The streams that `write` puts into slots of so many words, or of more where one outgrows them."""
        while True:
            slots, lengths = self._new(many * room, torch.int32), self._new(many, torch.int32)
            write(slots, lengths, room)
            self.go_on()
            told = lengths.tolist()
            if max(told) <= 4 * room:
                break
            room *= 4
        starts = lengths.cumsum(0, dtype=torch.int64) - lengths
        out = self._new(sum(told), torch.uint8)
        gather_blocks[(many,)](slots, lengths, starts, out, room, chunk=_CHUNK)
        data, ends = out.cpu().numpy().tobytes(), np.cumsum(told).tolist()
        return [data[end - length : end] for end, length in zip(ends, told)]

    def _left(self, table: Any, found: Any, many: int, stride: int, log_size: int) -> tuple[list[int], Any]:
        """How many coordinates of each segment are left to the layered quantizer, and the list of them."""
        left, tile = torch.zeros((many, stride), dtype=torch.uint8, device=self.device), 8 * TILE
        mark_left[(-(-stride // tile), many)](left, table, found, stride, many, stride, log_size, lanes=tile)
        sizes: list[int] = left.sum(1, dtype=torch.int64).tolist()
        return sizes, torch.nonzero(left.view(-1)).view(-1) if any(sizes) else self.nothing

    def encode_left(
        self, segments: list[Segment], sizes: list[int], starts: list[int], coordinates: Any, width: int
    ) -> list[bytes]:
        """The blocks of the layered coordinates of segments: `coordinates` lists them, each with `width` times its
        segment's place added, from `starts` on; -1 stands for all."""
        many, longest = len(segments), max(sizes)
        rows_of = [each.row((0, 0), begin) for each, begin in zip(segments, starts)]
        table = put_on(np.array(rows_of, dtype=np.int64), self.device)
        counts = put_on(np.array(sizes, dtype=np.int32), self.device)
        few, state = tables_of(1, int(self.on.plan.accept), self.device)[2], self._new(many * STATE, torch.int64)
        spare = LEAST_MEMORY // (8 * _FIELDS * many) // 64 * 64
        rows = min(max(spare, TILE), LONGEST, -(-longest // 8) * 8)
        stage = self._new(many * rows * _FIELDS + 2, torch.int64)

        def write(slots: Any, lengths: Any, room: int) -> None:
            update = self.words, self.double, self.count
            begin_left_encoding[(many,)](
                *update, table, counts, coordinates, width, self.on.numbers, slots, state, room, chunk=_CHUNK,
                **ONE,
            )  # fmt: skip
            odds = few.repeat(many, 1)
            for first in range(0, longest, rows):
                stage_left[(many, -(-rows // TILE))](
                    *update, stage, state, table, coordinates, width, self.draws, first, rows, flat=True,
                    decoding=False, tile=TILE, **UNFUSED,
                )  # fmt: skip
                walk_flat[(many,)](slots, stage, state, odds, first, rows, lanes=1, decoding=False, **ONE)
            finish_encoding[(many,)](state, slots, lengths, lanes=1, **ONE)

        return self._written(write, many, max(longest * 3 // 32, 16))

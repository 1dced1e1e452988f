"""The message's bytes: header, seal, block table, padding; and what mangled or hostile bytes come to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cepam
from cepam.codec import wire
from cepam.errors import MalformedMessage, SealBroken, WrongAddress, WrongSize
from tests.corpus import (
    AT,
    CODERS,
    DOUBLE,
    LATTICES,
    PADDED,
    TRAVELS,
    make_codec,
    open_payload,
    outcome,
    seal_payload,
    sparse_update,
    varint,
)

KEYS = AT.derive()
MARK = bytes(range(100, 132))
GOLDEN = cepam.Address(bytes(range(32)), round=12, client=34, run=b"golden", attempt=0)
EARLIER = {
    1: ("015c47285621cabb011687bb6f9bad15548998872cd51d83a5f197a16c7e6c"),
    2: ("025c47285621cabb011687bb6f9bad15548998872cd51d83a5f197a16c7e6c"),
    3: ("03c2db3d6b984c2eb40654337328b2715815609533f35416cf"),
    4: ("04c2db3d6b984c2eb40654337328b2715815609533f35416cf"),
}
"""Messages that earlier versions of this package wrote; of versions 2 and 4, which were long, the version alone."""
calm = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def contents_of(blocks: list[bytes], size: int, double: bool = False) -> wire.Contents:
    return wire.Contents(size, double, False, blocks)


@pytest.mark.parametrize("travels", [True, False])
@pytest.mark.parametrize("padding", [None, 1, 64, 1000])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize(
    ("size", "dimension", "blocks"),
    [
        (0, 1, []),
        (1, 1, [b"z"]),
        (8192, 1, [b"abc"]),
        (8193, 1, [b"", b"x"]),
        (30000, 8, [b"a" * 300, b"", b"b\0", b"c"]),
    ],
)
def test_open_gives_what_was_sealed(
    size: int, dimension: int, blocks: list[bytes], double: bool, padding: int | None, travels: bool
) -> None:
    if not size and not travels:
        return  # a codec has a size from 1 on
    sealed = wire.seal(contents_of(blocks, size, double), KEYS, MARK, padding, travels=travels)
    opened = wire.open_sealed(sealed, KEYS, MARK, dimension, size=None if travels else size)
    assert (opened.size, opened.double, opened.searched, list(opened.blocks)) == (size, double, False, blocks)
    if padding is not None:
        assert len(sealed) % padding == 0
        assert len(sealed) < 2 + 16 + 12 + sum(map(len, blocks)) + 3 * len(blocks) + padding


def test_an_empty_payload_is_a_zero_byte() -> None:
    """The cipher seals no empty text; behind a block of the arithmetic code zeros mean nothing."""
    sealed = wire.seal(contents_of([b""], 1), KEYS, MARK, travels=False)
    assert len(sealed) == 2 + 1 + 16
    assert list(wire.open_sealed(sealed, KEYS, MARK, 1, size=1).blocks) == [b"\0"]


@pytest.mark.parametrize("coder", CODERS)
@pytest.mark.parametrize("lattice", LATTICES)
def test_a_size_that_both_ends_know_does_not_travel(lattice: str, coder: str) -> None:
    free, x = make_codec("gaussian", lattice, coder), sparse_update(300)
    known = free.sized(300)
    message = known.encode(x, AT)
    assert len(message) == len(free.encode(x, AT)) - 2
    assert known.decode(message, AT).tobytes() == free.decode(free.encode(x, AT), AT).tobytes()
    for other in (free, free.sized(299), free.sized(301)):
        assert other.fingerprint != known.fingerprint
        with pytest.raises(WrongAddress):
            other.decode(message, AT)
        with pytest.raises(WrongAddress):
            known.decode(other.encode(x[: other.size or 300] if other.size != 301 else sparse_update(301), AT), AT)
    with pytest.raises(ValueError, match="300 coordinates"):
        known.encode(x[:299], AT)
    with pytest.raises(ValueError, match="300 coordinates"):
        known.sized(299)
    with pytest.raises(WrongSize):
        known.decode(message, AT, size=299)


@pytest.mark.parametrize("size", [0, -1, 2**40 + 1, 1.0, True])
def test_a_size_out_of_range_is_refused(size: object) -> None:
    with pytest.raises(ValueError, match="size"):
        cepam.Codec(cepam.Gaussian(0.01), size=size)  # type: ignore[arg-type]


def test_the_header_of_a_known_size_takes_nineteen_bytes() -> None:
    """Version and flags, tag, seal, and the class byte of the search coder: an update of next to nothing."""
    message = cepam.Codec(cepam.Gaussian(1.0), size=1000).encode(np.zeros(1000, np.float32), AT)
    assert message[0] == 5 << 4 | wire.SEARCHED
    assert len(message) <= 2 + 16 + 1 + 1


@pytest.mark.parametrize("flags", range(16))
def test_flags_are_bound_by_the_seal(flags: int) -> None:
    codec = cepam.Codec(cepam.Gaussian(0.01), size=600)
    message = codec.encode(sparse_update(600), AT)
    if message[0] & 15 == flags:
        return
    with pytest.raises(WrongAddress):
        codec.decode(bytes([5 << 4 | flags]) + message[1:], AT)


def test_layout_is_the_documented_one() -> None:
    codec = make_codec("gaussian", "D4")
    x = sparse_update(9000, np.float32)
    payload = open_payload(codec.encode(x, AT), codec)
    assert payload[:2] == varint(9000)
    first = payload[2] if payload[2] < 128 else payload[2] - 128 + 128 * payload[3]
    table = len(varint(first))
    blocks = [payload[2 + table : 2 + table + first], payload[2 + table + first :]]
    rebuilt = seal_payload(varint(9000) + varint(len(blocks[0])) + b"".join(blocks), codec)
    assert rebuilt == codec.encode(x, AT)


@pytest.mark.parametrize("coder", CODERS)
@pytest.mark.parametrize("lattice", LATTICES)
def test_flags_say_the_type(lattice: str, coder: str) -> None:
    codec = make_codec("gaussian", lattice, coder)
    for dtype, flags in ((np.float32, 0), (np.float64, 1)):
        assert codec.encode(sparse_update(20, dtype), AT)[0] == 5 << 4 | wire.TRAVELS | flags
    padded = make_codec("gaussian", lattice, coder, padding=64)
    assert padded.encode(sparse_update(20, np.float32), AT)[0] == 5 << 4 | wire.TRAVELS | wire.PADDED


@pytest.mark.parametrize("size", [0, 1, 127, 128, 8192, 2**14, 2**20, 2**31, 2**40])
def test_overhead_is_at_most_32_bytes(size: int) -> None:
    """Beyond the blocks and their lengths."""
    total = wire.count_blocks(size, 1) if size <= 2**20 else 1
    n = 1 if size <= 2**20 else -(-size // 128)
    blocks = [b"block"] * total
    sealed = wire.seal(contents_of(blocks, size), KEYS, MARK)
    assert len(sealed) - 5 * total - max(total - 1, 0) <= 32
    if n == 1:
        assert wire.open_sealed(sealed, KEYS, MARK, 1).size == size


def test_nothing_costs_almost_nothing() -> None:
    message = make_codec().encode(np.zeros(0), AT)
    assert len(message) == 19


@pytest.mark.parametrize(
    ("size", "n", "count"), [(0, 1, 0), (1, 1, 1), (8192, 1, 1), (8193, 1, 2), (8193, 8, 2), (6422, 8, 1)]
)
def test_count_of_blocks(size: int, n: int, count: int) -> None:
    assert wire.count_blocks(size, n) == count


@pytest.mark.parametrize("n", range(1, 11))
def test_blocks_start_on_whole_keystream_groups(n: int) -> None:
    assert wire.rows_per_block(n) % 128 == 0
    assert 0 < wire.rows_per_block(n) * n <= 8192


def test_seal_hides_and_binds() -> None:
    codec = make_codec()
    x = sparse_update(500)
    message = codec.encode(x, AT)
    assert message[0] >> 4 == 5
    other = codec.encode(x, cepam.Address(AT.key, AT.round + 1, AT.client, AT.run, AT.attempt))
    assert message[:2] == other[:2]
    same = sum(a == b for a, b in zip(message[2:], other[2:]))
    assert same < 0.05 * len(message) + 10


@pytest.mark.parametrize("padding", [None, 64])
def test_every_flipped_bit_is_refused(padding: int | None) -> None:
    codec = make_codec(padding=padding)
    message = codec.encode(sparse_update(40), AT)
    for at in range(8 * len(message)):
        mangled = bytearray(message)
        mangled[at // 8] ^= 1 << at % 8
        with pytest.raises((MalformedMessage, WrongAddress)):
            codec.decode(bytes(mangled), AT)


@pytest.mark.parametrize("padding", [None, 64])
def test_every_truncation_and_extension_is_refused(padding: int | None) -> None:
    codec = make_codec(padding=padding)
    message = codec.encode(sparse_update(40), AT)
    for length in range(len(message)):
        with pytest.raises(MalformedMessage):
            codec.decode(message[:length], AT)
    for extra in (b"\0", b"\xff", bytes(64), message):
        with pytest.raises(MalformedMessage):
            codec.decode(message + extra, AT)


@pytest.mark.parametrize(
    "other",
    [
        cepam.Address(bytes(32), AT.round, AT.client, AT.run, AT.attempt),
        cepam.Address(AT.key, AT.round + 1, AT.client, AT.run, AT.attempt),
        cepam.Address(AT.key, AT.round, AT.client + 1, AT.run, AT.attempt),
        cepam.Address(AT.key, AT.client, AT.round, AT.run, AT.attempt),
        cepam.Address(AT.key, AT.round, AT.client, b"other", AT.attempt),
        cepam.Address(AT.key, AT.round, AT.client, AT.run, AT.attempt + 1),
    ],
)
def test_another_address_does_not_open(other: cepam.Address) -> None:
    codec = make_codec()
    message = codec.encode(sparse_update(40), AT)
    with pytest.raises(WrongAddress) as caught:
        codec.decode(message, other)
    assert isinstance(caught.value, SealBroken)


def test_another_description_does_not_open() -> None:
    codecs = [
        make_codec(),
        make_codec("laplace"),
        make_codec("ball"),
        make_codec(lattice="E8"),
        make_codec(lattice="skew"),
        make_codec(coder="paper"),
        cepam.Codec(cepam.Gaussian(0.0100001), cepam.Integer(1), coder="layered"),
        cepam.Codec(cepam.Gaussian(0.01), cepam.Integer(1), coder="paper", bound=5.0),
        cepam.Codec(cepam.Gaussian(0.01)),
        cepam.Codec(cepam.Gaussian(0.01), size=40),
        cepam.Codec(cepam.Gaussian(0.01), coder="layered", size=40),
        cepam.DitheredCodec(0.01),
    ]
    assert len({codec.fingerprint for codec in codecs}) == len(codecs)
    message = codecs[0].encode(sparse_update(40), AT)
    for codec in codecs[1:]:
        with pytest.raises(WrongAddress):
            codec.decode(message, AT)


def test_description_is_bound_even_where_the_tag_agrees() -> None:
    """The tag in the clear has one byte; the seal binds all 32 of the fingerprint."""
    mine, theirs = MARK, MARK[:-1] + b"\0"
    sealed = bytearray(wire.seal(contents_of([b"x"], 1), KEYS, mine))
    sealed[:2] = wire.seal(contents_of([b"x"], 1), KEYS, theirs)[:2]
    with pytest.raises(SealBroken):
        wire.open_sealed(bytes(sealed), KEYS, theirs, 1)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_messages_of_earlier_versions_are_refused_by_version(version: int) -> None:
    message = bytes.fromhex(EARLIER[version])
    for codec in (cepam.Codec(cepam.Gaussian(0.01)), make_codec(), make_codec(coder="paper")):
        with pytest.raises(MalformedMessage, match=f"version 5, got version {version}"):
            codec.decode(message, GOLDEN)


def test_another_version_says_so() -> None:
    codec = make_codec()
    message = codec.encode(sparse_update(40), AT)
    with pytest.raises(MalformedMessage, match="version 6"):
        codec.decode(b"\x60" + message[1:], AT)


@calm
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    codec = make_codec()
    for message in (data, b"\x58" + data, codec.encode(np.zeros(0), AT)[:2] + data):
        with pytest.raises((MalformedMessage, WrongAddress)):
            codec.decode(message, AT)


@pytest.mark.parametrize("message", [None, "text", 5, [1, 2], np.zeros(30)])
def test_what_is_not_bytes_is_refused_at_the_door(message: object) -> None:
    if isinstance(message, np.ndarray):
        message = message.tolist()
    with pytest.raises(ValueError, match="bytes"):
        make_codec().decode(message, AT)  # type: ignore[arg-type]


def test_any_bytes_like_message_is_read() -> None:
    codec, x = make_codec(), sparse_update(40)
    message = codec.encode(x, AT)
    for form in (bytearray(message), memoryview(message)):
        assert codec.decode(form, AT).tobytes() == codec.decode(message, AT).tobytes()  # type: ignore[arg-type]


# From here on the seal is good and the payload is not: a client that holds the key can send anything.

BAD_PAYLOADS = {
    "size of one byte, unfinished": b"\x80",
    "size unfinished": b"\xff" * 9,
    "size never ends": b"\x80" * 30,
    "size beyond the limit": varint(2**40 + 1),
    "size of 2^62": varint(2**62) + bytes(100),
    "more parts than bytes": varint(8192 * 50) + bytes(10),
    "bytes where there are no coordinates": b"\x00junk",
    "first part longer than the payload": varint(9000) + varint(1000) + b"abc",
    "last part of negative length": varint(9000) + varint(4) + b"abc",
    "padded block longer than the payload": varint(10) + varint(50) + b"abc",
    "padding behind the block that is not zero": varint(10) + varint(3) + b"abc" + b"\0\0\1",
    "padded block without a table": varint(10),
    "block length of 2^62": varint(10) + varint(2**62) + b"abc",
    "block length unfinished": varint(10) + b"\xff",
}


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize("name", BAD_PAYLOADS)
def test_sealed_nonsense_is_refused(name: str, backend: str) -> None:
    codec = make_codec(backend=backend)
    with pytest.raises(MalformedMessage):
        codec.decode(seal_payload(BAD_PAYLOADS[name], codec, flags=TRAVELS | PADDED * ("block" in name)), AT)


def check_hostile(payload: bytes, lattice: str, coder: str, flags: int = TRAVELS | DOUBLE) -> None:
    """Both backends refuse, or return the same finite vector of the claimed size on the public grid."""
    codec = make_codec("gaussian", lattice, coder)
    message = seal_payload(payload, codec, flags=flags)
    ends = [outcome(make_codec("gaussian", lattice, coder, backend=backend), message) for backend in ("numpy", "numba")]
    assert ends[0] == ends[1]
    kind, data = ends[0]
    if kind == "refused":
        return
    vector = np.frombuffer(data, dtype=kind)
    assert np.isfinite(vector).all()
    steps = vector.astype(np.float64) / codec.grid
    assert np.array_equal(steps, np.rint(steps))


@pytest.mark.parametrize("coder", CODERS)
@pytest.mark.parametrize("lattice", LATTICES)
@calm
@given(size=st.integers(0, 40), flags=st.integers(0, 15), block=st.binary(max_size=60))
def test_sealed_random_blocks(lattice: str, coder: str, size: int, flags: int, block: bytes) -> None:
    check_hostile(varint(size) + block, lattice, coder, TRAVELS | flags & DOUBLE)
    check_hostile(varint(size) + block, lattice, coder, flags)


@pytest.mark.parametrize("coder", CODERS)
@pytest.mark.parametrize("lattice", LATTICES)
def test_sealed_and_then_mutated(lattice: str, coder: str) -> None:
    codec = make_codec("gaussian", lattice, coder)
    payload = open_payload(codec.encode(sparse_update(60), AT), codec)
    rng = np.random.default_rng(11)
    for _ in range(25):
        mutated = bytearray(payload)
        for at in rng.integers(1, len(payload), size=rng.integers(1, 4)):  # the claimed size stays modest
            mutated[at] = rng.integers(256)
        if rng.random() < 0.3:
            mutated = mutated[: rng.integers(1, len(mutated))]
        check_hostile(bytes(mutated), lattice, coder)


@pytest.mark.parametrize("fill", [0x00, 0x55, 0xAA])
@pytest.mark.parametrize("coder", CODERS)
@pytest.mark.parametrize("lattice", LATTICES)
def test_sealed_constant_bytes(lattice: str, coder: str, fill: int) -> None:
    for count in (0, 1, 200):
        check_hostile(varint(30) + bytes([fill]) * count, lattice, coder)


@pytest.mark.parametrize("backend", ["numba", "numpy"])
def test_endless_refusals_end_soon(backend: str) -> None:
    """A block of ones refuses every trial: the decoder must give up after as many as could ever be needed."""
    codec = make_codec(lattice="D4", backend=backend)
    codec.decode(codec.encode(np.zeros(1), AT), AT)
    message = seal_payload(varint(4) + b"\xff" * 400, codec)
    assert codec.plan.trials < 100
    with pytest.raises(MalformedMessage):
        codec.decode(message, AT)


@pytest.mark.parametrize("times", [1, 9])
@pytest.mark.parametrize("ends", [(128, 16383), (127, 16383), (128, 16384), (0, 2**32), (300, 300)])
def test_numbers_of_two_bytes_are_written_and_read_like_all_others(ends: tuple[int, int], times: int) -> None:
    """A table whose numbers all take two bytes goes a shorter way, and one of a few numbers another."""
    numbers = np.array([*ends, 300, 255, 256] * times, dtype=np.int64)
    table = wire._varints(numbers)
    assert table == b"".join(varint(int(each)) for each in numbers)
    found, whole, end = wire._read_lengths(memoryview(b"?" + table + b"more"), 1, len(numbers))
    assert found.tolist() == numbers.tolist()
    assert (whole, end) == (numbers.sum(), 1 + len(table))


@pytest.mark.parametrize("blocks", [3, 40])
def test_lengths_whose_sum_would_come_out_short_are_refused(blocks: int) -> None:
    """Numbers of 63 bits, of which several add up to a small one in as many bits."""
    codec = make_codec(lattice="Z1")
    table = (varint(2**62) * (blocks - 1 + 4))[: 9 * (blocks - 1)]
    message = seal_payload(varint(blocks * wire.BLOCK_COORDINATES) + table + b"\xff" * 99, codec)
    with pytest.raises(MalformedMessage, match="block table"):
        codec.decode(message, AT)

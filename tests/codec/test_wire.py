"""The message's bytes: header, seal, block table, padding; and what mangled or hostile bytes come to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cepam
from cepam.codec import wire
from cepam.errors import MalformedMessage, SealBroken, WrongAddress
from tests.corpus import AT, CODERS, LATTICES, make_codec, open_payload, outcome, seal_payload, sparse_update, varint

KEYS = AT.derive()
MARK = bytes(range(100, 132))
calm = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def contents_of(blocks: list[bytes], size: int, lattice: int = 0, double: bool = False) -> wire.Contents:
    return wire.Contents(size, double, lattice, blocks)


@pytest.mark.parametrize("padding", [None, 1, 64, 1000])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize(
    ("size", "lattice", "blocks"),
    [
        (0, 0, []),
        (1, 0, [b""]),
        (8192, 0, [b"abc"]),
        (8193, 0, [b"", b"x"]),
        (30000, 1, [b"a" * 300, b"", b"b\0", b"c"]),
    ],
)
def test_open_gives_what_was_sealed(
    size: int, lattice: int, blocks: list[bytes], double: bool, padding: int | None
) -> None:
    sealed = wire.seal(contents_of(blocks, size, lattice, double), KEYS, MARK, padding)
    opened = wire.open_sealed(sealed, KEYS, MARK, [1, 8])
    assert (opened.size, opened.double, opened.lattice, list(opened.blocks)) == (size, double, lattice, blocks)
    if padding is not None:
        assert len(sealed) % padding == 0
        assert len(sealed) < 3 + 16 + 12 + sum(map(len, blocks)) + 3 * len(blocks) + padding


def test_layout_is_the_documented_one() -> None:
    codec = make_codec("gaussian", "D4")
    x = sparse_update(9000, np.float32)
    payload = open_payload(codec.encode(x, AT), codec)
    assert payload[0] == 0
    assert payload[1:3] == varint(9000)
    first = payload[3] if payload[3] < 128 else payload[3] - 128 + 128 * payload[4]
    table = len(varint(first))
    blocks = [payload[3 + table : 3 + table + first], payload[3 + table + first :]]
    rebuilt = seal_payload(b"\x00" + varint(9000) + varint(len(blocks[0])) + b"".join(blocks), codec)
    assert rebuilt == codec.encode(x, AT)


@pytest.mark.parametrize("coder", CODERS)
@pytest.mark.parametrize("lattice", LATTICES)
def test_flags_say_the_type(lattice: str, coder: str) -> None:
    codec = make_codec("gaussian", lattice, coder)
    for dtype, flags in ((np.float32, 0), (np.float64, 1)):
        assert open_payload(codec.encode(sparse_update(20, dtype), AT), codec)[0] == flags
    padded = make_codec("gaussian", lattice, coder, padding=64)
    assert open_payload(padded.encode(sparse_update(20, np.float32), AT), padded)[0] == 2


@pytest.mark.parametrize("size", [0, 1, 127, 128, 8192, 2**14, 2**20, 2**31, 2**40])
def test_overhead_is_at_most_32_bytes(size: int) -> None:
    """Beyond the blocks and their lengths."""
    total = wire.count_blocks(size, 1) if size <= 2**20 else 1
    n = 1 if size <= 2**20 else -(-size // 128)
    blocks = [b"block"] * total
    sealed = wire.seal(contents_of(blocks, size), KEYS, MARK)
    assert len(sealed) - 5 * total - max(total - 1, 0) <= 32
    if n == 1:
        assert wire.open_sealed(sealed, KEYS, MARK, [1]).size == size


def test_nothing_costs_almost_nothing() -> None:
    message = make_codec().encode(np.zeros(0), AT)
    assert len(message) == 21


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
    assert message[0] == 1
    other = codec.encode(x, cepam.Address(AT.key, AT.round + 1, AT.client, AT.run, AT.attempt))
    assert message[:3] == other[:3]
    same = sum(a == b for a, b in zip(message[3:], other[3:]))
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
        cepam.Codec(cepam.Gaussian(0.0100001), cepam.Integer(1)),
        cepam.Codec(cepam.Gaussian(0.01), cepam.Integer(1), coder="paper", bound=5.0),
        cepam.Codec(cepam.Gaussian(0.01)),
        cepam.DitheredCodec(0.01),
    ]
    assert len({codec.fingerprint for codec in codecs}) == len(codecs)
    message = codecs[0].encode(sparse_update(40), AT)
    for codec in codecs[1:]:
        with pytest.raises(WrongAddress):
            codec.decode(message, AT)


def test_description_is_bound_even_where_the_tag_agrees() -> None:
    """The tag in the clear has two bytes; the seal binds all 32 of the fingerprint."""
    mine, theirs = MARK, MARK[:-1] + b"\0"
    sealed = bytearray(wire.seal(contents_of([b"x"], 1), KEYS, mine))
    sealed[:3] = wire.seal(contents_of([b"x"], 1), KEYS, theirs)[:3]
    with pytest.raises(SealBroken):
        wire.open_sealed(bytes(sealed), KEYS, theirs, [1])


def test_another_version_says_so() -> None:
    codec = make_codec()
    message = codec.encode(sparse_update(40), AT)
    with pytest.raises(MalformedMessage, match="version 5"):
        codec.decode(b"\x05" + message[1:], AT)
    with pytest.raises(MalformedMessage):
        codec.decode(b"\x02" + message[1:], AT)


@calm
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    codec = make_codec()
    for message in (data, b"\x01" + data, codec.encode(np.zeros(0), AT)[:3] + data):
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
    "only flags, size unfinished": b"\x00\x80",
    "size unfinished": b"\x00" + b"\xff" * 9,
    "size never ends": b"\x00" + b"\x80" * 30,
    "size beyond the limit": b"\x00" + varint(2**40 + 1),
    "size of 2^62": b"\x00" + varint(2**62) + bytes(100),
    "more blocks than bytes": b"\x00" + varint(8192 * 50) + bytes(10),
    "lattice that the codec has not": bytes([1 << 2]) + varint(10) + b"abc",
    "lattice 63": bytes([63 << 2]) + varint(10) + b"abc",
    "bytes where there are no coordinates": b"\x00\x00junk",
    "first block longer than the payload": b"\x00" + varint(9000) + varint(1000) + b"abc",
    "last block of negative length": b"\x00" + varint(9000) + varint(4) + b"abc",
    "padded block longer than the payload": b"\x02" + varint(10) + varint(50) + b"abc",
    "padding that is not zero": b"\x02" + varint(10) + varint(3) + b"abc" + b"\0\0\1",
    "padded without a table": b"\x02" + varint(10),
    "block length of 2^62": b"\x02" + varint(10) + varint(2**62) + b"abc",
    "block length unfinished": b"\x02" + varint(10) + b"\xff",
}


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize("name", BAD_PAYLOADS)
def test_sealed_nonsense_is_refused(name: str, backend: str) -> None:
    codec = make_codec(backend=backend)
    with pytest.raises(MalformedMessage):
        codec.decode(seal_payload(BAD_PAYLOADS[name], codec), AT)


def check_hostile(payload: bytes, lattice: str, coder: str) -> None:
    """Both backends refuse, or return the same finite vector of the claimed size on the public grid."""
    codec = make_codec("gaussian", lattice, coder)
    message = seal_payload(payload, codec)
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
@given(size=st.integers(0, 40), flags=st.integers(0, 255), block=st.binary(max_size=60))
def test_sealed_random_blocks(lattice: str, coder: str, size: int, flags: int, block: bytes) -> None:
    check_hostile(bytes([flags & 1]) + varint(size) + block, lattice, coder)
    check_hostile(bytes([flags]) + varint(size) + block, lattice, coder)


@pytest.mark.parametrize("coder", CODERS)
@pytest.mark.parametrize("lattice", LATTICES)
def test_sealed_and_then_mutated(lattice: str, coder: str) -> None:
    codec = make_codec("gaussian", lattice, coder)
    payload = open_payload(codec.encode(sparse_update(60), AT), codec)
    rng = np.random.default_rng(11)
    for _ in range(25):
        mutated = bytearray(payload)
        for at in rng.integers(2, len(payload), size=rng.integers(1, 4)):  # the claimed size stays modest
            mutated[at] = rng.integers(256)
        if rng.random() < 0.3:
            mutated = mutated[: rng.integers(2, len(mutated))]
        check_hostile(bytes(mutated), lattice, coder)


@pytest.mark.parametrize("fill", [0x00, 0x55, 0xAA])
@pytest.mark.parametrize("coder", CODERS)
@pytest.mark.parametrize("lattice", LATTICES)
def test_sealed_constant_bytes(lattice: str, coder: str, fill: int) -> None:
    for count in (0, 1, 200):
        check_hostile(b"\x01" + varint(30) + bytes([fill]) * count, lattice, coder)


@pytest.mark.parametrize("backend", ["numba", "numpy"])
def test_endless_refusals_end_soon(backend: str) -> None:
    """A block of ones refuses every trial: the decoder must give up after as many as could ever be needed."""
    codec = make_codec(lattice="D4", backend=backend)
    codec.decode(codec.encode(np.zeros(1), AT), AT)
    message = seal_payload(b"\x01" + varint(4) + b"\xff" * 400, codec)
    assert codec.plan_on(cepam.D4).trials < 100
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
    message = seal_payload(b"\x00" + varint(blocks * wire.BLOCK_COORDINATES) + table + b"\xff" * 99, codec)
    with pytest.raises(MalformedMessage, match="block table"):
        codec.decode(message, AT)

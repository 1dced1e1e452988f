"""Fields of a message as bytes: one way to write each, and nothing else is read."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from itertools import pairwise

from cepam.errors import MalformedMessage

MOST_NAMES = 1 << 16


class ByteWriter:
    """Collects fields, little-endian, lengths before what varies."""

    def __init__(self, start: bytes = b"") -> None:
        self._parts = [start]

    def number(self, value: int, size: int) -> ByteWriter:
        """An unsigned integer in `size` bytes."""
        self._parts.append(value.to_bytes(size, "little"))
        return self

    def real(self, value: float) -> ByteWriter:
        """A float64."""
        self._parts.append(struct.pack("<d", value))
        return self

    def raw(self, data: bytes) -> ByteWriter:
        """Bytes whose length the reader knows."""
        self._parts.append(data)
        return self

    def blob(self, data: bytes) -> ByteWriter:
        """Bytes after their length."""
        return self.number(len(data), 4).raw(data)

    def names(self, names: Iterable[int]) -> ByteWriter:
        """Node ids, rising, after their count."""
        listed = sorted(names)
        return self.number(len(listed), 4).raw(struct.pack(f"<{len(listed)}Q", *listed))

    def pieces(self, pieces: Iterable[bytes]) -> ByteWriter:
        """Byte strings of one length that the reader knows, after their count."""
        listed = list(pieces)
        return self.number(len(listed), 4).raw(b"".join(listed))

    def bytes(self) -> bytes:
        """All fields so far."""
        return b"".join(self._parts)


class ByteReader:
    """Reads what `ByteWriter` wrote; anything else raises `MalformedMessage`."""

    def __init__(self, data: bytes) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise ValueError(f"a message is bytes, got {type(data).__name__}")
        self._data, self._at = bytes(data), 0

    def raw(self, size: int) -> bytes:
        """The next `size` bytes."""
        if size > len(self._data) - self._at:
            raise MalformedMessage("a message of a sum ends before its fields do")
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self, size: int, least: int = 0, most: int = 2**64 - 1) -> int:
        """An unsigned integer of `size` bytes within these bounds."""
        value = int.from_bytes(self.raw(size), "little")
        if not least <= value <= most:
            raise MalformedMessage(f"a field must be from {least} to {most}, got {value}")
        return value

    def real(self) -> float:
        """A finite float64, not negative; minus zero is another way to write zero, and refused."""
        value: float = struct.unpack("<d", self.raw(8))[0]
        if not 0.0 <= value < math.inf or math.copysign(1.0, value) < 0.0:
            raise MalformedMessage(f"a real field must be finite and not negative, got {value!r}")
        return value

    def blob(self, most: int) -> bytes:
        """Bytes after their length, at most `most` of them."""
        return self.raw(self.number(4, most=most))

    def names(self, least: int = 0) -> tuple[int, ...]:
        """Node ids, strictly rising."""
        count = self._count(8, least)
        listed = struct.unpack(f"<{count}Q", self.raw(8 * count))
        if any(low >= high for low, high in pairwise(listed)):
            raise MalformedMessage("names must rise strictly")
        return listed

    def pieces(self, size: int) -> tuple[bytes, ...]:
        """Byte strings of `size` bytes each."""
        together = self.raw(size * self._count(size, 0))
        return tuple(together[at : at + size] for at in range(0, len(together), size))

    def _count(self, size: int, least: int) -> int:
        count = self.number(4, least, MOST_NAMES)
        if count * size > len(self._data) - self._at:
            raise MalformedMessage("a message of a sum ends before its fields do")
        return count

    def end(self) -> None:
        """Raise `MalformedMessage` if bytes are left over."""
        if self._at != len(self._data):
            raise MalformedMessage(f"{len(self._data) - self._at} bytes are left over")

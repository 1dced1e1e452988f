"""TensorBoard events, written from the metrics as a whole so that a resumed run has each round once.

The format is small: records framed by length and masked CRC-32C, each a protocol-buffer `Event` with one scalar.
"""

from __future__ import annotations

import struct
from pathlib import Path

from cepam.fl.aggregation.aggregator import Line
from cepam.fl.aggregation.warnings import SIMULATED

SCALARS = (
    "accuracy", "validation_accuracy", "validation_loss", "loss", "train_loss", "snr_db", "epsilon", "replies",
    "bits_per_coordinate", "bits_per_coordinate_down",
)  # fmt: skip


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _crc_table()


def masked_crc32c(data: bytes) -> int:
    """The CRC-32C of the data, rotated and shifted as the record format wants it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _record(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + struct.pack("<I", masked_crc32c(length)) + event + struct.pack("<I", masked_crc32c(event))


def _scalar(step: int, tag: str, value: float) -> bytes:
    """An event with one scalar; its wall time is the round, which keeps the file the same however long it took."""
    held = _field(1, tag.encode()) + b"\x15" + struct.pack("<f", value)
    return b"\x09" + struct.pack("<d", float(step)) + b"\x10" + _varint(step) + _field(5, _field(1, held))


def scalars(line: Line, seeds: int) -> dict[str, float]:
    """Every scalar of a line of metrics by its tag, which names the seed where there are several."""
    tail = f"/seed-{line['seed']}" if seeds > 1 else ""
    made = {name: float(line[name]) for name in SCALARS if line.get(name) is not None}
    marked = f"epsilon ({SIMULATED})"
    return {f"{marked if name == 'epsilon' and line.get('simulated') else name}{tail}": x for name, x in made.items()}


def write_events(path: Path, lines: list[Line]) -> None:
    """Nothing; the file holds every scalar of the metrics, tagged by seed where there are several."""
    seeds = len({line["seed"] for line in lines})
    records = [_record(b"\x09" + struct.pack("<d", 0.0) + _field(3, b"brain.Event:2"))]
    for line in lines:
        records += [_record(_scalar(line["round"], tag, value)) for tag, value in scalars(line, seeds).items()]
    path.write_bytes(b"".join(records))

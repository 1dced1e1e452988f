from __future__ import annotations

import struct
from pathlib import Path

from cepam.fl.runs.tensorboard import masked_crc32c, write_events


def test_crc_is_the_standard_one() -> None:
    crc = 0xE3069283
    assert masked_crc32c(b"123456789") == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def test_events_read_back(tmp_path: Path) -> None:
    lines = [{"round": r, "seed": 1, "accuracy": r / 10, "loss": None} for r in (1, 200)]
    write_events(tmp_path / "events", lines)
    raw, at, events = (tmp_path / "events").read_bytes(), 0, []
    while at < len(raw):
        (length,) = struct.unpack_from("<Q", raw, at)
        assert struct.unpack_from("<I", raw, at + 8)[0] == masked_crc32c(raw[at : at + 8])
        events.append(raw[at + 12 : at + 12 + length])
        assert struct.unpack_from("<I", raw, at + 12 + length)[0] == masked_crc32c(events[-1])
        at += 16 + length
    assert events[0].endswith(b"brain.Event:2")
    assert len(events) == 3
    assert b"accuracy" in events[2]
    assert events[2].endswith(struct.pack("<f", 20.0))

"""Files that are written whole."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Nothing; the file holds the old content or the new one, whenever the machine stops."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    os.replace(temporary, path)


def append_line(path: Path, line: str) -> None:
    """Nothing; the line stands at the end of the file, on the disk."""
    with path.open("ab") as out:
        out.write(line.encode() + b"\n")
        out.flush()
        os.fsync(out.fileno())

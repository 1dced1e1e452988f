"""Files that are written whole, and files that one process holds at a time."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def write_atomically(path: Path, content: bytes, private: bool = False) -> None:
    """Nothing; the file holds the old content or the new one, whenever the machine stops.

    A `private` file can be read by its owner alone (mode 600).
    """
    temporary = path.with_name(f".{path.name}.tmp")
    if private:
        temporary.unlink(missing_ok=True)
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
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


@contextmanager
def locked_file(path: Path) -> Iterator[BinaryIO]:
    """The file, open to read and to append, made with mode 600 if it was not there; others wait for the block's end."""
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b") as file:
        _lock(file)
        file.seek(0)
        yield file


if sys.platform == "win32":  # untested

    def _lock(file: BinaryIO) -> None:
        import msvcrt

        file.seek(2**30)  # a byte beyond the content: a locked one could not be read
        msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
else:

    def _lock(file: BinaryIO) -> None:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)

"""Files that hold the old content or the new one, secrets only for their owner's eyes, errors that name a file."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cepam import files

REMEDIES = {
    errno.ENOSPC: "the disk is full: make room, then resume",
    errno.EDQUOT: "your quota on this disk is used up: make room, then resume",
}


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Nothing; what goes wrong inside names the file, and what to do about a full disk. The innermost name stays."""
    try:
        yield
    except _NamedError:
        raise
    except OSError as problem:
        reason = REMEDIES.get(problem.errno or 0, problem.strerror or str(problem))
        raise _NamedError(problem.errno, reason, str(path)) from None


class _NamedError(OSError):
    """An error that names its file."""


def write_atomically(path: Path, content: bytes, private: bool = False) -> None:
    """Nothing; the file holds the old content or the new one, and an error names it; `private`: mode 600."""
    with naming(path):
        files.write_atomically(path, content, private)


def write_secret(path: Path, content: bytes) -> None:
    """Nothing; a new file that only its owner can read (mode 600), on disk before this returns."""
    with naming(path):
        files.write_atomically(path, content, private=True)
    files.settle(path.parent)


def erase(path: Path) -> None:
    """Nothing; the file was overwritten and is gone. What a journal or a flash cell may have kept is out of reach."""
    if not path.exists():
        return
    with naming(path), path.open("r+b") as out:
        out.write(bytes(path.stat().st_size))
        out.flush()
        os.fsync(out.fileno())
    path.unlink()
    files.settle(path.parent)

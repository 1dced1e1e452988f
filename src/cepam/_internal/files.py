"""Where files are kept; writing them atomically, privately or under a lock; errors that name the file."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

_BINARY: int = getattr(os, "O_BINARY", 0)  # Windows alone has it


def cache_folder() -> Path:
    """Where what was fetched or computed is kept: $CEPAM_CACHE, else $XDG_CACHE_HOME/cepam, else ~/.cache/cepam."""
    own = os.environ.get("CEPAM_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cepam"


def _write_whole(path: Path, content: bytes, private: bool) -> None:
    """Replace a file whole: it holds the old content or the new one, whenever the machine stops.

    The temporary file has a name of its own, so that two writers never share one. `settle` brings the folder to disk,
    where the new content must be there after a power cut. A `private` file can be read by its owner alone (mode 600).
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{token_hex(4)}.tmp")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY
        with os.fdopen(os.open(temporary, flags, 0o600 if private else 0o666), "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def locked_file(path: Path, wait: bool = True) -> Iterator[BinaryIO]:
    """The file, open to read and to append, made with mode 600 if it was not there; others wait for the block's end.

    With `wait=False` a file that another holds is a BlockingIOError at once.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | _BINARY
    with os.fdopen(os.open(path, flags, 0o600), "r+b") as file:
        _lock(file, wait)
        file.seek(0)
        yield file


if sys.platform == "win32":

    def _lock(file: BinaryIO, wait: bool) -> None:
        import msvcrt

        while True:
            file.seek(2**30)  # a byte beyond the content: a locked one could not be read
            try:
                return msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
            except OSError:  # LK_LOCK gives up after ten seconds
                if not wait:
                    raise BlockingIOError(f"another process holds {file.name}") from None

    def settle(folder: Path) -> None:
        """Do nothing: a folder cannot be opened there, and NTFS keeps its own journal of names."""
else:

    def _lock(file: BinaryIO, wait: bool) -> None:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)

    def settle(folder: Path) -> None:
        """Bring names made and removed in the folder to disk."""
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


REMEDIES = {
    errno.ENOSPC: "the disk is full: make room, then resume",
    errno.EDQUOT: "your quota on this disk is used up: make room, then resume",
}


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors inside name the file, and what to do about a full disk; the innermost name stays."""
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
    """Write a file atomically; an error names it. `private` files have mode 600."""
    with naming(path):
        _write_whole(path, content, private)


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read (mode 600), on disk before this returns."""
    with naming(path):
        write_atomically(path, content, private=True)
    settle(path.parent)


def erase(path: Path) -> None:
    """Overwrite and remove a file. What a journal or a flash cell may have kept is out of reach."""
    if not path.exists():
        return
    with naming(path), path.open("r+b") as out:
        out.write(bytes(path.stat().st_size))
        out.flush()
        os.fsync(out.fileno())
    path.unlink()
    settle(path.parent)

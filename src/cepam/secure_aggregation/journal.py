"""A client's journal: its state and what it has answered, written before anything is said.

A node's secrets stay with whoever drives it (a framework's context, in memory). The journal knows their digest. Secrets
that are older than the journal, after a fault, a rollback or a second copy, are refused: they would answer twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Protocol

from cepam._internal.files import locked_file, settle, write_atomically
from cepam.errors import MalformedMessage
from cepam.secure_aggregation.fields import ByteReader, ByteWriter
from cepam.secure_aggregation.policy import AnsweredRounds
from cepam.secure_aggregation.roster import LONGEST_RUN

MAGIC = b"cepam sum journal v1"
DIGEST_BYTES = 32
MOST_RUNS = 64


@dataclass(frozen=True)
class RunPlace:
    """Where a node stands in one run: the epoch it last said hello in, and the digest of its state."""

    run: bytes
    epoch: int
    state: bytes


@dataclass(frozen=True)
class JournalEntry:
    """Where a node stands in the runs it last took part in, and all that it has answered in any run."""

    places: tuple[RunPlace, ...] = ()
    answered: AnsweredRounds = field(default_factory=AnsweredRounds)

    def place(self, run: bytes) -> RunPlace | None:
        """Where the node stands in this run; nothing where it never was, or too many runs ago."""
        return next((place for place in self.places if place.run == run), None)

    def moved(self, place: RunPlace) -> JournalEntry:
        """The entry with the node at another place of a run. The oldest of too many runs is forgotten: it must say
        hello again, with new keys."""
        others = tuple(known for known in self.places if known.run != place.run)
        return replace(self, places=(*others, place)[-MOST_RUNS:])

    def encode(self) -> bytes:
        """The entry as bytes, with a check value at the end."""
        writer = ByteWriter(MAGIC).number(len(self.places), 4)
        for place in self.places:
            writer.blob(place.run).number(place.epoch, 8).raw(place.state)
        self.answered.write(writer)
        return writer.bytes() + hashlib.sha256(writer.bytes()).digest()

    @classmethod
    def decode(cls, data: bytes) -> JournalEntry:
        """The entry that these bytes are; a damaged one raises `MalformedMessage`."""
        if data[: len(MAGIC)] != MAGIC or hashlib.sha256(data[:-DIGEST_BYTES]).digest() != data[-DIGEST_BYTES:]:
            raise MalformedMessage("this is not the journal of a node, or it is damaged")
        reader = ByteReader(data[len(MAGIC) : -DIGEST_BYTES])
        places = tuple(
            RunPlace(reader.blob(LONGEST_RUN), reader.number(8), reader.raw(DIGEST_BYTES))
            for _ in range(reader.number(4, most=MOST_RUNS))
        )
        entry = cls(places, AnsweredRounds.read(reader))
        reader.end()
        return entry


class Journal(Protocol):
    """Where a node writes down its transitions."""

    def hold(self) -> AbstractContextManager[JournalEntry]:
        """The last entry; nobody else reads or writes until the block ends."""

    def commit(self, entry: JournalEntry) -> None:
        """Nothing; the entry is the last one, whatever happens next. Call it inside `hold`."""


class FileJournal:
    """A journal in a file: it survives the process and the machine, and is locked against others."""

    def __init__(self, path: Path) -> None:
        self._path = Path(path)

    @contextmanager
    def hold(self) -> Iterator[JournalEntry]:
        with locked_file(self._path.with_name(self._path.name + ".lock")):
            try:
                entry = JournalEntry.decode(self._path.read_bytes())
            except FileNotFoundError:
                entry = JournalEntry()
            yield entry

    def commit(self, entry: JournalEntry) -> None:
        write_atomically(self._path, entry.encode(), private=True)
        settle(self._path.parent)


class MemoryJournal:
    """A journal that dies with the process: FOR SIMULATION ONLY."""

    def __init__(self) -> None:
        self._entry, self._lock = JournalEntry(), Lock()

    @contextmanager
    def hold(self) -> Iterator[JournalEntry]:
        with self._lock:
            yield self._entry

    def commit(self, entry: JournalEntry) -> None:
        self._entry = entry

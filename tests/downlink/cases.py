"""A short run whose messages are pinned: integer arithmetic alone; `python -m tests.broadcast.cases` writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

import cepam

FILE = Path(__file__).parent / "golden.json"
RUN = b"golden"
SIZE = 40
STEPS = (2.0**-6, 2.0**-6, 2.0**-8, 2.0**-5)
Vector = npt.NDArray[np.float64]


def weights(number: int) -> Vector:
    """The exact weights of a round: multiples of 2**-12, loud and quiet, of both signs."""
    return np.array([((i * 7919 + number * (i % 5) * 31) % 2003 - 1001) * (1 + i % 3) / 4096 for i in range(SIZE)])


def messages(backend: str = "auto") -> Iterator[tuple[str, bytes]]:
    """Every message of the run by name: rounds, catching up, snapshots."""
    start = weights(0).astype(np.float32)
    for name, given in (("start", start), ("no start", None)):
        server = cepam.Broadcast(RUN, given, backend=backend)  # type: ignore[arg-type]
        for number, step in enumerate(STEPS):
            yield f"{name}, round {number + 1}", server.publish(weights(number + 1), step)
            if number == 2:
                yield f"{name}, from 1 to 3", server.message_from(1)
        yield f"{name}, snapshot", server.message_from(None)
        yield f"{name}, up to date", server.message_from(4)


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: message.hex() for name, message in messages()}, indent=1) + "\n")

"""Two checkouts side by side: `python bench/before.py OLD [NEW] [--turns 5] [--only codec|rate|accountant]`.

Codec, rate and accountant through public calls that both have: processor time on one thread, a fresh process a turn,
the checkouts in turn, the least of all turns. Prints old, new and new / old; NEW is this checkout if it is not given.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parents[1]
SIZES = (6_422, 1_000_000)
SIGMA, ROUNDS, DELTA = 0.01, 80, 1e-5
Row = tuple[str, float, str]


def least(runs: int, work: Callable[[], object]) -> float:
    """The least processor time of several runs, in seconds."""
    found = []
    for _ in range(runs):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


def codec_rows() -> Iterator[Row]:
    """ns per coordinate to encode and decode, sealed; every message has an address of its own."""
    import cepam

    for name, lattice in (("n = 1", cepam.Integer(1)), ("E8", cepam.E8)):
        codec = cepam.Codec(cepam.Gaussian(SIGMA), lattice, coder="layered", threads=1)
        for size in SIZES:
            x = np.random.default_rng(0).laplace(scale=0.0125 / np.sqrt(2.0), size=size).astype(np.float32)
            encode, decode = time_messages(codec, x, cepam.Address, 3_000_000 // size + 1)
            yield f"encode, {name}, {size:,} coordinates", encode / size * 1e9, "ns"
            yield f"decode, {name}, {size:,} coordinates", decode / size * 1e9, "ns"


def time_messages(codec: Any, x: Any, address: Any, count: int) -> tuple[float, float]:
    """The least seconds to encode and to decode one of so many messages, once all is compiled."""
    places = [address(bytes(range(32)), round=turn, client=0) for turn in range(count + 1)]
    messages: list[bytes] = []
    codec.decode(codec.encode(x, places[count]), places[count])
    turns = iter(places[:count])
    encode = least(count, lambda: messages.append(codec.encode(x, next(turns))))
    turns, sent = iter(places), iter(messages)
    return encode, least(count, lambda: codec.decode(next(sent), next(turns)))


def rate_rows() -> Iterator[Row]:
    """Bits per coordinate of sealed messages of the default codec: entries without order, in rows, mostly zeros."""
    import cepam

    rng = np.random.default_rng(1)
    plain = rng.laplace(scale=0.0125 / np.sqrt(2.0), size=100_000)
    kinds = {
        "without order": plain,
        "in rows of 300": plain * np.resize(np.exp(rng.normal(size=300)), len(plain)),
        "mostly zeros": plain * (rng.random(len(plain)) < 0.05),
    }
    codec = cepam.Codec(cepam.Gaussian(SIGMA), threads=1)
    for name, x in kinds.items():
        at = cepam.Address(cepam.Key(bytes(32)), round=0, client=0)
        yield f"default codec, entries {name}", 8 * len(codec.encode(x.astype(np.float32), at)) / len(x), "bits"


def accountant_rows() -> Iterator[Row]:
    """Seconds of one answer, one calibration and a ledger of four kinds of rounds (`bench/privacy.py`)."""
    from cepam import L2, Gaussian
    from cepam.privacy import Accountant, Mechanism, Sampling, calibrate, epsilon, spent

    mechanism = Mechanism.uniform(30, Gaussian(0.25), L2(1.0), Sampling("replacement", 15), 2000, rounds=ROUNDS)
    epsilon(mechanism.over(2), DELTA)  # imports what it needs, once

    def with_dropouts() -> float:
        accountant = Accountant()
        for turn in range(ROUNDS):
            accountant = accountant.add(mechanism.over(1).without(range(turn % 4)))
        return spent(accountant, DELTA)

    yield "epsilon of 80 rounds", least(1, lambda: epsilon(mechanism, DELTA)), "s"
    yield "calibration over 80 rounds", least(1, lambda: calibrate(mechanism, 1.0, DELTA)), "s"
    yield "ledger of four kinds of rounds", least(1, with_dropouts), "s"


PARTS: dict[str, Callable[[], Iterator[Row]]] = {
    "codec": codec_rows,
    "rate": rate_rows,
    "accountant": accountant_rows,
}


def turn_of(checkout: Path, parts: list[str]) -> list[Row]:
    """All rows of a checkout, measured in a process of its own."""
    paths = os.pathsep.join([str(checkout / "src"), os.environ.get("PYTHONPATH", "")])
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    ran = subprocess.run(
        [sys.executable, __file__, "--one", *parts], env={**os.environ, "PYTHONPATH": paths, **one},
        check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return [tuple(row) for row in json.loads(ran.stdout)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path, nargs="?", default=HERE)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", choices=list(PARTS))
    options = parser.parse_args()
    parts = [options.only] if options.only else list(PARTS)
    best: dict[str, tuple[list[float], str]] = {}
    for _ in range(options.turns):
        for side, checkout in enumerate((options.old, options.new)):
            for what, value, unit in turn_of(checkout, parts):
                values, _ = best.setdefault(what, ([np.inf, np.inf], unit))
                values[side] = min(values[side], value)
    print(f"{'':44} {'old':>9} {'new':>9} {'new / old':>10}")
    for what, ((old, new), unit) in best.items():
        print(f"{what:44} {old:9.3f} {new:9.3f} {new / old:10.3f}  {unit}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps([row for part in sys.argv[2:] for row in PARTS[part]()]))
    else:
        main()

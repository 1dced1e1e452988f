"""The search coder beside the limit and the other coders: bits over SNR, real updates, a million weights, time.

    python bench/search.py                # prints; writes bench/results/search.json, which the site's pages show
    python bench/search.py --only time    # one of them: snr, time, runs (which takes a minute)

Bits are those of whole messages, seal and header included; `payload` leaves out the 18 bytes of header and seal. The
limit is |x|^2 / (2 sigma^2 ln 2). Times are processor time of one thread, the least of several calls of `encode` and
`decode`, side by side with x + sigma * randn (float32) of the same length in PyTorch and NumPy. Compiling counts
processor seconds of a process that finds nothing compiled.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import cepam
from cepam import fl
from cepam.codec.codec import MessageCodec
from stamp import stamp

RESULTS = Path(__file__).parent / "results" / "search.json"
WEIGHTS, REPEATS = 39_700, 8
DECIBELS = (-40, -31, -28, -25, -20, -17, -14, -12, -10, -9, -8, -6, -3, 0)
ROUNDS = (0, 5, 20, 50, 100, 200)
OVERHEAD = 18
Floats = npt.NDArray[np.float64]
LAW = cepam.Gaussian(1.0)
SEARCH, LINE, GOSSET = (
    cepam.Codec(LAW, threads=1),
    cepam.Codec(LAW, coder="layered", threads=1),
    cepam.Codec(LAW, cepam.E8, threads=1),
)


def limit(x: Floats) -> float:
    """Bits that the update's information takes at least."""
    return float(x @ x) / (2.0 * math.log(2.0))


def bits(codec: MessageCodec, x: Floats, number: int) -> int:
    """Bits of one message."""
    return 8 * len(codec.sized(len(x)).encode(x, cepam.Address(bytes(32), round=number, client=0)))


def over_snr() -> list[dict[str, float]]:
    """Bits of messages of Gaussian updates at every SNR."""
    rng, rows = np.random.default_rng(1), []
    dithered = cepam.DitheredCodec(1.0, threads=1)
    for decibels in DECIBELS:
        row = {"snr_db": float(decibels), "limit": 0.0, "search": 0.0, "layered Z1": 0.0, "layered E8": 0.0}
        row["noise, then SDQ of step sigma"] = 0.0
        for number in range(REPEATS):
            x = rng.normal(size=WEIGHTS) * 10.0 ** (decibels / 20.0)
            row["limit"] += limit(x) / REPEATS
            for name, codec in (("search", SEARCH), ("layered Z1", LINE), ("layered E8", GOSSET)):
                row[name] += bits(codec, x, number) / REPEATS
            noisy = x + rng.normal(size=WEIGHTS)
            row["noise, then SDQ of step sigma"] += bits(dithered, noisy, number) / REPEATS
        rows.append(row)
        print("  ".join(f"{name} {value:,.0f}" for name, value in row.items()), flush=True)
    return rows


class Stop(Exception):
    """Enough rounds."""


def updates_of_private() -> dict[int, list[Floats]]:
    """Clipped updates of six clients in some rounds of the preset `private`, in noise scales."""
    kept: dict[int, dict[int, Floats]] = {}  # of an address the last one: the engine first tries an example's length
    encode = cepam.Codec.encode

    def watch(self: Any, update: Any, at: cepam.Address, used: Any = None) -> bytes:
        if at.round in ROUNDS and at.client < 6 and len(update) == WEIGHTS:
            kept.setdefault(at.round, {})[at.client] = np.asarray(update, dtype=np.float64) / self.law.scale
        if at.round > max(ROUNDS):
            raise Stop
        return encode(self, update, at, used)

    cepam.Codec.encode = watch  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as folder:
            fl.train(fl.preset("private").updated({"run.seed": 1}), Path(folder) / "run")
    except Stop:
        pass
    finally:
        cepam.Codec.encode = encode  # type: ignore[method-assign]
    return {number: list(updates.values()) for number, updates in kept.items()}


def on_real_updates() -> list[dict[str, float]]:
    """Messages of real updates, round by round."""
    rows = []
    for number, updates in sorted(updates_of_private().items()):
        row = {"round": float(number), "snr_db": 0.0, "limit": 0.0, "search": 0.0, "layered Z1": 0.0}
        for x in updates:
            row["snr_db"] += 10.0 * math.log10(float(x @ x) / len(x)) / len(updates)
            row["limit"] += limit(x) / len(updates)
            row["search"] += np.mean([bits(SEARCH, x, i) for i in range(REPEATS)]) / len(updates)
            row["layered Z1"] += bits(LINE, x, 0) / len(updates)
        row["payload over limit"] = (row["search"] - 8 * OVERHEAD) / row["limit"]
        row["payload over limit, layered Z1"] = (row["layered Z1"] - 8 * OVERHEAD) / row["limit"]
        row["bits per coordinate"] = row["search"] / WEIGHTS
        rows.append(row)
        print("  ".join(f"{name} {value:,.4g}" for name, value in row.items()), flush=True)
    return rows


def least(work: Callable[[], object], calls: int = 9) -> float:
    """The least processor time of a call."""
    found = math.inf
    for _ in range(calls):
        before = time.thread_time()
        work()
        found = min(found, time.thread_time() - before)
    return found


def timed() -> list[dict[str, float]]:
    """Encoding and decoding over plain noise, on one thread."""
    torch.set_num_threads(1)
    rows, at, rng = [], cepam.Address(bytes(32), round=1, client=0), np.random.default_rng(2)
    for size in (WEIGHTS, 1_000_000):
        base = rng.normal(size=size).astype(np.float32)
        tensor, draw = torch.from_numpy(base), np.random.default_rng(3)
        search, line = SEARCH.sized(size), LINE.sized(size)
        for decibels in (-30, -25, -20, -17, -15, -10):
            x = base * np.float32(10.0 ** (decibels / 20.0))
            message, layered = search.encode(x, at), line.encode(x, at)
            works: dict[str, Callable[[], object]] = {
                "noise": lambda t=tensor: t + 1.0 * torch.randn(len(t)),  # type: ignore[misc]
                "NumPy noise": lambda b=base, draw=draw: b + draw.standard_normal(len(b), dtype=np.float32),  # type: ignore[misc]
                "encode": lambda x=x, c=search: c.encode(x, at),  # type: ignore[misc]
                "decode": lambda m=message, c=search: c.decode(m, at),  # type: ignore[misc]
                "layered Z1 encode": lambda x=x, c=line: c.encode(x, at),  # type: ignore[misc]
                "layered Z1 decode": lambda m=layered, c=line: c.decode(m, at),  # type: ignore[misc]
            }
            seconds = dict.fromkeys(works, math.inf)
            for _ in range(5):  # side by side: the machine may be slower a moment later
                seconds = {name: min(seconds[name], least(work, 5)) for name, work in works.items()}
            noise = seconds["noise"]
            row = {"size": float(size), "snr_db": float(decibels), "bytes": float(len(message))}
            row["noise ns"] = noise / size * 1e9
            row |= {f"{name} over noise": value / noise for name, value in seconds.items() if name != "noise"}
            rows.append(row)
            print("  ".join(f"{name} {value:,.4g}" for name, value in row.items()), flush=True)
    return rows


FIRST = """
import time, numpy as np, cepam
codec, x = cepam.Codec(cepam.Gaussian(1.0){coder}, backend="numba", threads=1), np.full(4000, 0.05, dtype=np.float32)
begun = time.process_time()
codec.decode(codec.encode(x, cepam.Address(bytes(32), round=1, client=0)), cepam.Address(bytes(32), round=1, client=0))
print(time.process_time() - begun)
"""


def compiling() -> dict[str, float]:
    """Processor seconds of the first message, there and back, where nothing is compiled."""
    found = {}
    for name, coder in (("search", ""), ("layered Z1", ', coder="layered"')):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as empty:
            call, env = [sys.executable, "-c", FIRST.format(coder=coder)], os.environ | {"NUMBA_CACHE_DIR": empty}
            found[name] = float(subprocess.check_output(call, env=env, text=True))
    print(found, flush=True)
    return found


def main() -> None:
    """Prints and writes what is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=("snr", "time", "runs"))
    only = parser.parse_args().only
    found: dict[str, Any] = {}
    if only in (None, "snr"):
        found["gaussian updates, bits"] = over_snr()
    if only in (None, "time"):
        found |= {"time": timed(), "compiling, processor seconds": compiling()}
    if only in (None, "runs"):
        found["updates of private, bits"] = on_real_updates()
    before = json.loads(RESULTS.read_text()) if only else {}
    stamps = before.get("stamps", {}) | {only or "all": stamp()}
    found = before | found | {"weights": WEIGHTS, "stamps": stamps}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Speed, linearity and memory of the codec: `python bench/speed.py [--coordinates 10000000] [--no-memory] [--small]`.

Prints a table and writes bench/results/speed.json. One thread unless a row says otherwise; look at the ratios.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

import numpy as np

import cepam
from cepam.verify.benchmark import best_of, speed_table, update_like
from stamp import save

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
MANY = 100_000_000
SMALL = 6_422


def small() -> str:
    """A line about a message of the paper's CNN, the least of many runs: a busy machine disturbs most of them."""
    codec = cepam.Codec(cepam.Gaussian(0.01), cepam.Integer(1), threads=1)
    at, x = cepam.Address(cepam.Key.generate(), round=0, client=0), update_like(SMALL)
    message = codec.encode(x, at)
    encode, decode = best_of(2000, lambda: codec.encode(x, at)), best_of(2000, lambda: codec.decode(message, at))
    return f"{SMALL:,} coordinates: encode {encode / SMALL * 1e9:.1f} ns, decode {decode / SMALL * 1e9:.1f} ns each"


def linearity() -> list[dict[str, float]]:
    """Nanoseconds per coordinate for growing vectors."""
    codec = cepam.Codec(cepam.Gaussian(0.01), cepam.Integer(1), threads=1)
    at = cepam.Address(cepam.Key.generate(), round=0, client=0)
    rows = []
    for m in SIZES:
        x = update_like(m)
        message = codec.encode(x, at)
        runs = max(3, 300_000 // m)
        rows.append(
            {
                "coordinates": m,
                "encode_ns": best_of(runs, lambda x=x: codec.encode(x, at)) / m * 1e9,
                "decode_ns": best_of(runs, lambda message=message: codec.decode(message, at)) / m * 1e9,
            }
        )
    return rows


def peak_memory_bytes() -> int:
    """The largest resident set of this process so far; 0 on Windows, which does not tell."""
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)


def memory() -> dict[str, float]:
    """Peak memory beyond input, message and output, and time, at 100 million coordinates (run in its own process)."""
    codec = cepam.Codec(cepam.Gaussian(0.01), cepam.Integer(1))
    at = cepam.Address(cepam.Key.generate(), round=0, client=0)
    codec.decode(codec.encode(update_like(100_000), at), at)
    x = np.empty(MANY, dtype=np.float32)
    for start in range(0, MANY, 1_000_000):
        x[start : start + 1_000_000] = update_like(1_000_000, seed=start)
    before = peak_memory_bytes()
    start = time.perf_counter()
    message = codec.encode(x, at)
    encoded = time.perf_counter() - start
    after_encode = peak_memory_bytes()
    start = time.perf_counter()
    vector = codec.decode(message, at)
    decoded = time.perf_counter() - start
    after_decode = peak_memory_bytes()
    assert len(vector) == MANY
    return {
        "coordinates": MANY,
        "message_bytes": len(message),
        "encode_extra_mib": (after_encode - before - len(message)) / 2**20,
        "decode_extra_mib": (after_decode - before - len(message) - vector.nbytes) / 2**20,
        "encode_ns": encoded / MANY * 1e9,
        "decode_ns": decoded / MANY * 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--coordinates", type=int, default=10_000_000)
    parser.add_argument("--no-memory", action="store_true", help="leave out the run on 100 million coordinates")
    parser.add_argument("--memory-only", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--small", action="store_true", help="only a message of 6,422 coordinates")
    options = parser.parse_args()
    if options.small:
        print(small())
        return
    if options.memory_only:
        print(json.dumps(memory()))
        return
    rows = speed_table(options.coordinates)
    result = {"speed": [vars(row) for row in rows], "linearity": linearity()}
    print(f"{'':44} {'ns per coordinate':>17} {'times the noise':>16} {'bits':>7}")
    for row in rows:
        bits = "" if row.bits_per_coordinate is None else f"{row.bits_per_coordinate:.3f}"
        print(f"{row.what:44} {row.nanoseconds:17.2f} {row.ratio:16.2f} {bits:>7}")
    for line in result["linearity"]:
        print(
            "{coordinates:>12,} coordinates: encode {encode_ns:.1f} ns, decode {decode_ns:.1f} ns each".format(**line)
        )
    if not options.no_memory:
        ran = subprocess.run([sys.executable, __file__, "--memory-only"], capture_output=True, text=True, check=True)
        result["memory"] = json.loads(ran.stdout)
        print(
            "{coordinates:>12,} coordinates: {encode_extra_mib:.0f} MiB extra to encode, {decode_extra_mib:.0f} MiB to"
            " decode; {encode_ns:.1f} and {decode_ns:.1f} ns each".format(**result["memory"])
        )
    save("speed", result)


if __name__ == "__main__":
    main()

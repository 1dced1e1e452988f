"""The first `encode` and `decode` after an installation on the CPU, in processes that find nothing compiled.

    PYTHONPATH=src python bench/first_call.py                 # minutes
    PYTHONPATH=src python bench/first_call.py --only "search, 0.05 of the noise" --counts 100000
    PYTHONPATH=/other/checkout/src python bench/first_call.py

Both updates are coded with NumPy while a process beside compiles the kernels. Seconds of the processor, which the load
of the machine hardly changes, are kept beside those by the clock.
`search` codes updates below the noise, of this root mean square in noise scales, by the search coder.
Each row is written to bench/results/first_call.json with its stamp; rows of other codecs and sizes stay.
`bench/gpu.py --only cpu` does the same on a machine with a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator

from stamp import RESULTS, save, stamp

CODECS = {
    "Integer(1)": (", cepam.Integer(1)", 1.0), "default": ("", 1.0),
    "search, 0.05 of the noise": ("", 0.05), "search, 0.1 of the noise": ("", 0.1),
}  # fmt: skip
"""The lattice, and the root mean square of the update in noise scales."""
CALLS = """
import time
import numpy as np
import cepam
from cepam.kernels import dispatch

codec, at = cepam.Codec(cepam.Gaussian(0.01){lattice}), cepam.Address(bytes(32), round=1, client=1)
x = np.random.default_rng(1).normal(0, 0.01 * {level}, {count}).astype(np.float32)
begun, busy = time.perf_counter(), time.process_time()
message = codec.encode(x, at)
encoded, encoding = time.perf_counter(), time.process_time() - busy
codec.decode(message, at)
decoded, busy = time.perf_counter(), time.process_time() - busy
for compiler in dispatch._COMPILERS.values():
    if compiler is not None:
        compiler.wait()
print(encoded - begun, decoded - encoded, time.perf_counter() - begun, encoding, busy - encoding)
"""


def first_calls(
    counts: Iterable[int] = (6_422, 100_000, 1_000_000), codecs: Iterable[str] = ("Integer(1)", "default")
) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Seconds of the first `encode` and `decode` of so many Gaussian entries, and until all is compiled, by codec.

    Then seconds of this process's processor time for `encode` and `decode`.
    """
    for count in counts:
        for name in codecs:
            lattice, level = CODECS[name]
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as empty:
                call = [sys.executable, "-c", CALLS.format(lattice=lattice, level=level, count=count)]
                printed = subprocess.check_output(call, env=os.environ | {"NUMBA_CACHE_DIR": empty}, text=True)
            encode, decode, ready, encoding, decoding = (float(seconds) for seconds in printed.split())
            print(
                f"  first call on the CPU, {name}, {count:,} coordinates: encode {encode:.1f} s, decode {decode:.1f} s"
                f" ({encoding:.1f} and {decoding:.1f} s of the processor); compiled after {ready:.1f} s",
                flush=True,
            )
            yield f"{name}, {count:,} coordinates", (encode, decode, ready, encoding, decoding)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(CODECS), choices=list(CODECS))
    parser.add_argument("--counts", nargs="*", type=int, default=[6_422, 100_000, 1_000_000])
    given = parser.parse_args()
    fields = "encode_seconds", "decode_seconds", "compiled_after_seconds", "encode_processor", "decode_processor"
    target = RESULTS / "first_call.json"
    for name, seconds in first_calls(given.counts, given.only):
        held = json.loads(target.read_text(encoding="utf-8")) if target.exists() else {"rows": []}
        rows = [{"stamp": held.get("stamp")} | row for row in held["rows"] if row["codec"] != name]
        save("first_call", {"rows": [*rows, {"codec": name, **dict(zip(fields, seconds)), "stamp": stamp()}]})


if __name__ == "__main__":
    main()

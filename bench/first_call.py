"""The first `encode` and `decode` after an installation on the CPU, in processes that find nothing compiled.

    PYTHONPATH=src python bench/first_call.py                 # half a minute
    PYTHONPATH=/other/checkout/src python bench/first_call.py

The small update is coded with NumPy while a process beside compiles the kernels; the large one waits for them.
Written to bench/results/first_call.json. `bench/gpu.py --only cpu` does the same on a machine with a GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from stamp import save

LATTICES = {"Integer(1)": ", cepam.Integer(1)", "default": ""}
CALLS = """
import time
import numpy as np
import cepam
from cepam.kernels import dispatch

codec, at = cepam.Codec(cepam.Gaussian(0.01){lattice}), cepam.Address(bytes(32), round=1, client=1)
x = np.random.default_rng(1).normal(0, 0.01, {count}).astype(np.float32)
begun = time.perf_counter()
message = codec.encode(x, at)
encoded = time.perf_counter()
codec.decode(message, at)
decoded = time.perf_counter()
for compiler in dispatch._COMPILERS.values():
    compiler.wait()
print(encoded - begun, decoded - encoded, time.perf_counter() - begun)
"""


def first_calls(counts: tuple[int, ...] = (6_422, 100_000)) -> dict[str, tuple[float, float, float]]:
    """Seconds of the first `encode` and `decode` of so many Gaussian entries, and until all is compiled, by codec."""
    found = {}
    for count in counts:
        for name, lattice in LATTICES.items():
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as empty:
                call = [sys.executable, "-c", CALLS.format(lattice=lattice, count=count)]
                printed = subprocess.check_output(call, env=os.environ | {"NUMBA_CACHE_DIR": empty}, text=True)
            encode, decode, ready = (float(seconds) for seconds in printed.split())
            found[f"{name}, {count:,} coordinates"] = encode, decode, ready
            print(
                f"  first call on the CPU, {name}, {count:,} coordinates: encode {encode:.1f} s, decode {decode:.1f} s;"
                f" compiled after {ready:.1f} s",
                flush=True,
            )
    return found


if __name__ == "__main__":
    rows = [
        {"codec": name, "encode_seconds": encode, "decode_seconds": decode, "compiled_after_seconds": ready}
        for name, (encode, decode, ready) in first_calls().items()
    ]
    save("first_call", {"rows": rows})

"""The first `encode` and `decode` after an installation on the CPU, in processes that find nothing compiled.

    PYTHONPATH=src python bench/first_call.py                 # half a minute
    PYTHONPATH=/other/checkout/src python bench/first_call.py

A hundred thousand Gaussian entries; `bench/gpu.py --only cpu` does the same on a machine with a GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

LATTICES = {"Integer(1)": ", cepam.Integer(1)", "default": ""}
CALLS = """
import time
import numpy as np
import cepam

codec, at = cepam.Codec(cepam.Gaussian(0.01){lattice}), cepam.Address(bytes(32), round=1, client=1)
x = np.random.default_rng(1).normal(0, 0.01, {count}).astype(np.float32)
begun = time.perf_counter()
message = codec.encode(x, at)
encoded = time.perf_counter()
codec.decode(message, at)
print(encoded - begun, time.perf_counter() - encoded)
"""


def first_calls(count: int = 100_000) -> dict[str, tuple[float, float]]:
    """Seconds of the first `encode` and of the first `decode` of so many Gaussian entries, for each codec."""
    found = {}
    for name, lattice in LATTICES.items():
        with tempfile.TemporaryDirectory() as empty:
            call = [sys.executable, "-c", CALLS.format(lattice=lattice, count=count)]
            printed = subprocess.check_output(call, env=os.environ | {"NUMBA_CACHE_DIR": empty}, text=True)
        encode, decode = (float(seconds) for seconds in printed.split())
        found[name] = encode, decode
        print(f"  first call on the CPU, {name}: encode {encode:.1f} s, decode {decode:.1f} s", flush=True)
    return found


if __name__ == "__main__":
    first_calls()

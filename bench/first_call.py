"""The first `encode` and `decode` after an installation on the CPU, in processes that find nothing compiled.

    PYTHONPATH=src python bench/first_call.py                 # half a minute
    PYTHONPATH=/other/checkout/src python bench/first_call.py

Both updates are coded with NumPy while a process beside compiles the kernels. Seconds of the processor, which the load
of the machine hardly changes, are kept beside those by the clock.
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
begun, busy = time.perf_counter(), time.process_time()
message = codec.encode(x, at)
encoded, encoding = time.perf_counter(), time.process_time() - busy
codec.decode(message, at)
decoded, busy = time.perf_counter(), time.process_time() - busy
for compiler in dispatch._COMPILERS.values():
    compiler.wait()
print(encoded - begun, decoded - encoded, time.perf_counter() - begun, encoding, busy - encoding)
"""


def first_calls(counts: tuple[int, ...] = (6_422, 100_000)) -> dict[str, tuple[float, ...]]:
    """Seconds of the first `encode` and `decode` of so many Gaussian entries, and until all is compiled, by codec.

    Then seconds of this process's processor time for `encode` and `decode`.
    """
    found = {}
    for count in counts:
        for name, lattice in LATTICES.items():
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as empty:
                call = [sys.executable, "-c", CALLS.format(lattice=lattice, count=count)]
                printed = subprocess.check_output(call, env=os.environ | {"NUMBA_CACHE_DIR": empty}, text=True)
            encode, decode, ready, encoding, decoding = (float(seconds) for seconds in printed.split())
            found[f"{name}, {count:,} coordinates"] = encode, decode, ready, encoding, decoding
            print(
                f"  first call on the CPU, {name}, {count:,} coordinates: encode {encode:.1f} s, decode {decode:.1f} s"
                f" ({encoding:.1f} and {decoding:.1f} s of the processor); compiled after {ready:.1f} s",
                flush=True,
            )
    return found


if __name__ == "__main__":
    fields = "encode_seconds", "decode_seconds", "compiled_after_seconds", "encode_processor", "decode_processor"
    rows = [{"codec": name, **dict(zip(fields, seconds))} for name, seconds in first_calls().items()]
    save("first_call", {"rows": rows})

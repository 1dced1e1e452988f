"""What the first call on an H200 compiles, without a GPU: seconds, instructions and registers by kernel.

    PYTHONPATH=src python bench/gpu_compile.py Z1 E8    # the quantizers
    PYTHONPATH=src python bench/gpu_compile.py search   # the search coder's encoder, of a quiet update

Seconds are of the processor. Instructions are those of a whole program, padding left out: in one dimension it has eight
coordinates a lane.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()

import torch
import triton
from triton.runtime import driver
from triton.runtime.jit import JITFunction

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "identity"))

from no_gpu import NoGpu

import cepam
from cepam.kernels.format.plan import layered_plan
from cepam.kernels.triton import search_encode, symbols
from cepam.lattices.lattice import lattice_named

COMPILE = JITFunction.run
TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
    """Compile a launch without running it, and print one line that says what it took."""
    begun = processor_seconds()
    made = COMPILE(kernel, *args, grid=grid, warmup=True, **options)
    seconds = processor_seconds() - begun
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        code, used = (disassemble(how, file.name) for how in ("-sass", "-res-usage"))
    names = re.findall(r"^\s+/\*[0-9a-f]{4,5}\*/\s+(?:@!?U?P\w+ )?([A-Z0-9_]+)", code, re.M)
    registers = re.search(r"REG:(\d+)", used)
    many = sum(name != "NOP" for name in names)
    held = registers[1] if registers else "?"
    print(f"  {kernel.__name__:20s} {seconds:6.1f} s {many:6d} instructions {held:>4s} registers", flush=True)


def disassemble(how: str, file: str) -> str:
    """What NVIDIA's tool says of a compiled kernel."""
    return subprocess.run([TOOL, how, file], capture_output=True, text=True, check=True).stdout


def processor_seconds() -> float:
    """Of this process and of those that it started: the assembler is one."""
    return sum(os.times()[:4])


def main() -> None:
    """Both ways of a vector under Gaussian noise, on the lattices that are named; or a search."""
    driver.set_active(NoGpu())
    JITFunction.run = compile_only
    for name in sys.argv[1:] or ["Z1", "E8"]:
        print(name)
        if name == "search":
            plan = layered_plan(cepam.Gaussian(0.01), cepam.Integer(1))
            torch.Tensor.new_empty = torch.Tensor.new_zeros  # no kernel fills anything in
            quiet = search_encode.measure_updates(plan, [bytes(32)], torch.zeros(1, 8192))
            search_encode.encode_segments(quiet)
            continue
        plan, x = layered_plan(cepam.Gaussian(0.01), lattice_named(name)), torch.zeros(1024)
        h, m = symbols.quantize(plan, bytes(32), x)
        symbols.reconstruct(plan, bytes(32), h[:1] if plan.n == 1 else h, m, True)


if __name__ == "__main__":
    main()

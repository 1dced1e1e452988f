"""The GPU's messages, symbols and vectors beside the CPU's, bit for bit, through codecs and quantizers.

PYTHONPATH=src python bench/gpu_identity.py "Gaussian on E8"              # compiles the kernels of one codec, no more
PYTHONPATH=src python bench/gpu_identity.py "symbols, Gaussian on E8"     # those of one quantizer
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from typing import Any

import numpy as np
import torch

import cepam

AT = cepam.Address(bytes(32), round=2, client=1)
LAWS = {"Gaussian": cepam.Gaussian, "Laplace": cepam.Laplace, "ball": cepam.UniformBall}
LATTICES = (*(cepam.Integer(n) for n in (1, 2, 3)), cepam.A2, cepam.D4, cepam.E8)


def codecs() -> dict[str, Any]:
    """Every law on every lattice that has kernels on a GPU, plain dithering on each, and the default."""
    found: dict[str, Any] = {"default": cepam.Codec(cepam.Gaussian(0.01))}
    for (name, law), lattice in itertools.product(LAWS.items(), LATTICES):
        found[f"{name} on {lattice.name}"] = cepam.Codec(law(0.01), lattice)
    return found | {f"cells of {lattice.name}": cepam.DitheredCodec(0.02, lattice) for lattice in LATTICES}


def updates(size: int) -> dict[str, np.ndarray]:
    """Over many scales with the ends of the format, in rows of 300, mostly zeros; float64 among them."""
    draw = np.random.default_rng(size)
    x = draw.normal(0, 0.01, size)
    wild = x * np.exp(draw.normal(0, 3, size))
    wild[::17], wild[5::101] = 0.0, 1e4
    wild = np.clip(wild, -1e4, 1e4)  # noise of scale 0.01 reaches to 1.6e4
    rows = x * np.exp(draw.normal(0, 1.5, 300))[np.arange(size) % 300]
    sparse = 0.05 * x * (draw.random(size) < 0.02)
    return {"wild": wild.astype(np.float32), "rows": rows, "sparse": sparse.astype(np.float32)}


def quantizers() -> dict[str, Any]:
    """Every law on every lattice that has kernels on a GPU, and plain dithering on each."""
    pairs = itertools.product(LAWS.items(), LATTICES)
    found: dict[str, Any] = {f"symbols, {name} on {on.name}": cepam.LRSUQ(law(0.01), on) for (name, law), on in pairs}
    return found | {f"symbols, cells of {on.name}": cepam.SDQ(0.02, on) for on in LATTICES}


def use(of: Any, device: str | None) -> None:
    """Nothing; updates with and without rows went to the device and back, so its kernels are compiled."""
    for x in updates(6422).values():
        given = x if device is None else torch.from_numpy(x).to(device)
        if isinstance(of, (cepam.LRSUQ, cepam.SDQ)):
            of.reconstruct(*symbols_of(of, given), AT, len(x))
        else:
            of.decode(of.encode(given, AT), AT, device=device)


def compile_side_by_side(found: dict[str, Any]) -> None:
    """Nothing; the GPU's kernels of all these are in Triton's cache, a process for each, and the CPU's are compiled."""
    begun = time.perf_counter()
    names = [name for name in found if name != "default" and "ball" not in name]  # balls have the Gaussian's kernels
    started = {name: subprocess.Popen([sys.executable, __file__, name]) for name in names}
    for name in names:
        if name.endswith(("Gaussian on Z1", "Gaussian on E8")):
            use(found[name], None)
    for name, process in started.items():
        said = "compiled" if process.wait() == 0 else f"NOT compiled, exit status {process.returncode}"
        print(f"  {name:32s} {said} at {time.perf_counter() - begun:.0f} s", flush=True)


def check(device: str, smoke: bool, outcome: dict[str, str]) -> None:
    """Nothing; how each comparison came out is put down one by one; raises if anything differs."""
    found = codecs()
    if not smoke:
        compile_side_by_side(found)
    for name, codec in found.items():
        if smoke and name not in ("Gaussian on Z1", "cells of A2"):
            continue
        said = "identical"
        # Long enough to be sealed and opened on the GPU.
        long = (6_000_000,) if name in ("default", "Gaussian on Z1", "Gaussian on E8") else ()
        for size in (9,) if smoke else (1, 6422, 100_000, *long):
            for kind, x in updates(size).items():
                message = codec.encode(torch.from_numpy(x).to(device), AT)
                if message != codec.encode(x, AT):
                    said = f"DIFFERENT bytes, {kind} at {size}"
                elif (
                    codec.decode(message, AT, device=device).cpu().numpy().tobytes()
                    != codec.decode(message, AT).tobytes()
                ):
                    said = f"DIFFERENT vectors, {kind} at {size}"
        outcome[name] = said
        print(f"  {name:24s} {said}", flush=True)
    raise_if_different(outcome)


def check_symbols(device: str, smoke: bool, outcome: dict[str, str]) -> None:
    """Nothing; how the quantizers' integers and vectors compare is put down one by one; raises if anything differs.

    Half precision is widened before any kernel, so it is compared on the integers alone.
    """
    found = quantizers()
    if not smoke:
        compile_side_by_side(found)
    for name, of in found.items():
        if smoke and name not in ("symbols, Gaussian on Z1", "symbols, cells of A2"):
            continue
        begun, said = time.perf_counter(), "identical"
        for size in (9,) if smoke else (1, 100_003):
            for kind, x in updates(size).items():
                given = torch.from_numpy(x)
                for each in (given, given.bfloat16()) if of.lattice.dimension == 1 else (given,):
                    if not symbols_alike(of, each.to(device), np.asarray(each.double())):
                        said = f"DIFFERENT, {kind} at {size}"
        outcome[name] = said
        print(f"  {name:32s} {said} ({time.perf_counter() - begun:.1f} s)", flush=True)
    raise_if_different(outcome)


def raise_if_different(outcome: dict[str, str]) -> None:
    """Nothing; `AssertionError` names the comparisons that did not come out identical."""
    wrong = [name for name, said in outcome.items() if said != "identical"]
    if wrong:
        raise AssertionError(f"the GPU differs from the CPU: {wrong}")


def symbols_of(of: Any, x: Any) -> tuple[Any, ...]:
    """(H, M), or M alone in a tuple for plain dithering."""
    found = of.quantize(x, AT)
    return found if isinstance(found, tuple) else (found,)


def symbols_alike(of: Any, given: torch.Tensor, x: np.ndarray) -> bool:
    """Whether symbols and vectors of a tensor on a GPU are those of the same values on the CPU."""
    found, wanted = symbols_of(of, given), symbols_of(of, x)
    if not all(np.array_equal(a.cpu().numpy(), b) for a, b in zip(found, wanted)):
        return False
    back = of.reconstruct(*found, AT, len(x)).cpu().numpy()
    return bool(back.tobytes() == of.reconstruct(*wanted, AT, len(x)).tobytes())


if __name__ == "__main__":
    import stand_in_seal

    stand_in_seal.put_in_place_if_needed()
    use((quantizers() if sys.argv[1].startswith("symbols") else codecs())[sys.argv[1]], "cuda")

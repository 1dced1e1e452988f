"""The GPU's messages, symbols and vectors beside the CPU's, bit for bit, through codecs and quantizers.

PYTHONPATH=src python bench/gpu_identity.py "Gaussian on E8"     # compiles the kernels of one codec, no more
"""

from __future__ import annotations

import itertools
import subprocess
import sys
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


def use(codec: Any, device: str) -> None:
    """Nothing; updates with and without rows were coded on the device, so its kernels are compiled."""
    for x in updates(6422).values():
        codec.decode(codec.encode(torch.from_numpy(x).to(device), AT), AT, device=device)


def compile_side_by_side() -> None:
    """Nothing; the kernels of all codecs are in Triton's cache and the CPU's are compiled, a process for each codec."""
    found = codecs()
    names = [name for name in found if name != "default" and not name.startswith("ball")]
    started = [subprocess.Popen([sys.executable, __file__, name]) for name in names]
    for name in ("Gaussian on Z1", "Gaussian on E8"):
        for x in updates(100).values():
            found[name].decode(found[name].encode(x, AT), AT)
    for process in started:
        process.wait()


def check(device: str, smoke: bool) -> dict[str, str]:
    """How each comparison came out; raises if anything differs."""
    outcome = {}
    if not smoke:
        compile_side_by_side()
    for name, codec in codecs().items():
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
    wrong = [name for name, said in outcome.items() if said != "identical"]
    if wrong:
        raise AssertionError(f"the GPU differs from the CPU: {wrong}")
    return outcome


def check_symbols(device: str, smoke: bool) -> dict[str, str]:
    """How the quantizers' integers and vectors compare, half precision included; raises if anything differs."""
    outcome = {}
    for (name, law), lattice in itertools.product({**LAWS, "cells": None}.items(), LATTICES):
        if smoke and (name, lattice.name) not in (("Gaussian", "Z1"), ("cells", "A2")):
            continue
        of: Any = cepam.SDQ(0.02, lattice) if law is None else cepam.LRSUQ(law(0.01), lattice)
        said = "identical"
        for size in (9,) if smoke else (1, 6422, 100_003):
            for kind, x in updates(size).items():
                for given in (torch.from_numpy(x), torch.from_numpy(x).bfloat16()):
                    if not symbols_alike(of, given.to(device), np.asarray(given.double())):
                        said = f"DIFFERENT, {kind} at {size}"
        outcome[f"{name} on {lattice.name}"] = said
        print(f"  {name} on {lattice.name:16s} {said}", flush=True)
    if set(outcome.values()) != {"identical"}:
        raise AssertionError(f"the GPU differs from the CPU: {outcome}")
    return outcome


def symbols_alike(of: Any, given: torch.Tensor, x: np.ndarray) -> bool:
    """Whether symbols and vectors of a tensor on a GPU are those of the same values on the CPU."""
    found, wanted = of.quantize(given, AT), of.quantize(x, AT)
    found, wanted = (each if isinstance(each, tuple) else (each,) for each in (found, wanted))
    if not all(np.array_equal(a.cpu().numpy(), b) for a, b in zip(found, wanted)):
        return False
    back = of.reconstruct(*found, AT, len(x)).cpu().numpy()
    return bool(back.tobytes() == of.reconstruct(*wanted, AT, len(x)).tobytes())


if __name__ == "__main__":
    import stand_in_seal

    stand_in_seal.put_in_place_if_needed()
    use(codecs()[sys.argv[1]], "cuda")

"""The GPU's messages, symbols and vectors beside the CPU's, bit for bit, through codecs and quantizers.

A process for every few that share kernels compiles these and hashes what comes from the GPU, all of them side by side,
while this one hashes what comes from the CPU. Most of the time is the compiler's.

    PYTHONPATH=src python bench/gpu_identity.py "Gaussian on E8" "ball on E8"     # what such a process does
"""

from __future__ import annotations

import hashlib
import itertools
import json
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
        found[f"{name} on {lattice.name}"] = cepam.Codec(law(0.01), lattice, coder="layered")
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


def sizes_of(name: str) -> tuple[int, ...]:
    """How many coordinates are compared; six million are sealed in chunks."""
    if name.startswith("symbols"):
        return 1, 100_003
    long = (6_000_000,) if name in ("default", "Gaussian on Z1", "Gaussian on E8") else ()
    return (1, 6422, 100_000, *long)


def hashed(of: Any, sizes: tuple[int, ...], device: str | None) -> dict[str, str]:
    """What comes of every update on this device, or on the CPU, by what it is and where: a hash."""
    found = {}
    for place, x in ((f"{kind} at {size}", x) for size in sizes for kind, x in updates(size).items()):
        given = torch.from_numpy(x)
        if isinstance(of, (cepam.LRSUQ, cepam.SDQ)):
            # Half precision is widened before any kernel, so it is compared in one dimension alone.
            for each in (given, given.bfloat16()) if of.lattice.dimension == 1 else (given,):
                there = each.to(device) if device else np.asarray(each.double())
                found |= hashed_symbols(of, there, f"{place}, {each.dtype}")
        else:
            message = of.encode(given.to(device) if device else x, AT)
            found[f"bytes, {place}"] = hash_of(np.frombuffer(message, dtype=np.uint8))
            found[f"vectors, {place}"] = hash_of(of.decode(message, AT, device=device))
    return found


def hashed_symbols(of: Any, x: Any, place: str) -> dict[str, str]:
    """(H, M), or M alone for plain dithering, and the vector of it."""
    made = of.quantize(x, AT)
    symbols = made if isinstance(made, tuple) else (made,)
    back = of.reconstruct(*symbols, AT, len(x))
    wide = [torch.as_tensor(each).to(torch.int64) for each in symbols]
    return {f"symbols, {place}": " ".join(map(hash_of, wide)), f"vectors, {place}": hash_of(back)}


def hash_of(found: Any) -> str:
    """Of the bytes of an array, or of a tensor wherever it is."""
    array = found.cpu().numpy() if torch.is_tensor(found) else found
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def groups(names: list[str]) -> list[list[str]]:
    """Names that share kernels: balls have the Gaussian's, and so has the default, of which E8's take longest."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault("Gaussian on E8" if name == "default" else name.replace("ball", "Gaussian"), []).append(name)
    return list(found.values())


def compare(found: dict[str, Any], device: str, smoke: bool, outcome: dict[str, str]) -> None:
    """Note how each comparison came out, one by one; raise if anything differs."""
    begun, started = time.perf_counter(), []
    if smoke:
        found = {name: found[name] for name in found if name.endswith(("Gaussian on Z1", "cells of A2"))}
    else:
        for names in groups(list(found)):
            child = subprocess.Popen([sys.executable, __file__, *names], stdout=subprocess.PIPE, text=True)
            started.append((names, child))
    wanted = {name: hashed(of, (9,) if smoke else sizes_of(name), None) for name, of in found.items()}
    print(f"  the CPU's are known at {time.perf_counter() - begun:.0f} s", flush=True)

    def judge(given: dict[str, dict[str, str]], names: list[str]) -> None:
        for name in names:
            wrong = [place for place in wanted[name] if given.get(name, {}).get(place) != wanted[name][place]]
            outcome[name] = f"DIFFERENT: {', '.join(wrong)}" if wrong else "identical"
            more = f"{len(wanted[name])} comparisons, at {time.perf_counter() - begun:.0f} s"
            print(f"  {name:32s} {outcome[name]}, {more}", flush=True)

    try:
        if smoke:
            judge({name: hashed(of, (9,), device) for name, of in found.items()}, list(found))
        for names, child in started:
            said = child.communicate()[0]
            judge({} if child.returncode else json.loads(said), names)
    finally:
        for _, child in started:
            child.kill()
    different = [name for name in found if outcome[name] != "identical"]
    if different:
        raise AssertionError(f"the GPU differs from the CPU: {different}")


def check(device: str, smoke: bool, outcome: dict[str, str]) -> None:
    """`compare` for messages."""
    compare(codecs(), device, smoke, outcome)


def check_symbols(device: str, smoke: bool, outcome: dict[str, str]) -> None:
    """`compare` for quantizers."""
    compare(quantizers(), device, smoke, outcome)


if __name__ == "__main__":
    import stand_in_seal

    stand_in_seal.put_in_place_if_needed()
    known = codecs() | quantizers()
    print(json.dumps({name: hashed(known[name], sizes_of(name), "cuda") for name in sys.argv[1:]}))

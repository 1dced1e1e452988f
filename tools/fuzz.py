"""Mutated and hostile messages until the time is up: `python tools/fuzz.py` (FUZZ_SECONDS, FUZZ_SEED).

Every input must end in a refusal (`CepamError`) or, where the seal is good, in the same finite vector on both backends.
Anything else is printed as a line that reproduces it, and the run fails. Mutations of the sealed bytes must all be
refused; mutations of the payload are sealed again with the right key, as a hostile client would.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.corpus import (
    AT,
    CODERS,
    LATTICES,
    LAWS,
    make_codec,
    open_payload,
    outcome,
    seal_payload,
    sparse_update,
    varint,
)

from cepam.codec.codec import MessageCodec
from cepam.errors import CepamError

LARGEST_SIZE = 200
SLOW_SECONDS = 5.0


def mutate(rng: np.random.Generator, data: bytes) -> bytes:
    """The data with a few bytes changed, dropped, doubled or made up."""
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        at = int(rng.integers(0, len(out) + 1))
        kind = rng.integers(6)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << int(rng.integers(8))
        elif kind == 1 and at < len(out):
            out[at] = int(rng.choice([0, 1, 127, 128, 255]))
        elif kind == 2:
            del out[at : at + int(rng.integers(1, 20))]
        elif kind == 3:
            out[at:at] = rng.bytes(int(rng.integers(1, 20)))
        elif kind == 4:
            out[at:at] = out[at : at + int(rng.integers(1, 20))]
        else:
            out = out[:at]
    return bytes(out)


def hostile_payload(rng: np.random.Generator, payload: bytes) -> bytes:
    """A payload that claims a modest size: a mutated honest one, or a made-up one."""
    flags = int(rng.integers(256)) if rng.random() < 0.2 else payload[0]
    size = varint(int(rng.integers(LARGEST_SIZE)))
    if rng.random() < 0.5:
        return bytes([flags]) + size + mutate(rng, payload[2:])
    if rng.random() < 0.5:
        return bytes([flags]) + size + rng.bytes(int(rng.integers(100)))
    return bytes([flags]) + b"\xff" * int(rng.integers(12)) + mutate(rng, payload[1:])


def claims_much(payload: bytes) -> bool:
    """Whether the payload claims more coordinates than a fuzzing run has time for."""
    size = 0
    for i, byte in enumerate(payload[1:10]):
        size |= (byte & 127) << 7 * i
        if byte < 128:
            return size > LARGEST_SIZE
    return False


def attack(rng: np.random.Generator, codec: MessageCodec) -> str:
    """How one attack ended."""
    message = codec.encode(sparse_update(int(rng.integers(1, 60)), rng.choice([np.float32, np.float64])), AT)
    if rng.random() < 0.3:
        mangled = mutate(rng, message)
        if mangled == message:
            return "unchanged"
        try:
            codec.decode(mangled, AT)
        except CepamError:
            return "mangled, refused"
        raise AssertionError(f"a mangled message was decoded: {mangled.hex()}")
    payload = hostile_payload(rng, open_payload(message, codec))
    if claims_much(payload):
        return "claims much, left out"
    sealed = seal_payload(payload, codec)
    before = time.perf_counter()
    ends = [outcome(replace(codec, backend=backend), sealed) for backend in ("numba", "numpy")]  # type: ignore[type-var]
    if time.perf_counter() - before > SLOW_SECONDS:
        return "slow"
    assert ends[0] == ends[1], f"the backends disagree on the payload {payload.hex()}"
    kind, data = ends[0]
    if kind == "refused":
        return "hostile, refused"
    assert np.isfinite(np.frombuffer(data, dtype=kind)).all(), f"not finite: payload {payload.hex()}"
    return "hostile, a vector on both backends"


def main() -> int:
    """The exit status: 0 if nothing was found."""
    limit = float(os.environ.get("FUZZ_SECONDS", "600"))
    seed = int(os.environ.get("FUZZ_SEED", str(time.time_ns() % 2**32)))
    codecs = [(f"{a} {b} {c}", make_codec(a, b, c)) for a in LAWS for b in LATTICES for c in CODERS]
    print(f"fuzzing {len(codecs)} codecs for {limit:.0f} s, FUZZ_SEED={seed}", flush=True)
    for _, codec in codecs:  # kernels are compiled before the clock starts
        codec.decode(codec.encode(np.zeros(1, np.float32), AT), AT)
    start = shown = time.monotonic()
    ends: Counter[str] = Counter()
    found = count = 0
    while time.monotonic() - start < limit:
        name, codec = codecs[count % len(codecs)]
        try:
            end = attack(np.random.default_rng([seed, count]), codec)
        except Exception:
            found += 1
            end = "FOUND"
            print(f"FOUND: codec {name}, FUZZ_SEED={seed}, number {count}\n{traceback.format_exc()}", flush=True)
        if end == "slow":
            print(f"slow: codec {name}, FUZZ_SEED={seed}, number {count}", flush=True)
        ends[end] += 1
        count += 1
        if time.monotonic() - shown > 30:
            shown = time.monotonic()
            print(f"{shown - start:6.0f} s  {count:8,} inputs  {found} found", flush=True)
    print(f"{count:,} inputs in {time.monotonic() - start:.0f} s, {found} found")
    for end, times in ends.most_common():
        print(f"  {times:8,}  {end}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

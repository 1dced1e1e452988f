"""Mutated and hostile bytes until the time is up: `python tools/fuzz.py [target …]` (FUZZ_SECONDS, FUZZ_SEED).

Half of the time goes to the codec. Every message must end in a refusal (`CepamError`) or, where the seal is good, in
the same finite vector on both backends. Mutations of the sealed bytes must all be refused; mutations of the payload are
sealed again with the right key, as a hostile client would.

The other half goes to the targets of tests/fuzz_targets.py, one for each parser of bytes from others. A case must end
in a value or in an error that the parser documents, within a second of processor time. The process may not grow by
over 256 MiB. A target that says how many cases came beyond its commonest refusal shows whether it tests anything
behind that.

Names on the command line, or parts of them, choose among these targets and `codec`. FUZZ_CASES says how many cases each
of them gets (`codec`: all codecs together), FUZZ_SECONDS how long all may take. FUZZ_SAVE=1 writes the counts to
bench/results/fuzz.json, a row for each target; a target that the time cut short is not written. FUZZ_RESUME=1 leaves
out targets whose row has that many cases of this seed already: a long run can be made in parts.

Anything else is printed as a line that reproduces it, and the run fails.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.stamp import RESULTS, merge
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
from tests.fuzz_targets import PARSED, Target, all_targets, inside, mutate

from cepam._internal.files import locked_file
from cepam.codec.codec import MessageCodec
from cepam.errors import CepamError

LARGEST_SIZE = 60
SLOWEST, SELDOM = "laplace E8 layered", 4
"""A codec whose cases cost a third of all time in NumPy takes part in one turn of so many."""
SLOW_SECONDS = 5.0
HANG_SECONDS = 1.0
MOST_GROWTH = 1 << 28
ENDLESS = 10**9


def hostile_payload(rng: np.random.Generator, payload: bytes) -> bytes:
    """A payload that claims a modest size: a mutated honest one, or a made-up one."""
    size = varint(int(rng.integers(LARGEST_SIZE)))
    if rng.random() < 0.5:
        return size + mutate(rng, payload[1:])
    if rng.random() < 0.5:
        return size + rng.bytes(int(rng.integers(100)))
    return b"\xff" * int(rng.integers(12)) + mutate(rng, payload)


def claims_much(payload: bytes) -> bool:
    """Whether the payload claims more coordinates than a fuzzing run has time for."""
    size = 0
    for i, byte in enumerate(payload[:9]):
        size |= (byte & 127) << 7 * i
        if byte < 128:
            return size > LARGEST_SIZE
    return False


def attack(rng: np.random.Generator, codec: MessageCodec) -> str:
    """How one attack ended."""
    size = int(rng.integers(1, 60))
    codec = codec.sized(size) if rng.random() < 0.3 else codec
    message = codec.encode(sparse_update(size, rng.choice([np.float32, np.float64])), AT)
    if rng.random() < 0.3:
        mangled = mutate(rng, message)
        if mangled == message:
            return "unchanged"
        try:
            codec.decode(mangled, AT)
        except CepamError:
            return "mangled, refused"
        raise AssertionError(f"a mangled message was decoded: {mangled.hex()}")
    payload = open_payload(message, codec)
    payload = mutate(rng, payload) if codec.size is not None else hostile_payload(rng, payload)
    if codec.size is None and claims_much(payload):
        return "claims much, left out"
    sealed = seal_payload(payload, codec, flags=int(rng.integers(16)) if rng.random() < 0.2 else message[0] & 15)
    before = time.process_time()
    ends = [outcome(replace(codec, backend=backend), sealed) for backend in ("numba", "numpy")]  # type: ignore[type-var]
    if time.process_time() - before > SLOW_SECONDS:
        return "slow"
    assert ends[0] == ends[1], f"the backends disagree on the payload {payload.hex()}"
    kind, data = ends[0]
    if kind == "refused":
        return "hostile, refused"
    assert np.isfinite(np.frombuffer(data, dtype=kind)).all(), f"not finite: payload {payload.hex()}"
    return "hostile, a vector on both backends"


def attack_target(target: Target, seed: int, numbers: range, until: float, ends: Counter[str]) -> tuple[int, int]:
    """How many cases of a target were run, and how many ended in anything that is not allowed."""
    found = count = 0
    start = _memory()
    for number in numbers:
        count += 1
        before = time.process_time()
        try:
            ends[target.attack(np.random.default_rng([seed, number]))] += 1
        except Exception:
            found += 1
            print(f"FOUND: {target.name}, FUZZ_SEED={seed}, number {number}\n{traceback.format_exc()}", flush=True)
        if time.process_time() - before > HANG_SECONDS and _is_slow_again(target, seed, number):
            found += 1
            print(f"HANG: {target.name}, FUZZ_SEED={seed}, number {number}", flush=True)
        if time.monotonic() > until:
            break
    if _memory() - start > MOST_GROWTH:
        found += 1
        print(f"MEMORY: {target.name} grew by {(_memory() - start) >> 20} MiB, FUZZ_SEED={seed}", flush=True)
    return count, found


def _is_slow_again(target: Target, seed: int, number: int) -> bool:
    """Whether a slow case is slow once more: the first time the machine may have been busy."""
    before = time.process_time()
    with suppress(Exception):
        target.attack(np.random.default_rng([seed, number]))
    return time.process_time() - before > HANG_SECONDS


def _memory() -> int:
    """The most memory that this process had so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fuzz_parsers(limit: float, seed: int, chosen: list[Target], cases: int) -> int:
    """How many findings the parsers' targets had."""
    print(f"fuzzing {len(chosen)} parsers for {limit:.0f} s, FUZZ_SEED={seed}", flush=True)
    total = 0
    for target in chosen:
        ends: Counter[str] = Counter()
        until = time.monotonic() + limit / len(chosen)
        count, found = attack_target(target, seed, range(cases), until, ends)
        total += found
        parsed, share = ends[PARSED] / max(count, 1), inside(ends)
        print(
            f"  {target.name}: {count:,} cases, {parsed:.1%} parsed, {share:.1%} beyond the commonest refusal, "
            f"{len(ends)} ends, {found} found",
            flush=True,
        )
        save_counts(target.name, count, cases, seed, found, {"parsed": parsed, "inside": share, "ends": len(ends)})
    return total


def save_counts(name: str, count: int, cases: int, seed: int, found: int, more: dict[str, Any]) -> None:
    """Write the row of a target, where it is asked for; processes that run at once do so one after the other."""
    if "FUZZ_SAVE" not in os.environ:
        return
    if count < cases < ENDLESS:
        print(f"{name} is not written: the time was over after {count:,} of {cases:,} cases", flush=True)
        return
    with locked_file(Path(tempfile.gettempdir()) / "cepam-fuzz.lock"):
        merge("fuzz", name, {"cases": count, **more, "found": found, "seed": seed})


def main() -> int:
    """The exit status: 0 if nothing was found."""
    warnings.simplefilter("ignore")
    limit = float(os.environ.get("FUZZ_SECONDS", "600"))
    seed = int(os.environ.get("FUZZ_SEED", str(time.time_ns() % 2**32)))
    cases, names = int(os.environ.get("FUZZ_CASES", str(ENDLESS))), sys.argv[1:]
    parsers = [target for target in all_targets() if not names or any(name in target.name for name in names)]
    codec = not names or any(name in "codec" for name in names)
    if not parsers and not codec:
        print(f"no target has {' or '.join(names)} in its name")
        return 2
    if "FUZZ_RESUME" in os.environ:
        done = rows_done(cases, seed)
        parsers, codec = [target for target in parsers if target.name not in done], codec and "codec" not in done
    part = limit / 2 if parsers and codec else limit
    found = fuzz_parsers(part, seed, parsers, cases) if parsers else 0
    found += fuzz_codec(part, seed, cases) if codec else 0
    return 1 if found else 0


def rows_done(cases: int, seed: int) -> set[str]:
    """The targets whose row in the result has so many cases of this seed."""
    path = RESULTS / "fuzz.json"
    rows = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return {n for n, row in rows.items() if row["figures"]["cases"] >= cases and row["figures"]["seed"] == seed}


def fuzz_codec(limit: float, seed: int, cases: int) -> int:
    """How many findings the codec's messages had."""
    codecs = [(f"{a} {b} {c}", make_codec(a, b, c)) for a in LAWS for b in LATTICES for c in CODERS]
    print(f"fuzzing {len(codecs)} codecs for {limit:.0f} s, FUZZ_SEED={seed}", flush=True)
    for _, codec in codecs:  # kernels are compiled before the clock starts
        codec.decode(codec.encode(np.zeros(1, np.float32), AT), AT)
    turns = [pair for turn in range(SELDOM) for pair in codecs if not turn or pair[0] != SLOWEST]
    start = shown = time.monotonic()
    ends: Counter[str] = Counter()
    found = count = 0
    while count < cases and time.monotonic() - start < limit:
        name, codec = turns[count % len(turns)]
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
    save_counts("codec", count, cases, seed, found, {"codecs": len(codecs), "ends": dict(ends.most_common())})
    return found


if __name__ == "__main__":
    sys.exit(main())

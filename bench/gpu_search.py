"""The search coder on a GPU: are segments and values those of the compiled CPU kernels, and how fast.

    python bench/gpu_search.py --prepare cases.npz     # on a machine with Numba: segments, and hashes of their values
    python bench/gpu_search.py cases.npz               # on a CUDA machine: compares, times, writes gpu_search.json
    python bench/gpu_search.py cases.npz --smoke       # through Triton's interpreter, the smallest cases alone

Times are of 2^20 to 2^28 coordinates, between segments in the host's memory and float32 values on the GPU, seals apart.
Encoded are normal values of four energies. Decoding, the
four segments that were encoded stand there again and again: another number gives other vectors, and as much work. The
result goes to bench/results/gpu_search.json, and where $OUT is set, there too. Needs no Numba on the CUDA machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

SMOKE = "--smoke" in sys.argv
if SMOKE:
    os.environ["TRITON_INTERPRET"] = "1"

sys.path.insert(0, str(Path(__file__).parent))

import cepam  # noqa: E402
from cepam.errors import MalformedMessage  # noqa: E402
from cepam.kernels.format import search as f  # noqa: E402
from cepam.kernels.format.plan import (  # noqa: E402
    CodingTask,
    layered_plan,
)
from stamp import stamp  # noqa: E402

RESULT = Path(__file__).parent / "results" / "gpu_search.json"
TASK = CodingTask(layered_plan(cepam.Gaussian(1.0), cepam.Integer(1)), "search", bytes(range(32)), f.SEGMENT)
DECIBELS = (-45, -40, -30, -25, -20, -15, -12, -9)
TIMED = (-40, -30, -20, -12)
SIZES = (20, 24, 28)
REFUSED = "refused"


def updates() -> dict[str, np.ndarray]:
    """Over all energies, and others of a million coordinates, or of sizes that fill no segment and no block."""
    rng, found = np.random.default_rng(7), {}
    for decibels in DECIBELS:
        x = rng.normal(size=1 << 20) * 10.0 ** (decibels / 20)
        found[f"{decibels} dB, 1048576"] = x.astype(np.float32)
        found[f"{decibels} dB, 300001"] = x[:300_001]
        found[f"{decibels} dB, 523"] = x[:523]
    x = rng.normal(size=300_000)
    found["spikes"] = np.where(rng.random(300_000) < 1e-3, 2.0 * x, 0.02 * x)
    found["sparse"] = np.where(rng.random(300_000) < 0.02, x, 0.0)
    found["uneven"] = 0.1 * x * np.linspace(0.0, 2.0, 300_000) ** 2
    found["loud end"] = np.where(np.arange(300_000) < 1 << 18, 0.05 * x, x)
    found["zeros"] = np.zeros(1000)
    return found


def prepare(to: str) -> None:
    """Segments of all updates, some of random bytes, and the hashes of what they decode to, by the compiled kernels."""
    from cepam.kernels.numba import search_coder

    rng, data, cases = np.random.default_rng(8), [], {}

    def keep(name: str, segments: list[bytes], count: int, dtype: str) -> None:
        out = np.empty(count, dtype=dtype)
        try:
            search_coder.decode_span(TASK, segments, 0, out)
            wanted = hashlib.sha256(out.tobytes()).hexdigest()
        except MalformedMessage:
            wanted = REFUSED
        cases[name] = {"count": count, "dtype": dtype, "lengths": [len(each) for each in segments], "hash": wanted}
        data.extend(segments)

    for name, x in updates().items():
        keep(name, search_coder.encode_span(TASK, x, 0), len(x), str(x.dtype))
        cases[name]["update"] = hashlib.sha256(x.tobytes()).hexdigest()
    for number in range(24):
        size = int(rng.integers(40, 9000))
        log_size = int(rng.integers(f.SMALLEST, f.largest_log_size(size) + 1))
        layered = bool(rng.integers(2))
        trees = rng.bytes(int(rng.integers(1, 400)))
        head = bytes([f.layout_of(size, log_size, int(rng.integers(f.CLASSES))).class_byte(layered)])
        rest = rng.bytes(int(rng.integers(0, 900))) if layered else b""
        keep(f"random bytes {number}", [head + f.short_number(len(trees)) * layered + trees + rest], size, "float32")
    np.savez(to, data=np.frombuffer(b"".join(data), dtype=np.uint8), cases=json.dumps(cases))
    refused = sum(case["hash"] == REFUSED for case in cases.values())
    print(f"{len(cases)} cases, {refused} of them refused, {sum(map(len, data)):,} bytes")


def segments_of(data: np.ndarray, cases: dict[str, Any]) -> dict[str, list[bytes]]:
    """The segments of each case."""
    found, at = {}, 0
    for name, case in cases.items():
        found[name] = []
        for length in case["lengths"]:
            found[name].append(data[at : at + length].tobytes())
            at += length
    return found


def compare(cases: dict[str, Any], segments: dict[str, list[bytes]]) -> list[str]:
    """The cases whose values, or whose refusal, are not the CPU's."""
    from cepam.kernels.triton import backend

    wrong = []
    for name, case in cases.items():
        if SMOKE and case["count"] > 600:
            continue
        try:
            device = "cpu" if SMOKE else "cuda"
            out = backend.decode_rows([TASK], [segments[name]], case["count"], case["dtype"], device)
            found = hashlib.sha256(out.cpu().numpy().tobytes()).hexdigest()
        except MalformedMessage:
            found = REFUSED
        if found != case["hash"]:
            wrong.append(name)
    return wrong


def compare_encoded(cases: dict[str, Any], segments: dict[str, list[bytes]]) -> list[str]:
    """The updates whose segments are not the CPU's, or that this machine draws otherwise."""
    import torch

    wrong = []
    for name, x in updates().items():
        if SMOKE and len(x) > 600:
            continue
        begun = time.perf_counter()
        same = hashlib.sha256(x.tobytes()).hexdigest() == cases[name]["update"]
        if not same or encoded(torch.from_numpy(x).to("cpu" if SMOKE else "cuda")) != segments[name]:
            wrong.append(f"{name} encoded" if same else f"{name}: another update")
        print(f"{name} encoded in {time.perf_counter() - begun:.1f} s, compilation included", flush=True)
    return wrong


def encoded(x: Any) -> list[bytes]:
    """The segments of an update on a GPU."""
    from cepam.kernels.triton import backend

    return list(backend.encode_rows(backend.measure_rows([TASK], x[None]))[0])


def seconds_of(work: Any, repeats: int = 7) -> float:
    """The median time of a call, from a device that is idle to one that is idle again."""
    import torch

    times = []
    for _ in range(repeats + 2):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return statistics.median(times[2:])


def measured(work: Any, size: int, known: int) -> dict[str, float]:
    """Seconds, speed, and the GPU's memory for each coordinate beyond what is known of it."""
    import torch

    work()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    memory = (torch.cuda.max_memory_allocated() - before - known) / size
    seconds = seconds_of(work)
    return {"memory": memory, "seconds": seconds, "giga_coordinates_a_second": size / seconds / 1e9}


def say(row: dict[str, Any]) -> None:
    """Print a row of numbers."""
    print("  ".join(f"{name} {value:,.4g}" for name, value in row.items() if not isinstance(value, str)), flush=True)


def timed(segments: dict[str, list[bytes]], until: float) -> list[dict[str, Any]]:
    """Decoding at several energies and sizes, and the GPU's memory beyond bytes and values."""
    from cepam.kernels.triton import backend

    rows = []
    for bits in SIZES:
        for decibels in TIMED:
            if time.perf_counter() > until:
                continue
            own = segments[f"{decibels} dB, 1048576"] * (1 << bits - 20)
            size, total = 1 << bits, sum(map(len, own))

            def work(own: list[bytes] = own, size: int = size) -> None:
                backend.decode_rows([TASK], [own], size, "float32", "cuda")

            row: dict[str, Any] = {"coordinates": size, "snr_db": decibels, "bytes": total}
            try:
                row |= measured(work, size, 4 * size + total)
            except MalformedMessage as refused:
                row["refused"] = str(refused)
            rows.append(row)
            say(row)
    return rows


def timed_encoding(until: float) -> list[dict[str, Any]]:
    """Encoding at several energies and sizes, and the GPU's memory beyond the values."""
    import torch

    rows = []
    for bits in SIZES:
        for decibels in TIMED:
            if time.perf_counter() > until:
                continue
            size = 1 << bits
            x = torch.randn(size, device="cuda", generator=torch.Generator("cuda").manual_seed(7))
            x *= 10.0 ** (decibels / 20)

            def work(x: Any = x) -> None:
                encoded(x)

            row = {"coordinates": size, "snr_db": decibels, "bytes": sum(map(len, encoded(x)))}
            rows.append(row | measured(work, size, 0))
            say(rows[-1])
    return rows


def main() -> None:
    """Prints and writes everything."""
    options = argparse.ArgumentParser()
    options.add_argument("cases")
    options.add_argument("--prepare", action="store_true")
    options.add_argument("--smoke", action="store_true")
    options.add_argument("--seconds", type=float, default=1e9, help="no timing begins after this")
    chosen = options.parse_args()
    begun = time.perf_counter()
    if chosen.prepare:
        prepare(chosen.cases)
        return
    with np.load(chosen.cases) as kept:
        data, cases = kept["data"], json.loads(str(kept["cases"]))
    segments = segments_of(data, cases)
    wrong, wrong_encoded = compare(cases, segments), compare_encoded(cases, segments)
    lasted = time.perf_counter() - begun
    print(f"{len(cases)} cases compared, different: {wrong + wrong_encoded or 'none'}, at {lasted:.0f} s", flush=True)
    if not SMOKE:
        import torch

        speeds = {"encode": timed_encoding(begun + chosen.seconds), "decode": timed(segments, begun + chosen.seconds)}
        known = {"compared_encoded": len(updates()), "different_encoded": wrong_encoded}
        found = known | {
            "stamp": stamp(),
            "device": torch.cuda.get_device_name(),
            "compared": len(cases),
            "different": wrong,
        }
        for folder in (RESULT.parent, *([Path(os.environ["OUT"])] if "OUT" in os.environ else [])):
            (folder / RESULT.name).write_text(json.dumps(found | speeds, indent=1, default=str) + "\n")
    sys.exit(bool(wrong + wrong_encoded))


if __name__ == "__main__":
    main()

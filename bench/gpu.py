"""The GPU as a user sees it: first call, sealed messages and coded blocks beside PyTorch, and are they the CPU's.

    PYTHONPATH=src python bench/gpu.py --only user       # on a CUDA machine: the GPU table of the site's page "Speed"
    PYTHONPATH=src python bench/gpu.py                   # the same, identity for every lattice and law, and memory
    PYTHONPATH=src python bench/gpu.py --smoke           # through Triton's interpreter: does every section run

Kernels are compiled into a fresh cache (unless TRITON_CACHE_DIR names one), so that the first calls are those after an
installation. The result goes to bench/results/gpu.json and, where $OUT is set, there too; sections that were not run
keep what an earlier run found there, if `--only` is given. Needs PyTorch, Triton, NumPy, SciPy and Numba; without
`cryptography` a stand-in seals (stand_in_seal.py), and the output says so.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

SMOKE = "--smoke" in sys.argv
if SMOKE:
    os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("TRITON_CACHE_DIR", tempfile.mkdtemp())

import torch  # noqa: E402
import triton  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))

import cepam  # noqa: E402
import first_call  # noqa: E402
import gpu_identity  # noqa: E402
import stand_in_seal  # noqa: E402
from cepam.codec import codec as codecs  # noqa: E402
from cepam.codec.wire import rows_per_block  # noqa: E402
from cepam.kernels import dispatch  # noqa: E402
from cepam.kernels.format.plan import layered_plan  # noqa: E402
from cepam.kernels.triton import backend as triton_backend  # noqa: E402
from cepam.kernels.triton import launch  # noqa: E402
from cepam.kernels.triton.row_period import find_periods  # noqa: E402
from cepam.lattices.lattice import lattice_named  # noqa: E402
from stamp import stamp  # noqa: E402

DEVICE, SIGMA, KEY = "cpu" if SMOKE else "cuda", 0.01, bytes(range(7, 39))
AT = cepam.Address(bytes(32), round=1, client=1)
WARM = 1.0
"""Seconds of calls before those that are timed."""
WHOLE, MIDDLE = (20, 9) if SMOKE else (1 << 28, 10_000_000)
RESULT = Path(__file__).parent / "results" / "gpu.json"
RESULTS: dict[str, Any] = {}
if SMOKE:
    dispatch.on_gpu = torch.is_tensor


def seconds_of(work: Callable[[], Any], repeats: int = 5) -> float:
    """The median time of a call, by the clock, from a device that is idle to one that is idle again.

    A second of the same calls comes first: a GPU that waited for a compiler takes a while to reach its clock.
    """
    times: list[float] = []
    begun = time.perf_counter()
    while not times or (time.perf_counter() - begun < WARM and not SMOKE):
        times.append(seconds_of_one(work))
    more = [seconds_of_one(work) for _ in range(0 if SMOKE else max(repeats, min(len(times) // 3, 200)))]
    return statistics.median(more or times)


def seconds_of_one(work: Callable[[], Any]) -> float:
    """The time of one call."""
    settle()
    begun = time.perf_counter()
    work()
    settle()
    return time.perf_counter() - begun


def settle() -> None:
    """Wait until the GPU has done all its work."""
    if not SMOKE:
        torch.cuda.synchronize()


def note(name: str, coordinates: int, seconds: float, more: str = "") -> None:
    """Prints and keeps one row."""
    RESULTS[name] = {"giga_coordinates_a_second": coordinates / seconds / 1e9, "seconds": seconds, "note": more}
    print(f"  {name:58s} {coordinates / seconds / 1e9:9.3f} G/s  {seconds * 1e3:10.3f} ms  {more}", flush=True)


def gradient_like(count: int) -> torch.Tensor:
    """Float32 values of about the spread of the noise."""
    made = torch.Generator(device=DEVICE).manual_seed(1)
    return torch.randn(count, generator=made, device=DEVICE, dtype=torch.float32).mul_(SIGMA)


CODECS = {
    "Integer(1)": cepam.Codec(cepam.Gaussian(SIGMA), coder="layered"),
    "default": cepam.Codec(cepam.Gaussian(SIGMA)),
}


QUANTIZED = {"Z1": 95, "E8": 25}
"""Lattices on which quantizing alone is timed, and how many G coordinates a second it must reach at 2^28 on an H200."""


def section_first() -> None:
    """The first calls after an installation, kernels compiled; float64 and half precision need no others."""
    x = gradient_like(MIDDLE)
    for name, codec in CODECS.items():
        begun = time.perf_counter()
        message = codec.encode(x, AT)
        encoded = time.perf_counter()
        codec.decode(message, AT, device=DEVICE)
        settle()
        RESULTS[f"first call, {name}"] = [encoded - begun, time.perf_counter() - encoded]
        print(f"  first call, {name}: encode {encoded - begun:.1f} s, decode {time.perf_counter() - encoded:.1f} s")
    x = gradient_like(9)
    CODECS["Integer(1)"].encode(x, AT)
    begun = time.perf_counter()
    CODECS["Integer(1)"].encode(x.double(), AT)
    CODECS["Integer(1)"].encode(x.bfloat16(), AT)
    settle()
    RESULTS["first call, float64 and bfloat16"] = time.perf_counter() - begun
    print(f"  float64 and bfloat16 after that: {time.perf_counter() - begun:.2f} s", flush=True)


def section_user() -> None:
    """The rows of the table: through `encode` and `decode`, the seal included; then coding and sealing apart."""
    x = gradient_like(WHOLE)
    copied = torch.empty_like(x)
    note("PyTorch copy", WHOLE, seconds_of(lambda: copied.copy_(x)))
    note("PyTorch x + sigma*randn", WHOLE, seconds_of(lambda: x + SIGMA * torch.randn_like(x)))
    for name, codec in CODECS.items():
        time_messages(name, codec, x)
        time_messages(name, codec, x[:MIDDLE])


def section_quantizers() -> None:
    """More rows of the table: quantizing alone and back, through `cepam.LRSUQ`; the first call compiles."""
    x = gradient_like(WHOLE)
    for name, must in QUANTIZED.items():
        time_symbols(name, must, x)


def time_symbols(name: str, must: int, x: torch.Tensor) -> None:
    """Both directions of one vector."""
    quantizer, size = cepam.LRSUQ(cepam.Gaussian(SIGMA), lattice_named(name)), len(x)
    begun = time.perf_counter()
    h, m = quantizer.quantize(x, AT)
    settle()
    first = time.perf_counter() - begun
    more = f"must {must}; first call {first:.1f} s; {m.dtype}"
    note(f"quantize, {name}, {size}", size, seconds_of(lambda: quantizer.quantize(x, AT)), more)
    quantizer.reconstruct(h, m, AT)
    note(f"reconstruct, {name}, {size}", size, seconds_of(lambda: quantizer.reconstruct(h, m, AT)), "float64")


def time_messages(name: str, codec: cepam.Codec, x: torch.Tensor) -> None:
    """Both directions of one update."""
    size, message = len(x), codec.encode(x, AT)
    more = f"{8 * len(message) / size:.3f} bits per coordinate"
    note(f"tensor to sealed bytes, {name}, {size}", size, seconds_of(lambda: codec.encode(x, AT)), more)
    back = seconds_of(lambda: codec.decode(message, AT, device=DEVICE))
    note(f"sealed bytes to tensor, {name}, {size}", size, back)
    time_coding_and_sealing(f"{name}, {size}", codec, x, message)


def time_coding_and_sealing(name: str, codec: cepam.Codec, x: torch.Tensor, message: bytes) -> None:
    """The two parts of each direction by themselves: coding on the GPU with the copy to or from the host's pinned
    memory, and the seals of the host's threads."""
    size, keys, room = len(x), AT.derive(), triton_backend.pinned
    contents, task = codec.open(message, AT, room=room)
    sealed = codecs.wire.seal(contents, keys, codec.fingerprint)
    assert sealed == message, "sealing what was opened gives another message"

    def encode() -> Any:
        return triton_backend.encode_rows(triton_backend.measure_rows([task], x[None]))

    def decode() -> Any:
        return triton_backend.decode_rows([task], [contents.blocks], size, "float32", DEVICE)

    parts: dict[str, Callable[[], Any]] = {
        "encode, coding alone": encode,
        "encode, sealing alone": lambda: codecs.wire.seal(contents, keys, codec.fingerprint),
        "decode, opening alone": lambda: codec.open(message, AT, room=room),
        "decode, coding alone": decode,
    }
    for part, work in parts.items():
        note(f"{part}, {name}", size, seconds_of(work))


def section_blocks() -> None:
    """Coded blocks on the device, without seal and host."""
    for lattice in (cepam.Integer(1), cepam.E8):
        for size in (WHOLE, MIDDLE):
            time_blocks(lattice, size)


def encoded(plan: Any, rows: torch.Tensor, per_block: int) -> Any:
    """The coded blocks of an update, on the device."""
    return launch.encode_measured(launch.measure(plan, [KEY], rows, per_block))


def time_blocks(lattice: cepam.Lattice, size: int) -> None:
    """Both directions of one update."""
    rows, name = gradient_like(size)[None], f"coded blocks, {lattice.name}"
    plan, per_block = layered_plan(cepam.Gaussian(SIGMA), lattice), rows_per_block(lattice.dimension)
    made = encoded(plan, rows, per_block)
    seconds = seconds_of(lambda: encoded(plan, rows, per_block), 3)
    note(f"{name}, encode, {size}", size, seconds, f"{8 * made.data.numel() / size:.4f} bits per coordinate")
    seconds = seconds_of(lambda: launch.decode_blocks(plan, [KEY], made, size, torch.float32, per_block), 3)
    note(f"{name}, decode, {size}", size, seconds)


def section_parts() -> None:
    """Where the time of a whole call goes: rows of a profile by the clock."""
    codec, x = CODECS["Integer(1)"], gradient_like(WHOLE)
    plan = codec.plan
    made = encoded(plan, x[None], 8192)
    measured = lambda: launch.measure(plan, [KEY], x[None], 8192)  # noqa: E731
    note("part: largest magnitude, scales, row periods", WHOLE, seconds_of(measured, 3))
    note("part: row periods", WHOLE, seconds_of(lambda: find_periods(x[None], 1.0 / plan.unit, 8192), 3))
    held = triton_backend.to_host(made)
    note("part: blocks to the host", WHOLE, seconds_of(lambda: triton_backend.to_host(made)))
    note("part: blocks to the GPU", WHOLE, seconds_of(lambda: triton_backend.to_device(held, DEVICE)))


def section_memory() -> None:
    """Four times the size, through `encode` and `decode`: bytes per coordinate at the GPU's peak, beyond input, message
    and output."""
    if SMOKE:
        return
    x = gradient_like(4 * WHOLE)
    for lattice in (cepam.Integer(1), cepam.E8):
        codec = cepam.Codec(cepam.Gaussian(SIGMA), lattice, coder="layered")
        message = note_peak(f"encode 2^30 on {lattice.name}", len, codec.encode, x, AT)
        owed = len(message) + 4 * len(x)
        note_peak(f"decode 2^30 on {lattice.name}", lambda _, owed=owed: owed, codec.decode, message, AT, device=DEVICE)


def note_peak(name: str, owed: Callable[[Any], int], work: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """What a call made; prints and keeps the most memory that it took beside the bytes that are owed for it."""
    settle()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    made = work(*given, **named)
    settle()
    peak = (torch.cuda.max_memory_allocated() - before - owed(made)) / (4 * WHOLE)
    RESULTS[f"{name}, bytes a coordinate"] = peak
    print(f"  {name}: {peak:.3f} bytes a coordinate beyond input, message and output", flush=True)
    return made


def section_cpu() -> None:
    """The first calls on this machine's CPU."""
    RESULTS["first calls on the CPU"] = dict(first_call.first_calls((9,) if SMOKE else (100_000,)))


def keep(earlier: dict[str, Any]) -> None:
    """Write what was found so far, and what stays of earlier runs, to the files."""
    if not SMOKE:
        for folder in (RESULT.parent, *([Path(os.environ["OUT"])] if "OUT" in os.environ else [])):
            (folder / RESULT.name).write_text(json.dumps(earlier | RESULTS, indent=1, default=str) + "\n")


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--smoke", action="store_true")
    options.add_argument("--only", default="", help="'user', or sections separated by commas")
    options.add_argument("--seconds", type=float, default=1e9 if SMOKE else 270, help="no section begins after this")
    chosen = options.parse_args()
    begun = time.perf_counter()
    # What `timeout` sends: the section that runs then keeps what it has.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("cut off"))
    print("seal:", stand_in_seal.put_in_place_if_needed(), "torch", torch.__version__, "triton", triton.__version__)
    if not SMOKE:
        torch.randn(8, device=DEVICE)
        RESULTS["device"] = torch.cuda.get_device_name()
        print(RESULTS["device"], "cores", os.cpu_count(), flush=True)
    sections: dict[str, Callable[[], Any]] = {
        "first": section_first, "user": section_user, "quantizers": section_quantizers, "blocks": section_blocks,
        "symbols": lambda: gpu_identity.check_symbols(DEVICE, SMOKE, RESULTS.setdefault("symbols", {})),
        "identity": lambda: gpu_identity.check(DEVICE, SMOKE, RESULTS.setdefault("identity", {})),
        "parts": section_parts, "memory": section_memory, "cpu": section_cpu,
    }  # fmt: skip
    wanted = (
        ["first", "user", "quantizers", "blocks"] if chosen.only == "user" else [s for s in chosen.only.split(",") if s]
    )
    earlier = json.loads(RESULT.read_text()) if wanted and RESULT.exists() else {}
    earlier = {name: value for name, value in earlier.items() if not name.startswith("failed")}
    RESULTS["stamps"] = earlier.get("stamps", {})
    for name, section in sections.items():
        if (wanted and name not in wanted) or time.perf_counter() - begun > chosen.seconds:
            continue
        print(f"\n{name}  (at {time.perf_counter() - begun:.0f} s)", flush=True)
        RESULTS.setdefault("stamps", {})[name] = stamp()
        try:
            section()
            if not SMOKE:
                torch.cuda.empty_cache()
        except Exception:
            RESULTS[f"failed: {name}"] = traceback.format_exc()
            print(traceback.format_exc()[-3000:], flush=True)
        finally:
            keep(earlier)
    failed = [name for name in RESULTS if name.startswith("failed")]
    print(f"\nall done in {time.perf_counter() - begun:.0f} s; {', '.join(failed) or 'no section failed'}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()

"""The GPU path on one machine: is it the same as the CPU, and how fast is it beside PyTorch.

    PYTHONPATH=src python bench/gpu.py            # on a CUDA machine: identity, tuning, table; JSON to $OUT
    PYTHONPATH=src python bench/gpu.py --smoke    # through Triton's interpreter: does every section run

Needs PyTorch, Triton, NumPy, SciPy and Numba; no other dependency of the package.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

SMOKE = "--smoke" in sys.argv
COMPILE = "--compile" in sys.argv
if SMOKE:
    os.environ["TRITON_INTERPRET"] = "1"

import torch  # noqa: E402
import triton  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))

import cepam  # noqa: E402
import gpu_coder  # noqa: E402
import gpu_compile  # noqa: E402
import gpu_identity  # noqa: E402
import gpu_stages  # noqa: E402
import gpu_train  # noqa: E402
from cepam.kernels.model.plan import layered_plan  # noqa: E402
from cepam.kernels.triton import scalar_launch as tq  # noqa: E402
from cepam.kernels.triton import vector_launch as tr  # noqa: E402
from cepam.kernels.triton.plan import Tile, device_keys, device_plan  # noqa: E402

DEVICE = "cpu" if SMOKE else "cuda"
SIGMA = 0.01
KEY = bytes(range(7, 39))
REPEATS = 1 if SMOKE else 15
TILES = (
    [Tile(32, 1)]
    if SMOKE
    else [Tile(lanes, warps) for lanes, warps in ((32, 1), (64, 2), (128, 4), (256, 8), (64, 1), (128, 2), (256, 4))]
)
ROW_TILES = (
    [Tile(32, 1, 2)] if SMOKE else [Tile(32, 1, 1), Tile(32, 1, 8), Tile(32, 1, 32), Tile(32, 1, 128), Tile(64, 2, 32)]
)
BACK_TILES = [Tile(32, 1)] if SMOKE else [Tile(32, 1), Tile(128, 4)]
RESULTS: dict[str, Any] = {}


def median_seconds(work: Callable[[], Any], repeats: int = REPEATS) -> float:
    """The median time of one call on the device, by CUDA events, after two calls that are not counted."""
    if SMOKE or COMPILE:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    for _ in range(2):
        work()
    torch.cuda.synchronize()
    pairs = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        pairs.append((begin, end))
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in pairs) / 1000.0


def note(name: str, coordinates: int, seconds: float, more: str = "") -> None:
    """Prints and keeps one line of the table."""
    rate = coordinates / seconds / 1e9
    RESULTS[name] = {"coordinates": coordinates, "seconds": seconds, "giga_coordinates_a_second": rate}
    print(f"  {name:54s} {rate:9.2f} G/s  {seconds * 1e3:9.3f} ms  {more}", flush=True)


def gradient_like(count: int) -> torch.Tensor:
    """Float32 values of about the spread of the noise."""
    made = torch.Generator(device=DEVICE).manual_seed(1)
    return torch.randn(count, generator=made, device=DEVICE, dtype=torch.float32).mul_(SIGMA)


def section_pytorch(size: int) -> None:
    """What PyTorch does in the same time: a copy, noise alone, noise with dither and rounding."""
    x = gradient_like(size)
    y = torch.empty_like(x)
    note("PyTorch copy", size, median_seconds(lambda: y.copy_(x)))
    note("PyTorch x + sigma*randn", size, median_seconds(lambda: x + SIGMA * torch.randn_like(x)))

    def pipeline() -> torch.Tensor:
        noisy = x + SIGMA * torch.randn_like(x)
        dither = torch.rand_like(x)
        return torch.round(noisy / SIGMA + dither)

    note("PyTorch Gaussian + dither + round", size, median_seconds(pipeline))


def section_stages(size: int) -> None:
    """Where the quantizer's time goes."""
    plan = layered_plan(cepam.Gaussian(SIGMA), cepam.Integer(1))
    on, keys = device_plan(plan, DEVICE), device_keys([KEY], DEVICE)
    by_rows = on.table.T.contiguous()
    out = torch.empty(size, dtype=torch.int32, device=DEVICE)
    names = ["store", "one keystream", "two keystreams", "widths", "widths + dithers", "widths, table by rows"]
    for stage, name in enumerate(names):
        table = by_rows if stage == 5 else on.table
        best = min(
            (
                (
                    median_seconds(
                        lambda stage=stage, table=table, tile=tile: gpu_stages.run_stage[
                            (triton.cdiv(size, 8 * tile.lanes),)
                        ](
                            keys, table, on.numbers, out, size, stage=stage, lanes=tile.lanes,
                            num_warps=tile.warps, enable_fp_fusion=False,
                        ),
                        5,
                    ),
                    tile,
                )
                for tile in TILES[:4]
            ),
            key=lambda pair: pair[0],
        )  # fmt: skip
        note(f"stage {stage}: {name}", size, best[0], f"{best[1].lanes} lanes, {best[1].warps} warps")


def tuned(name: str, size: int, launch: Callable[[Tile], Any], tiles: list[Tile]) -> None:
    """Times a launch over tiles; prints all, keeps the best under the name."""
    times = []
    for tile in tiles:
        try:
            times.append((median_seconds(lambda tile=tile: launch(tile), 5), tile))
        except Exception as failed:
            print(f"    {name} {tile}: {failed!r}"[:200])
    times.sort(key=lambda pair: pair[0])
    for seconds, tile in times:
        kind = f"{tile.lanes:5d} lanes {tile.warps:2d} warps {tile.share:3d} rows"
        print(f"    {name:40s} {kind} {size / seconds / 1e9:9.2f} G/s")
    RESULTS[f"tiles: {name}"] = [[tile.lanes, tile.warps, tile.share, seconds] for seconds, tile in times]
    best = times[0][1]
    note(name, size, median_seconds(lambda: launch(best)), f"{best.lanes} lanes, {best.warps} warps, {best.share} rows")


def section_scalar(size: int) -> None:
    """Quantize and reconstruct in one dimension."""
    x = gradient_like(size)[None]
    time_scalar("Gaussian", cepam.Gaussian(SIGMA), x, torch.int64, TILES[:4])
    time_scalar("Gaussian", cepam.Gaussian(SIGMA), x, torch.int32, TILES)
    time_scalar("Laplace", cepam.Laplace(SIGMA), x, torch.int32, TILES[:4])


def time_scalar(name: str, law: cepam.Law, x: torch.Tensor, symbols: Any, tiles: list[Tile]) -> None:
    """Both directions for one law and one type of symbols."""
    plan, kind = layered_plan(law, cepam.Integer(1)), str(symbols).removeprefix("torch.")
    on, keys, size = device_plan(plan, DEVICE), device_keys([KEY], DEVICE), x.numel()
    m, out = torch.empty_like(x, dtype=symbols), torch.empty_like(x)
    flags = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    tuned(
        f"quantize to {kind} symbols, n = 1, {name}",
        size,
        lambda tile: tq.launch_quantize(on, keys, x, 0, m, flags, tile),
        tiles,
    )
    tuned(
        f"reconstruct from {kind} symbols, n = 1, {name}",
        size,
        lambda tile: tq.launch_reconstruct(on, keys, m, 0, out, flags, tile),
        tiles,
    )
    assert int(flags.item()) == 0


def section_vector(size: int) -> None:
    """Quantize and reconstruct on vector lattices."""
    x = gradient_like(size)[None]
    time_vector("E8, Gaussian", cepam.Gaussian(SIGMA), cepam.E8, x, ROW_TILES, BACK_TILES)
    if not SMOKE:
        time_vector("D4, Gaussian", cepam.Gaussian(SIGMA), cepam.D4, x, ROW_TILES[2:3], BACK_TILES[-1:])
        time_vector("A2, Gaussian", cepam.Gaussian(SIGMA), cepam.A2, x, ROW_TILES[2:3], BACK_TILES[-1:])


def time_vector(
    name: str, law: cepam.Law, lattice: cepam.Lattice, x: torch.Tensor, tiles: list[Tile], back_tiles: list[Tile]
) -> None:
    """Both directions for one law and one lattice."""
    plan = layered_plan(law, lattice)
    on, keys, size = device_plan(plan, DEVICE), device_keys([KEY], DEVICE), x.numel()
    rows = -(-size // plan.n)
    h = torch.ones((1, rows), dtype=torch.int32, device=DEVICE)
    m = torch.zeros((1, rows, plan.n), dtype=torch.int32, device=DEVICE)
    out, flags = torch.empty_like(x), torch.zeros(1, dtype=torch.int32, device=DEVICE)
    tuned(f"quantize, {name}", size, lambda tile: tr.launch_quantize(on, keys, x, 0, h, m, flags, tile), tiles)
    tuned(
        f"reconstruct, {name}",
        size,
        lambda tile: tr.launch_reconstruct(on, keys, h, m, 0, out, flags, tile),
        back_tiles,
    )
    assert int(flags.item()) == 0


def section_batched(size: int) -> None:
    """Many clients in one launch."""
    plan = layered_plan(cepam.Gaussian(SIGMA), cepam.Integer(1))
    clients, count = (2, 100) if SMOKE else (1000, 6422)
    keys = device_keys([bytes([i & 255, i >> 8]) + KEY[2:] for i in range(clients)], DEVICE)
    x = gradient_like(clients * count).reshape(clients, count)
    m, flags = torch.empty_like(x, dtype=torch.int32), torch.zeros(1, dtype=torch.int32, device=DEVICE)
    on = device_plan(plan, DEVICE)
    note(
        f"quantize {clients} clients of {count}, one launch",
        clients * count,
        median_seconds(lambda: tq.launch_quantize(on, keys, x, 0, m, flags)),
    )


def section_coder(size: int) -> None:
    """Encode to compact blocks and decode from them: i.i.d. data, and rows that the coder's model follows."""
    x = gradient_like(size)
    tiles = [Tile(32, 1)] if SMOKE else [Tile(32, 1), Tile(64, 2)]
    gpu_coder.timed("Gaussian", x, median_seconds, note, tiles, COMPILE)
    if not SMOKE:
        x *= torch.linspace(-4, 1, 700, device=DEVICE).exp().repeat(size // 700 + 1)[:size]
        gpu_coder.timed("rows", x, median_seconds, note, tiles[:1], COMPILE)
        x *= 0.01
        gpu_coder.timed("rows under large noise", x, median_seconds, note, tiles[:1], COMPILE)
    print("  seal:", gpu_coder.seal_speed(1 << 20 if SMOKE else 1 << 26))
    for way in ("encode", "decode"):
        speeds = [(v["seconds"], v) for k, v in RESULTS.items() if k.startswith(f"{way}, n = 1, Gaussian,")]
        if speeds:
            RESULTS[f"{way}, n = 1, Gaussian"] = min(speeds, key=lambda pair: pair[0])[1]


def section_memory(size: int) -> None:
    """Four times the size, in place of the largest models; and the device's memory at its peak."""
    if SMOKE or COMPILE:
        return
    plan = layered_plan(cepam.Gaussian(SIGMA), cepam.Integer(1))
    on, keys, size = device_plan(plan, DEVICE), device_keys([KEY], DEVICE), 4 * size
    x = gradient_like(size)[None]
    m, flags = torch.empty_like(x, dtype=torch.int32), torch.zeros(1, dtype=torch.int32, device=DEVICE)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    seconds = median_seconds(lambda: tq.launch_quantize(on, keys, x, 0, m, flags), 3)
    note(f"quantize 2^{size.bit_length() - 1}", size, seconds)
    extra = (torch.cuda.max_memory_allocated() - before) / size
    print(f"  extra memory: {extra:.3f} bytes a coordinate")
    RESULTS["extra bytes a coordinate"] = extra
    RESULTS["coder memory"] = gpu_coder.memory(x[0])
    for name, value in RESULTS["coder memory"].items():
        print(f"  2^{size.bit_length() - 1}: {name}: {value}")


def table() -> None:
    """The targets of the GPU path beside what was measured."""
    targets = [
        ("quantize to int32 symbols, n = 1, Gaussian", "quantize to symbols, n = 1", 50, 90),
        ("encode, n = 1, Gaussian", "encode to coded blocks, n = 1", 5, 25),
        ("decode, n = 1, Gaussian", "decode from bytes, n = 1", 5, 25),
        ("quantize, E8, Gaussian", "quantize, E8", 8, 25),
    ]
    ceilings = ["PyTorch copy", "PyTorch x + sigma*randn", "PyTorch Gaussian + dither + round"]
    speed = {k: v["giga_coordinates_a_second"] for k, v in RESULTS.items() if isinstance(v, dict) and "seconds" in v}
    print("\n| G coordinates/s | measured | must | aim | / copy | / noise | / Gaussian + dither + round |")
    print("|---|---|---|---|---|---|---|")
    for key, name, must, aim in targets:
        if key in speed:
            ratios = " | ".join(f"{speed[key] / speed[c]:.3f}" if c in speed else "?" for c in ceilings)
            print(f"| {name} | {speed[key]:.1f} | {must} | {aim} | {ratios} |")


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--smoke", action="store_true")
    options.add_argument("--only", default="", help="sections, separated by commas")
    options.add_argument("--bits", type=int, default=10 if SMOKE else 28)
    options.add_argument("--seconds", type=float, default=1e9 if SMOKE else 270, help="no section begins after this")
    options.add_argument("--compile", default="", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    size = 1 << (12 if COMPILE else chosen.bits)
    begun = time.perf_counter()
    if COMPILE:
        gpu_compile.compile_only(chosen.compile)
    elif not SMOKE:
        gpu_compile.compile_shares(__file__, max((os.cpu_count() or 2) - 2, 1))
        print(f"kernels compiled in {time.perf_counter() - begun:.0f} s")
        print(torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__, flush=True)
        RESULTS["device"] = torch.cuda.get_device_name()
    sections = {
        "identity": lambda: RESULTS.update(identity=gpu_identity.check(DEVICE, SMOKE, COMPILE)),
        "pytorch": lambda: section_pytorch(size),
        "stages": lambda: section_stages(size),
        "scalar": lambda: section_scalar(size),
        "vector": lambda: section_vector(size),
        "bytes": lambda: RESULTS.update(bytes=gpu_coder.check(DEVICE, SMOKE, COMPILE)),
        "coder": lambda: section_coder(size),
        "batched": lambda: section_batched(size),
        "memory": lambda: section_memory(size),
        "train": lambda: gpu_train.warm() if COMPILE else RESULTS.update(train=gpu_train.measure(SMOKE)),
        "table": table,
    }
    for name, section in sections.items():
        if chosen.only and name not in chosen.only.split(","):
            continue
        if name != "table" and time.perf_counter() - begun > chosen.seconds:
            RESULTS[f"failed: {name}"] = "no time left"
            continue
        print(f"\n{name}  (at {time.perf_counter() - begun:.0f} s)", flush=True)
        try:
            section()
            if not SMOKE:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
        except Exception:
            RESULTS[f"failed: {name}"] = traceback.format_exc()
            print(traceback.format_exc()[-3000:], flush=True)
        if os.environ.get("OUT"):
            Path(os.environ["OUT"], "gpu.json").write_text(json.dumps(RESULTS, indent=1, default=str))
    failed = [name for name in RESULTS if name.startswith("failed")]
    print(f"\nall done in {time.perf_counter() - begun:.0f} s; {', '.join(failed) or 'no section failed'}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()

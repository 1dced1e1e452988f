"""Training on a GPU beside the same machine's CPU: seconds per round by part, and are messages and vectors the same.

    PYTHONPATH=src python bench/gpu_train.py            # on a CUDA machine, under 250 s with compilation
    PYTHONPATH=src python bench/gpu_train.py --private  # that preset alone
    python bench/gpu_train.py --whole mnist             # `cepam train --preset private`, the command, on both; minutes
    PYTHONPATH=src python bench/gpu_train.py --smoke    # through Triton's interpreter: does every section run

Presets `private`, `convolutional` and `algorithm1` on synthetic images of MNIST's shape, rounds of 1,000 clients, the
codec alone for 30 to 10,000 clients. Prints tables, writes bench/results/gpu_train.json and, where $OUT is set, a copy
there.
Needs PyTorch, Triton, NumPy, SciPy and Numba only: without `cryptography` a stand-in seals (stand_in_seal.py), and no
epsilon is computed (the private presets' noise is given as what their target needs on 60,000 records). `--whole` times
the command as it is, so it needs all that the package does, and writes beside the rest.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

if "--smoke" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

import cepam
import stand_in_seal
from cepam import fl
from cepam.fl.arrays import Tensors
from cepam.fl.clients.sampling import RunSecret
from cepam.kernels import dispatch
from stamp import stamp

RESULT = Path(__file__).parent / "results" / "gpu_train.json"
PRIVATE_NOISE = 4.7297e-4
PARTS = ("gradients", "encode", "decode", "evaluation")
Timed = dict[str, list[float]]


class Bench:
    """One machine's measurements; `smoke` runs everything tiny, tensors on the CPU standing for those on a GPU."""

    def __init__(self, smoke: bool) -> None:
        self.smoke = smoke
        self.found: dict[str, Any] = {"seal": stand_in_seal.put_in_place_if_needed()}
        if smoke:
            dispatch.on_gpu = torch.is_tensor
            draw = np.random.default_rng(1)
            sets = ((draw.normal(size=(count, 4)), draw.integers(0, 3, count)) for count in (60, 20))
            self.data, self.model = fl.from_arrays(*sets), fl.Model(lambda: torch.nn.Linear(4, 3))
        else:
            self.data, self.model = fl.synthetic(6000, 10_000), None

    def simulation(self, preset: str, where: str, rounds: int, **changes: Any) -> fl.Simulation:
        """A run of a preset that starts at the same addresses wherever it runs."""
        start = fl.preset(preset)
        values: dict[str, Any] = {
            "data.name": "synthetic",
            "training.rounds": rounds,
            "run.evaluate_every": 1,
            "run.simulate": True,
        }
        if preset in ("private", "convolutional"):
            values |= {"privacy.noise_scale": PRIVATE_NOISE}
        if self.smoke:
            values |= {
                "clients.count": 3,
                "training.expected_batch_size": 12.0,
                "training.local_steps": min(start.training.local_steps, 2),
            }
        values |= changes
        values["run.device"] = ("cpu-torch" if self.smoke else "cuda") if where == "cuda" else "cpu"
        settings = start.updated(values)
        codec = cepam.Codec(cepam.Gaussian(settings.privacy.noise_scale or 1.0), coder="layered")
        backend = Tensors("cpu") if self.smoke and where == "cuda" else None
        nonce = RunSecret(None, b"gpu_train")
        return fl.Simulation(
            settings, self.data, self.model, codecs=lambda client: codec, backend=backend, secret=nonce
        )

    def timed(self, simulation: fl.Simulation) -> tuple[Timed, list[Any], list[dict[str, Any]]]:
        """Seconds of each round and part, what the last round posted and opened, and the lines."""
        parts: Timed = defaultdict(list)
        last: dict[str, Any] = {}

        def watched(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
            def call(*items: Any, **named: Any) -> Any:
                self.settle()
                begun = time.perf_counter()
                given = work(*items, **named)
                self.settle()
                parts[name].append(time.perf_counter() - begun)
                last[name] = (items, given)
                return given

            return call

        object.__setattr__(simulation.work, "updates", watched("gradients", simulation.work.updates))
        simulation.arrays.encode = watched("encode", simulation.arrays.encode)
        simulation.arrays.decode = watched("decode", simulation.arrays.decode)
        simulation.network.evaluate = watched("evaluation", simulation.network.evaluate)
        lines = []
        while not simulation.done:
            begun = time.perf_counter()
            lines += simulation.step()
            self.settle()
            parts["round"].append(time.perf_counter() - begun)
        return parts, [last["encode"], last["decode"]], lines

    def settle(self) -> None:
        """Wait until the GPU has done all its work."""
        if not self.smoke:
            torch.cuda.synchronize()

    def compare(self, name: str, preset: str, rounds: int, **changes: Any) -> None:
        """One preset on both: identity of the last round's messages and vectors, times, accuracies."""
        runs = {where: self.simulation(preset, where, rounds, **changes) for where in ("cpu", "cuda")}
        row: dict[str, Any] = {
            "clients": runs["cpu"].settings.clients.count,
            "weights": runs["cpu"].size,
            "rounds": rounds,
        }
        start = runs["cpu"].state.weights.copy()
        for where, run in runs.items():
            parts, exchanged, lines = self.timed(run)
            row[where] = {part: statistics.median(parts[part][min(2, rounds - 1) :]) for part in (*PARTS, "round")}
            row[where]["first round"] = parts["round"][0]
            row[where] |= {"accuracy": lines[-1]["accuracy"], "bits": lines[-1]["bits_per_coordinate"]}
            if where == "cuda":
                row["identity"] = identity(*exchanged)
                row["warnings"] = run.arrays.privacy_warnings([plan.codec for plan in run.aggregators[0].plans])
        ends = [run.arrays.fetch(run.state.weights) for run in runs.values()]
        moved = float(np.linalg.norm(ends[0] - start))
        row["weights apart, of the way gone"] = float(np.linalg.norm(ends[0] - ends[1])) / moved
        self.found[name] = row
        self.show(name, row)

    def show(self, name: str, row: dict[str, Any]) -> None:
        """Prints a row of the table."""
        print(
            f"\n{name}: {row['clients']} clients, {row['weights']} weights, {row['rounds']} rounds; {row['identity']}"
        )
        print("| ms per round | " + " | ".join((*PARTS, "whole round", "first round")) + " | accuracy | bits |")
        print("|---" * (len(PARTS) + 5) + "|")
        for where in ("cpu", "cuda"):
            times = " | ".join(f"{1e3 * row[where][part]:.2f}" for part in (*PARTS, "round", "first round"))
            print(f"| {where} | {times} | {row[where]['accuracy']:.4f} | {row[where]['bits']:.4f} |")
        apart = row["weights apart, of the way gone"]
        print(f"weights apart at the end: {apart:.2e} of the way they have gone", flush=True)

    def repeats(self) -> None:
        """Whether two runs on the GPU end in the same bits, which a resumed run needs."""
        ends = []
        for _ in range(2):
            run = self.simulation("algorithm1", "cuda", 1 if self.smoke else 3)
            while not run.done:
                run.step()
            ends.append(run.arrays.fetch(run.state.weights).tobytes())
        self.found["two runs on the GPU"] = "the same bits" if ends[0] == ends[1] else "DIFFERENT bits"
        print("\ntwo runs on the GPU:", self.found["two runs on the GPU"], flush=True)

    def batches(self) -> None:
        """encode_many and decode_many for many clients, on both."""
        codec, size = cepam.Codec(cepam.Gaussian(0.01), cepam.Integer(1)), 16 if self.smoke else 6422
        device = "cpu" if self.smoke else "cuda"
        print(f"\n| codec alone, ms, {size} weights | encode cpu | encode cuda | decode cpu | decode cuda | bytes |")
        print("|---|---|---|---|---|---|")
        for clients in (2,) if self.smoke else (30, 1000, 10_000):
            x = np.random.default_rng(1).laplace(0, 0.005, (clients, size)).astype(np.float32)
            ats = [cepam.Address(bytes(32), round=1, client=k) for k in range(clients)]
            there = torch.from_numpy(x).to(device)
            messages, mine = [cepam.encode_many(codec, rows, ats) for rows in (x, there)]
            vectors = cepam.decode_many(codec, messages, ats), cepam.decode_many(codec, messages, ats, device=device)
            same = messages == mine and vectors[0].tobytes() == vectors[1].cpu().numpy().tobytes()
            work: list[Callable[[], Any]] = [
                lambda x=x, ats=ats: cepam.encode_many(codec, x, ats),
                lambda there=there, ats=ats: cepam.encode_many(codec, there, ats),
                lambda messages=messages, ats=ats: cepam.decode_many(codec, messages, ats),
                lambda messages=messages, ats=ats: cepam.decode_many(codec, messages, ats, device=device),
            ]
            times = [self.median(each) for each in work]
            said = "identical" if same else "DIFFERENT"
            names = ("encode cpu", "encode cuda", "decode cpu", "decode cuda")
            self.found[f"codec, {clients} clients"] = {**dict(zip(names, times)), "bytes and vectors": said}
            print(f"| {clients} clients | " + " | ".join(f"{1e3 * t:.2f}" for t in times) + f" | {said} |", flush=True)

    def median(self, work: Callable[[], Any]) -> float:
        """Seconds of a call, the median of five."""
        times = []
        for _ in range(1 if self.smoke else 5):
            begun = time.perf_counter()
            work()
            self.settle()
            times.append(time.perf_counter() - begun)
        return statistics.median(times)


def identity(encoded: Any, decoded: Any) -> str:
    """Whether a round's messages and vectors from the device are those of the CPU for the same clipped updates."""
    (_, _, _, channels, addresses), posted = encoded
    for channel, at, (update, message) in zip(channels, addresses, posted):
        if channel.encode(update.cpu().numpy(), at) != message:
            return "messages DIFFERENT"
    (channels, messages, addresses, _), vectors = decoded
    for channel, message, at, vector in zip(channels, messages, addresses, vectors):
        if channel.decode(message, at).tobytes() != vector.cpu().numpy().tobytes():
            return "vectors DIFFERENT"
    return f"{len(posted)} messages and vectors identical"


def measure(smoke: bool) -> dict[str, Any]:
    """All that is measured; raises if a message or vector differs."""
    bench = Bench(smoke)
    print("seal:", bench.found["seal"], flush=True)
    bench.compare("private", "private", 1 if smoke else 20)
    if "--private" in sys.argv:
        return bench.found
    bench.compare("convolutional", "convolutional", 1 if smoke else 20)
    bench.compare("algorithm1", "algorithm1", 1 if smoke else 20)
    bench.compare("many clients", "algorithm1", 1 if smoke else 5, **{"clients.count": 4 if smoke else 1000})
    bench.batches()
    bench.repeats()
    wrong = [name for name, value in bench.found.items() if "DIFFERENT" in json.dumps(value)]
    if wrong:
        raise AssertionError(f"the GPU differs from the CPU: {wrong}")
    return bench.found


def warm() -> None:
    """Compile the coder's kernels."""
    codec, at = cepam.Codec(cepam.Gaussian(0.01), cepam.Integer(1)), cepam.Address(bytes(32), round=0, client=0)
    codec.decode(codec.encode(torch.ones(100, device="cuda"), at), at, device="cuda")


def warm_cpu() -> None:
    """Compile Numba's kernels, while other processes compile Triton's."""
    codec, at = cepam.Codec(cepam.Gaussian(0.01), cepam.Integer(1)), cepam.Address(bytes(32), round=0, client=0)
    x = np.zeros(9000, dtype=np.float32)
    x[::7] = 0.01
    codec.decode(codec.encode(x, at), at)
    bench = Bench(False)
    for preset in ("private",) if "--private" in sys.argv else ("private", "algorithm1", "convolutional"):
        bench.simulation(preset, "cpu", 1, **{"clients.count": 2}).step()


def measure_whole(data: str) -> dict[str, Any]:
    """Seconds of the whole command on the GPU and on all cores, with `--four` on four of them too (threads wait for one
    interpreter: more are not always faster). Before that three rounds on both, side by side, compile what there is to
    compile and compute features."""
    cores = sorted(os.sched_getaffinity(0))
    places = {"cuda": cores, f"cpu, {len(cores)} cores": cores}
    if "--four" in sys.argv:
        places["cpu, 4 cores"] = cores[:4]
    seconds: dict[str, Any] = {"data": data}
    with tempfile.TemporaryDirectory() as runs:
        start = partial(start_command, data, runs)
        first = [start(f"{each}, first", each, cores, "--rounds", "3") for each in ("cuda", "cpu")]
        try:
            ends = [each.wait() for each in first]
            if any(ends):
                raise RuntimeError("three rounds failed on the GPU or on the CPU")
        finally:
            for each in first:
                each.kill()
        for place, held in places.items():
            begun = time.perf_counter()
            if start(place, place.split(",")[0], held).wait():
                raise RuntimeError(f"the run on {place} failed")
            seconds[place] = time.perf_counter() - begun
            more = f"{seconds[place]:.1f} s, {seconds[place] / seconds['cuda']:.2f} times the GPU's"
            print(f"cepam train --preset private, {place}: {more}", flush=True)
    return {"private, whole command": seconds}


def start_command(
    data: str, runs: str, name: str, device: str, cores: list[int], *changes: str
) -> subprocess.Popen[bytes]:
    """The command that runs on this device and these cores; it prints to nobody. Modules are compiled once, as an
    installer does it, also where processes keep none."""
    command = [sys.executable, "-m", "cepam", "train", "--preset", "private", "--data", data, "--device", device]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.Popen(
        [*command, "--runs", runs, "--name", name, *changes],
        stdout=subprocess.DEVNULL,
        preexec_fn=partial(os.sched_setaffinity, 0, cores),
        env=kept | {"PYTHONPYCACHEPREFIX": str(Path(runs) / "bytecode")},
    )


def main() -> None:
    begun, smoke = time.perf_counter(), "--smoke" in sys.argv
    if "--whole" in sys.argv:
        keep(measure_whole(sys.argv[sys.argv.index("--whole") + 1]), among_others=True)
        return
    found: dict[str, Any] = {}
    if not smoke:
        stand_in_seal.put_in_place_if_needed()
        other = threading.Thread(target=warm_cpu)
        other.start()
        warm()
        other.join()
        print(torch.cuda.get_device_name(), "torch", torch.__version__, "cores", os.cpu_count())
        found |= {"device": torch.cuda.get_device_name(), "compile seconds": time.perf_counter() - begun}
        print(f"compiled in {found['compile seconds']:.0f} s", flush=True)
    found |= measure(smoke)
    print(f"\nall done in {time.perf_counter() - begun:.0f} s")
    if not smoke:
        keep(found, among_others="--private" in sys.argv)


def keep(found: dict[str, Any], among_others: bool) -> None:
    """Writes what was found, alone or among what earlier runs found; every key has a stamp."""
    stamps = dict.fromkeys(found, stamp())
    if among_others and RESULT.exists():
        earlier = json.loads(RESULT.read_text())
        stamps = earlier.get("stamps", {}) | stamps
        found = earlier | found
    found["stamps"] = stamps
    text = json.dumps(found, indent=1, default=str) + "\n"
    for path in (RESULT, *([Path(os.environ["OUT"], "gpu_train.json")] if os.environ.get("OUT") else [])):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()

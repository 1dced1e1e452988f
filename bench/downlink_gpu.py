"""Runs of the engine on a GPU by the rule of the downlink, and how much of an update the last broadcast predicts.

    python bench/downlink_gpu.py --run FOLDER       on a CUDA machine: runs side by side, their public points in FOLDER
    python bench/downlink_gpu.py --code FOLDER      anywhere: their messages, bench/results/downlink_gpu.json
    python bench/downlink_gpu.py --report           the rows that were kept

`--run` needs no Numba: it records the grid points that a run publishes. `--code` publishes them again and counts whole
messages, with the messages of clients that missed rounds. Runs of a seed have one nonce, so their keys and record draws
are the same. A row with `validation` holds 10,000 training records out; `accuracy` is of test data.

Prediction: x is a client's clipped update, mu a public vector from broadcasts that the client has seen, alpha the best
factor. `left` is |x - alpha mu|^2 / |x|^2. `last` is how the last broadcast moved the weights (for sampled clients,
since their last round), `aggregate` the same with momentum taken out, `ten rounds` the last ten together. Bytes are
whole messages of the layered coder for x, and for x - alpha mu with `last`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import lzma
import os
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "downlink_gpu.json"
Row = dict[str, Any]
Doubles = npt.NDArray[np.float64]


def ruled(preset: str, seed: int, factor: float, exponent: float, hysteresis: float, **more: Any) -> Row:
    """A job with this rule of the downlink."""
    told = {"step_factor": factor, "step_exponent": exponent, "hysteresis": hysteresis}
    made = {f"compression.downlink_{name}": value for name, value in told.items()}
    return {"preset": preset, "run.seed": seed, "compression.downlink": "quantized", **made, **more}


def jobs() -> list[Row]:
    """What is run: chosen rules and those before, paired by seed; `predict` says how often prediction is measured."""
    plain = {"compression.downlink": "float32"}
    held = {"data.validation_records": 10_000}
    averaged = {
        "training.update": "difference", "training.server_learning_rate": 1.0, "training.local_learning_rate": 0.1,
        "training.local_schedule": "constant", "training.batch_size": 20,
    }  # fmt: skip
    made = [ruled("private", seed, 256.0, 0.5, 0.75, predict=5 * (seed == 1)) for seed in range(1, 6)]
    made += [ruled("users", seed, 512.0, 0.25, 0.65, predict=3 * (seed == 1)) for seed in range(1, 4)]
    made += [{"preset": "convolutional", "run.seed": 1, "predict": 10, **held}]
    made += [{"preset": "private", "run.seed": seed, **plain} for seed in range(1, 6)]
    made += [{"preset": "algorithm1", "run.seed": 1, "predict": 2, **averaged}]
    made += [ruled("private", seed, 64.0, 1.0, 0.5) for seed in range(1, 6)]
    made += [ruled("users", seed, 256.0, 0.25, 0.65) for seed in range(1, 4)]
    made += [{"preset": "users", "run.seed": seed, **plain} for seed in range(1, 4)]
    made += [ruled("users", seed, 64.0, 1.0, 0.5) for seed in range(1, 4)]
    for name, seeds in (("dp-ftrl", (1, 2)), ("convolutional", (1,))):
        made += [ruled(name, seed, *rule, **held) for seed in seeds for rule in ((64.0, 1.0, 0.5), (256.0, 0.5, 0.75))]
    return made


class Recorder:
    """Stands in for the engine's downlink: the same public weights, without coding their messages."""

    def __init__(self) -> None:
        self.shifts: list[int] = []
        self.points: list[npt.NDArray[np.int32]] = []

    def install(self) -> None:
        """Take the place of the engine's downlink in this process."""
        from cepam.fl.aggregation.downlink import GridDownlink

        recorder = self

        def publish(this: Any, weights: Any, rate: float, aggregate: Any) -> Any:
            return recorder.publish(this, weights, rate, aggregate)

        GridDownlink.publish = publish  # type: ignore[method-assign]
        GridDownlink.messages = lambda this, sampled: {}  # type: ignore[method-assign]
        GridDownlink.bits = lambda this, sampled, sent: 0  # type: ignore[method-assign]
        GridDownlink.reached = lambda this, clients: None  # type: ignore[method-assign]

    def publish(self, downlink: Any, weights: Any, rate: float, aggregate: Any) -> Any:
        """What `GridDownlink.publish` gives."""
        from cepam.downlink.grid import shift_of

        grid, shift = downlink.broadcast._grid, shift_of(downlink.step_of(rate))
        before = getattr(self, "public", downlink.broadcast.weights)

        def nearest(target: Any) -> Any:
            return grid.weights(grid.nearest(np.asarray(target), shift))

        if downlink.hysteresis is not None:
            chosen = downlink.hysteresis.choose(weights, nearest(before), aggregate, 2.0 ** (shift - 40), nearest)
            weights = chosen.astype(np.float32)
        point = grid.nearest(weights, shift)
        self.shifts.append(shift)
        self.points.append(point.steps)
        self.public = grid.weights(point)
        return self.public

    def packed(self) -> bytes:
        """All points: differences from the one before where the step is the same."""
        rows = [point if i == 0 or self.shifts[i - 1] != self.shifts[i] else point - self.points[i - 1]
                for i, point in enumerate(self.points)]  # fmt: skip
        return lzma.compress(b"".join(row.astype("<i4").tobytes() for row in rows), preset=1)


def predicted(x: Doubles, history: list[Any], now: Doubles, rates: list[float], since: int, beta: float, sparse: bool
              ) -> tuple[Row, Doubles]:  # fmt: skip
    """The energy that each prediction leaves, and the update less the first of them."""
    vectors = {"last": history[since] - now}
    if not sparse:
        vectors["aggregate"] = (history[-2] - now) / rates[-1]
        if len(history) > 2:
            vectors["aggregate"] = vectors["aggregate"] - beta * (history[-3] - history[-2]) / rates[-2]
        vectors["ten rounds"] = history[max(0, len(history) - 11)] - now
    energy, left, rest = float(x @ x), {}, x
    for name, vector in vectors.items():
        size = float(vector @ vector)
        if size:
            factor = float(vector @ x) / size
            left[name] = 1.0 - factor**2 * size / energy
            rest = x - factor * vector if name == "last" else rest
    return left, rest


def run_one(job: Row, path: Path) -> None:
    """Run a job in this process and write its figures and points."""
    import torch

    import stand_in_seal
    from cepam import fl
    from cepam.fl.clients.sampling import RunSecret

    torch.set_num_threads(1)
    stand_in_seal.put_in_place_if_needed()
    recorder = Recorder()
    recorder.install()
    changes = {name: value for name, value in job.items() if name not in ("preset", "predict")}
    settings = fl.preset(job["preset"]).updated(
        {"run.simulate": True, "run.device": "cuda", "run.evaluate_every": 10**6, **changes}
    )
    nonce = b"bench %10d" % settings.run.seed
    simulation = fl.Simulation(settings, fl.prepared(settings), secret=RunSecret(None, nonce))
    begun, arrays, last = time.perf_counter(), simulation.arrays, {}
    encode = arrays.encode

    def noted(*items: Any, **named: Any) -> Any:
        last["codecs"], last["ats"], last["posted"] = items[-2], items[-1], encode(*items, **named)
        return last["posted"]

    arrays.encode = noted  # type: ignore[method-assign]
    beta = settings.training.server_momentum if settings.training.server_optimizer == "momentum" else 0.0
    sparse = settings.clients.sampling == "poisson"
    history: list[Any] = []
    rates: list[float] = []
    sampled: list[list[int]] = []
    held: dict[int, int] = {}
    prediction: list[Row] = []
    lines: list[Row] = []
    while not simulation.done:
        number = simulation.state.round
        now = np.asarray(arrays.fetch(simulation.state.weights))[0]
        history.append(now)
        sampled.append([int(k) for k in simulation.aggregators[0].sampled(number)])
        lines += simulation.step()
        if job.get("predict") and number and (number < 12 or number % job["predict"] == 0):
            for i in range(0, len(sampled[-1]), max(1, len(sampled[-1]) // 4)):
                update, message = last["posted"][i]
                x = np.asarray(arrays.fetch(update)).astype(np.float64)
                since = held.get(sampled[-1][i], 0) if sparse else number - 1
                left, rest = predicted(x, history, now.astype(np.float64), rates, since, beta, sparse)
                again = last["codecs"][i].encode(torch.from_numpy(rest.astype(np.float32)).cuda(), last["ats"][i])
                prediction.append({"round": number, "left": left, "bytes": len(message), "predicted": len(again)})
        rates.append(simulation._server_rate(number))
        held |= dict.fromkeys(sampled[-1], number)
    found = {"job": job, "accuracy": lines[-1]["accuracy"], "validation": lines[-1].get("validation_accuracy"),
             "seconds": time.perf_counter() - begun, "prediction": prediction, "shifts": recorder.shifts,
             "size": simulation.size, "sampled": sampled if sparse else []}  # fmt: skip
    if recorder.points:
        path.with_suffix(".points").write_bytes(recorder.packed())
    path.write_text(json.dumps(found))


def run_all(folder: Path, side_by_side: int) -> None:
    """Run every job in a process of its own."""
    folder.mkdir(parents=True, exist_ok=True)

    def one(i: int, job: Row) -> None:
        command = [sys.executable, __file__, "--job", json.dumps(job), "--run", str(folder / f"{i}.json")]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        print(job, done.stderr[-500:] if done.returncode else "done", flush=True)

    with ThreadPoolExecutor(side_by_side) as pool:
        list(pool.map(one, *zip(*enumerate(jobs()))))


def bits_down(found: Row, packed: bytes, start: Any) -> float:
    """Bits per coordinate, client and round of a run's messages, those to late clients among them."""
    from cepam import Broadcast
    from cepam.downlink.grid import Point

    seed, size, shifts = found["job"]["run.seed"], found["size"], found["shifts"]
    rows = np.frombuffer(lzma.decompress(packed), "<i4").reshape(-1, size)
    server = Broadcast(b"bench %10d" % seed + struct.pack("<Q", seed), start)
    held: dict[int, int] = {}
    bits, point = [], rows[0]
    for i, shift in enumerate(shifts):
        asked = found["sampled"][i] if found["sampled"] else [0]
        sent = [8 * len(server.message_from(held.get(k, 0))) if server.version else 0 for k in asked]
        sent += [256 for k in asked if k not in held]
        bits.append(sum(sent) / max(1, len(asked)) / size)
        held |= dict.fromkeys(asked, server.version)
        point = rows[i] if i == 0 or shifts[i - 1] != shift else point + rows[i]
        server.publish(server._grid.weights(Point(shift, point)), 2.0 ** (shift - 40))
    return float(np.mean(bits))


def code(folder: Path) -> None:
    """Count the messages of all runs and keep the figures."""
    from cepam import fl
    from stamp import save

    rows: list[Row] = []
    for path in sorted(folder.glob("*.json"), key=lambda path: int(path.stem)):
        found = json.loads(path.read_text())
        row = {name: found[name] for name in ("job", "accuracy", "validation", "seconds")}
        row["prediction"] = summary(found["prediction"])
        points = path.with_suffix(".points")
        if points.exists():
            settings = fl.preset(found["job"]["preset"])
            model = fl.build(settings.model.name, fl.load("mnist"), settings.model.activation)
            row["bits_down"] = bits_down(found, points.read_bytes(), model.initial(found["job"]["run.seed"]))
        rows.append(row)
    save(RESULTS, {"runs_on": "one NVIDIA H200", "rows": rows})
    report(rows)


def summary(prediction: list[Row]) -> list[Row]:
    """The energy left and the bytes of a run, in stretches of rounds."""
    made = []
    last = max((one["round"] for one in prediction), default=0)
    edges = [1, 2, 5, 12, *(last * part // 4 for part in (1, 2, 3)), last + 1]
    for begin, end in itertools.pairwise(edges):
        mine = [one for one in prediction if begin <= one["round"] < end]
        if mine:
            left = {name: float(np.mean([one["left"][name] for one in mine if name in one["left"]]))
                    for name in mine[0]["left"]}  # fmt: skip
            sizes = {name: float(np.mean([one[name] for one in mine])) for name in ("bytes", "predicted")}
            made.append({"rounds": [begin, end - 1], "left": left, **sizes})
    return made


def report(rows: list[Row]) -> None:
    """Print every row."""
    for row in rows:
        told = {name: value for name, value in row["job"].items() if name not in ("predict", "compression.downlink")}
        print(told, f"accuracy {row['accuracy']}, held out {row['validation']}, down {row.get('bits_down', 32.0):.4f}")
        for part in row["prediction"]:
            print("   ", part)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, metavar="FOLDER")
    parser.add_argument("--code", type=Path, metavar="FOLDER")
    parser.add_argument("--processes", type=int, default=15)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--job")
    chosen = parser.parse_args()
    if chosen.job:
        return run_one(json.loads(chosen.job), chosen.run)
    if chosen.run:
        return run_all(chosen.run, chosen.processes)
    return code(chosen.code) if chosen.code else report(json.loads(RESULTS.read_text())["rows"])


if __name__ == "__main__":
    main()

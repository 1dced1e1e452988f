"""Private and small updates by other means: the same data, model, rounds and epsilon, one table and one picture.

    python -m cepam_peers.updates                        every row that studies/peers/results/updates.json lacks
    python -m cepam_peers.updates --task hospitals --rows cepam opacus
    python -m cepam_peers.updates --report docs          nothing runs: docs/img/peers.svg

Rows are kept one by one, so a stopped command goes on where it was. Three kinds of rows:

- The engine's runs: cepam, float32, and rivals of our own writing that add the Gaussian noise that the accountant asks
  of a client and then compress. A message of one client is post-processing of that client's noisy update. A sum of
  separately compressed updates is no post-processing of the noisy sum, so the epsilon of the sum is unproven.
- Discrete Gaussian and Skellam sums (`cepam_peers.rivals`); the cost of rounding is charged on average, in their
  favour.
- Programs as shipped: Flower's strategies, mods and SecAgg+ workflow, FLARE's filters, Opacus. Their free settings
  (clipping norm, gamma) are the best of a few on a fifth of the clients held out; that choice is not in epsilon.

Lines are those that a user adds, without docstrings and comments. Simulations; bytes are per client and round, header
and seal included where a scheme has one; rivals of our own writing have none, in their favour.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import inspect
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from cepam import fl
from cepam.codec.codec import UpdateCodec
from cepam.distributions.laws import Law
from cepam.fl.aggregation.trusted_server import Aggregator, AggregatorContext, Received, RoundResult
from cepam.fl.clients.sending import NoisyDithered, draw_noise
from cepam.fl.runs.summary import interval
from cepam.fl.simulation import aggregator_for
from cepam.keys import Address
from cepam.secure_aggregation import Sketch
from cepam.verify.benchmark import machine
from cepam_peers.picture import draw
from cepam_peers.rivals import RotatedIntegers
from cepam_peers.tasks import TASKS, Problem, pooled

RESULTS = Path("studies/peers/results/updates.json")
Vector = npt.NDArray[np.float32]


def public_draw(at: Address) -> np.random.Generator:
    """Randomness that both ends share, anew for every message."""
    words = np.frombuffer(hashlib.sha256(b"rival" + at.derive().noise).digest(), dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=words[:2]))


@dataclass(frozen=True)
class NoiseThenQsgd:
    """Noise, then stochastic rounding to `bits` bits between plus and minus the largest coordinate (Alistarh 2017)."""

    law: Law
    size: int
    bits: int = 8

    def encode(self, update: Vector, at: Address) -> bytes:
        """The largest coordinate, then the levels."""
        noisy = np.asarray(update) + draw_noise(self.law, len(update), at)
        largest, top = np.float32(np.abs(noisy).max()), 2**self.bits - 1
        places = (noisy / max(largest, np.float32(1e-30)) + 1.0) * (top / 2.0)
        levels = np.clip(np.floor(places + public_draw(at).random(len(noisy))), 0, top).astype(np.uint8)
        packed = np.unpackbits(levels[:, None], axis=1)[:, 8 - self.bits :]
        return largest.tobytes() + np.packbits(packed).tobytes()

    def decode(self, message: bytes, at: Address) -> Vector:
        """What the levels stand for."""
        largest, top = np.frombuffer(message[:4], np.float32)[0], 2**self.bits - 1
        flat = np.unpackbits(np.frombuffer(message[4:], np.uint8))[: self.size * self.bits].reshape(-1, self.bits)
        levels = flat @ (1 << np.arange(self.bits - 1, -1, -1))
        return np.asarray((levels / (top / 2.0) - 1.0) * largest, dtype=np.float32)


@dataclass(frozen=True)
class NoiseThenSign:
    """Noise, then the sign of every coordinate and their mean magnitude (Bernstein 2018, scaled)."""

    law: Law
    size: int

    def encode(self, update: Vector, at: Address) -> bytes:
        """The mean magnitude, then one bit per coordinate."""
        noisy = np.asarray(update) + draw_noise(self.law, len(update), at)
        return np.float32(np.abs(noisy).mean()).tobytes() + np.packbits(noisy > 0).tobytes()

    def decode(self, message: bytes, at: Address) -> Vector:
        """The signs times the magnitude."""
        signs = np.unpackbits(np.frombuffer(message[4:], np.uint8))[: self.size]
        return np.asarray((2.0 * signs - 1.0) * np.frombuffer(message[:4], np.float32)[0], dtype=np.float32)


@dataclass(frozen=True)
class SketchThenNoise:
    """A public sketch to a part of the coordinates, noise, then subtractively dithered quantization."""

    law: Law
    size: int
    part: int = 2

    @lru_cache(maxsize=1)  # noqa: B019
    def _sketch(self, number: int) -> Sketch:
        seed = hashlib.sha256(b"public sketch" + number.to_bytes(8, "big")).digest()
        return Sketch(self.size, max(1, self.size // self.part), seed)

    def encode(self, update: Vector, at: Address) -> bytes:
        """The message of the noisy sketch."""
        made = self._sketch(at.round).apply(np.asarray(update, dtype=np.float64))
        return NoisyDithered(self.law, self.law.scale).encode(np.asarray(made, dtype=np.float32), at)

    def decode(self, message: bytes, at: Address) -> Vector:
        """The server's unbiased estimate."""
        made = NoisyDithered(self.law, self.law.scale).decode(message, at)
        return np.asarray(self._sketch(at.round).restore(np.asarray(made, dtype=np.float64)), dtype=np.float32)


Rival = Callable[[Law, int], UpdateCodec]
FLOATS = {"compression.scheme": "fl+gaussian", "compression.downlink": "float32"}


class Compressed:
    """The engine's aggregator for these settings, its clients sending by another codec; charged as with its own."""

    def __init__(self, row: AggregatorContext, rival: Rival) -> None:
        self.inner: Any = aggregator_for(row)
        laws = {plan.law for plan in self.inner.plans[: len(row.held)] if plan.law is not None}
        self.codecs = {law: rival(law, row.vectors.size) for law in laws}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def collect(self, number: int, clients: list[int], raw: Any) -> RoundResult:
        """Clip, send and open every update, then charge and average as the engine does."""
        inner, found = self.inner, Received()
        for k, update in zip(clients, inner.vectors.arrays.fetch(raw)):
            plan, at = inner.plans[k], inner.senders.address(number, k)
            whole = inner.settings.training.update != "examples"
            codec = self.codecs[plan.law]
            message = codec.encode(plan.clip.apply(update) if whole else update, at)
            found.vectors[k] = inner.vectors.arrays.put(codec.decode(message, at))
            found.bits += 8 * len(message)
        inner._charge(number, clients, found)
        return result_of(inner._aggregate(number, clients, found), clients, found.bits, inner.vectors.size)


class Integers:
    """The engine's aggregator, its clients sending rotated integers whose sum is all that is opened."""

    def __init__(self, row: AggregatorContext, kind: Literal["ddg", "skellam"], bits: int) -> None:
        self.inner: Any = aggregator_for(row)
        self.row, clients = row, row.settings.clients.count
        plans = [self.inner.plans[k] for k in range(clients)]
        self.weights = [clients * plan.weight for plan in plans]
        examples, bounds = row.settings.training.update == "examples", self.inner.bounds(0, range(clients))
        moved = [float(b) * w / (p.batch if examples else 1.0) for b, w, p in zip(bounds, self.weights, plans)]
        self.rival = RotatedIntegers(kind, bits, row, self.inner.noise * clients**0.5, max(moved))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def collect(self, number: int, clients: list[int], raw: Any) -> RoundResult:
        """Clip, weigh and sum every update, then charge as the engine does."""
        inner = self.inner
        whole = inner.settings.training.update != "examples"
        rows = [np.float32(self.weights[k]) * (inner.plans[k].clip.apply(update) if whole else update)
                for k, update in zip(clients, inner.vectors.arrays.fetch(raw))]  # fmt: skip
        seed = int.from_bytes(self.row.draws.random_bytes(number, INTEGERS, 0, 16), "little")
        total, bits = self.rival.total(rows, np.random.default_rng(seed))
        inner._charge(number, clients, Received(vectors=dict.fromkeys(clients)))
        mean = inner.vectors.arrays.put((total / inner.settings.clients.count).astype(np.float32))
        return result_of(mean, clients, round(bits * inner.vectors.size * len(clients)), inner.vectors.size)


def result_of(mean: Any, clients: list[int], bits: int, size: int) -> RoundResult:
    """A round in which everybody replied."""
    line = {"replies": len(clients), "snr_db": None, "bits": bits, "bits_per_coordinate": bits / len(clients) / size}
    return RoundResult(mean, clients, clients, bits, line)


INTEGERS = 65
Make = Callable[[AggregatorContext], Aggregator]


def compressed(rival: Rival) -> Make:
    """Clients who add noise and then compress."""
    return lambda row: cast(Aggregator, Compressed(row, rival))


def integers(kind: Literal["ddg", "skellam"], bits: int) -> Make:
    """Clients who add integer noise to rotated integers."""
    return lambda row: cast(Aggregator, Integers(row, kind, bits))


@dataclass(frozen=True)
class Engine:
    """A row that the engine runs; `code` is what its user writes, None where a setting does."""

    label: str
    changes: dict[str, Any]
    make: Make = aggregator_for
    code: tuple[Any, ...] = ()
    proved: bool = False


ENGINE: dict[str, Engine] = {
    "cepam": Engine("cepam", {}, proved=True),
    "float32": Engine("DP-FedAvg, float32", FLOATS, proved=True),
    "central": Engine("central DP-SGD of our engine", FLOATS, proved=True),
    "qsgd-8": Engine("noise, then QSGD, 8 bits", FLOATS, compressed(lambda law, m: NoiseThenQsgd(law, m, 8)),
                     (NoiseThenQsgd,)),
    "qsgd-4": Engine("noise, then QSGD, 4 bits", FLOATS, compressed(lambda law, m: NoiseThenQsgd(law, m, 4)),
                     (NoiseThenQsgd,)),
    "sdq": Engine("noise, then SDQ", FLOATS, compressed(lambda law, m: NoisyDithered(law, law.scale)),
                  (NoisyDithered,)),
    "sign": Engine("noise, then sign", FLOATS, compressed(NoiseThenSign), (NoiseThenSign,)),
    "sketch": Engine("public sketch, noise, SDQ", FLOATS, compressed(SketchThenNoise), (SketchThenNoise,)),
    "ddg-16": Engine("discrete Gaussian, 16 bits", FLOATS, integers("ddg", 16), (RotatedIntegers,), proved=True),
    "ddg-12": Engine("discrete Gaussian, 12 bits", FLOATS, integers("ddg", 12), (RotatedIntegers,), proved=True),
    "skellam-16": Engine("Skellam, 16 bits", FLOATS, integers("skellam", 16), (RotatedIntegers,), proved=True),
    "skellam-12": Engine("Skellam, 12 bits", FLOATS, integers("skellam", 12), (RotatedIntegers,), proved=True),
}  # fmt: skip
PROGRAMS = {
    "opacus": "Opacus, central",
    "flower-server-fixed": "Flower, server-side fixed clipping",
    "flower-client-fixed": "Flower, client-side fixed clipping",
    "flower-server-adaptive": "Flower, server-side adaptive clipping",
    "flower-client-adaptive": "Flower, client-side adaptive clipping",
    "flower-secagg": "Flower, SecAgg+ and client-side fixed clipping",
    "flare-svt": "FLARE, SVTPrivacy",
    "flare-percentile": "FLARE, PercentilePrivacy",
}
ROWS = {**{name: row.label for name, row in ENGINE.items()}, **PROGRAMS}
SECAGG_TASKS = ("chitchat-prompts",)
"""SecAgg+ takes 8 messages per client and round; one run where its unit is the task's own."""


def lines_of(kinds: tuple[Any, ...]) -> int:
    """Lines of code of these classes or functions, without docstrings, comments, empty lines and functions' heads."""
    total = 0
    for kind in kinds:
        tree = ast.parse(inspect.getsource(kind))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, clean=False) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        total += len(ast.unparse(tree).splitlines()) - inspect.isfunction(kind)
    return total


def by_engine(name: str, problem: Problem, seeds: int) -> dict[str, Any]:
    """The figures of a row that the engine runs."""
    row, data = ENGINE[name], problem.data
    settings = problem.settings.updated({**row.changes, "run.seeds": seeds})
    if name == "central":
        if settings.privacy.unit == "client":
            return {"refused": "the engine hides users of many clients, not of one party: see the row of Opacus"}
        data, settings = pooled(data), settings.updated({"clients.count": 1})
    simulation = fl.Simulation(settings, data, aggregator=row.make)
    up = down = 0
    lines: list[dict[str, Any]] = []
    while not simulation.done:
        lines = simulation.step()
        up += sum(line["bits"] for line in lines)
        down += sum(line["downlink_bits"] for line in lines)
    messages = 8 * settings.training.rounds * simulation.settings.clients.count * seeds
    proved = max(line["epsilon"] for line in lines) if row.proved else None
    central = name == "central"
    return {
        "scores": [line[problem.judge] for line in lines], "proved_epsilon": proved,
        "reported_epsilon": proved if not row.code else None, "unit": settings.privacy.unit,
        "bytes_up": None if central else up / messages, "bytes_down": None if central else down / messages,
        "lines": 1 + lines_of(row.code),
    }  # fmt: skip


Run = Callable[[Problem, Any, int], tuple[Any, dict[str, Any]]]
SEARCHED: dict[tuple[int, tuple[Any, ...]], list[tuple[Any, float | None]]] = {}
"""What was tried on held-out clients: Flower's wrappers share the clipping norm of the first that is run."""


def by_program(name: str, task: str, problem: Problem, seeds: int) -> dict[str, Any]:
    """The figures of a program as shipped. Where some of its runs stop, those of the others, and why they stopped."""
    run, tried, code, unit = program(name, task, problem)
    if name == "flower-secagg":
        if task not in SECAGG_TASKS:
            return {"refused": "not run: 8 messages per client and round"}
        seeds = 1
    searched = SEARCHED.get((id(problem), tried), [])
    if not searched and len(tried) > 1:
        part = problem.holding_out(1)
        searched = SEARCHED[id(problem), tried] = [(each, outcome(run, part, each, 1)[0]) for each in tried]
    chosen = max(searched, key=lambda each: -1.0 if each[1] is None else each[1])[0] if searched else tried[0]
    made = [outcome(run, problem, chosen, seed) for seed in range(1, seeds + 1)]
    told = next((found for _, found in made if "up" in found), None)
    stops = [found["stopped"] for _, found in made if "stopped" in found]
    figures = {
        "scores": [score for score, _ in made if score is not None], "unit": unit, "lines": lines_of(code),
        "stopped": stops, "chosen": chosen, "tried_on_held_out": searched,
    }  # fmt: skip
    if told is None:
        return figures | {"bytes_up": None, "bytes_down": None, "proved_epsilon": None, "reported_epsilon": None}
    each = {way: None if told[way] is None else told[way] / told["messages"] for way in ("up", "down")}
    return figures | {
        "proved_epsilon": told["proved"], "reported_epsilon": told["reported"], "bytes_up": each["up"],
        "bytes_down": each["down"], "last_clip": told.get("last_clip"),
    }  # fmt: skip


def outcome(run: Run, problem: Problem, chosen: Any, seed: int) -> tuple[float | None, dict[str, Any]]:
    """The score of one run and what it says; a program that stops on what clients send has none."""
    try:
        weights, told = run(problem, chosen, seed)
    except (ZeroDivisionError, RuntimeError) as stopped:
        return None, {"stopped": repr(stopped)}
    return problem.score(weights), told


def program(name: str, task: str, problem: Problem) -> tuple[Run, tuple[Any, ...], tuple[Any, ...], str]:
    """How a program is run, the settings that are tried, what its user writes, and whom it hides."""
    if name == "opacus":
        from cepam_peers import opacus_row

        unit = problem.settings.privacy.unit
        code = (opacus_row.central, *((opacus_row.padded, opacus_row.sample_loss) if unit == "client" else ()))
        return (lambda p, _, seed: opacus_row.train(p, seed)), (None,), code, unit
    if name in ("flare-svt", "flare-percentile"):
        from cepam_peers import flare_rows as flare

        run: Run = lambda p, chosen, seed: flare.train(p, name, chosen, seed)  # noqa: E731
        return run, flare.settings_tried(task, name), (flare.FLARE[name][1],), "none"
    from cepam_peers import flower_rows as flower

    if name == "flower-secagg":
        from cepam_peers import secagg_row

        return secagg_row.train, flower.CLIPS[task][1:2], (secagg_row.secure,), "client"
    run = lambda p, chosen, seed: flower.train(p, name, chosen, seed)  # noqa: E731
    return run, flower.CLIPS[task], (flower.FLOWER[name][1],), "client"


def measured(task: str, name: str, problem: Problem, seeds: int) -> dict[str, Any]:
    """A row: its figures with what is needed to repeat them."""
    begun = time.perf_counter(), time.process_time()
    found = by_engine(name, problem, seeds) if name in ENGINE else by_program(name, task, problem, seeds)
    scores = found.get("scores", [])
    score, half = interval(scores) if scores else (None, None)
    many = max(1, len(scores)) + len(found.get("tried_on_held_out", ()))
    return {
        "task": task, "row": name, "what": ROWS[name], "judge": problem.judge, "score": score, "half_width": half,
        **found, "seconds": (time.perf_counter() - begun[0]) / many,
        "processor_seconds": (time.process_time() - begun[1]) / many, "delta": problem.settings.privacy.delta,
        "target_epsilon": problem.settings.privacy.epsilon, "rounds": problem.settings.training.rounds,
        "clients": problem.clients, "weights": (problem.columns + 1) * problem.data.classes,
        "stamp": {"command": f"python -m cepam_peers.updates --task {task} --rows {name} --seeds {seeds}",
                  "date": datetime.now(UTC).date().isoformat(), **machine(), **versions()},
    }  # fmt: skip


def versions() -> dict[str, str]:
    """The versions of the programs that are installed."""
    found = {}
    for name in ("flwr", "nvflare", "opacus", "torch"):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


UNITS = {"record": "record", "client": "client", "none": "–"}


def unit_of(row: dict[str, Any]) -> str:
    """Whom a row hides: users of `chitchat-prompts` are its clients."""
    unit = UNITS[row["unit"]]
    return "user" if unit == "client" and row["task"] == "chitchat-prompts" else unit


def score_of(row: dict[str, Any]) -> str:
    """The score with its interval; of a program that stopped, in how many runs."""
    stops = row.get("stopped", [])
    said = f"; {len(stops)} of {len(stops) + len(row['scores'])} runs stop" if stops else ""
    if row["score"] is None:
        return f"every run stops: {stops[0].partition('(')[0]}" if stops else "–"
    middle, half = row["score"], row["half_width"]
    if row["judge"] == "auc":
        return f"{middle:.3f}" + ("" if half is None else f" ± {half:.3f}") + said
    return f"{100 * middle:.1f}" + ("" if half is None else f" ± {100 * half:.1f}") + " %" + said


def _number(value: float | None, other: str) -> str:
    return other if value is None else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def _bytes(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def proved_of(row: dict[str, Any]) -> str:
    """Epsilon by our accountant, or why there is none."""
    if row["score"] is None:
        return "–"
    return "none" if row["row"] == "flare-percentile" else _number(row["proved_epsilon"], "unproven")


def table(rows: list[dict[str, Any]], task: str) -> str:
    """The Markdown table of one task."""
    mine = {row["row"]: row for row in rows if row["task"] == task}
    judged = "AUC" if any(row["judge"] == "auc" for row in mine.values()) else "accuracy"
    head = (
        "tool",
        "unit",
        judged,
        "seeds",
        "proved epsilon",
        "it reports",
        "bytes up",
        "bytes down",
        "seconds",
        "lines",
    )
    made = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for name in ROWS:
        row = mine.get(name)
        if row is None or "refused" in row:
            continue
        reports = _number(row["reported_epsilon"], "–" if row["score"] is None else "nothing")
        cells = [row["what"], unit_of(row), score_of(row), len(row["scores"]), proved_of(row), reports]
        cells += [_bytes(row["bytes_up"]), _bytes(row["bytes_down"]), f"{row['processor_seconds']:.1f}", row["lines"]]
        made.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(made) + "\n"


def keep(rows: list[dict[str, Any]], path: Path) -> None:
    """Write the rows so that a stop at any time leaves the old file or the new one."""
    beside = path.with_suffix(".tmp")
    beside.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)


def main() -> None:
    """Run the rows that are missing, keep each, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--seeds", type=int, help="by default those of the task: 10 or 3")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--report", type=Path, metavar="DOCS", help="run nothing; write the picture")
    chosen = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(chosen.out.read_text()) if chosen.out.exists() else []
    kept = {(row["task"], row["row"]) for row in rows}
    for task in chosen.task:
        wanted = [] if chosen.report else [name for name in chosen.rows if (task, name) not in kept]
        if wanted:
            problem = Problem(TASKS[task].settings, TASKS[task].load())
        for name in wanted:
            rows.append(measured(task, name, problem, chosen.seeds or TASKS[task].seeds))
            keep(rows, chosen.out)
            print(task, name, rows[-1]["score"], flush=True)
    for task in (each for each in chosen.task if any(row["task"] == each for row in rows)):
        print(f"\n{task}\n\n{table(rows, task)}")
    if chosen.report:
        (chosen.report / "img" / "peers.svg").write_text(draw(rows), encoding="utf-8")


if __name__ == "__main__":
    main()

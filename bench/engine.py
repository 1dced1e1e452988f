"""The engine's targets, measured: accuracy, bytes both ways and time of `private`, and time of the paper's setting.

    python bench/engine.py                        everything that bench/results/engine.json does not hold yet
    python bench/engine.py --seeds 1 --fewer      one seed of the main rows
    python bench/engine.py --paper                the paper's setting only
    python bench/engine.py --report               the tables of what was measured
    python bench/engine.py --picture path.png     accuracy against bytes both ways, from what was measured

Runs are simulations. Those of a seed have one nonce, so that ways down are paired with the same keys and the same
record draws. Every run is written to bench/results/engine.json when it ends. Seconds are of the simulation, features
kept and compilation done before; processor seconds say more on a machine that is not idle, and the load stands beside.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from cepam import fl
from cepam.fl.engine.randomness import RunSecret
from cepam.fl.runs.summary import interval

RESULTS = Path(__file__).parent / "results" / "engine.json"
Run = dict[str, Any]
GAUSSIAN, SDQ, CEPAM = "fl+gaussian", "fl+gaussian+sdq", "cepam-gaussian"


def key_of(made: Run) -> tuple[Any, ...]:
    """What tells a run from the others."""
    return tuple(made[name] for name in ("preset", "data", "epsilon", "rate", "scheme", "downlink", "seed", "seeds"))


def job(preset: str, **changes: Any) -> Run:
    """The settings of a run, with those that tell it from others filled in."""
    settings = fl.settings_from({**fl.preset(preset), **changes, "simulate": True})
    told = ("data", "epsilon", "rate", "scheme", "downlink", "seed", "seeds", "rounds", "expected_batch")
    return {"preset": preset, **{name: getattr(settings, name) for name in told}}


def jobs(seeds: int, fewer: bool) -> list[Run]:
    """What is to be measured, the main rows of every seed first."""
    made = []
    for seed in range(1, seeds + 1):
        made += [job("private", seed=seed), job("private", seed=seed, scheme=GAUSSIAN, downlink="float32")]
        made += [job("private", seed=seed, downlink="float32")]
        if seed == 1:
            made += [job("private", seed=seed, scheme=SDQ)]
        if seed == 1 or not fewer:
            made += [job("private", seed=seed, data="fashion-mnist")]
            made += [job("private", seed=seed, epsilon=0.5, rate=1.0)]
    return made


def run(wanted: Run) -> Run:
    """The run's figures: accuracies and bytes so far at every evaluated round, epsilon, seconds, and the load."""
    changes = {name: value for name, value in wanted.items() if name != "preset"}
    settings = fl.settings_from({**fl.preset(wanted["preset"]), **changes, "simulate": True})
    data = fl.prepared(settings)
    before, start, spent = os.getloadavg()[0], time.perf_counter(), time.process_time()
    secret = RunSecret(None, b"bench %10d" % settings.seed)
    simulation, lines, curve = fl.Simulation(settings, data, secret=secret), [], []
    ready = time.perf_counter()
    while not simulation.done:
        made = simulation.step()
        lines += made
        if "accuracy" in made[0]:
            both = sum(line["bits_round_trip"] for line in lines) // 8
            curve.append([made[0]["round"], made[0]["accuracy"], both])
    last = [line for line in lines if line["round"] == settings.rounds]
    return {
        **wanted, "weights": simulation.size, "accuracy": [line["accuracy"] for line in last],
        "epsilon_against": simulation.views(), "seconds": time.perf_counter() - start,
        "seconds_of_start": ready - start, "processor_seconds": time.process_time() - spent,
        "load": [round(before, 2), round(os.getloadavg()[0], 2)],
        "bits_up": mean(lines, "bits_per_coordinate"), "bits_down": mean(lines, "bits_per_coordinate_down"),
        "bytes_up": sum(line["bits"] for line in lines) // 8,
        "bytes_down": sum(line["downlink_bits"] for line in lines) // 8, "curve": curve,
    }  # fmt: skip


def mean(lines: list[dict[str, Any]], name: str) -> float:
    """The mean of a quantity over all rounds and seeds."""
    return sum(line[name] for line in lines) / len(lines)


def chosen_runs(runs: list[Run], **told: Any) -> dict[int, Run]:
    """The runs of `private` with these settings, by seed; by default on MNIST, with cepam and the grid, at 1.99."""
    wanted = {"preset": "private", "data": "mnist", "epsilon": 1.99, "scheme": CEPAM, "downlink": "grid", **told}
    return {made["seed"]: made for made in runs if all(made[name] == value for name, value in wanted.items())}


def percent(values: list[float]) -> str:
    """Mean and 95 % interval in per cent, with the number of values."""
    middle, half = interval([100 * value for value in values])
    return f"{middle:.2f}{'' if half is None else f' ± {half:.2f}'} (n = {len(values)})"


def report(runs: list[Run]) -> None:
    """Nothing; prints the tables of what was measured."""
    ours = chosen_runs(runs)
    for what, told in (("MNIST, eps 1.99", {}), ("Fashion-MNIST, eps 1.99", {"data": "fashion-mnist"}),
                       ("MNIST, eps 0.5, rate 1", {"epsilon": 0.5})):  # fmt: skip
        if found := list(chosen_runs(runs, **told).values()):
            print(f"{what}: {percent([made['accuracy'][0] for made in found])} %")
    rivals = ((GAUSSIAN, "float32"), (SDQ, "grid"), (CEPAM, "float32"))
    for scheme, downlink in rivals:
        other = chosen_runs(runs, scheme=scheme, downlink=downlink)
        if both := [(ours[seed]["accuracy"][0], other[seed]["accuracy"][0]) for seed in ours if seed in other]:
            print(f"cepam, grid, less {scheme}, {downlink}, paired: {percent([a - b for a, b in both])} points")
    print(f"{'':32} bits up  bits down    MB up  MB down  MB both   times")
    for scheme, downlink in (*rivals, (CEPAM, "grid")):
        found = list(chosen_runs(runs, scheme=scheme, downlink=downlink).values())
        if found:
            up, down = (mean(found, name) / 1e6 for name in ("bytes_up", "bytes_down"))
            bits = mean(found, "bits_up"), mean(found, "bits_down")
            times = 64.0 / sum(bits)
            print(f"{scheme + ', ' + downlink + ' down':32} {bits[0]:7.4f} {bits[1]:10.4f} {up:8.2f} {down:8.2f} "
                  f"{up + down:8.2f} {times:7.1f}")  # fmt: skip
    for made in runs:
        print(f"{made['preset']} {made['data']} {made['scheme']} {made['downlink']} eps {made['epsilon']} seed "
              f"{made['seed']}, {made['seeds']} side by side: {made['seconds']:.0f} s, processor "
              f"{made['processor_seconds']:.0f} s, load {made['load']}")  # fmt: skip


def draw(path: Path, runs: list[Run]) -> None:
    """Nothing; the file holds accuracy against the bytes of all clients, both ways, mean over the seeds measured."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(9, 4.6), constrained_layout=True)
    rows = ((GAUSSIAN, "float32", "float32 both ways, Gaussian noise"), (SDQ, "grid", "noise then SDQ up, grid down"),
            (CEPAM, "float32", "cepam up, float32 down"), (CEPAM, "grid", "cepam both ways"))  # fmt: skip
    for scheme, downlink, label in rows:
        found = list(chosen_runs(runs, scheme=scheme, downlink=downlink).values())
        if found:
            curves = list(zip(*(made["curve"] for made in found)))
            accuracy = [100 * sum(point[1] for point in points) / len(points) for points in curves]
            size = [sum(point[2] for point in points) / len(points) / 1e6 for points in curves]
            axis.semilogx(size, accuracy, marker=".", label=f"{label} ({len(found)} seed{'s'[: len(found) > 1]})")
    axis.set(xlabel="MB both ways, all 30 clients, so far", ylabel="test accuracy, %", ylim=(95.0, 98.8))
    axis.set_title("MNIST, (1.99, 1e-5)-private over the whole run (simulated)")
    axis.grid(alpha=0.3, which="both")
    axis.legend()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--fewer", action="store_true")
    parser.add_argument("--paper", action="store_true")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--picture", type=Path)
    chosen = parser.parse_args()
    held: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"runs": []}
    runs: list[Run] = held["runs"]
    if chosen.picture:
        return draw(chosen.picture, runs)
    if chosen.report:
        return report(runs)
    papers = [job("algorithm1"), job("algorithm1", seeds=10)]
    known = {key_of(made) for made in runs}
    todo = [
        each for each in (papers if chosen.paper else jobs(chosen.seeds, chosen.fewer)) if key_of(each) not in known
    ]
    for warm in {each["preset"] for each in todo}:
        run(job(warm, rounds=1))
    for number, each in enumerate(todo, 1):
        print(f"[{number}/{len(todo)}] {each}", flush=True)
        runs.append(run(each))
        held = {"machine": {"cores": os.cpu_count(), "machine": platform.machine()}, "runs": runs}
        beside = RESULTS.with_suffix(".tmp")
        beside.write_text(json.dumps(held, indent=1) + "\n")
        beside.replace(RESULTS)
        print({name: value for name, value in runs[-1].items() if name != "curve"}, flush=True)
    return report(runs)


if __name__ == "__main__":
    main()

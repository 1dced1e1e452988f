"""What bench/engine.py measures, suite by suite, and the tables and the picture of what it found."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

from cepam import fl
from cepam.fl.runs.summary import interval

CHOSEN = Path(__file__).parent / "results" / "choose_private.json"
Job = dict[str, Any]
Run = dict[str, Any]
GAUSSIAN, SDQ, CEPAM = "fl+gaussian", "fl+gaussian+sdq", "cepam-gaussian"
DATA = ("mnist", "fashion-mnist")
BUDGETS = (0.25, 0.5, 1.0, 1.99, 4.0, 8.0)
FACTORS = (32.0, 64.0, 128.0, 256.0)
HELD_OUT = 10_000
TOLD = ("privacy.epsilon", "training.server_learning_rate", "training.rounds", "training.expected_batch_size")
"""What tells one version of a preset from another."""


def chosen_rate(data: str, epsilon: float) -> float:
    """The rate that did best on held-out records at the batch and the rounds of `private` (bench/choose_private.py)."""
    preset = fl.preset("private")
    here = (data, epsilon, preset.training.expected_batch_size, preset.training.rounds)
    told = ("data", "epsilon", "batch", "rounds")
    rows = [row for row in json.loads(CHOSEN.read_text())["rows"] if tuple(row[name] for name in told) == here]
    if not rows:
        raise ValueError(f"bench/results/choose_private.json has no row of {here}: search with choose_private.py first")
    return float(max(rows, key=lambda row: row["accuracy"])["rate"])


def main(seeds: int) -> list[Job]:
    """`private` beside its rivals, on Fashion-MNIST, and at epsilon 0.5; the main rows of every seed first."""
    made: list[Job] = []
    for seed in range(1, seeds + 1):
        for scheme, downlink in ((CEPAM, "quantized"), (CEPAM, "float32"), (GAUSSIAN, "float32"), (SDQ, "quantized")):
            made.append(
                {"preset": "private", "run.seed": seed, "compression.scheme": scheme, "compression.downlink": downlink}
            )
        made.append({"preset": "private", "run.seed": seed, "data.name": "fashion-mnist"})
        made.append(
            {
                "preset": "private",
                "run.seed": seed,
                "privacy.epsilon": 0.5,
                "training.server_learning_rate": chosen_rate("mnist", 0.5),
            }
        )
    return made


def budgets(seeds: int) -> list[Job]:
    """Epsilon 0.25 to 8 on both data sets: features, at the rates chosen on held-out records."""
    made: list[Job] = []
    for epsilon, data in product(BUDGETS, DATA):
        told = {
            "preset": "private",
            "data.name": data,
            "privacy.epsilon": epsilon,
            "training.server_learning_rate": chosen_rate(data, epsilon),
        }
        made += [{**told, "run.seed": seed} for seed in range(1, min(seeds, 3) + 1)]
    return made


def convolutional(seeds: int) -> list[Job]:
    """The CNN at the same budgets, one seed, at three rates around its own.

    Records are held out in the run itself: the rate is taken by them, and the test accuracy of that run reported.
    """
    made: list[Job] = []
    for times, epsilon, data in product((1.0, 0.5, 2.0), BUDGETS, DATA):
        rate = 16.0 * min(max(epsilon / 2.0, 0.125), 1.0) * times
        told = {
            "preset": "convolutional",
            "data.name": data,
            "privacy.epsilon": epsilon,
            "training.server_learning_rate": rate,
        }
        made.append({**told, "run.seed": 1, "data.validation_records": HELD_OUT})
    return made


def downlink(seeds: int) -> list[Job]:
    """The factor of the grid's step, to be chosen on held-out records; beside it float32."""
    made: list[Job] = []
    for seed in range(1, min(seeds, 3) + 1):
        plain = {"preset": "private", "run.seed": seed, "data.validation_records": HELD_OUT}
        made.append({**plain, "compression.downlink": "float32"})
        made += [{**plain, "compression.downlink_step_factor": factor} for factor in FACTORS]
    return made


def no_sampling(seeds: int) -> list[Job]:
    """No secret draws: correlated noise in a fixed order, with and without dropouts, on both data sets."""
    plain = [
        {"preset": "dp-ftrl", "run.seed": seed, "data.name": data} for seed in range(1, seeds + 1) for data in DATA
    ]
    return plain + [{**job, "clients.dropout_rate": 0.1} for job in plain]


def larger_slices(seeds: int) -> list[Job]:
    """`dp-ftrl` with fewer and larger slices, which leave less noise, at the rates chosen on held-out records.

    Beside it `private` at the same rates, for pairs, and the first of them with dropouts.
    """
    made: list[Job] = []
    for seed, data in product(range(1, seeds + 1), DATA):
        told = {"run.seed": seed, "data.name": data, "training.server_learning_rate": chosen_rate(data, 1.99)}
        made += [{"preset": "dp-ftrl", "training.slices": slices, **told} for slices in (15, 10)]
        made += [
            {"preset": "private", **told},
            {"preset": "dp-ftrl", "training.slices": 15, **told, "clients.dropout_rate": 0.1},
        ]
    return made


def bands(seeds: int) -> list[Job]:
    """Secret draws and correlated noise together, at the batch and the rounds of `private`, with which it is paired."""
    shaped = {"preset": "private", "privacy.noise_correlation": "matrix", "training.slices": 4}
    return [{**shaped, "run.seed": seed, "data.name": data} for seed in range(1, seeds + 1) for data in DATA]


def trusted_sum(seeds: int) -> list[Job]:
    """A server that learns the sum alone, whole or sketched, beside one that is trusted; paired by seed."""
    asked: tuple[Job, ...] = (
        {"privacy.trust": "secure-aggregation"},
        {"privacy.trust": "server"},
        {"privacy.trust": "secure-aggregation", "compression.sketch": 1600},
    )
    return [{"preset": "private", "run.seed": seed, **each} for seed in range(1, seeds + 1) for each in asked]


def sketches(seeds: int) -> list[Job]:
    """What a sketch costs by its size, beside that of the suite `sum`; paired by seed with it."""
    sizes = (400, 800, 3200, 6400)
    asked = [(seed, size) for seed in range(1, min(seeds, 3) + 1) for size in sizes]
    return [
        {"preset": "private", "run.seed": seed, "privacy.trust": "secure-aggregation", "compression.sketch": size}
        for seed, size in asked
    ]


def users(seeds: int) -> list[Job]:
    """A guarantee for whole users at four budgets."""
    budgets = (4.0, 1.0, 2.0, 8.0)
    return [
        {"preset": "users", "privacy.epsilon": epsilon, "run.seed": seed}
        for epsilon in budgets
        for seed in range(1, min(seeds, 3) + 1)
    ]


def users_downlink(seeds: int) -> list[Job]:
    """`users` as it ships beside a float32 downlink, paired by seed."""
    ways: tuple[Job, ...] = ({}, {"compression.downlink": "float32"})
    return [{"preset": "users", "run.seed": seed, **way} for seed in range(1, seeds + 1) for way in ways]


def coders(seeds: int) -> list[Job]:
    """`private` with the default coder beside the layered quantizer alone: what the search costs a run."""
    told: tuple[Job, ...] = ({}, {"compression.coder": "layered"})
    return [{"preset": "private", "run.seed": seed, **each} for seed in range(1, seeds + 1) for each in told]


def paper(seeds: int) -> list[Job]:
    """The paper's setting, for its time: one seed, and ten side by side."""
    return [{"preset": "algorithm1", "run.seed": 1, "run.seeds": together} for together in (1, 10)]


SUITES: dict[str, Callable[[int], list[Job]]] = {
    "main": main,
    "budgets": budgets,
    "convolutional": convolutional,
    "downlink": downlink,
    "no-sampling": no_sampling,
    "larger-slices": larger_slices,
    "bands": bands,
    "sum": trusted_sum,
    "sketches": sketches,
    "users": users,
    "users-downlink": users_downlink,
    "coders": coders,
    "paper": paper,
}


def percent(values: list[float]) -> str:
    """Mean and 95 % interval in per cent, with the number of values."""
    middle, half = interval([100 * value for value in values])
    return f"{middle:.2f}{'' if half is None else f' ± {half:.2f}'}"


def rows_of(runs: list[Run], suite: str) -> dict[str, dict[int, Run]]:
    """The runs of a suite by what they were told, then by seed; a run that two suites ask for counts in both."""
    asked = {json.dumps(job, sort_keys=True) for job in SUITES[suite](5)}
    found: dict[str, dict[int, Run]] = {}
    for run in runs:
        job = {name: value for name, value in run["job"].items() if name != "suite"}
        if any(json.loads(each).items() <= job.items() for each in asked):
            name = ", ".join(
                f"{key} {value}" for key, value in sorted(job.items()) if key not in ("run.seed", "run.seeds")
            )
            found.setdefault(name, {})[job["run.seed"]] = run
    return found


def report(runs: list[Run], names: list[str]) -> None:
    """Print a table for every suite, and the paired differences of the main one."""
    for suite in names:
        print(
            f"\n{suite}: test accuracy (held out) | epsilon | bits up | down | MB up | down | s | processor s | seeds"
        )
        for name, by_seed in sorted(rows_of(runs, suite).items()):
            print(f"{name}\n    {line_of([by_seed[seed] for seed in sorted(by_seed)])} | {sorted(by_seed)}")
        if suite == "main":
            pair_up(runs)


def line_of(runs: list[Run]) -> str:
    """One row's figures, over its seeds."""
    held = [each for run in runs for each in run["validation_accuracy"] if each is not None]
    spent = max((each for run in runs for each in run["epsilon_spent"] if each is not None), default=float("nan"))
    accuracy = percent([run["accuracy"][0] for run in runs]) + (f" ({percent(held)})" if held else "")
    up, down = (average(runs, name) for name in ("bits_up", "bits_down"))
    sizes = " | ".join(f"{average(runs, name) / 1e6:.2f}" for name in ("bytes_up", "bytes_down"))
    times = " | ".join(f"{average(runs, name):.0f}" for name in ("seconds", "processor_seconds"))
    return f"{accuracy} | {spent:.3f} | {up:.4f} | {down:.4f} | {sizes} | {times}"


def average(runs: list[Run], name: str) -> float:
    """The mean of a figure over the runs that have one."""
    found = [run[name] for run in runs if run[name] is not None]
    return sum(found) / len(found) if found else float("nan")


def private_runs(runs: list[Run], **told: Any) -> dict[int, Run]:
    """The runs of `private` as it stands, changed so, by seed; by default on MNIST, with cepam both ways."""
    preset = fl.preset("private").values()
    wanted = {
        "preset": "private",
        "data.name": "mnist",
        "compression.scheme": CEPAM,
        "compression.downlink": "quantized",
        **{name: preset[name] for name in TOLD},
        **told,
    }
    extra = (
        "compression.downlink_step_factor", "data.validation_records", "privacy.trust", "clients.dropout_rate",
        "compression.sketch", "privacy.noise_correlation",
    )  # fmt: skip
    return {run["job"]["run.seed"]: run for run in runs
            if wanted.items() <= run["job"].items() and not any(name in run["job"] for name in extra)}  # fmt: skip


RIVALS = (
    (GAUSSIAN, "float32", "float32 in both directions, Gaussian noise"),
    (SDQ, "quantized", "Gaussian noise, then dithered quantization; quantized downlink"),
    (CEPAM, "float32", "cepam up, float32 down"),
    (CEPAM, "quantized", "cepam in both directions"),
)


def pair_up(runs: list[Run]) -> None:
    """Print the main table as it stands in README.md, and differences paired by seed."""
    ours = private_runs(runs)
    for scheme, way, label in RIVALS:
        other = private_runs(runs, **{"compression.scheme": scheme, "compression.downlink": way})
        if not other:
            continue
        found = list(other.values())
        up, down = average(found, "bits_up"), average(found, "bits_down")
        sizes = [average(found, name) / 1e6 for name in ("bytes_up", "bytes_down")]
        megabytes = " | ".join(f"{size:,.1f}" for size in (*sizes, sum(sizes)))
        accuracy = percent([run["accuracy"][0] for run in found])
        print(f"| {label} | {up:.4f} | {down:.4f} | {up + down:.4f} | {megabytes} | {accuracy} % |")
        print(f"    {64.0 / (up + down):.1f} times smaller than float32 both ways")
        both = [ours[seed]["accuracy"][0] - other[seed]["accuracy"][0] for seed in sorted(ours) if seed in other]
        print(f"    cepam both ways less this, paired: {percent(both)} points (n = {len(both)})")


def draw(path: Path, runs: list[Run]) -> None:
    """Draw accuracy against the bytes of all clients, both ways, mean over the seeds measured."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(8, 4.8), layout="constrained")
    for scheme, way, label in RIVALS:
        if found := list(private_runs(runs, **{"compression.scheme": scheme, "compression.downlink": way}).values()):
            curves = list(zip(*(run["curve"] for run in found)))
            accuracy = [100 * sum(point[1] for point in points) / len(points) for points in curves]
            size = [sum(point[2] for point in points) / len(points) / 1e6 for points in curves]
            axis.semilogx(size, accuracy, marker=".", label=f"{label} ({len(found)} seed{'s'[: len(found) > 1]})")
    axis.set(xlabel="MB up and down, all 30 clients, so far", ylabel="test accuracy, %", ylim=(95.0, 98.8))
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.set_title("MNIST, epsilon 1.99 at delta 1e-5 over the whole run (simulated)")
    axis.grid(alpha=0.3, which="both")
    figure.legend(loc="outside lower center", ncols=1, frameon=False)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)

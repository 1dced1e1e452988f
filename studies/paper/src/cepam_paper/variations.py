"""What the paper says in passing: fluctuations, model differences, the precision level, the inside of a round.

Paper: Section I (the earlier study), Section IV-D after the theorem, Section V-A (alpha), Section V-B (fluctuations).
"""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam import fl
from cepam.codec.codec import Codec
from cepam.distributions.laws import Gaussian
from cepam.lattices.lattice import Integer
from cepam_paper import bits, picture, printed
from cepam_paper.convergence_sweep import problem_of
from cepam_paper.estimate import Estimate, estimate, words
from cepam_paper.run_size import Extent, RunSize, run_size
from cepam_paper.section import Figure, Part, Say, Table
from cepam_paper.theory.convergence import Convergence, Schedule
from cepam_paper.theory.descent import stacked, within_round
from cepam_paper.theory.distortion import noise_energy, printed_noise_energy
from cepam_paper.training import Run, TrainingOutcome, outcomes
from cepam_paper.variants import run_of, trained

ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "base": ("15 samples a client, fixed rate", {}),
    "averaged": ("150 samples a client, fixed rate", {"training.batch_size": 150}),
    "falling": ("15 samples a client, rate falling to 0", {"training.schedule": "linear"}),
    "both": ("150 samples a client, rate falling to 0", {"training.batch_size": 150, "training.schedule": "linear"}),
}
Floats = npt.NDArray[np.float64]
POINTS = (0.5, 1.5, 2.5, 3.5, 5.0)
ALPHA = 1e-3
SUMMARY = (
    "Four remarks of the paper put to the test. Fluctuations: clipped FL in the published training, with more samples "
    "a gradient, with a falling rate, and both; the fluctuation is the root mean square change of the validation "
    "accuracy from one evaluated round to the next in the second half. Model differences: 15 local steps, the "
    "difference sent, at the paper's noise levels. Precision: the size of gradient coordinates. Inside a round: the "
    "objective at the clients' mean after each local step, and at the server's next weights."
)


def run(report: Path, extent: Extent, say: Say) -> Part:
    """The remarks."""
    start, much = time.monotonic(), run_size(extent)
    runs = {f"arm {name}": _arm(name, much) for name in ARMS}
    points = [label for at, label in enumerate(POINTS) if extent is Extent.FULL or at % 2 == 0]
    runs |= {f"difference {label:g}": _difference(label, much) for label in points}
    data = fl.prepared(_arm("base", much).settings)
    made = outcomes(runs, report, data, say)
    numbers = _fluctuations(made) | _differences(made, points) | _inside(extent) | _precision(extent)
    return Part(
        "variations", "Remarks of the paper, tested", SUMMARY, "cepam reproduce variations",
        tuple(range(1, much.seeds + 1)), time.monotonic() - start, numbers,
        (_arms_table(numbers), _difference_table(numbers), _small_table(numbers)), (_figure(report, numbers, made),),
        (f"Fluctuations: {much.seeds} seeds; model differences: {much.grid_seeds}.",),
    )  # fmt: skip


def _arm(name: str, much: RunSize) -> Run:
    if name == "base":
        return run_of("correct", "fl", much)
    return run_of("correct", "fl", much, f"variation-{name}", ARMS[name][1])


def _difference(label: float, much: RunSize) -> Run:
    """Model differences as in the earlier study: tau local steps at rate 0.01, the difference clipped and sent."""
    return trained(
        f"variation-difference-{label:g}",
        "algorithm1",
        much,
        {
            "training.update": "difference",
            "training.local_learning_rate": 0.01,
            "training.server_learning_rate": 1.0,
            "privacy.noise_scale": printed.GRIDS["gaussian"][label],
            "run.seeds": much.grid_seeds,
            "run.evaluate_every": much.grid_every,
        },
    )


def _steps(made: TrainingOutcome) -> list[float]:
    """Each seed's fluctuation in percentage points."""
    changes = np.diff(100 * np.array(made.validation), axis=1)
    return [float(value) for value in np.sqrt(np.square(changes[:, changes.shape[1] // 2 :]).mean(1))]


def _fluctuations(made: dict[str, TrainingOutcome]) -> dict[str, Any]:
    steps = {name: _steps(made[f"arm {name}"]) for name in ARMS}
    less = {name: estimate([a - b for a, b in zip(steps[name], steps["base"])]) for name in ARMS if name != "base"}
    accuracy = {name: estimate([100 * value for value in made[f"arm {name}"].accuracy]) for name in ARMS}
    return {
        "fluctuation": {name: estimate(values) for name, values in steps.items()},
        "change": less,
        "accuracy": accuracy,
    }


def _differences(made: dict[str, TrainingOutcome], points: list[float]) -> dict[str, Any]:
    by_label = {label: [100 * value for value in made[f"difference {label:g}"].accuracy] for label in points}
    knee = printed.KNEE["gaussian"]

    def between(high: float, low: float) -> Estimate:
        return estimate([a - b for a, b in zip(by_label[high], by_label[low])])

    return {
        "difference_accuracy": {f"{label:g}": estimate(values) for label, values in by_label.items()},
        "difference_noise": {f"{label:g}": printed.GRIDS["gaussian"][label] for label in points},
        "difference_rise_before": between(knee, points[0]),
        "difference_rise_after": between(points[-1], knee),
    }


def _inside(extent: Extent) -> dict[str, Any]:
    """The first round of the theorem's schedule on the logistic problem with 10 clients, tau = 5 and 15."""
    found: dict[str, Any] = {"inside": {}}
    for tau in (5, 15):
        problem = problem_of("logistic regression", 10, 1.0)
        schedule = Schedule(tau, problem.constants.smoothness, problem.constants.convexity)
        away = np.zeros(problem.size)
        away[0] = 0.75 * problem.radius
        law, lattice = Gaussian(0.1), Integer(1)
        path = within_round(
            problem,
            schedule,
            stacked(Codec(law, lattice, coder="layered"), tau),
            away,
            2000 if extent is Extent.FULL else 200,
            tau,
        )
        theory = Convergence(
            problem.constants, tau, noise_energy(law, lattice, problem.size),
            printed_noise_energy(law, lattice, problem.size), problem.size,
            start_square=float(np.square(away - problem.minimum[0]).sum()),
        )  # fmt: skip
        found["inside"][f"{tau}"] = _round(path, theory)
    return found


def _round(path: Floats, theory: Convergence) -> dict[str, Any]:
    """What one round did: the largest change over a local step, and whether the falling bound lay above the gap."""
    changes = [estimate(list(after - before)) for before, after in pairwise(path[:-1])]
    gaps = [estimate(list(values)) for values in path]
    bound = theory.bound(np.arange(len(path)))
    return {
        "start": gaps[0]["mean"], "before": gaps[-2]["mean"], "after": gaps[-1]["mean"],
        "rise": estimate(list(path[-1] - path[-2])),
        "largest_change": max(changes, key=lambda one: float(one["mean"])),
        "bound_held": all(gap["high"] <= above for gap, above in zip(gaps, bound)),
    }  # fmt: skip


def _precision(extent: Extent) -> dict[str, Any]:
    sizes = np.abs(bits.gradients((1, 11), 30 if extent is Extent.FULL else 4))
    sizes = sizes[sizes > 0]
    low, middle, high = (float(value) for value in np.quantile(sizes, (0.1, 0.5, 0.9)))
    root = float(np.sqrt(np.square(sizes, dtype=np.float64).mean()))
    return {"precision": {"alpha": ALPHA, "tenth": low, "median": middle, "ninetieth": high, "rms": root}}


def _arms_table(numbers: dict[str, Any]) -> Table:
    rows = []
    for name, (label, _) in ARMS.items():
        change = "–" if name == "base" else words(numbers["change"][name], 3, True)
        rows.append((label, words(numbers["fluctuation"][name], 3), change, words(numbers["accuracy"][name])))
    columns = ("clipped FL with", "fluctuation, points", "less that of the first", "test accuracy, %")
    return Table("fluctuations", "Where the fluctuations come from", columns, tuple(rows))


def _difference_table(numbers: dict[str, Any]) -> Table:
    rows = tuple(
        (label, f"{numbers['difference_noise'][label]:g}", words(value))
        for label, value in numbers["difference_accuracy"].items()
    )
    return Table(
        "differences", "CEPAM-Gaussian on model differences: test accuracy in per cent",
        ("the paper's epsilon (no guarantee of the run)", "sigma", "accuracy"), rows,
    )  # fmt: skip


def _small_table(numbers: dict[str, Any]) -> Table:
    rows = [
        (f"objective's gap in a round, $\\tau = {tau}$: start, after the local steps, after the server's step",
         f"{value['start']:.4f}, {value['before']:.4f}, {value['after']:.4f}")
        for tau, value in numbers["inside"].items()
    ]  # fmt: skip
    size = numbers["precision"]
    rows.append((
        "size of a clipped gradient's coordinates that are not 0: tenth percentile, median, ninetieth, rms",
        f"{size['tenth']:.2e}, {size['median']:.2e}, {size['ninetieth']:.2e}, {size['rms']:.2e}",
    ))  # fmt: skip
    return Table("small", "Inside a round, and the size of coordinates", ("what", "measured"), tuple(rows))


def _figure(report: Path, numbers: dict[str, Any], made: dict[str, TrainingOutcome]) -> Figure:
    figure, axes = picture.canvas(2, width=5.4, height=3.9)
    for colour, (name, (label, _)) in zip(picture.COLOURS[::2], ARMS.items()):
        found = made[f"arm {name}"]
        axes[0][0].plot(found.rounds, 100 * np.array(found.validation)[0], color=colour, label=label, lw=1)
    axes[0][0].set(title="clipped FL, first seed", xlabel="round", ylabel="validation accuracy, %")
    labels = list(numbers["difference_accuracy"])
    values = [numbers["difference_accuracy"][label] for label in labels]
    bars = [0.0 if value["low"] is None else value["high"] - value["mean"] for value in values]
    axes[0][1].errorbar(
        [float(label) for label in labels], [value["mean"] for value in values], yerr=bars, fmt="o-", capsize=2
    )
    axes[0][1].set(title="model differences", xlabel="the paper's epsilon", ylabel="test accuracy, %")
    for axis in axes[0]:
        axis.grid(alpha=0.3)
        picture.whole_percent(axis)
    picture.legend_outside(figure, axes[0][0], 2)
    caption = "Left: what smooths the curves. Right: the paper's noise levels on model differences."
    return picture.kept(report, "variations", "Fluctuations and model differences", caption, figure)

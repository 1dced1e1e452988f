"""The paper's accuracy-privacy grids, with what those noise levels really guarantee.

Paper: Section V-C. For each noise level: CEPAM done right, CEPAM as published, and noise followed by SDQ, all in the
published training; beside the paper's epsilon, the one that the accountant gives for the whole run.
"""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from cepam import fl, privacy
from cepam.distributions.laws import Gaussian, Laplace
from cepam_paper import picture, printed, theorems
from cepam_paper.estimate import Estimate, differences, estimate, percent, words
from cepam_paper.guarantees import mechanism_of
from cepam_paper.published import ARITHMETIC
from cepam_paper.run_size import Extent, RunSize, run_size
from cepam_paper.section import Figure, Part, Say, Table
from cepam_paper.theorems import PaperSetting
from cepam_paper.training import Run, TrainingOutcome, outcomes
from cepam_paper.variants import trained

LawName = Literal["gaussian", "laplace"]
LAWS: tuple[LawName, ...] = ("gaussian", "laplace")
ARMS = {"correct": "CEPAM done right", "published": "CEPAM as published", "sdq": "noise, then SDQ"}
BOUNDLESS = 1e308
Found = dict[tuple[LawName, float, str], TrainingOutcome]
SUMMARY = (
    "The paper's noise levels in the published training, evaluated every few rounds. The label is the paper's epsilon; "
    "beside it stands what the run guarantees over all its rounds with the whole update clipped at 1 (the published "
    "clipping, tensor by tensor, guarantees less), 1,666 records a client and 15 draws a round."
)


def _run_of(law: LawName, label: float, arm: str, much: RunSize) -> Run:
    noise = printed.GRIDS[law][label]
    scheme = f"fl+{law}+sdq" if arm == "sdq" else f"cepam-{law}"
    return trained(
        f"grid-{arm}-{law}-{label:g}",
        "published",
        much,
        {
            "compression.scheme": scheme,
            "privacy.noise_scale": noise,
            "compression.lattice": "Z1",
            "run.seeds": much.grid_seeds,
            "run.evaluate_every": much.grid_every,
        },
        1 if arm == "published" else None,
    )


def real_epsilon(law: LawName, noise: float, rounds: int) -> float:
    """What a run at this noise guarantees over all its rounds: at the paper's delta (Gaussian), or pure (Laplace)."""
    rival = Gaussian(noise) if law == "gaussian" else Laplace(noise)
    mechanism = mechanism_of(rival, rounds)
    value = privacy.epsilon(mechanism, printed.GRID_DELTA if law == "gaussian" else 0.0)
    return min(value, BOUNDLESS)


def run(report: Path, extent: Extent, say: Say) -> Part:
    """Both grids."""
    start, much = time.monotonic(), run_size(extent)
    wanted = [(law, label, arm) for law in LAWS for label in _labels(law, much) for arm in ARMS]
    data = fl.prepared(_run_of(*wanted[0], much).settings)
    made = outcomes({key: _run_of(*key, much) for key in wanted}, report, data, say)
    numbers: dict[str, Any] = {law: _numbers(law, made, much) for law in LAWS} | {"arithmetic": ARITHMETIC}
    return Part(
        "grid", "The paper's accuracy-privacy grids, labelled with what they guarantee", SUMMARY,
        "cepam reproduce grid", tuple(range(1, much.grid_seeds + 1)), time.monotonic() - start, numbers,
        tuple(_table(law, numbers[law], much) for law in LAWS), (draw(report, numbers, much),),
        (f"{much.grid_seeds} seeds; the best-validation model among every {much.grid_every}th round.",),
    )  # fmt: skip


def _labels(law: LawName, much: RunSize) -> list[float]:
    return [label for at, label in enumerate(printed.GRIDS[law]) if at in much.grid_points]


def _numbers(law: LawName, made: Found, much: RunSize) -> dict[str, Any]:
    labels = _labels(law, much)

    def across(a: str, b: str) -> Estimate:
        """The difference of two arms paired by seed, averaged over the grid."""
        by_label = [differences(made[law, x, a].accuracy, made[law, x, b].accuracy) for x in labels]
        return estimate([sum(column) / len(labels) for column in zip(*by_label)])

    def between(high: float, low: float, arm: str = "correct") -> Estimate:
        """The rise of an arm's accuracy from one label to another, paired by seed."""
        return estimate(differences(made[law, high, arm].accuracy, made[law, low, arm].accuracy))

    knee, first, last = printed.KNEE[law], labels[0], labels[-1]
    numbers: dict[str, Any] = {
        "noise": list(printed.GRIDS[law].values()),
        "labels": list(printed.GRIDS[law]),
        "real_delta": printed.GRID_DELTA if law == "gaussian" else 0.0,
        "real_epsilon": {f"{x:g}": real_epsilon(law, printed.GRIDS[law][x], much.rounds) for x in labels},
        "real_epsilon_round": {f"{x:g}": real_epsilon(law, printed.GRIDS[law][x], 1) for x in labels},
        "difference": across("correct", "sdq"),
        "difference_published": across("published", "sdq"),
        **_lists(law),
    }
    for arm, ending in (("correct", ""), ("published", "_published")):
        numbers[f"rise{ending}"] = between(last, first, arm)
        numbers[f"rise_before{ending}"] = between(knee, first, arm) if knee in labels else None
        numbers[f"rise_after{ending}"] = between(last, knee, arm) if knee in labels else None
        if law == "laplace" and {4000.0, 5000.0} <= set(labels):
            numbers[f"drop{ending}"] = between(4000.0, 5000.0, arm)
    for arm, key in (("correct", "accuracy"), ("published", "accuracy_published"), ("sdq", "accuracy_sdq")):
        numbers[key] = {f"{x:g}": estimate(percent(made[law, x, arm].accuracy)) for x in labels}
    return numbers


def _lists(law: LawName) -> dict[str, float]:
    """How far the paper's lists of noise lie from its own theorems, at worst and relative."""
    strict, fitting = PaperSetting(convention="printed"), PaperSetting()
    pairs = list(printed.GRIDS[law].items())
    if law == "laplace":
        return {
            "error_printed": max(abs(theorems.theorem_8_b(strict, x) / b - 1) for x, b in pairs),
            "error_fitting": max(abs(theorems.theorem_8_b(fitting, x) / b - 1) for x, b in pairs),
        }
    right = max(abs(theorems.theorem_7_sigma(strict, x, printed.GRID_DELTA) / s - 1) for x, s in pairs)
    swapped = max(abs(theorems.published_sigma(x, printed.GRID_DELTA) - s) / s for x, s in pairs)
    return {"error_right_order": right, "error_swapped": swapped}


def _table(law: LawName, numbers: dict[str, Any], much: RunSize) -> Table:
    rows = []
    for label in _labels(law, much):
        name = f"{label:g}"
        real = [numbers[key][name] for key in ("real_epsilon_round", "real_epsilon")]
        accuracies = [words(numbers[key][name]) for key in ("accuracy", "accuracy_published", "accuracy_sdq")]
        bounds = ["none" if value >= BOUNDLESS else f"{value:.4g}" for value in real]
        rows.append((name, f"{printed.GRIDS[law][label]:g}", *bounds, *accuracies))
    delta = f"$\\delta = {printed.GRID_DELTA:g}$" if law == "gaussian" else "pure"
    columns = (
        "the paper's $\\epsilon$", "noise", f"true $\\epsilon$ of one round ({delta})", f"of the run ({delta})",
        *ARMS.values(),
    )  # fmt: skip
    return Table(f"grid-{law}", f"{law.capitalize()}: test accuracy in per cent", columns, tuple(rows))


def draw(report: Path, numbers: dict[str, Any], much: RunSize) -> Figure:
    """Both grids, the three arms' bars side by side."""
    figure, axes = picture.canvas(2, width=5.0, height=3.8)
    for axis, law in zip(axes[0], LAWS):
        labels = _labels(law, much)
        aside = 0.16 * min(b - a for a, b in pairwise(printed.GRIDS[law]))
        for place, (key, arm) in enumerate(zip(("accuracy", "accuracy_published", "accuracy_sdq"), ARMS.values())):
            values = [numbers[law][key][f"{x:g}"] for x in labels]
            bars = [0.0 if v["low"] is None else v["high"] - v["mean"] for v in values]
            spots = [x + aside * (place - 1) for x in labels]
            axis.errorbar(spots, [v["mean"] for v in values], yerr=bars, fmt="o-", ms=3.5, lw=1, label=arm, capsize=2,
                          color=picture.COLOURS[2 * place])  # fmt: skip
        axis.set(title=law, xlabel="the paper's epsilon (no guarantee of the run)", ylabel="test accuracy, %")
        axis.grid(alpha=0.3)
        picture.whole_percent(axis)
    picture.legend_outside(figure, axes[0][0])
    caption = "Accuracy against the paper's label; the table says what each label is worth."
    return picture.kept(report, "grid", "The paper's trade-off figures, redone", caption, figure)

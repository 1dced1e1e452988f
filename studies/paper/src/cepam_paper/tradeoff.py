"""The trade-off done right: accuracy against a total budget that holds for the whole run.

Preset `convolutional`, record level, delta = 1e-5: CEPAM against noise followed by SDQ at equal guarantees,
with the bits.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from cepam import fl
from cepam_paper import picture
from cepam_paper.estimate import estimate, words
from cepam_paper.run_size import Extent, RunSize, run_size
from cepam_paper.section import Figure, Part, Say, Table

SCHEMES = {"cepam-gaussian": "CEPAM-Gaussian", "fl+gaussian+sdq": "FL+Gaussian+SDQ"}
SUMMARY = (
    "Preset `convolutional`: 30 clients, Poisson-drawn examples, each clipped, exact Gaussian noise split over the "
    "clients, calibrated to the total epsilon at delta 1e-5 over the whole run (add or remove one record, against "
    "an outsider who sees every broadcast model). Final weights; no validation set. The learning rate was chosen at "
    "epsilon 2 and kept for every budget. Paired by seed, hence simulated: keys and draws come from the seeds."
)


def run(report: Path, extent: Extent, say: Say) -> Part:
    """The trade-off between budget and accuracy."""
    start, much = time.monotonic(), run_size(extent)
    seeds = tuple(range(1, much.budget_seeds + 1))
    wanted = [(scheme, budget, seed) for budget in much.budgets for scheme in SCHEMES for seed in seeds]
    made = {}
    for at, (scheme, budget, seed) in enumerate(wanted):

        def follow(done: fl.Progress, at: int = at, name: str = f"{scheme}, epsilon {budget:g}") -> None:
            round = int(done.lines[0]["round"])
            say(f"{name}, round {round}", at * done.rounds + round, len(wanted) * done.rounds)

        made[scheme, budget, seed] = _trained(report, scheme, budget, seed, much, follow)
    numbers = _numbers(made, much, seeds)
    return Part(
        "tradeoff", "Accuracy against a budget that holds", SUMMARY, "cepam reproduce tradeoff", seeds,
        time.monotonic() - start, numbers, (_table(numbers, much),), (draw(report, numbers, much),),
        _notes(numbers, much),
    )  # fmt: skip


def _trained(report: Path, scheme: str, budget: float, seed: int, much: RunSize, follow: Any) -> dict[str, Any]:
    """The summary of one run, gone on with where an interrupted one left it."""
    settings = fl.preset("convolutional").updated(
        {
            "data.name": much.data,
            "compression.scheme": scheme,
            "privacy.epsilon": budget,
            "run.seed": seed,
            "training.rounds": much.budget_rounds,
            "run.simulate": True,
        }
    )
    folder = report / "runs" / f"tradeoff-{scheme}-{budget:g}-{seed}-{much.budget_rounds}"
    resume = (folder / "config.toml").exists()
    return fl.train(settings, folder, resume=resume, watch=follow, progress=False)


def _numbers(made: dict[Any, dict[str, Any]], much: RunSize, seeds: tuple[int, ...]) -> dict[str, Any]:
    def accuracy(scheme: str, budget: float) -> list[float]:
        return [100 * made[scheme, budget, seed]["accuracy"] for seed in seeds]

    def paired(budget: float) -> list[float]:
        cepam, rival = accuracy("cepam-gaussian", budget), accuracy("fl+gaussian+sdq", budget)
        return [a - b for a, b in zip(cepam, rival)]

    numbers: dict[str, Any] = {"delta": 1e-5, "seeds": len(seeds), "rounds": much.budget_rounds}
    for name in ("accuracy", "bits", "epsilon", "noise"):
        numbers[name] = {scheme: {} for scheme in SCHEMES}
    for scheme in SCHEMES:
        for budget in much.budgets:
            first = made[scheme, budget, seeds[0]]
            numbers["accuracy"][scheme][f"{budget:g}"] = estimate(accuracy(scheme, budget))
            numbers["bits"][scheme][f"{budget:g}"] = first["bits_per_coordinate"]
            numbers["epsilon"][scheme][f"{budget:g}"] = first["epsilon_against"]["outsider"]
            numbers["noise"][scheme][f"{budget:g}"] = first["noise_scales"][0]
    numbers["difference"] = {f"{budget:g}": estimate(paired(budget)) for budget in much.budgets}
    if len(seeds) > 1:
        every = [sum(column) / len(much.budgets) for column in zip(*(paired(budget) for budget in much.budgets))]
    else:  # With one seed the budgets themselves are the repetitions, and whoever quotes the mean has to say so.
        every = [paired(budget)[0] for budget in much.budgets]
    numbers["difference_all"] = estimate(every)
    numbers["repetitions"] = "seeds" if len(seeds) > 1 else "budgets"
    ends = [accuracy("cepam-gaussian", much.budgets[end]) for end in (-1, 0)]
    numbers["rise"] = estimate([a - b for a, b in zip(*ends)])
    return numbers


def _notes(numbers: dict[str, Any], much: RunSize) -> tuple[str, ...]:
    told = f"{numbers['seeds']} seed(s), {much.budget_rounds} rounds."
    if numbers["repetitions"] == "seeds":
        return (told,)
    mean = words(numbers["difference_all"], sign=True)
    return (
        told,
        f"The mean difference of {mean} points takes the {len(much.budgets)} budgets of one seed as repetitions.",
    )


def _table(numbers: dict[str, Any], much: RunSize) -> Table:
    rows = []
    for budget in much.budgets:
        name = f"{budget:g}"
        cells = [words(numbers["accuracy"][scheme][name]) for scheme in SCHEMES]
        bits = [f"{numbers['bits'][scheme][name]:.3f}" for scheme in SCHEMES]
        spent = f"{numbers['epsilon']['cepam-gaussian'][name]:.3f}"
        rows.append((name, spent, *cells, words(numbers["difference"][name], sign=True), *bits))
    columns = (
        "budget",
        "epsilon charged (simulated)",
        *SCHEMES.values(),
        "difference",
        *(f"bits, {s}" for s in SCHEMES.values()),
    )
    return Table("tradeoff", "Test accuracy in per cent, delta = 1e-5", columns, tuple(rows))


def draw(report: Path, numbers: dict[str, Any], much: RunSize) -> Figure:
    """Accuracy and bits against the budget."""
    figure, axes = picture.canvas(2, width=4.6, height=3.6)
    for place, (scheme, label) in enumerate(SCHEMES.items()):
        names = [f"{budget:g}" for budget in much.budgets]
        means = [numbers["accuracy"][scheme][name]["mean"] for name in names]
        axes[0][0].plot(much.budgets, means, "o-", label=label, color=picture.COLOURS[4 * place])
        bits = [numbers["bits"][scheme][name] for name in names]
        axes[0][1].plot(much.budgets, bits, "o-", label=label, color=picture.COLOURS[4 * place])
    axes[0][0].set(xlabel="total epsilon (delta = 1e-5)", ylabel="test accuracy, %", xscale="log")
    axes[0][1].set(
        xlabel="total epsilon (delta = 1e-5)", ylabel="uplink bits per coordinate", xscale="log", yscale="log"
    )
    for axis in axes[0]:
        axis.set_xticks(much.budgets, [f"{budget:g}" for budget in much.budgets])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    picture.whole_percent(axes[0][0])
    picture.legend_outside(figure, axes[0][0])
    caption = "Equal guarantees, hence equal accuracy up to the seeds' noise; the bits differ."
    return picture.kept(report, "tradeoff", "Accuracy and size against the budget", caption, figure)

"""Claims of Section V about budgets: the quoted guarantees and the accuracy-privacy grids."""

from __future__ import annotations

import math
from itertools import pairwise

from cepam_paper.verdict import Claim, Estimate, Findings, Label, Ruling, decided
from cepam_paper.weighing import ANY, NO_SIZE, bends, improvement

LISTED = 1e-3
"""A printed list of noises comes out if no entry is off by more than this, relatively: its last digit."""
KNEE = {"gaussian": "2.5", "laplace": "1500"}
SPAN = {"gaussian": ("0.5", "5"), "laplace": ("500", "5000")}


def _quoted_round(found: Findings) -> Ruling:
    epsilon, delta = found.number("quoted/epsilon"), found.number("quoted/delta")
    true, bare = found.number("quoted/delta_one_round"), found.number("quoted/delta_without_noise")
    said = (
        f"In one round $\\delta = {true:.3g}$ at $\\epsilon = {epsilon:.4g}$, where {delta:.3g} is stated. That says "
        f"little: with no noise at all a round is $(0, {bare:.3g})$-DP, by sampling alone. Over the 80 rounds "
        f"$\\epsilon$ is {_finite(found.number('quoted/epsilon_run_quoted_delta'))} at the stated $\\delta$. Theorem "
        f"7 as printed gives ({found.number('quoted/computed_epsilon'):.4g}, "
        f"{found.number('quoted/computed_delta'):.3g}); the quoted pair needs $\\tau' = 15$ in place of 14: "
        f"({found.number('quoted/fitting_epsilon'):.4g}, {found.number('quoted/fitting_delta'):.3g})."
    )
    return Ruling(decided(true <= delta), said)


def _quoted_run(found: Findings) -> Ruling:
    epsilon, delta = found.number("quoted/epsilon"), found.number("quoted/delta")
    run, sigma = found.number("quoted/epsilon_run_quoted_delta"), found.number("quoted/sigma_needed")
    said = (
        f"Over the 80 rounds that are published, $\\epsilon$ is {_finite(run)} at $\\delta = {delta:.3g}$ and "
        f"{_finite(found.number('quoted/epsilon_run'))} at $10^{{-5}}$; with no noise $\\delta$ would be "
        f"{found.number('quoted/delta_without_noise_run'):.3f}. The scheme meets the requirement with more noise: "
        f"$\\epsilon = {epsilon:.4g}$ at $\\delta = 10^{{-5}}$ for the whole run needs $\\sigma = {sigma:.4f}$ per "
        "client (docs/proofs/mechanisms-and-sampling.md, The paper's theorems)."
    )
    return Ruling(decided(run <= epsilon, 0 < sigma < float("inf")), said)


def _finite(epsilon: float) -> str:
    if epsilon > 1e300:
        return "infinite"
    return f"{epsilon:,.0f}" if epsilon >= 1e4 else f"{epsilon:.4g}"


def _quoted_laplace(found: Findings) -> Ruling:
    printed, true = found.number("theorem_8/printed_epsilon"), found.number("theorem_8/true_epsilon")
    said = (
        f"Theorem 8 gives {printed:.6g}. Under the $\\ell_2$ clipping that is used, $\\epsilon = {true:.6g}$ in one "
        "round and 80 times that over the run (docs/proofs/mechanisms-and-sampling.md, Laplace noise)."
    )
    return Ruling(decided(true <= printed), said)


def _relaxed(found: Findings) -> Ruling:
    pure, epsilon, delta = (found.number(f"relaxed/{key}") for key in ("pure_epsilon", "epsilon", "delta"))
    said = (
        f"At $b = {found.number('relaxed/b'):g}$ under $\\ell_2$ clipping, over {found.number('relaxed/rounds'):.0f} "
        f"rounds, $\\epsilon$ is {pure:.4g} with $\\delta = 0$ and {epsilon:.4g} with $\\delta = {delta:.0e}$ "
        "(docs/proofs/mechanisms-and-sampling.md, Laplace noise)."
    )
    return Ruling(decided(epsilon < pure), said)


def _sigmas(found: Findings) -> Ruling:
    right, swapped = found.number("gaussian/error_right_order"), found.number("gaussian/error_swapped")
    said = (
        f"The list is off by up to {100 * right:.3g} % from Theorem 7 as printed. With the arguments of $\\delta$ in "
        f"the wrong order all printed digits come out, to {100 * swapped:.2g} % "
        "(docs/proofs/mechanisms-and-sampling.md, The paper's theorems)."
    )
    return Ruling(decided(right <= LISTED), said)


def _scales(found: Findings) -> Ruling:
    printed, fitting = found.number("laplace/error_printed"), found.number("laplace/error_fitting")
    said = (
        f"The list is off by up to {100 * printed:.3g} % from Theorem 8 with its $\\tau' = 14$, and by "
        f"{100 * fitting:.2g} % with 15."
    )
    return Ruling(decided(printed <= LISTED, fitting <= LISTED), said)


def _budgets(law: str, quote: str) -> Claim:
    """The theorems are for one round, so a label is judged there; what it is over the run stands beside it."""

    def rule(found: Findings) -> Ruling:
        labels = found.keys(f"{law}/real_epsilon")
        once = {label: found.number(f"{law}/real_epsilon_round/{label}") for label in labels}
        run = {label: found.number(f"{law}/real_epsilon/{label}") for label in labels}
        kept = [sum(made[label] <= float(label) for label in labels) for made in (once, run)]
        ends = "; the label ".join(
            f"{label} means {_finite(once[label])} in one round and {_finite(run[label])} over the run"
            for label in (labels[0], labels[-1])
        )
        said = (
            f"The theorem is about one round, where {kept[0]} of {len(labels)} labels are kept; over the run of 80 "
            f"rounds {kept[1]} are. True $\\epsilon$ at $\\delta = {found.number(f'{law}/real_delta'):g}$: the label "
            f"{ends}."
        )
        if kept[0] == len(labels) and found.has("quoted/delta_without_noise", "privacy"):
            bare = found.number("quoted/delta_without_noise", "privacy")
            said = f"{said} Without any noise a round has $\\delta = {bare:.3g}$ by sampling alone."
        return Ruling(decided(kept[0] == len(labels)), said)

    return Claim(f"{law}-budgets", "Section V-C", quote, "grid", "cepam reproduce grid", rule)


def _better(law: str, quote: str) -> Claim:
    """Whether CEPAM is ahead over the whole grid."""

    def rule(found: Findings) -> Ruling:
        correct = found.estimate(f"{law}/difference")
        said = f"CEPAM less {law.capitalize()}+SDQ in points, mean over the grid. Correct quantizer: {correct}"
        if not found.has(f"{law}/difference_published"):
            return Ruling(improvement(correct, ANY), f"{said}. {NO_SIZE}")
        theirs = found.estimate(f"{law}/difference_published")
        said = f"{said}; published decoder: {theirs}. {NO_SIZE}"
        return Ruling(improvement(correct, ANY), said, improvement(theirs, ANY))

    return Claim(f"{law}-grid", "Section V-C", quote, "grid", "cepam reproduce grid", rule, True)


def _at_true_budgets(found: Findings) -> list[float]:
    """CEPAM's accuracy at total budgets that hold, rising; nothing where they were not run."""
    path = "accuracy/cepam-gaussian"
    if not found.has(path, "tradeoff"):
        return []
    return [found.number(f"{path}/{budget}/mean", "tradeoff") for budget in found.keys(path, "tradeoff")]


def _listed(values: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def _shown(found: Findings, law: str, labels: tuple[str, ...]) -> str:
    """What the published arm shows at some labels."""
    paths = [f"{law}/accuracy_published/{label}/mean" for label in labels]
    if not all(found.has(path) for path in paths):
        return ""
    shown = _listed([found.number(path) for path in paths])
    return f" The published program: {shown} % at the labels {', '.join(labels)}."


def _theirs(found: Findings, path: str) -> Estimate | None:
    """An estimate of the published arm, or None where it was not kept."""
    return found.estimate(path) if found.has(path) else None


def _rising(found: Findings) -> Ruling:
    low, high = SPAN["gaussian"]
    rise, true = found.estimate("gaussian/rise"), _at_true_budgets(found)
    said = f"From the label {low} to {high} accuracy changes by {rise} points"
    if true:
        said = f"{said}. At total budgets that hold, $\\epsilon$ from 0.5 to 8, it is {_listed(true)} %"
    label, chance = improvement(rise, ANY), 1 / math.factorial(len(true))
    if label is not Label.HOLDS and true == sorted(set(true)) and chance < 0.05:
        label = Label.REPAIRED
        said = f"{said}; budgets without an effect would come in this order with chance {chance:.2g}"
    theirs = _theirs(found, "gaussian/rise_published")
    said = f"{said}.{_shown(found, 'gaussian', (low, KNEE['gaussian'], high))}"
    return Ruling(label, f"{said} {NO_SIZE}", None if theirs is None else improvement(theirs, ANY))


def _diminishing(values: list[float]) -> bool:
    """Whether every step up is smaller than the one before it, and the last less than half of the first."""
    steps = [b - a for a, b in pairwise(values)]
    return len(steps) > 1 and all(b < a for a, b in pairwise(steps)) and 0 <= steps[-1] < steps[0] / 2


def _knee(law: str) -> Claim:
    knee, (low, high) = KNEE[law], SPAN[law]

    def rule(found: Findings) -> Ruling:
        before, after = found.estimate(f"{law}/rise_before"), found.estimate(f"{law}/rise_after")
        real = found.number(f"{law}/real_epsilon/{knee}")
        said = (
            f"Accuracy changes by {before} points from the label {low} to {knee}, and by {after} from {knee} to "
            f"{high}. To hold, the first must be above 0 and above the second. Over the run the label {knee} "
            f"means an $\\epsilon$ of {_finite(real)}: the threshold is one of noise, not of that budget."
        )
        true = _at_true_budgets(found) if law == "gaussian" else []
        if true:
            said = f"{said} At total budgets that hold, $\\epsilon$ from 0.5 to 8, accuracy is {_listed(true)} %."
        label = bends(before, after)
        if label is Label.HOLDS:
            label = decided(real <= float(knee), True)
        elif _diminishing(true):
            label = Label.REPAIRED
        theirs = [_theirs(found, f"{law}/rise_{end}_published") for end in ("before", "after")]
        program = bends(theirs[0], theirs[1]) if theirs[0] and theirs[1] else None
        return Ruling(label, said + _shown(found, law, (low, knee, high)), program)

    return Claim(
        f"{law}-knee", "Section V-C",
        "There is a point of diminishing returns; once the privacy budget reaches a threshold "
        f"($\\epsilon \\approx {knee}$), the increase in test accuracy becomes limited.",
        "grid", "cepam reproduce grid tradeoff" if law == "gaussian" else "cepam reproduce grid", rule, True,
    )  # fmt: skip


def _drop(found: Findings) -> Ruling:
    """Whether accuracy falls from the label 4000 to 5000."""
    drop, theirs = found.estimate("laplace/drop"), _theirs(found, "laplace/drop_published")
    said = f"Accuracy at the label 4000 less that at 5000: {drop} points.{_shown(found, 'laplace', ('4000', '5000'))}"
    said = f"{said} The sentence names no size. So any drop counts, and only an interval below 0 excludes it."
    return Ruling(improvement(drop, ANY), said, None if theirs is None else improvement(theirs, ANY))


CLAIMS = (
    Claim(
        "quoted-round", "Section V-B",
        "By Theorem 7, all the clients' composite Gaussian mechanisms achieve "
        "$(\\epsilon = 1.45, \\delta = 9.69 \\times 10^{-3})$-DP.",
        "privacy", "cepam reproduce privacy", _quoted_round,
    ),
    Claim(
        "quoted-run", "Section II-D, privacy requirements",
        "Preventing privacy leaks from the final trained model upon completion of training.",
        "privacy", "cepam reproduce privacy", _quoted_run,
    ),
    Claim(
        "quoted-laplace", "Section V-B",
        "We set $b = 0.01$ and $\\tilde\\epsilon = 3000$, and the composite Laplace mechanism achieves "
        "$(\\epsilon = 2995)$-DP.",
        "privacy", "cepam reproduce privacy", _quoted_laplace,
    ),
    Claim(
        "relaxed-laplace", "Section V-B",
        "However, we might achieve a lower privacy budget by relaxing $\\delta$.",
        "privacy", "cepam reproduce privacy", _relaxed,
    ),
    Claim(
        "sigmas", "Section V-C",
        "The parameters are computed according to Theorem 7: for $\\delta = 0.015$ the corresponding noise levels "
        "$\\sigma$ are {0.13881, …, 0.00052}.",
        "grid", "cepam reproduce grid", _sigmas,
    ),
    _budgets("gaussian", "We set $\\delta = 0.015$ and vary the privacy budget $\\epsilon$ from 0.5 to 5."),
    _better("gaussian", "Overall, CEPAM-Gaussian has a better performance than Gaussian+SDQ."),
    Claim(
        "rising", "Section V-C", "As more privacy budget is allocated, higher test accuracy can be achieved.",
        "grid", "cepam reproduce grid", _rising, True,
    ),
    _knee("gaussian"),
    Claim(
        "scales", "Section V-C",
        "The parameters are computed according to Theorem 8: the corresponding noise levels $b$ are {0.05944, "
        "…, 0.005994}.",
        "grid", "cepam reproduce grid", _scales,
    ),
    _budgets("laplace", "We vary the privacy budget $\\epsilon$ from 500 to 5000."),
    _better("laplace", "Overall, CEPAM-Laplace outperforms Gaussian+SDQ. [The figure has Laplace+SDQ.]"),
    _knee("laplace"),
    Claim(
        "drop", "Section V-C",
        "The test accuracy slightly decreased when we further increase the privacy budget "
        "($\\epsilon \\approx 4000$).",
        "grid", "cepam reproduce grid", _drop, True,
    ),
)  # fmt: skip

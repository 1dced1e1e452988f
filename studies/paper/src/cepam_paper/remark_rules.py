"""Rules for remarks that the part `variations` tests: precision, fluctuations, model differences, inside a round."""

from __future__ import annotations

import math

from cepam_paper.verdict import Estimate, Findings, Label, Ruling, decided
from cepam_paper.weighing import bends, mainly, ratio_of_means, together


def precise(found: Findings) -> Ruling:
    """Whether alpha lies among the sizes that gradients have."""
    alpha, low, high = (found.number(f"precision/{name}") for name in ("alpha", "tenth", "ninetieth"))
    return Ruling(
        decided(low <= alpha <= high),
        f"Eight in ten nonzero coordinates of clipped gradients lie between {low:.2g} and {high:.2g} (median "
        f"{found.number('precision/median'):.2g}). For LRSUQ the choice makes no difference: $\\alpha$ cancels, since "
        "$\\beta(U)$ scales the cell to each layer (docs/proofs/finite-precision.md, The integer construction). In the "
        "published program it makes the noise vanish at small inputs for $n = 2$ and 3.",
    )


def fluctuations(found: Findings) -> Ruling:
    """Whether more samples and a falling rate each smooth the curves, and both together explain most of it."""
    averaged, falling, both = (found.estimate(f"change/{name}") for name in ("averaged", "falling", "both"))
    base, smoothed = (found.estimate(f"fluctuation/{name}") for name in ("base", "both"))
    left = ratio_of_means(smoothed, base, both)
    labels = [Label.FAILS if one.low >= 0 else smoother(one.high) for one in (averaged, falling)]
    root, square = (_explained(left, power) for power in (1, 2))
    return Ruling(
        together([mainly(left), *labels]),
        f"Clipped FL: from one evaluated round to the next the validation accuracy changes by {base.mean:.2f} points "
        f"(root mean square). Ten times the samples change that by {averaged}, a falling rate by {falling}. With both, "
        f"{smoothed.mean:.2f} points are left. So the two explain {root} of the root mean square, and {square} of the "
        'mean square. "Mainly" names no scale: it holds if they explain more than half of the first, and fails if they '
        "explain less than half of the second. The samples' share is underestimated, as ten times the samples leave a "
        "tenth of the gradients' variance.",
    )


def _explained(left: Estimate, power: int) -> str:
    """The share that is gone, with its interval, of the root mean square (1) or of the mean square (2)."""
    if math.isinf(left.low):
        return f"{100 * (1 - left.mean**power):.0f} % (no interval)"
    share, low, high = (100 * (1 - math.copysign(abs(r) ** power, r)) for r in (left.mean, left.high, left.low))
    return f"{share:.0f} % (95 % {low:.0f} to {high:.0f} %)"


def smoother(most: float) -> Label:
    """The label of "fluctuates less" by the upper end of the change's interval."""
    return Label.HOLDS if most < 0 else Label.INCONCLUSIVE


def coincides(found: Findings) -> Ruling:
    """Whether accuracy rises with the budget and then levels off, on model differences as on gradients."""
    ends = ("rise_before", "rise_after")
    differences = [found.estimate(f"difference_{end}") for end in ends]
    gradients = [found.estimate(f"gaussian/{end}", "grid") for end in ends]
    shapes = [bends(*differences), bends(*gradients)]
    return Ruling(
        Label.INCONCLUSIVE if Label.INCONCLUSIVE in shapes else decided(shapes[0] is shapes[1]),
        f"Change of accuracy up to the label 2.5 and beyond it, in points. On model differences: {differences[0]} and "
        f"{differences[1]}. On gradients: {gradients[0]} and {gradients[1]}. That it rises and then levels off "
        f"{said_of(shapes[0])} for the first and {said_of(shapes[1])} for the second. The earlier study's own figures "
        "are not redone.",
    )


def said_of(label: Label) -> str:
    """The label as the verb of a sentence."""
    return "is inconclusive" if label is Label.INCONCLUSIVE else str(label)


def between_rounds(found: Findings) -> Ruling:
    """The bound is proved for every t; the printed reason, an objective that falls, is not true at the minimum."""
    steps = {tau: found.estimate(f"inside/{tau}/largest_change") for tau in found.keys("inside")}
    held = all(found.flag(f"inside/{tau}/bound_held") for tau in steps)
    listed = ", ".join(
        f"{one.mean:+.4f} (95 % {one.low:+.4f} to {one.high:+.4f}, $\\tau = {tau}$)" for tau, one in steps.items()
    )
    paths = "; ".join(
        f"$\\tau = {tau}$: {found.number(f'inside/{tau}/before'):.4f} to {found.number(f'inside/{tau}/after'):.4f}"
        for tau in steps
    )
    return Ruling(
        decided(False, held),
        "A decreasing bound for all $t$ is proved (docs/paper/theory.md, Between synchronizations), and it "
        f"{'holds' if held else 'does not hold'} at every local step of the first round. The printed reason is not "
        "general: from $w^*$ a step can only go up. Far from $w^*$ the objective does fall; in the first round its "
        f"largest change over a local step is {listed}. The server's step starts from the broadcast weights, so the "
        f"gap goes up again at the end of the round ({paths}).",
    )

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
        f"Eight in ten coordinates of clipped gradients that are not 0 lie between {low:.2g} and {high:.2g} (median "
        f"{found.number('precision/median'):.2g}). In LRSUQ $\\alpha$ cancels, since the cell is scaled to each layer "
        "by "
        "$\\beta(U)$ (docs/proofs/finite-precision.md, The integer construction); "
        "in the published program it makes the noise vanish "
        "for $n = 2$ and 3.",
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
        f"Up to the label 2.5 and beyond it, accuracy on model differences changes by {differences[0]} and "
        f"{differences[1]} points, on gradients by {gradients[0]} and {gradients[1]}. That it rises and then levels "
        "off "
        f"{said_of(shapes[0])} for the first and {said_of(shapes[1])} for the second. The earlier study's own figures "
        "are "
        "not redone.",
    )


def said_of(label: Label) -> str:
    """The label as the verb of a sentence."""
    return "is inconclusive" if label is Label.INCONCLUSIVE else str(label)


def between_rounds(found: Findings) -> Ruling:
    """Whether the objective falls over local steps, and whether a falling bound lies above it at every one."""
    steps = {tau: found.estimate(f"inside/{tau}/largest_change") for tau in found.keys("inside")}
    held = all(found.flag(f"inside/{tau}/bound_held") for tau in steps)
    listed = ", ".join(
        f"{one.mean:+.4f} (95 % {one.low:+.4f} to {one.high:+.4f}, $\\tau = {tau}$)" for tau, one in steps.items()
    )
    falls = [Label.FAILS if one.low > 0 else smoother(one.high) for one in steps.values()]
    paths = "; ".join(
        f"$\\tau = {tau}$: {found.number(f'inside/{tau}/before'):.4f} to {found.number(f'inside/{tau}/after'):.4f}"
        for tau in steps
    )
    return Ruling(
        together([decided(held), *falls]),
        f"The largest change of the expected gap over one local step is {listed}: it falls. The repaired bound, which "
        f"decreases in $t$, {'lies' if held else 'does not lie'} above it at every local step. A remark beside the "
        "claim: "
        "the server steps from the weights that it broadcast and leaves the local steps behind, so at a "
        "synchronization "
        f"the gap goes up from that of the clients' mean ({paths}); from one synchronization to the next it falls "
        "(docs/paper/theory.md, Convergence).",
    )

"""Rules for remarks that the part `variations` tests: precision, fluctuations, model differences, inside a round."""

from __future__ import annotations

from cepam_paper.verdict import Estimate, Findings, Label, decided


def precise(found: Findings) -> tuple[Label, str]:
    """Whether alpha lies among the sizes that gradients have."""
    alpha, low, high = (found.number(f"precision/{name}") for name in ("alpha", "tenth", "ninetieth"))
    return decided(low <= alpha <= high), (
        f"Eight in ten coordinates of clipped gradients that are not 0 lie between {low:.2g} and {high:.2g} (median "
        f"{found.number('precision/median'):.2g}). In LRSUQ alpha cancels, since the cell is scaled to each layer by "
        "beta(U) (docs/exactness.md, The integer construction); in the published code it makes the noise vanish for n "
        "= 2 and 3."
    )


def fluctuations(found: Findings) -> tuple[Label, str]:
    """Whether more samples and a falling rate each smooth the curves."""
    averaged, falling = found.estimate("change/averaged"), found.estimate("change/falling")
    base = found.number("fluctuation/base/mean")
    return decided(averaged.high < 0 and falling.high < 0), (
        f"From one evaluated round to the next validation accuracy changes by {base:.2f} points (root mean square, "
        f"clipped FL). Ten times the samples change that by {averaged}, a falling rate by {falling}, both by "
        f"{found.estimate('change/both')}."
    )


def _trend(rise: Estimate) -> str:
    """What accuracy does between two noise levels, as far as the interval can tell."""
    return "rises" if rise.low > 0 else "falls" if rise.high < 0 else "is flat"


def coincides(found: Findings) -> tuple[Label, str]:
    """Whether accuracy follows the noise alike on model differences and on gradients."""
    ends = ("rise_before", "rise_after")
    differences = [found.estimate(f"difference_{end}") for end in ends]
    gradients = [found.estimate(f"gaussian/{end}", "grid") for end in ends]
    alike = [_trend(rise) for rise in differences] == [_trend(rise) for rise in gradients]
    return decided(alike), (
        f"Up to the label 2.5 and beyond it, accuracy on model differences changes by {differences[0]} and "
        f"{differences[1]} points, on gradients by {gradients[0]} and {gradients[1]}. The earlier study's own figures "
        "are not redone."
    )


def between_rounds(found: Findings) -> tuple[Label, str]:
    """Whether the objective falls at every iteration, synchronizations included."""
    rise = found.estimate("between_rounds_increase")
    paths = "; ".join(
        f"tau {tau}: from {found.number(f'inside/{tau}/before'):.4f} to {found.number(f'inside/{tau}/after'):.4f}"
        for tau in found.keys("inside")
    )
    return decided(rise.low <= 0), (
        "The server steps from the weights it broadcast and leaves the local steps behind, so at a synchronization the "
        f"expected gap goes up from that of the clients' mean ({paths}), by up to {rise.mean:.4f} (95 % "
        f"{rise.low:.4f} to {rise.high:.4f}). At synchronizations it falls (docs/theory.md, Convergence)."
    )

"""Claims of the abstract, the introduction and Section III: what the scheme does, and that its code does it."""

from __future__ import annotations

import itertools
from dataclasses import replace

from cepam.privacy import LARGE_EPSILON
from cepam_paper.dithering_claims import CLAIMS as DITHERING
from cepam_paper.remark_rules import coincides
from cepam_paper.verdict import Claim, Findings, Label, Ruling, decided
from cepam_paper.weighing import ANY, NO_SIZE, improvement

CUBIC = ("gaussian-1", "gaussian-2", "gaussian-3")
TRADED = "2"
"""The total epsilon at which "private and small at once" is judged."""


def certified(found: Findings, mechanisms: tuple[str, ...], key: str = "p") -> tuple[bool, str]:
    """Whether our quantizer passes for every mechanism, and the sentence that says so."""
    failed = [name for name in mechanisms if not found.flag(f"ours/{name}/passed", "exactness")]
    least = min(found.number(f"ours/{name}/{key}", "exactness") for name in mechanisms)
    alarm = found.number("false_alarm", "exactness")
    passed = len(mechanisms) - len(failed)
    said = f"LRSUQ as implemented here passes {passed} of {len(mechanisms)} certificates ({', '.join(mechanisms)})"
    return not failed, f"{said}; smallest corrected p-value {least:.3g}, chance of a false alarm {alarm:.3g}."


def published_decoder(found: Findings, mechanisms: tuple[str, ...]) -> tuple[Label, str]:
    """The label of the published program for every mechanism at once, and its noise in units of the law's."""
    passed = [found.flag(f"published/{name}/passed", "exactness") for name in mechanisms]
    ratios = ", ".join(f"{_spread(found, name)} ({name})" for name in mechanisms)
    said = f"The published program passes {sum(passed)} of {len(passed)}: its noise is {ratios} times the law's"
    return decided(all(passed)), f"{said}, by the input."


def _spread(found: Findings, name: str) -> str:
    """The published noise over the law's at an input of zero, and at a larger one where that was measured."""
    at_zero = f"{found.number(f'published/{name}/ratio', 'exactness'):.2f}"
    if not found.has(f"published/{name}/ratio_at_input", "exactness"):
        return at_zero
    return f"{at_zero} to {found.number(f'published/{name}/ratio_at_input', 'exactness'):.2f}"


def _error_law(found: Findings) -> Ruling:
    holds, said = certified(found, found.keys("ours"))
    return Ruling(decided(holds), said)


def _scalar_case(found: Findings) -> Ruling:
    holds, said = certified(found, ("gaussian-1",))
    return Ruling(
        decided(holds),
        f"{said} Dimension one needs no rejection: docs/proofs/finite-precision.md, The integer construction.",
    )


def _any_law(found: Findings) -> Ruling:
    several = all(found.flag(f"ours/{name}/passed") for name in ("gaussian-1", "laplace-1"))
    laws = sorted({name.rpartition("-")[0] for name in found.keys("ours")})
    holds, said = certified(found, found.keys("ours"))
    return Ruling(decided(holds and several), f"{len(laws)} laws ({', '.join(laws)}). {said}")


def _shared_randomness(found: Findings) -> Ruling:
    ours, ours_said = certified(found, (*CUBIC, "laplace-1"))
    program, theirs_said = published_decoder(found, (*CUBIC, "laplace-1"))
    said = f"{ours_said} {theirs_said} Its decoder draws a radius and a dither of its own."
    return Ruling(decided(ours), said, program)


def _noisy_estimate(found: Findings) -> Ruling:
    made = _shared_randomness(found)
    gains = ", ".join(f"{found.number(f'published/{name}/gain'):.3f} ({name})" for name in (*CUBIC, "laplace-1"))
    return replace(made, evidence=f"{made.evidence} Its mean gain is {gains}, where a noisy estimate has 1.")


def _clip(found: Findings) -> Ruling:
    text, program = (found.number(f"sent_norm/{reading}/cepam-gaussian-1") for reading in ("text", "published"))
    near = 1 + 1e-5
    said = (
        f"Largest norm of an update that was sent, $\\gamma = 1$: {text:.4g} in Algorithm 1 as printed. The published "
        f"program clips each of its 8 tensors by itself and sent {program:.4g}; $\\sqrt{{8}} = 2.83$ is possible."
    )
    return Ruling(decided(text <= near), said, decided(program <= near))


def _joint(found: Findings) -> Ruling:
    bits = found.number(f"bits/cepam-gaussian/{TRADED}")
    spent = found.number(f"epsilon/cepam-gaussian/{TRADED}")
    accuracy = found.number(f"accuracy/cepam-gaussian/{TRADED}/mean")
    run = found.number("quoted/epsilon_run", "privacy")
    small, private = bits < 32, spent <= float(TRADED) * (1 + 1e-3)
    said = (
        f"With the noise calibrated for the whole run, $\\epsilon = {spent:.3g}$ at $\\delta = "
        f"{found.number('delta'):.0e}$"
        f" costs {bits:.3f} bits per coordinate against 32 and reaches {accuracy:.2f} %. The paper's own settings give "
        f"$\\epsilon = {run:.4g}$ over their 80 rounds at $\\delta = 10^{{-5}}$."
    )
    return Ruling(decided(small and private and run <= LARGE_EPSILON, small and private), said)


def _tunable(found: Findings) -> Ruling:
    pairs = found.pairs("by_sigma")
    listed = ", ".join(f"{bits:.3f} at $\\sigma = {sigma:g}$" for sigma, bits in pairs)
    falling = len(pairs) > 1 and all(after[1] < before[1] for before, after in itertools.pairwise(pairs))
    said = f"Bits per coordinate of whole messages: {listed}; more noise is {'' if falling else 'not '}fewer bits."
    return Ruling(decided(falling), said)


def _finite(found: Findings) -> Ruling:
    """Finite bits, measured and by the formula, at every noise and dimension."""
    keys = {path: found.keys(path) for path in ("own_by_sigma", "adaptive_by_sigma")}
    formula, real = (
        [found.number(f"{path}/{sigma}/{n}") for sigma in sigmas for n in ("1", "2", "3")]
        for path, sigmas in keys.items()
    )
    said = (
        f"Bits per coordinate by the paper's formula {min(formula):.2f} to {max(formula):.2f}, of whole sealed "
        "messages "
        f"{min(real):.3f} to {max(real):.3f}; a float32 is 32. Finite in the mean, since "
        "$E \\log(1 + \\gamma/r)$ is; there is no bound for the worst case, as $H$ and $1/r$ have none. The published "
        "program makes no bytes."
    )
    return Ruling(decided(max(formula + real) < 32), said)


def _universal(found: Findings) -> Ruling:
    ours, ours_said = certified(found, found.keys("ours"), "independence_p")
    program, theirs_said = published_decoder(found, (*CUBIC, "laplace-1"))
    said = (
        f"Inputs from zero to huge, the error's law and its independence of the input: {ours_said} {theirs_said} Only "
        'the formula for the cost of $M$, and `coder="paper"`, want a bound on the input beforehand.'
    )
    return Ruling(decided(ours), said, program)


NOTHING = 0.01
"""A delta that falls by less than this share has not fallen: the rule of "does not contribute"."""


def _no_contribution(found: Findings) -> Ruling:
    """By the exact delta of noise and quantization error together, at a fine and at a coarse step."""
    none, fine, coarse = (found.number(f"quantized_noise/{key}") for key in ("none", "fine", "coarse"))
    falls = [1 - one / none for one in (fine, coarse)]
    small, large = (found.number(f"quantized_noise/{key}_step") for key in ("fine", "coarse"))
    said = (
        "Other clients do not know the dither, so to them the error is uniform noise besides the mechanism's own. "
        "For a "
        f"change of one deviation along one coordinate, $\\epsilon = {found.number('quantized_noise/epsilon'):g}$: "
        f"$\\delta = {none:.4f}$ without it, {fine:.4f} at the paper's step of {small:g} $\\sigma$, {coarse:.4f} at "
        f"{large:.2f} $\\sigma$, where it is as strong as the noise. A fall of less than {100 * NOTHING:g} % counts as "
        "none: the sentence is true of steps that are small against the noise. To whoever knows the dither it "
        "contributes nothing."
    )
    return Ruling(decided(max(falls) < NOTHING, falls[0] < NOTHING), said)


def _pipeline(found: Findings) -> Ruling:
    """In accuracy by the interval; failing that, a rival that needs more bits at every budget is suboptimal in bits.

    Budgets of one seed share its start and its data, so that their spread says too little: they settle nothing.
    """
    overall, budgets = found.estimate("difference_all"), found.keys("difference")
    means = ", ".join(f"{found.number(f'difference/{budget}/mean'):+.2f} at {budget}" for budget in budgets)
    times = [
        found.number(f"bits/fl+gaussian+sdq/{budget}") / found.number(f"bits/cepam-gaussian/{budget}")
        for budget in budgets
    ]
    kind = "budgets as repetitions of one seed" if found.number("seeds") == 1 else f"{found.number('seeds'):.0f} seeds"
    said = (
        f"In accuracy, at equal total $\\epsilon$, CEPAM less Gaussian+SDQ is {overall} points over {len(budgets)} "
        f"budgets, {kind} ({means}). In bits the rival needs {min(times):.1f} to {max(times):.1f} times as many."
    )
    accuracy = Label.INCONCLUSIVE if found.number("seeds") == 1 else improvement(overall, ANY)
    bits = min(times) > 1
    if accuracy is Label.HOLDS or not bits:
        return Ruling(accuracy, f"{said} {NO_SIZE}")
    told = "one seed settles nothing" if found.number("seeds") == 1 else "not shown to be"
    return Ruling(Label.REPAIRED, f"{said} Suboptimal in bits, then; in accuracy {told}.")


CLAIMS = (
    Claim(
        "joint", "Abstract; Sections I, III and VI",
        "CEPAM achieves both objectives simultaneously: communication efficiency and privacy protection between "
        "parties.",
        "tradeoff", "cepam reproduce tradeoff", _joint,
    ),
    Claim(
        "error-law", "Abstract; Section I",
        "RSUQ, a randomized vector quantizer whose quantization error is equivalent to a prescribed noise.",
        "exactness", "cepam reproduce exactness", _error_law,
    ),
    Claim(
        "any-law", "Abstract; Section I",
        "… which can be tuned to customize privacy protection; by appropriately configuring RSUQ, CEPAM can emulate "
        "different privacy mechanisms.",
        "exactness", "cepam reproduce exactness", _any_law,
    ),
    Claim(
        "pipeline", "Section I",
        "This DP-then-quantize pipeline is suboptimal: the aggregated error is no longer exactly controlled, which "
        "harms the model accuracy.",
        "tradeoff", "cepam reproduce tradeoff", _pipeline, True,
    ),
    Claim(
        "no-contribution", "Section I",
        "[In the DP-then-quantize pipeline] the quantization error itself does not contribute to privacy protection "
        "against other curious clients.",
        "privacy", "cepam reproduce privacy", _no_contribution,
    ),
    Claim(
        "finite", "Sections I and II-D, property 2",
        "RSUQ exactly simulates any continuous additive-noise channel with finite communication; the estimation is "
        "represented by finite bits per sample.",
        "rate", "cepam reproduce rate", _finite,
    ),
    Claim(
        "universal", "Section II-D, property 3",
        "Universal source: the scheme operates reliably irrespective of the distribution of $X$ and without prior "
        "knowledge of it.",
        "exactness", "cepam reproduce exactness", _universal,
    ),
    Claim(
        "tunable", "Section I",
        "… thereby enabling a tunable trade-off between privacy protection and communication cost within a unified "
        "framework.",
        "rate", "cepam reproduce rate", _tunable,
    ),
    Claim(
        "coincides", "Section I",
        "The observed behavior coincides with that obtained when compressing model differences in the previous study.",
        "variations", "cepam reproduce variations grid", coincides, True,
    ),
    *DITHERING,
    Claim(
        "scalar-case", "Section III",
        "CEPAM generalizes schemes of earlier work, as scalar quantization is a special case of vector quantization "
        "when the "
        "dimension is one.",
        "exactness", "cepam reproduce exactness", _scalar_case,
    ),
    Claim(
        "clip", "Section III, encoding",
        "Client k clips the gradient by the clipping threshold so that the 2-norm of the clipped gradient is at "
        "most gamma.",
        "gaussian", "cepam reproduce gaussian", _clip,
    ),
    Claim(
        "shared-randomness", "Section III, initialization and decoding",
        "The server generates the same realizations of dither signals and latent random variables according to the "
        "random seed shared with client k.",
        "exactness", "cepam reproduce exactness", _shared_randomness,
    ),
    Claim(
        "noisy-estimate", "Section III, decoding",
        "Through the decoding process, the estimated sub-vectors are guaranteed to be noisy estimates of the clipped "
        "gradients, thereby implementing a privacy mechanism.",
        "exactness", "cepam reproduce exactness", _noisy_estimate,
    ),
)  # fmt: skip

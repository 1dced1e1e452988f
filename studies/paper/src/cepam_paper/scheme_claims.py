"""Claims of the abstract, the introduction and Section III: what the scheme does, and that its code does it."""

from __future__ import annotations

import itertools

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
    about = "independence" if key == "independence_p" else "the law"
    said = (
        f"LRSUQ passes the tests of its error in {passed} of {len(mechanisms)} cases ({_grouped(mechanisms)}); the "
        f"least corrected p-value of {about} is {least:.3g}; below {alarm:g} it fails."
    )
    return not failed, said


def published_decoder(found: Findings, mechanisms: tuple[str, ...]) -> tuple[Label, str]:
    """The label of the published program for every mechanism at once, and its noise in units of the law's."""
    passed = [found.flag(f"published/{name}/passed", "exactness") for name in mechanisms]
    ends = [end for name in mechanisms for end in _spread(found, name)]
    said = (
        f"The published program passes {sum(passed)} of {len(passed)}: its error has {min(ends):.2f} to "
        f"{max(ends):.2f} times the prescribed standard deviation, by the input."
    )
    return decided(all(passed)), said


def _named(mechanism: str) -> str:
    """`gaussian-2` as `Gaussian on Z2`."""
    law, _, lattice = mechanism.partition("-")
    return f"{law.capitalize()} on {f'Z{lattice}' if lattice.isdigit() else lattice}"


def _grouped(mechanisms: tuple[str, ...]) -> str:
    """The lattices of every law."""
    names = [_named(one).partition(" on ") for one in mechanisms]
    laws = dict.fromkeys(law for law, _, _ in names)
    return "; ".join(f"{law} on {', '.join(on for one, _, on in names if one == law)}" for law in laws)


def _spread(found: Findings, name: str) -> tuple[float, ...]:
    """The published noise over the law's at an input of zero, and at a larger one where that was measured."""
    keys = [key for key in ("ratio", "ratio_at_input") if found.has(f"published/{name}/{key}", "exactness")]
    return tuple(found.number(f"published/{name}/{key}", "exactness") for key in keys or ["ratio"])


def _error_law(found: Findings) -> Ruling:
    holds, said = certified(found, found.keys("ours"))
    return Ruling(decided(holds), said)


def _scalar_case(found: Findings) -> Ruling:
    holds, said = certified(found, ("gaussian-1",))
    return Ruling(
        decided(holds),
        f"{said} Dimension one needs no rejection (docs/proofs/finite-precision.md, The integer construction).",
    )


def _any_law(found: Findings) -> Ruling:
    several = all(found.flag(f"ours/{name}/passed") for name in ("gaussian-1", "laplace-1"))
    holds, said = certified(found, found.keys("ours"))
    return Ruling(decided(holds and several), f"Shown for Gaussian and for Laplace noise. {said}")


def _shared_randomness(found: Findings) -> Ruling:
    ours, ours_said = certified(found, (*CUBIC, "laplace-1"))
    program, theirs_said = published_decoder(found, (*CUBIC, "laplace-1"))
    said = f"{ours_said} {theirs_said} Its decoder draws a radius and a dither of its own."
    return Ruling(decided(ours), said, program)


def _noisy_estimate(found: Findings) -> Ruling:
    ours, ours_said = certified(found, (*CUBIC, "laplace-1"))
    program, _ = published_decoder(found, (*CUBIC, "laplace-1"))
    gains = ", ".join(
        f"{found.number(f'published/{name}/gain'):.3f} ({_named(name)})" for name in (*CUBIC, "laplace-1")
    )
    said = (
        f"{ours_said} A noisy estimate is right in the mean. The published decoder multiplies its input in the mean by "
        f"{gains}."
    )
    return Ruling(decided(ours), said, program)


def _clip(found: Findings) -> Ruling:
    text, program = (found.number(f"sent_norm/{reading}/cepam-gaussian-1") for reading in ("text", "published"))
    near = 1 + 1e-5
    said = (
        f"With $\\gamma = 1$ the largest norm of a clipped update is {text:.4g} in Algorithm 1 as printed. The "
        f"published program clips each of its 8 tensors by itself: the largest norm is {program:.4g}, and "
        "$\\sqrt{8} = 2.83$ is possible."
    )
    return Ruling(decided(text <= near), said, decided(program <= near))


def _joint(found: Findings) -> Ruling:
    bits = found.number(f"bits/cepam-gaussian/{TRADED}")
    spent = found.number(f"epsilon/cepam-gaussian/{TRADED}")
    accuracy = found.number(f"accuracy/cepam-gaussian/{TRADED}/mean")
    run = found.number("quoted/epsilon_run", "privacy")
    small, private = bits < 32, spent <= float(TRADED) * (1 + 1e-3)
    said = (
        f"The paper's own settings give $\\epsilon = {run:.4g}$ over their 80 rounds at $\\delta = 10^{{-5}}$; more "
        f"than {LARGE_EPSILON:g} counts as no protection here. With the noise calibrated for the whole run, "
        f"$\\epsilon = {spent:.3g}$ at $\\delta = {found.number('delta'):.0e}$ costs {bits:.3f} bits per coordinate, "
        f"where a float32 has 32, and reaches {accuracy:.2f} % accuracy."
    )
    return Ruling(decided(small and private and run <= LARGE_EPSILON, small and private), said)


def _tunable(found: Findings) -> Ruling:
    pairs = found.pairs("by_sigma")
    listed = ", ".join(f"{bits:.3f} at $\\sigma = {sigma:g}$" for sigma, bits in pairs)
    falling = len(pairs) > 1 and all(after[1] < before[1] for before, after in itertools.pairwise(pairs))
    said = f"Bits per coordinate of whole messages: {listed}. More noise takes {'' if falling else 'not always '}fewer."
    return Ruling(decided(falling), said)


def _finite(found: Findings) -> Ruling:
    """Finite bits, measured and by the formula, at every noise and dimension."""
    keys = {path: found.keys(path) for path in ("own_by_sigma", "adaptive_by_sigma")}
    formula, real = (
        [found.number(f"{path}/{sigma}/{n}") for sigma in sigmas for n in ("1", "2", "3")]
        for path, sigmas in keys.items()
    )
    said = (
        f"Bits per coordinate: {min(formula):.2f} to {max(formula):.2f} by the paper's formula, {min(real):.3f} to "
        f"{max(real):.3f} in whole sealed messages; a float32 has 32. The mean is finite, since $E \\log(1 + "
        "\\gamma/r)$ is. The worst case has no bound, since $H$ and $1/r$ have none. The published program makes no "
        "bytes."
    )
    return Ruling(decided(max(formula + real) < 32), said)


def _universal(found: Findings) -> Ruling:
    ours, ours_said = certified(found, found.keys("ours"), "independence_p")
    program, theirs_said = published_decoder(found, (*CUBIC, "laplace-1"))
    said = (
        f"The tests use inputs from zero to huge. {ours_said} {theirs_said} A bound on the input is needed in advance "
        'only for the formula of the cost of $M$ and for `coder="paper"`.'
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
        "Other clients do not know the dither, so for them the quantization error is more noise. Example: $\\epsilon "
        f"= {found.number('quantized_noise/epsilon'):g}$, a change of one $\\sigma$ in one coordinate. Without "
        f"quantization $\\delta = {none:.4f}$. At the paper's step of {small:g} $\\sigma$ it is {fine:.4f}. At "
        f"{large:.2f} $\\sigma$, where the error is as strong as the noise, it is {coarse:.4f}. A fall of less than "
        f"{100 * NOTHING:g} % counts as no contribution, so the sentence is true for small steps only. Whoever knows "
        "the dither gains nothing from the error at any step."
    )
    return Ruling(decided(max(falls) < NOTHING, falls[0] < NOTHING), said)


def _pipeline(found: Findings) -> Ruling:
    """By the accuracy, which the sentence names; what the rival costs in bits stands beside it.

    Budgets of one seed share its start and its data, so that their spread says too little: they settle nothing.
    """
    overall, budgets, seeds = found.estimate("difference_all"), found.keys("difference"), found.number("seeds")
    means = ", ".join(f"{found.number(f'difference/{budget}/mean'):+.2f} at {budget}" for budget in budgets)
    times = [
        found.number(f"bits/fl+gaussian+sdq/{budget}") / found.number(f"bits/cepam-gaussian/{budget}")
        for budget in budgets
    ]
    alone = seeds == 1
    mean = f"{overall.mean:+.2f} points from one seed, which settles nothing" if alone else f"{overall} points"
    said = (
        f"Accuracy at equal total $\\epsilon$, CEPAM less Gaussian+SDQ: {mean} ({means}). The grids of Section V-C "
        f"have rows of their own. In bits the pipeline is worse: it needs {min(times):.1f} to {max(times):.1f} times "
        "as many."
    )
    return Ruling(Label.INCONCLUSIVE if alone else improvement(overall, ANY), f"{said} {NO_SIZE}")


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
        "when the dimension is one.",
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

"""Claims of the abstract, the introduction and Section III: what the scheme does, and that its code does it."""

from __future__ import annotations

import itertools

from cepam.privacy import LARGE_EPSILON
from cepam_paper.remark_rules import coincides
from cepam_paper.verdict import Claim, Findings, Label, decided

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


def published_decoder(found: Findings, mechanisms: tuple[str, ...]) -> tuple[bool, str]:
    """Whether the published decoder passes for every mechanism, and its noise in units of the law's."""
    passed = [found.flag(f"published/{name}/passed", "exactness") for name in mechanisms]
    ratios = ", ".join(f"{_spread(found, name)} ({name})" for name in mechanisms)
    said = f"The published decoder passes {sum(passed)} of {len(passed)}: its noise is {ratios} times the law's"
    return all(passed), f"{said}, by the input."


def _spread(found: Findings, name: str) -> str:
    """The published noise over the law's at an input of zero, and at a larger one where that was measured."""
    at_zero = f"{found.number(f'published/{name}/ratio', 'exactness'):.2f}"
    if not found.has(f"published/{name}/ratio_at_input", "exactness"):
        return at_zero
    return f"{at_zero} to {found.number(f'published/{name}/ratio_at_input', 'exactness'):.2f}"


def _error_law(found: Findings) -> tuple[Label, str]:
    holds, said = certified(found, found.keys("ours"))
    return decided(holds), said


def _scalar_case(found: Findings) -> tuple[Label, str]:
    holds, said = certified(found, ("gaussian-1",))
    return decided(holds), f"{said} Dimension one needs no rejection: docs/exactness.md, The integer construction."


def _any_law(found: Findings) -> tuple[Label, str]:
    several = all(found.flag(f"ours/{name}/passed") for name in ("gaussian-1", "laplace-1"))
    laws = sorted({name.rpartition("-")[0] for name in found.keys("ours")})
    holds, said = certified(found, found.keys("ours"))
    return decided(holds and several), f"{len(laws)} laws ({', '.join(laws)}). {said}"


def _shared_randomness(found: Findings) -> tuple[Label, str]:
    ours, ours_said = certified(found, (*CUBIC, "laplace-1"))
    theirs, theirs_said = published_decoder(found, (*CUBIC, "laplace-1"))
    return decided(theirs, ours), f"{theirs_said} {ours_said}"


def _noisy_estimate(found: Findings) -> tuple[Label, str]:
    label, said = _shared_randomness(found)
    gains = ", ".join(f"{found.number(f'published/{name}/gain'):.3f} ({name})" for name in (*CUBIC, "laplace-1"))
    return label, f"{said} Its mean gain on the update is {gains}, where a noisy estimate has 1."


def _clip(found: Findings) -> tuple[Label, str]:
    bound, text, published = (found.number(f"clip/{key}") for key in ("bound", "text_largest", "published_largest"))
    said = f"Bound {bound:g}: the whole vector clipped reaches {text:.4g}; tensors clipped one by one reach "
    near = bound * (1 + 1e-5)
    return decided(text <= near and published <= near, text <= near), f"{said}{published:.4g} (the published code)."


def _joint(found: Findings) -> tuple[Label, str]:
    bits = found.number(f"bits/cepam-gaussian/{TRADED}")
    spent = found.number(f"epsilon/cepam-gaussian/{TRADED}")
    accuracy = found.number(f"accuracy/cepam-gaussian/{TRADED}/mean")
    run = found.number("quoted/epsilon_run", "privacy")
    small, private = bits < 32, spent <= float(TRADED) * (1 + 1e-3)
    said = (
        f"With the noise calibrated for the whole run, epsilon {spent:.3g} at delta {found.number('delta'):.0e} costs "
        f"{bits:.3f} bits a coordinate against 32 and reaches {accuracy:.2f} %. The paper's own settings give "
        f"epsilon {run:.4g} over their 80 rounds at delta 1e-5."
    )
    return decided(small and private and run <= LARGE_EPSILON, small and private), said


def _tunable(found: Findings) -> tuple[Label, str]:
    pairs = found.pairs("by_sigma")
    listed = ", ".join(f"{bits:.3f} at sigma {sigma:g}" for sigma, bits in pairs)
    falling = len(pairs) > 1 and all(after[1] < before[1] for before, after in itertools.pairwise(pairs))
    said = f"Bits a coordinate of whole messages: {listed}; more noise is {'' if falling else 'not '}fewer bits."
    return decided(falling), said


def _pipeline(found: Findings) -> tuple[Label, str]:
    overall, budgets = found.estimate("difference_all"), found.keys("difference")
    means = ", ".join(f"{found.number(f'difference/{budget}/mean'):+.2f} at {budget}" for budget in budgets)
    said = f"At equal total epsilon, CEPAM less Gaussian+SDQ is {overall} points over {len(budgets)} budgets ({means})."
    return decided(overall.low > 0), said


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
        "tradeoff", "cepam reproduce tradeoff", _pipeline,
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
        "variations", "cepam reproduce variations grid", coincides,
    ),
    Claim(
        "scalar-case", "Section III",
        "CEPAM generalizes [earlier] schemes, as scalar quantization is a special case of vector quantization when the "
        "dimension is one.",
        "exactness", "cepam reproduce exactness", _scalar_case,
    ),
    Claim(
        "clip", "Section III, encoding",
        "Client k clips the gradient by the clipping threshold so that the 2-norm of the clipped gradient is at "
        "most gamma.",
        "privacy", "cepam reproduce privacy", _clip,
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

"""Claims of Section II: dithered quantization, the chance of acceptance, the law of the layered quantizer's error."""

from __future__ import annotations

from cepam_paper.verdict import Claim, Findings, Ruling, decided

KEYS = ("measured", "volumes")


def _uniform(found: Findings) -> Ruling:
    names = found.keys("dithered")
    uniform = min(found.number(f"dithered/{name}/uniform_p") for name in names)
    apart = min(found.number(f"dithered/{name}/independent_p") for name in names)
    alarm = found.number("false_alarm")
    said = (
        f"SDQ on {', '.join(names)}, the error in coordinates of the cell. Least p-value, corrected for the number of "
        f"tests: {uniform:.3g} of uniformity, {apart:.3g} of independence of the input. A false alarm has chance "
        f"{alarm:g} each."
    )
    return Ruling(decided(min(uniform, apart) > alarm), said)


def _acceptance(found: Findings) -> Ruling:
    names = found.keys("acceptance")
    worst = max(abs(found.number(f"acceptance/{name}/z")) for name in names)
    listed = ", ".join(
        " for ".join(f"{found.number(f'acceptance/{name}/{key}'):.4f}" for key in KEYS) + f" ({name})" for name in names
    )
    said = (
        f"Measured, for $\\mu(\\mathcal{{A}})/\\mu(\\mathcal{{P}})$: {listed}. That is at most {worst:.2f} standard "
        "errors off; 4.5 are allowed, a false alarm of chance 7e-6 each."
    )
    return Ruling(decided(worst < 4.5), said)


def _special_case(found: Findings) -> Ruling:
    same, of = found.number("special_case/equal"), found.number("special_case/of")
    said = f"With every error accepted, {same:.0f} of {of:.0f} decoded values are those of SDQ, bit for bit."
    return Ruling(decided(same == of), said)


def _any_input(found: Findings) -> Ruling:
    names = found.keys("ours")
    failed = [name for name in names if not found.flag(f"ours/{name}/passed")]
    least = min(found.number(f"ours/{name}/independence_p") for name in names)
    said = (
        f"LRSUQ passes the tests of its error in {len(names) - len(failed)} of {len(names)} cases, on inputs from "
        f"zero to huge. The least corrected p-value of independence is {least:.3g}. The proof: "
        "docs/proofs/finite-precision.md."
    )
    return Ruling(decided(not failed), said)


CLAIMS = (
    Claim(
        "sdq-error", "Section II-B",
        "The quantization error of SDQ is uniformly distributed over the basic cell and statistically independent of "
        "the input signal.",
        "exactness", "cepam reproduce exactness", _uniform,
    ),
    Claim(
        "acceptance", "Section II-B, footnote",
        "It is easy to see that the acceptance probability is $\\mu(\\mathcal{A})/\\mu(\\mathcal{P})$.",
        "exactness", "cepam reproduce exactness", _acceptance,
    ),
    Claim(
        "sdq-special", "Section II-B",
        "When $\\mathcal{A} = \\mathcal{P}$, SDQ is a special case of RSUQ.",
        "exactness", "cepam reproduce exactness", _special_case,
    ),
    Claim(
        "proposition-4", "Section II-B, Proposition 4",
        "For any random input $X$, the quantization error of LRSUQ follows the pdf $f$, independent of $X$.",
        "exactness", "cepam reproduce exactness", _any_input,
    ),
)  # fmt: skip

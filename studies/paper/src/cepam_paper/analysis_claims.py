"""Claims of Section IV: privacy, compression, distortion and convergence."""

from __future__ import annotations

from cepam_paper.remark_rules import between_rounds
from cepam_paper.scheme_claims import CUBIC, certified
from cepam_paper.verdict import Claim, Findings, Label, decided, known

LATENT = "The latents in n dimensions: docs/wire.md, section 6; the test: tests/statistical/test_certificate.py."
WORST_Z = 4.0
"""How far, in standard errors, the worst of a few dozen moments may lie from its value: chance 6e-5 for each."""


def _independent(found: Findings) -> tuple[Label, str]:
    holds, said = certified(found, found.keys("ours"), "independence_p")
    return decided(holds), f"Law and independence of the input, of neighbours and of clients: {said}"


def _gaussian_noise(found: Findings) -> tuple[Label, str]:
    holds, said = certified(found, CUBIC)
    return decided(holds), f"{said} {LATENT}"


def _laplace_noise(found: Findings) -> tuple[Label, str]:
    holds, said = certified(found, ("laplace-1",))
    return decided(holds), f"{said} {LATENT}"


def _theorem_1(found: Findings) -> tuple[Label, str]:
    printed, true, repaired = (found.number(f"theorem_1/{key}_delta") for key in ("printed", "true", "repaired"))
    tight = 1 + 1e-9
    said = (
        f"{found.text('theorem_1/case')}: at epsilon {found.number('theorem_1/epsilon'):.4g} the formula as printed "
        f"gives delta {printed:.4g}, the truth is {true:.4g}; with sensitivity 2 gamma and tau draws it is "
        f"{repaired:.4g} (docs/privacy.md, section 3; tests/privacy/test_sampled.py)."
    )
    return decided(true <= printed * tight, true <= repaired * tight), said


def _theorem_2(found: Findings) -> tuple[Label, str]:
    printed, true, l1 = (
        found.number(f"theorem_2/{key}") for key in ("printed_epsilon", "true_epsilon", "true_epsilon_l1")
    )
    said = (
        f"Printed {printed:.6g}; under l2 clipping the truth is {true:.6g}, attained; under l1 clipping it is {l1:.6g} "
        "(docs/privacy.md, section 5; tests/privacy/test_laplace.py)."
    )
    return decided(true <= printed, l1 <= printed), said


def _cost(found: Findings) -> tuple[Label, str]:
    lattices = found.keys("formula")
    rows = [
        tuple(found.number(path) for path in (f"paper_code/{n}", f"formula/{n}/printed", f"formula/{n}/repaired"))
        for n in lattices
    ]
    listed = "; ".join(
        f"{n}: {real:.3f} real, {printed:.3f} printed, {repaired:.3f} repaired"
        for n, (real, printed, repaired) in zip(lattices, rows, strict=True)
    )
    slack = 1 + 1e-2  # a mean over real messages scatters about an expectation
    printed_holds = all(real <= printed * slack for real, printed, _ in rows)
    said = f"Bits a coordinate of the paper's code by lattice (1, 2, 3: Z^n): {listed}."
    return decided(printed_holds, all(real <= repaired * slack for real, _, repaired in rows)), (
        f"{said} As printed the second term is the entropy of a function of U given U, which is 0; repaired, it is the "
        "expectation of the length, and Golomb's code takes its own length, not the entropy (docs/theory.md, Rate)."
    )


def _moment(found: Findings) -> tuple[Label, str]:
    worst, cases = abs(found.number("moment_worst_z")), found.keys("moments")
    pairs = [tuple(found.number(f"moments/{case}/{key}") for key in ("printed", "expected")) for case in cases]
    more = sum(printed > expected * (1 + 1e-9) for printed, expected in pairs)
    said = (
        f"Over {len(cases)} laws and lattices the measured mean and squared norm lie within {worst:.2f} standard "
        "errors of zero and of m times the variance of a coordinate. N Var(f), Var(f) the trace, is more in the "
        f"{more} cases where n does not divide m: the padding's noise is dropped (docs/theory.md, Quantization error)."
    )
    return decided(worst < WORST_Z and not more, worst < WORST_Z), said


def _weight_distance(found: Findings) -> tuple[Label, str]:
    violated, held = found.flag("weight_distance_printed_violated"), found.flag("weight_distance_repaired_held")
    rows = {
        case: tuple(found.number(f"weight_distance/{case}/{key}") for key in ("measured", "printed", "repaired"))
        for case in found.keys("weight_distance")
    }
    worst = max(rows, key=lambda case: rows[case][0] / max(rows[case][1], 1e-300))
    measured, printed, repaired = rows[worst]
    said = (
        f"Worst of {len(rows)} cases ({worst}): measured {measured:.4g}, printed bound {printed:.4g}, repaired bound "
        f"{repaired:.4g}, which {'held' if held else 'failed'} (docs/theory.md, Weight distance: clipping errors add "
        "up before they are squared)."
    )
    return decided(not violated, held), said


def _psi(found: Findings) -> tuple[Label, str]:
    cases = found.keys("cases")
    printed = min(found.number(f"cases/{case}/psi_printed") for case in cases)
    weighted = [found.number(f"cases/{case}/Gamma") for case in cases]
    said = (
        f"As printed, without the weights p_k, psi falls to {printed:.4g}; with them it lies between "
        f"{min(weighted):.4g} and {max(weighted):.4g} over the problems of the sweep"
    )
    if found.has("offset/printed_violated"):
        said = (
            f"{said}. A constant of {found.number('offset/offset'):.4g} added to the losses makes the printed bound "
            f"{found.number('offset/printed_bound'):.4g} where the gap is {found.number('offset/measured_gap'):.4g}"
        )
    said = f"{said} (docs/theory.md, What is wrong in the printed proof)."
    return decided(printed >= 0, min(weighted) >= -1e-9), said


def counterexample(found: Findings) -> tuple[bool, str]:
    """Whether training went above the printed bound on the gap, and the sentence that says where."""
    swept = found.flag("printed_bound_held_in_sweeps")
    if found.empty("clipping_counterexample_T"):
        return not swept, "No training with active clipping went above the printed bound."
    gap, bound = found.number("clipping_counterexample_gap"), found.number("clipping_counterexample_printed")
    said = (
        f"Two clients whose clipped gradients cancel stay {gap:.4g} above the minimum, where the printed bound "
        f"has fallen to {bound:.4g} (it is violated from T = {found.number('clipping_counterexample_T'):.0f} on)."
    )
    return gap > bound or not swept, said


def _convergence(found: Findings) -> tuple[Label, str]:
    held, cases = found.flag("repaired_bound_held_everywhere"), found.keys("cases")
    violated, said = counterexample(found)
    ratios = [found.number(f"cases/{case}/bound_over_gap") for case in cases]
    return decided(not violated, held), (
        f"{said} The repaired bound {'held' if held else 'was violated'} in {len(cases)} trainings on strongly convex "
        f"problems; at their end it is {min(ratios):.3g} to {max(ratios):.3g} times the measured gap "
        "(docs/theory.md, Convergence)."
    )


def _unbiased(found: Findings) -> tuple[Label, str]:
    violated, said = counterexample(found)
    held = found.flag("repaired_bound_held_everywhere")
    said = (
        f"{said} Clipping errors have no zero mean; where clipping is idle it holds (docs/theory.md, Active clipping)."
    )
    return decided(not violated, held), said


REDO = "cepam reproduce"
CLAIMS = (
    Claim(
        "independent-errors", "Section IV, Lemma 6",
        "The LRSUQ quantization errors are iid (over k and j), follow the pdf f, and are independent of the "
        "clipped gradient.",
        "exactness", f"{REDO} exactness", _independent,
    ),
    Claim(
        "gaussian-noise", "Section IV-A, Theorem 7",
        "If g follows a chi-squared distribution with n+2 degrees of freedom, then f follows a Gaussian "
        "distribution; the average is a noisy estimate with N(0, sigma^2/K I).",
        "exactness", f"{REDO} exactness", _gaussian_noise,
    ),
    Claim(
        "theorem-1", "Sections III and IV-A, Theorem 7 (here: Theorem 1)",
        "The average satisfies (epsilon, delta)-DP for epsilon = log(1 + p(e^epsilon~ - 1)), p = 1 - (1 - "
        "1/|D|)^(tau-1), and delta as stated.",
        "privacy", f"{REDO} privacy", _theorem_1,
    ),
    Claim(
        "laplace-noise", "Section IV-A, Theorem 8",
        "If g follows a Gamma distribution Gamma(2,1), then f follows a Laplace distribution.",
        "exactness", f"{REDO} exactness", _laplace_noise,
    ),
    Claim(
        "theorem-2", "Sections III and IV-A, Theorem 8 (here: Theorem 2)",
        "Every estimate satisfies (epsilon, 0)-DP in one round against clients provided that epsilon~ >= 2 tau' "
        "gamma / b.",
        "privacy", f"{REDO} privacy", _theorem_2,
    ),
    Claim(
        "cost", "Section III, Algorithm 1; Section IV-B",
        "The total communication cost per communication round per client is at most "
        "N (H(Geom(p(U)) | U) + H(ceil(log |M(U)|) | U)) bits.",
        "rate", f"{REDO} rate", _cost,
    ),
    Claim(
        "moment", "Section IV-C, Proposition 9",
        "The FL quantization error has zero mean and satisfies E||Z||^2 = N Var(f).",
        "convergence", f"{REDO} convergence", _moment,
    ),
    Claim(
        "weight-distance", "Section IV-C, Proposition 10",
        "The mean-squared error of the weights is upper-bounded by eta^2 N (Var(f) + M^2) sum p_k^2.",
        "convergence", f"{REDO} convergence", _weight_distance,
    ),
    Claim(
        "theta", "Section IV-D, AS2",
        "It is clear that max theta_k <= M.",
        "convergence", f"{REDO} convergence",
        known(
            Label.REPAIRED,
            "With M the supremum of E||gradient||, as its formula says, Jensen's inequality gives the opposite; with "
            "M the largest norm of any gradient, as its sentence says, it holds. Both need a bounded domain, since "
            "gradients of strongly convex functions are unbounded (docs/theory.md; no number is involved).",
        ),
    ),
    Claim(
        "psi", "Section IV-D",
        "If the data is iid, psi goes to zero as the training size increases. In the case of non-i.i.d. data, psi is "
        "positive, and its magnitude reflects the heterogeneity.",
        "convergence", f"{REDO} convergence", _psi,
    ),
    Claim(
        "convergence", "Sections I, IV-D (Theorem 11) and VI",
        "We provide a rigorous convergence analysis: E[F(W_T)] - F(w*) <= L/(2(T+alpha)) max{4B tau^2 (tau+alpha) / "
        "(C^2 alpha (tau-1)), alpha ||W_0 - w*||}.",
        "convergence", f"{REDO} convergence", _convergence,
    ),
    Claim(
        "unbiased", "Appendix, proof of Theorem 11",
        "Since the FL quantization error has zero mean, the averaged perturbed gradients satisfy E[J_t] = J-bar_t.",
        "convergence", f"{REDO} convergence", _unbiased,
    ),
    Claim(
        "between-rounds", "Section IV-D, after Theorem 11",
        "A decreasing upper bound for all t >= 0 can also be obtained: the expected objective value decreases across "
        "[local] iterations.",
        "variations", f"{REDO} variations", between_rounds,
    ),
)  # fmt: skip

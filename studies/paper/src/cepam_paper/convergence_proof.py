"""Steps of the convergence proof put to numbers: E[J], Lemmas 12 and 13, the exponential, and psi as data grow."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy import optimize

from cepam.codec.codec import Codec
from cepam.distributions.laws import Gaussian
from cepam.lattices.lattice import E8, Integer
from cepam_paper.convergence_sweep import PROBLEM_SEED, SIZE, Outcome, problem_of
from cepam_paper.section import Table
from cepam_paper.theory.convergence import Schedule
from cepam_paper.theory.counterexamples import aligned_clients
from cepam_paper.theory.distortion import noise_energy, printed_virtual_error, virtual_error
from cepam_paper.theory.measured import mean_update, step_distance
from cepam_paper.theory.synthetic import Kind, synthetic

KIND: Kind = "logistic regression"
RECORDS = (60, 600, 6000)
HETEROGENEITY = (0.0, 1.0, 3.0)
STEPS = (5, 10, 15)
ACTIVE = 0.3


def proof_numbers(outcomes: Iterable[Outcome], draws: int, seed: int) -> dict[str, Any]:
    """Everything that the claims of the appendix are judged by."""
    return {
        "psi": _psi(), "mean_update": _mean_update(draws, seed), "lemma_12": _lemma_12(draws, seed),
        "lemma_13": _lemma_13(outcomes), "exponential": {f"{tau}": _exponential(tau) for tau in STEPS},
        "exponential_holds_up_to": float(optimize.brentq(lambda x: math.exp(-x) - 1 + x / 2, 1.0, 2.0)),
    }  # fmt: skip


def _psi() -> dict[str, Any]:
    """psi as printed and weighted: iid clients with more and more records, then clients that differ more and more."""
    found: dict[str, Any] = {"by_records": {}, "by_heterogeneity": {}}
    for records in RECORDS:
        constants = synthetic(KIND, 10, SIZE, 0.0, PROBLEM_SEED, records).constants
        found["by_records"][f"{records}"] = {"printed": constants.printed_psi, "weighted": constants.heterogeneity}
    for h in HETEROGENEITY:
        constants = problem_of(KIND, 10, h).constants
        found["by_heterogeneity"][f"{h:g}"] = {"printed": constants.printed_psi, "weighted": constants.heterogeneity}
    return found


def _mean_update(draws: int, seed: int) -> dict[str, Any]:
    """How far the mean of J lies from J-bar, in the worst coordinate's standard errors, clipping idle and active."""
    problem = problem_of(KIND, 10, 1.0)
    local = np.random.default_rng(seed).normal(scale=0.05, size=(10, SIZE))
    local[:, 0] += 0.5 * problem.radius
    found: dict[str, Any] = {"draws": draws}
    for name, clip in (("idle", problem.constants.gradient_norm), ("active", ACTIVE)):
        mean, error, bar = mean_update(
            Codec(Gaussian(0.1), Integer(1), coder="layered"), problem, local, clip, draws, seed
        )
        found[name] = {
            "clip": clip, "z": float((np.abs(mean - bar) / error).max()), "bias": float(np.linalg.norm(mean - bar)),
            "norm": float(np.linalg.norm(bar)),
        }  # fmt: skip
    return found


def _lemma_12(draws: int, seed: int) -> dict[str, float]:
    """20 clients with one gradient of norm 1 and one record each: J - J-bar is the server's step apart from its "
    "rate."""
    clients, size, clip, law = 20, 8, 0.1, Gaussian(0.05)
    weights, ones = [1 / clients] * clients, [1.0] * clients
    found = step_distance(
        Codec(law, E8, coder="layered"), aligned_clients(clients, size, 1.0), weights, clip, 1.0, draws // 4, seed
    )
    repaired = virtual_error(weights, noise_energy(law, E8, size), ones, ones, clip)
    return {
        "measured": found.value, "measured_error": found.error,
        "printed": printed_virtual_error(weights, 1, size * law.variance(size), 1.0, ones), "repaired": repaired,
        "z_of_repaired": found.z(repaired),
    }  # fmt: skip


def _lemma_13(outcomes: Iterable[Outcome]) -> dict[str, float]:
    """The largest share of its bound that the clients' deviation from their mean took, in any round of any training."""
    shares = []
    for one in outcomes:
        tau, measured = one.case.steps, one.descent.deviations
        rates = one.theory.schedule.rate(np.arange(1, len(measured) + 1) * tau - 1)
        bound = 4.0 * (tau - 1) ** 2 * np.square(rates) * one.theory.constants.mean_theta_square
        shares.append(float((measured / bound).max()))
    return {"worst": max(shares), "cases": len(shares)}


def _exponential(tau: int) -> dict[str, Any]:
    """e^-x against 1 - x/2 at L = C and t = 0, where x = tau^2 / (tau + alpha) and alpha = 4 tau."""
    x = tau**2 / (tau + Schedule(tau, 1.0, 1.0).alpha)
    return {"x": x, "left": math.exp(-x), "right": 1 - x / 2, "holds": math.exp(-x) <= 1 - x / 2}


def proof_table(numbers: dict[str, Any]) -> Table:
    """The measured steps as a table."""
    psi, mean, twelve, thirteen = (numbers[name] for name in ("psi", "mean_update", "lemma_12", "lemma_13"))
    rows = [
        (f"$\\psi$, {records} records a client, one distribution", f"{found['weighted']:.3g} with the weights $p_k$",
         f"{found['printed']:.3g} as printed; it should go to 0")
        for records, found in psi["by_records"].items()
    ] + [
        (f"$E[J] - \\bar J$, clipping {name}",
         f"{mean[name]['bias']:.4f}, worst coordinate {mean[name]['z']:.1f} standard errors",
         f"$\\|\\bar J\\| = {mean[name]['norm']:.4f}$")
        for name in ("idle", "active")
    ] + [
        ("Lemma 12: $E\\|\\bar J - J\\|^2$, 20 equal clients, $\\gamma = 0.1 M$, $N = 1$", f"{twelve['measured']:.4f}",
         f"{twelve['printed']:.4f} at most as printed, {twelve['repaired']:.4f} repaired"),
        (f"Lemma 13: deviation of the clients, worst of {thirteen['cases']} trainings",
         f"{thirteen['worst']:.3g} of the bound", "at most 1"),
    ]  # fmt: skip
    rows += [
        (f"$e^{{-x}} \\le 1 - x/2$ at $L = C$, $t = 0$, $\\tau = {tau}$", f"{one['left']:.3f}", f"{one['right']:.3f}")
        for tau, one in numbers["exponential"].items()
    ]
    return Table("proof", "Steps of the proof, measured", ("step", "found", "beside it"), tuple(rows))

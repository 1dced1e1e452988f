"""The smaller statements measured: moments of the quantization error, weight distance, rate, offsets of the losses."""

from __future__ import annotations

from typing import Any

import numpy as np

from cepam.codec.codec import Codec
from cepam.distributions.laws import Gaussian, Laplace, Law
from cepam.keys import Address
from cepam.lattices.lattice import A2, D4, E8, Integer, Lattice
from cepam_paper.convergence_sweep import SIZE, Case, problem_of
from cepam_paper.section import Table
from cepam_paper.theory.convergence import Convergence
from cepam_paper.theory.counterexamples import aligned_clients, silencing_offset, with_offset
from cepam_paper.theory.descent import descend, seeded_key, stacked
from cepam_paper.theory.distortion import noise_energy, printed_noise_energy, printed_weight_distance, weight_distance
from cepam_paper.theory.measured import noise_moments, step_distance
from cepam_paper.theory.rate import code_bits, rate, reachable_point_bits

Found = tuple[dict[str, Any], Table]
LAWS: tuple[Law, ...] = (Gaussian(0.1), Laplace(0.1))
LATTICES: tuple[Lattice, ...] = (Integer(1), A2, Integer(3), D4, E8)
_MOMENT_SIZE = 50


def moments(draws: int, seed: int) -> Found:
    """Measured E||Z||^2 and mean of Z against m times the variance, and N Var(f) as printed."""
    numbers: dict[str, Any] = {}
    rows = []
    for law in LAWS:
        for lattice in LATTICES:
            if lattice.acceptance(law.norm) < 0.01:
                continue
            found = noise_moments(law, lattice, _MOMENT_SIZE, draws, seed)
            low, high = found.energy.interval
            z, z_mean = found.energy.z(found.printed), found.mean.z(0.0)
            numbers[f"{law.name} on {lattice.name}"] = {
                "all": found.energy.value,
                "all_error": found.energy.error,
                "printed": found.printed,
                "kept": found.kept.value,
                "kept_expected": found.expected,
                "z": z,
                "z_of_mean": z_mean,
                "z_of_kept": found.kept.z(found.expected),
            }
            cells = (f"{found.energy.value:.5f}", f"[{low:.5f}, {high:.5f}]", f"{found.printed:.5f}", f"{z:+.2f}")
            kept = (f"{found.kept.value:.5f}", f"{found.expected:.5f}")
            rows.append((law.name, lattice.name, *cells, f"{z_mean:+.2f}", *kept))
    table = Table(
        "moments",
        "FL quantization error: measured energy against $N\\,\\mathrm{Var}(f)$",
        ("law", "lattice", "measured", "95 % interval", "$N\\,\\mathrm{Var}(f)$", "z", "z of the mean",
         "without padding", "$m\\,\\mathrm{Var}(f)/n$"),
        tuple(rows),
        f"m = {_MOMENT_SIZE}, {draws:,} updates through encode and decode, all sub-vectors with their padding, as the"
        " paper defines $Z$. The decoder drops the padding and its noise, which the last two columns leave out.",
    )  # fmt: skip
    return numbers, table


def distances(draws: int, seed: int) -> Found:
    """Measured weight distance against the printed and the repaired bound, including a case that breaks the printed."""
    spread = np.random.default_rng(seed).standard_normal((20, 8)) / np.sqrt(8)
    settings = (
        ("equal gradients, gamma = M", aligned_clients(20, 8, 1.0), E8, 1.0),
        ("equal gradients, gamma = 0.1 M", aligned_clients(20, 8, 1.0), E8, 0.1),
        ("equal gradients, gamma = 0.1 M, n = 1", aligned_clients(20, 8, 1.0), Integer(1), 0.1),
        ("independent gradients, gamma = 0.5", spread, E8, 0.5),
    )
    law, weights = Gaussian(0.05), [0.05] * 20
    numbers: dict[str, Any] = {}
    rows = []
    for name, gradients, lattice, clip in settings:
        norms = np.linalg.norm(gradients, axis=1)
        found = step_distance(Codec(law, lattice, coder="layered"), gradients, weights, clip, 1.0, draws, seed)
        n, noise = lattice.dimension, noise_energy(law, lattice, 8)
        printed = printed_weight_distance(1.0, weights, 8 // n, n * law.variance(n), float(norms.max()))
        repaired = weight_distance(1.0, weights, noise, norms.tolist(), clip)
        low, high = found.interval
        # The repaired bound is an equality for equal gradients, so it is judged by three standard errors.
        held = found.z(repaired) <= 3.0
        numbers[name] = {
            "measured": found.value,
            "measured_error": found.error,
            "printed": printed,
            "repaired": repaired,
            "printed_violated": bool(low > printed),
            "repaired_held": bool(held),
        }
        cells = (f"{found.value:.4f}", f"[{low:.4f}, {high:.4f}]", f"{printed:.4f}", f"{repaired:.4f}")
        rows.append(
            (name, lattice.name, *cells, "violated" if low > printed else "holds", "holds" if held else "violated")
        )
    table = Table(
        "weight_distance",
        "Weight distance E||W^ - W||^2 over eta^2: measured, printed bound, repaired bound",
        ("gradients", "lattice", "measured", "95 % interval", "printed bound", "repaired bound", "printed", "repaired"),
        tuple(rows),
        f"K = 20 clients of equal weight, m = 8, Gaussian noise of sigma {law.sigma:g}, {draws:,} draws.",
    )
    return numbers, table


def _rate_numbers(law: Law, lattice: Lattice, bound: float, size: int) -> dict[str, float]:
    """The rate formula's readings in bits per coordinate; M(U) is listed point by point where that is feasible."""
    stated = rate(law, lattice, bound, size)
    values = {"printed": stated.printed / size, "repaired": stated.repaired / size, "spent": stated.spent / size}
    if lattice.dimension == 1 or (lattice.dimension == 2 and law.norm == "l2"):
        exact = stated.trial_entropy_bits + reachable_point_bits(law, lattice, bound)
        values["repaired_without_box"] = exact / lattice.dimension
    return values


def rates(messages: int, seed: int) -> Found:
    """The rate formula against real messages of the paper's coder, less header and seal."""
    size, bound = 4096, 1.0
    draw = np.random.default_rng(seed)
    updates = draw.standard_normal((messages, size))
    updates *= 0.999 * bound / np.linalg.norm(updates, axis=1, keepdims=True)
    numbers: dict[str, Any] = {}
    rows = []
    for law in (Gaussian(0.01), Gaussian(0.2), Laplace(0.01)):
        for lattice in (Integer(1), A2, E8):
            if lattice.acceptance(law.norm) < 0.01:
                continue
            codec = Codec(law, lattice, coder="paper", bound=bound)
            spent = [code_bits(codec, x, Address(seeded_key(seed), round=i, client=0)) for i, x in enumerate(updates)]
            values = _rate_numbers(law, lattice, bound, size) | {"measured": float(np.mean(spent)) / size}
            numbers[f"{law.name} {law.scale:g} on {lattice.name}"] = values
            names = ("printed", "repaired_without_box", "repaired", "spent", "measured")
            cells = (f"{values[name]:.3f}" if name in values else "–" for name in names)
            rows.append((f"{law.name} {law.scale:g}", lattice.name, *cells))
    excess = max(values["spent"] - values["repaired"] for values in numbers.values())
    table = Table(
        "rate",
        'Rate of coder="paper" on the cell $[0, 1)^n$, bits per coordinate',
        (
            "law",
            "lattice",
            "as printed",
            "with E[ceil log|M(U)|]",
            "the same, boxed",
            "and Golomb for H",
            "real messages",
        ),
        tuple(rows),
        f"m = {size}, gamma = {bound:g}, {messages} messages each, header and seal left out. As printed: the second"
        " entropy is of a number that U determines, hence zero. A prefix code for H costs more than its entropy"
        f" (Golomb: up to {excess:.2f} bit per coordinate here), so 'at most' is not what the named code achieves."
        " Boxed: our code numbers a box of lattice coordinates around M(U), the same on the line, more points"
        " elsewhere.",
    )
    return numbers, table


def offsets(rounds: int, repetitions: int, seed: int) -> dict[str, Any]:
    """The printed bound made zero by a constant in the losses, and the gap that training from w* then shows."""
    case = Case("logistic regression")
    problem = problem_of(case.kind, case.clients, case.heterogeneity)
    law, lattice, best = case.law, case.lattice, problem.minimum[0]
    theory = Convergence(
        problem.constants,
        case.steps,
        noise_energy(law, lattice, SIZE),
        printed_noise_energy(law, lattice, SIZE),
        SIZE,
        start_square=0.0,
    )
    offset = silencing_offset(theory)
    shifted = Convergence(
        with_offset(problem.constants, offset), case.steps, theory.noise, theory.printed_noise, SIZE, 0.0
    )
    clip = problem.constants.gradient_norm
    channel = stacked(Codec(law, lattice, coder="layered"), seed)
    found = descend(problem, theory.schedule, channel, best, [rounds], clip, repetitions, seed)
    mean, low, _ = found.band()
    total = rounds * case.steps
    return {
        "offset": offset,
        "T": total,
        "printed_bound": float(shifted.printed_bound(total)),
        "repaired_bound": float(shifted.bound(total)),
        "measured_gap": float(mean[0]),
        "printed_violated": bool(low[0] > shifted.printed_bound(total)),
    }

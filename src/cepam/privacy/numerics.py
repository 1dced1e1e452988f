"""The slack of the mechanism's own arithmetic: finite dither and latent, seen on the public grid.

The codec's noise is not exactly its law: the dither is a 64-bit word times an integer, the latent a float64
from a 64-bit word. Compared after rounding to the public grid, the chance of every outcome of a whole run
is the exact one times a factor between e^-eta and e^eta, up to an event of chance kappa. Hence, at every
epsilon,

    delta' <= delta + (e^eta (1 + 2 eta) - 1) P(loss > epsilon - 2 eta) + (1 + e^epsilon) kappa,

since -d(delta)/d(epsilon) = e^epsilon Q(loss > epsilon) <= P(loss > epsilon). Charging eta to the few
outcomes whose loss exceeds epsilon, and not its total variation to all of them, is what makes the slack
small: the plain bound (1 + e^epsilon) R K m 2^-48 (`crude_slack`) would already exceed delta/100 in an
ordinary run.

The keystream is taken to be random; that it is only pseudorandom is a computational assumption, outside the
slack.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cepam.kernels.model.plan import GRID_BITS, SCALE_BITS
from cepam.privacy.account import Ledger
from cepam.privacy.release import Release

WORD_BITS = 64

LATENT_RELATIVE = 2.0**-49
"""Relative error of the radius: 2^-50 of the table, and as much for the step between two words wherever
r f(r) > 2^-14. It scales a sub-vector's draw z by at most 1 + 2^-49, which changes its density by at most
(n + |z|^2/sigma^2) 2^-49 (Gaussian) or (n + |z|_1/b) 2^-49 (Laplace) relative: d log f(z/s)/d log s.
Rounding the radius to whole units is a midpoint rule: its first order cancels, its second is below 2^-78."""

DITHER_RELATIVE = 2.0 ** (2 + (SCALE_BITS + 4) - WORD_BITS - GRID_BITS)
"""Relative error of the chance of one public-grid cell, per coordinate: 2^-46. A word times N, high half, hits an
interval with a count off by less than one preimage of 2^64; a public cell holds 2^28 of the N fine units, is cut
by at most one wrap of the box, and the acceptance probability repeats the error once: 2 · 2 · N 2^-92, and N is at
most 2^44 (16 scales) on average over layers. A partly covered cell at the edge of a layer has the same absolute
error, and layers average it out."""

WORD_MISS = 2.0**-61
"""Total variation, per sub-vector, of what the latent's table does not resolve: radii under 2^-30 scales are raised to
that, which Laplace noise in one dimension meets with chance 2^-61 and no other built-in law ever does; the step between
two words in a tail adds less than 2^-65."""

CRUDE_PER_COORDINATE = 2.0**-48 + 2.0**-50
"""Total variation per coordinate: 2^15 public cells in its support, each off by 2^-64 on either side, and
the latent."""

FLUCTUATION = 64.0 * math.log(2.0)
"""Exponent of the chance, e^-FLUCTUATION = 2^-64, that the sum of a run's squared draws exceeds its bound."""

LARGEST_SHARE = 0.01

NOT_COVERED = (
    "the server and anyone who holds a key: given the shared randomness a vector is a function of the update",
    "raw diagnostics: loss, SNR, bits, the choice of the best checkpoint, all of which look at the data",
    "message lengths, which depend on the data unless padded: whoever sees the wire sees them",
    "hyper-parameters tuned on the same private data",
    "the assumption that the keystream is indistinguishable from random",
)


@dataclass(frozen=True)
class Slack:
    """`delta` to add for the mechanism's arithmetic: its relative error `eta`, its missed chance `kappa`."""

    delta: float
    eta: float
    kappa: float
    coordinates: int


def coordinates_released(run: Release | Ledger) -> int:
    """R K m: how many coordinates the clients of a run release, in all rounds together."""
    releases = run.releases if isinstance(run, Ledger) else (run,)
    total = 0
    for release in releases:
        if release.coordinates is None:
            raise ValueError("coordinates (m, the length of an update) is needed to bound the mechanism's own slack")
        total += release.rounds * (len(release.clients) - len(release.absent)) * release.coordinates
    return total


def slack(run: Release | Ledger, epsilon: float) -> Slack:
    """What finite arithmetic may add to delta at epsilon, over the whole run.

    Adjacency, sampling, trust: as recorded. Rests on: the module's derivation, from the codec's word sizes.
    Guarantee: tests/privacy/test_numerics.py checks the inequality on perturbed laws.
    """
    many = coordinates_released(run)
    gaussian = run.releases[0].law_is_gaussian if isinstance(run, Ledger) else run.law_is_gaussian
    spread = 2.0 * math.sqrt(many * FLUCTUATION) if gaussian else math.sqrt(2.0 * many * FLUCTUATION)
    eta = LATENT_RELATIVE * (2.0 * many + spread + 2.0 * FLUCTUATION) + DITHER_RELATIVE * many
    kappa = many * WORD_MISS + 2.0**-63
    grown = (math.expm1(eta) + 2.0 * eta * math.exp(eta)) * _chance_of_loss_over(run, max(0.0, epsilon - 2.0 * eta))
    both = 1.0 + math.exp(min(epsilon, 700.0))
    return Slack(min(grown + both * kappa, crude_slack(run, epsilon)), eta, kappa, many)


def crude_slack(run: Release | Ledger, epsilon: float) -> float:
    """(1 + e^epsilon) R K m times the total variation per coordinate: the plain bound, for comparison.

    Adjacency, sampling, trust: as recorded. Rests on: total variation adds up over rounds and coordinates.
    """
    return (1.0 + math.exp(min(epsilon, 700.0))) * coordinates_released(run) * CRUDE_PER_COORDINATE


def _chance_of_loss_over(run: Release | Ledger, at: float) -> float:
    """A bound on P(loss > epsilon) from the curve: delta(epsilon - t) >= (1 - e^-t) P(loss > epsilon)."""
    best = 1.0
    ledger = run if isinstance(run, Ledger) else Ledger((run,))
    for part in (0.1, 0.25, 0.5, 1.0):
        if at * part > 0:
            best = min(best, ledger.delta(at * (1.0 - part)) / -math.expm1(-at * part))
    return best


def charged_delta(run: Release | Ledger, epsilon: float, delta: float) -> float:
    """delta plus the mechanism's own slack at epsilon, or a ValueError when the slack exceeds delta/100.

    Adjacency, sampling, trust: as recorded. Rests on: `slack`.
    """
    extra = slack(run, epsilon).delta
    if extra > LARGEST_SHARE * delta:
        raise ValueError(
            f"the mechanism's own slack, {extra:.3g}, exceeds delta/100 = {LARGEST_SHARE * delta:.3g}: "
            "choose a larger delta, a smaller epsilon, fewer rounds or a smaller model"
        )
    return delta + extra

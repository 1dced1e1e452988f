"""The law of the search coder: decoded less encoded is Gaussian, whatever the update; what breaks it is seen.

Fixed keys: a test passes always or never. Each statistic of the sound coder must have p > 1e-4, each control p < 1e-9.
Draws of this number see errors of several per cent in the law, no finer ones. Each control breaks one step of the coder
in one part of 32 coordinates. Scores wrong by the 1e-13 that float64 allows, correlated noise of different parts or
rounds, and errors of larger parts are not seen here: docs/search.md bounds the first, and streams of their own rule out
the second.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

import cepam
from cepam.kernels.format.plan import layered_plan
from cepam.kernels.numpy.search_coder import Part, Scores
from cepam.verify import verify
from tests.corpus import SEARCHED
from tests.statistical.conftest import KEY

Floats = npt.NDArray[np.float64]
PLAN = layered_plan(cepam.Gaussian(1.0), cepam.Integer(1))
SOUND, BROKEN = 1e-4, 1e-9


def shaped(kind: str, size: int, decibels: float) -> Floats:
    """An update of a shape whose mean square is so many decibels above the noise's."""
    rng = np.random.default_rng(5)
    x = {
        "flat": rng.normal(size=size),
        "constant": np.ones(size),
        "spiky": np.where(np.arange(size) % 256 == 3, 16.0, rng.normal(size=size)),
        "sparse": np.where(rng.random(size) < 0.02, rng.normal(size=size), 0.0),
        "structured": np.outer(rng.normal(size=size // 64), rng.normal(size=64)).reshape(-1),
        "one spike": np.where(np.arange(size) == size // 3, 1.0, 0.0),
    }[kind]
    return np.asarray(x * np.sqrt(10.0 ** (decibels / 10.0) / np.mean(x * x)))


def p_values(x: Floats, errors: Floats) -> dict[str, float]:
    """p-values: each error, their squares, how they lie to the update, and to each other."""
    along = errors @ x / np.linalg.norm(x)
    heavy = errors[:, np.argsort(-np.abs(x))[:16]]
    other = np.random.default_rng(6).normal(size=(len(x), 4))
    across = errors @ (other / np.linalg.norm(other, axis=0))
    squares = (errors**2).sum(axis=1)
    pairs = errors[:, :-1] * errors[:, 1:]
    return {
        "errors": stats.kstest(errors.reshape(-1), "norm").pvalue,
        "along the update": stats.kstest(along, "norm").pvalue,
        "mean along the update": _two_sided(along.mean() * np.sqrt(len(along))),
        "variance along the update": _two_sided(((along**2).mean() - 1.0) * np.sqrt(len(along) / 2.0)),
        "across the update": stats.kstest(across.reshape(-1), "norm").pvalue,
        "largest coordinates": stats.kstest(heavy.reshape(-1), "norm").pvalue,
        "squared norm": stats.kstest(stats.chi2.cdf(squares, errors.shape[1]), "uniform").pvalue,
        "neighbours": _two_sided(pairs.mean() * np.sqrt(pairs.size)),
        "covariance with the update": _two_sided(
            float((along[:-1] * along[1:]).mean() * np.sqrt(len(along) - 1)) if len(along) > 1 else 0.0
        ),
    }


def _two_sided(z: float) -> float:
    return float(2.0 * stats.norm.sf(abs(z)))


ORDINARY = {("flat", -30.0), ("spiky", -20.0), ("structured", -10.0)}


@pytest.mark.parametrize(
    ("kind", "decibels"),
    [
        pytest.param(kind, decibels, marks=() if (kind, decibels) in ORDINARY else pytest.mark.slow)
        for kind in ("flat", "constant", "spiky", "sparse", "structured", "one spike")
        for decibels in (-10.0, -20.0, -30.0)
    ],
)
def test_the_noise_is_gaussian_and_independent_of_the_update(kind: str, decibels: float) -> None:
    codec = cepam.Codec(cepam.Gaussian(1.0), threads=1)
    x, key, errors, versions = shaped(kind, 4096, decibels), cepam.Key.simulated(7), [], set()
    for round in range(200):
        at = cepam.Address(key, round=round, client=0)
        message = codec.encode(x, at)
        versions.add(message[0] & SEARCHED)
        errors.append(codec.decode(message, at) - x)
    assert versions == {SEARCHED}
    found = p_values(x, np.array(errors))
    assert min(found.values()) > SOUND, found


@dataclass(frozen=True)
class Sound(Part):
    """A part of the reference coder that draws once; `draw` gives the vector that is sent."""

    def draw(self, x: npt.NDArray[np.int64], energy: float, y: npt.NDArray[np.int64]) -> int:
        """The length of the code in bits, about; y becomes what is sent."""
        found = self.search(x, energy, y)
        return 12 if found is None else found[0].bit_length() + 2 * found[1].bit_length()


class NoFallback(Sound):
    """What is over the cap is searched like the rest."""

    def draw(self, x: npt.NDArray[np.int64], energy: float, y: npt.NDArray[np.int64]) -> int:
        scores = Scores(self, x, energy)
        j, ratios = self._first_race(scores)
        _, shift = self._second_race(ratios)
        y[:] = self.apply(shift, self.vector(j - 1))
        return 0


class StepReused(Sound):
    """The first step between arrivals is used for all of them, in both races."""

    def times(self, kind: int, count: int) -> Floats:
        return np.asarray(super().times(kind, 16)[0] * np.arange(1, count + 1))


class ScoresUncorrected(Sound):
    """Scores are those of three quarters of the update, and nothing makes up for it."""

    def search(self, x: npt.NDArray[np.int64], energy: float, y: npt.NDArray[np.int64]) -> tuple[int, int] | None:
        return super().search(x * 3 // 4, energy, y)


class ShorterOfTwo(Sound):
    """Of two encodings the shorter one is sent."""

    def draw(self, x: npt.NDArray[np.int64], energy: float, y: npt.NDArray[np.int64]) -> int:
        other = y.copy()
        again = Sound(self.plan, self.keys, self.segment + 100_000, self.log_size, self.number)
        lengths = super().draw(x, energy, y), again.draw(x, energy, other)
        if lengths[1] < lengths[0]:
            y[:] = other
        return min(lengths)


def drawn(kind: type[Sound], count: int, energy: float = 6.0) -> tuple[Floats, Floats]:
    """An update of |x|^2 = `energy` in 32 coordinates, and the errors of so many draws."""
    x = shaped("flat", 32, 10.0 * np.log10(energy / 32.0))
    units = np.trunc(x * PLAN.scale).astype(np.int64)
    rng, errors = np.random.default_rng(8), []
    for i in range(count):
        y = np.rint((x + rng.normal(size=32)) * PLAN.scale).astype(np.int64)
        kind(PLAN, (bytes(32), bytes(range(32))), i, 5, 0).draw(units, energy, y)
        errors.append((y - units) / PLAN.scale)
    return x, np.array(errors)


def test_a_part_of_the_reference_has_the_law() -> None:
    found = p_values(*drawn(Sound, 400))
    assert min(found.values()) > SOUND, found


@pytest.mark.parametrize(
    ("kind", "count", "energy"),
    [(NoFallback, 300, 6.0), (ScoresUncorrected, 150, 6.0), (ShorterOfTwo, 400, 3.0), (StepReused, 1500, 3.0)],
)
def test_what_breaks_the_law_is_seen(kind: type[Sound], count: int, energy: float) -> None:
    found = p_values(*drawn(kind, count, energy))
    assert min(found.values()) < BROKEN, found


def test_the_certificate_covers_it() -> None:
    codec = cepam.Codec(cepam.Gaussian(0.01), "Z1")
    sound = verify(codec, samples=10_000, key=KEY)
    assert sound.passed, sound.failures
    assert {"0.03 scales", "0.1 scales", "0.5 scales", "quiet with spikes"} <= {check.input for check in sound.checks}
    assert not verify(codec, samples=10_000, key=KEY, against=cepam.Gaussian(0.0102)).passed

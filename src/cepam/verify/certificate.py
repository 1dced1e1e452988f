"""The certificate: does what `decode` returns really differ from the update by noise of the codec's law?

Everything runs through the public `encode` and `decode`, on fresh keys, as a stranger would test it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cepam.codec.codec import UpdateCodec
from cepam.distributions.laws import Floats, Law
from cepam.keys import Address, Key, hkdf
from cepam.lattices.lattice import Lattice
from cepam.verify import statistics
from cepam.verify.statistics import Statistic

_BLUE, _RED, _GREY = "#3b6ea5", "#c0392b", "#888888"


def plot_errors(sample: Floats, law: Law, n: int, path: str | PathLike[str]) -> None:
    """Draw the three panels for pairs (update, error) to `path`, in its suffix's format."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as missing:
        raise ValueError("the figure needs matplotlib: pip install 'cepam[plots]'") from missing
    figure = Figure(figsize=(13, 4), layout="constrained")  # not pyplot's: the caller's backend stays as it is
    panels = figure.subplots(1, 3)
    x, errors = sample[:, 0] / law.scale, np.sort(sample[:, 1])
    z = np.linspace(errors[0], errors[-1], 4001)
    cdf = law.coordinate_cdf(z, n)
    _histogram(panels[0], errors, z, cdf, law)
    _quantiles(panels[1], errors, z, cdf, law)
    _against_input(panels[2], x, sample[:, 1] / law.scale)
    figure.suptitle(f"{law!r}: {len(errors):,} errors of one coordinate (n = {n}), all inputs together")
    figure.savefig(path, dpi=150)


def _histogram(panel: Any, errors: Floats, z: Floats, cdf: Floats, law: Law) -> None:
    panel.hist(errors / law.scale, bins=120, density=True, color=_BLUE, alpha=0.5, label="errors of decoded vectors")
    middle, density = (z[1:] + z[:-1]) / 2, np.diff(cdf) / np.diff(z)
    panel.plot(middle / law.scale, density * law.scale, color=_RED, lw=1.5, label="the law's density")
    panel.set(xlabel="error, in noise scales", ylabel="density", title="histogram")
    panel.margins(y=0.25)
    panel.legend(loc="upper right", fontsize=8)


def _quantiles(panel: Any, errors: Floats, z: Floats, cdf: Floats, law: Law) -> None:
    p = (np.arange(len(errors)) + 0.5) / len(errors)
    wanted = np.interp(p, cdf, z)
    panel.plot(wanted / law.scale, errors / law.scale, ".", ms=2, color=_BLUE)
    ends = np.array([errors[0], errors[-1]]) / law.scale
    panel.plot(ends, ends, color=_RED, lw=1)
    panel.set(xlabel="quantile of the law", ylabel="quantile of the errors", title="Q-Q, in noise scales")


def _against_input(panel: Any, x: Floats, errors: Floats) -> None:
    panel.plot(x, errors, ".", ms=1, alpha=0.3, color=_BLUE)
    panel.axhline(0.0, color=_GREY, lw=0.8)
    panel.set_xscale("symlog", linthresh=1e-7)
    panel.set_xticks([-1e6, -1e3, -1, -1e-3, -1e-6, 0, 1e-6, 1e-3, 1, 1e3, 1e6])
    panel.tick_params(axis="x", rotation=60, labelsize=8)
    panel.set(xlabel="input, in noise scales", ylabel="error, in noise scales", title="error against input")


Report = Callable[[float, str], None]

FALSE_ALARM = 1e-3
SAMPLES = 50_000
LEAST_SAMPLES = 10_000
ALL_INPUTS = "all inputs"
_LAGS = (1, 8, 128)
_KEPT_FOR_PLOTS = 4000
_MAGNITUDES = (1e-6, 1e-3, 1.0, 1e3, 1e6)
_QUIET = (0.03, 0.1, 0.5)
"""Sizes of updates that noise drowns: what the search coder is for."""


class CertifiedCodec(UpdateCodec, Protocol):
    """What can be certified: a codec, or a stand-in for one, that says its law."""

    @property
    def law(self) -> Law: ...
    @property
    def on(self) -> Lattice: ...
    @property
    def grid(self) -> float: ...


@dataclass(frozen=True)
class Check:
    """One statistic: what it is about, on which input and lattice, its value and its p-value."""

    lattice: str
    input: str
    about: str
    statistic: str
    value: float
    p_value: float


@dataclass(frozen=True)
class Certificate:
    """Every check of a codec's noise with its p-value, and the verdict at a stated false-alarm rate.

    Args:
        law: The distribution that was tested for.
        lattice: The codec's lattice.
        samples: Sub-vectors per input.
        false_alarm: Most probability that a correct codec fails, however the checks depend on each other (Holm's
            method).
        checks: Each check with its statistic and p-value.
        sample: Pairs (update, error) of one coordinate, for a picture.
    """

    law: str
    lattice: str
    samples: int
    false_alarm: float
    checks: tuple[Check, ...] = field(repr=False)
    sample: Floats = field(repr=False, compare=False)

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that Holm's procedure rejects."""
        ranked = sorted(self.checks, key=lambda check: check.p_value)
        for rank, check in enumerate(ranked):
            if check.p_value > self.false_alarm / (len(ranked) - rank):
                return tuple(ranked[:rank])
        return tuple(ranked)

    @property
    def passed(self) -> bool:
        """Whether nothing was rejected."""
        return not self.failures

    @property
    def least_p_value(self) -> float:
        """The smallest p-value times the number of checks (Bonferroni): under `false_alarm` means failed."""
        return min(1.0, min(check.p_value for check in self.checks) * len(self.checks))

    def as_dict(self) -> dict[str, Any]:
        """The certificate as plain values, for JSON.

        Returns:
            Values by name, for JSON.
        """
        return {
            "passed": self.passed,
            "law": self.law,
            "lattice": self.lattice,
            "samples_per_input": self.samples,
            "false_alarm_rate": self.false_alarm,
            "least_p_value_bonferroni": self.least_p_value,
            "checks": [asdict(check) for check in self.checks],
            "failures": [asdict(check) for check in self.failures],
        }


@dataclass(frozen=True)
class _Draw:
    """Errors of one message as rows, with the updates and the probability transforms that the checks read."""

    x: Floats
    errors: Floats
    uniform: Floats
    radius: Floats

    @property
    def one_each(self) -> Floats:
        """One coordinate's transform a row, a different coordinate from row to row."""
        rows = np.arange(len(self.errors))
        chosen: Floats = self.uniform[rows, rows % self.errors.shape[1]]
        return chosen


def verify(
    codec: CertifiedCodec,
    samples: int = SAMPLES,
    false_alarm: float = FALSE_ALARM,
    key: Key | None = None,
    against: Law | None = None,
    report: Report | None = None,
) -> Certificate:
    """A certificate of the codec's noise: `samples` sub-vectors on each of nine inputs and six addresses.

    A codec that may take the search coder has four inputs more, of updates that noise drowns.

    Fresh randomness unless `key` fixes it. `against` names another law to test for (a negative control). `report`
    hears the share done and what was.

    Decoded values are rounded to the public grid; a uniform jitter of one grid step, added here, makes the
    error continuous again. What that leaves is of second order in the grid: under 1e-8 in any distribution.

    Args:
        codec: What is tested.
        samples: Sub-vectors per input and address.
        false_alarm: Probability that a correct codec fails.
        key: Fixes the randomness; fresh by default.
        against: Another law to test for, as a negative control.
        report: Hears the share done.

    Returns:
        A certificate; `passed` is its verdict.

    Raises:
        ValueError: `samples` or `false_alarm` is out of range.
    """
    if not isinstance(samples, int) or samples < LEAST_SAMPLES:
        raise ValueError(f"samples must be an integer of at least {LEAST_SAMPLES}, got {samples!r}")
    if not 0 < false_alarm < 1:
        raise ValueError(f"false_alarm must lie between 0 and 1, got {false_alarm!r}")
    law, key = against or codec.law, key or Key.generate()
    checks: list[Check] = []
    kept: list[Floats] = []
    lattice, bench = codec.on, _Bench(codec, codec.on, law, samples, key)
    for done, (label, found, sample) in enumerate(bench.run()):
        checks += [Check(lattice.name, label, about, s.name, s.value, s.p_value) for about, s in found]
        kept += [sample] if len(sample) else []
        if report is not None:
            report((done + 1) / bench.stages, f"{lattice.name}: {label}")
    return Certificate(repr(law), lattice.name, samples, false_alarm, tuple(checks), np.concatenate(kept))


Found = list[tuple[str, Statistic]]


class _Bench:
    """One codec on one lattice under test."""

    @property
    def stages(self) -> int:
        """How many groups of checks there are; a codec that may search has inputs of its own."""
        return 12 + (len(_QUIET) + 1 if self.searches else 0)

    def __init__(self, codec: CertifiedCodec, lattice: Lattice, law: Law, samples: int, key: Key) -> None:
        self.codec, self.law, self.samples, self.n = codec, law, samples, lattice.dimension
        self.searches: bool = getattr(codec, "searches", False)
        # The paper's coder carries what its bound allows and no more.
        self.bound = getattr(codec, "bound", None) or np.inf
        material = hkdf(key.secret, b"cepam verify", lattice.token, 64)
        self.key = Key(material[:32])
        self.rng = np.random.default_rng(list(material[32:]))

    def run(self) -> Iterator[tuple[str, Found, Floats]]:
        """The checks, input by input, with some pairs (update, error) for the figures."""
        pooled: list[Floats] = []
        labels: list[npt.NDArray[np.int64]] = []
        for number, (label, plain) in enumerate(self._inputs()):
            x = np.clip(plain, -self.bound, self.bound)
            exact, draw = self._draw(x, Address(self.key, round=number, client=0))
            pooled.append(draw.errors)
            labels.append(statistics.probability_labels(draw.one_each))
            pairs = np.stack([draw.x[:_KEPT_FOR_PLOTS, 0], draw.errors[:_KEPT_FOR_PLOTS, 0]], axis=1)
            found = exact + self._law_checks(draw.errors) + _input_checks(draw, self.law) + _neighbours(draw)
            yield label, found, pairs
        none = np.empty((0, 2))
        kinds = np.repeat(np.arange(len(labels)), self.samples)
        same = [("is the same for every input", statistics.independence(kinds, np.concatenate(labels)))]
        yield ALL_INPUTS, self._law_checks(np.concatenate(pooled)) + same, none
        yield from ((label, found, none) for label, found in self._addresses())

    def _inputs(self) -> Iterator[tuple[str, Floats]]:
        rng, size, scale = self.rng, self.samples * self.n, self.law.scale
        yield "zero", np.zeros(size)
        yield "constant", np.full(size, 3.3 * scale)
        yield "sparse", np.where(rng.random(size) < 0.05, rng.normal(0, 20 * scale, size), 0.0)
        yield "heavy-tailed", np.clip(rng.standard_cauchy(size), -1e6, 1e6) * scale
        magnitudes = (*_MAGNITUDES, *(_QUIET if self.searches else ()))
        for magnitude in magnitudes:
            yield f"{magnitude:g} scales", rng.uniform(-magnitude, magnitude, size) * scale
        if self.searches:
            yield "quiet with spikes", np.where(np.arange(size) % 200 == 7, 3.0, rng.normal(0, 0.1, size)) * scale

    def _draw(self, x: Floats, at: Address) -> tuple[Found, _Draw]:
        vector = self.codec.decode(self.codec.encode(x, at), at)
        steps = vector / self.codec.grid
        kept = vector.dtype == x.dtype and vector.shape == x.shape
        on_grid = bool((steps == np.rint(steps)).all())
        exact = [_exact("keeps length and type", kept), _exact("is on the public grid", on_grid)]
        jitter = (self.rng.random(len(x)) - 0.5) * self.codec.grid
        errors = (vector - x + jitter).reshape(-1, self.n)
        uniform = self.law.coordinate_cdf(errors, self.n)
        radius = statistics.norm_cdf(self.law, statistics.norms(self.law, errors), self.n)
        return exact, _Draw(x.reshape(-1, self.n), errors, uniform, radius)

    def _law_checks(self, errors: Floats) -> Found:
        variance = self.law.variance(self.n)
        found: Found = []
        for i, column in enumerate(errors.T):
            uniform = self.law.coordinate_cdf(column, self.n)
            found.append((f"coordinate {i + 1} follows the law", statistics.kolmogorov_smirnov(uniform)))
        radius = statistics.norm_cdf(self.law, statistics.norms(self.law, errors), self.n)
        found.append(("radius follows the law", statistics.uniformity(radius)))
        found.append(("directions: signs are fair", statistics.orthants(errors)))
        for i, statistic in enumerate(statistics.direction_shares(self.law, errors)):
            found.append((f"directions: share of coordinate {i + 1}", statistic))
        found.append(("mean is zero", statistics.mean(errors, variance)))
        found.append(("variances are the law's", statistics.variances(errors, variance)))
        if self.n > 1:
            found.append(("coordinates are uncorrelated", statistics.covariances(errors)))
        return found

    def _addresses(self) -> Iterator[tuple[str, Found]]:
        x = np.full(self.samples * self.n, 0.7 * self.law.scale)
        here = Address(self.key, round=1000, client=0)
        _, base = self._draw(x, here)
        others = {
            "another round": replace(here, round=1001),
            "another client": replace(here, client=1),
            "another attempt": replace(here, attempt=1),
        }
        found: Found = []
        for label, there in others.items():
            _, other = self._draw(x, there)
            found += _pair(f"is independent of {label}", base.one_each, other.one_each)
            found += _pair(f"radius is independent of {label}", base.radius, other.radius)
        yield "addresses", found
        _, other = self._draw(x, replace(here, run=b"another run"))
        found = _pair("is independent of another run", base.one_each, other.one_each)
        _, other = self._draw(x, replace(here, key=Key(hkdf(self.key.secret, b"", b"another key", 32))))
        yield "keys and runs", found + _pair("is independent of another key", base.one_each, other.one_each)


def _exact(about: str, holds: bool) -> tuple[str, Statistic]:
    return about, Statistic("exact", float(holds), float(holds))


def _pair(about: str, a: Floats, b: Floats) -> Found:
    return [(about, statistics.independence(statistics.probability_labels(a), statistics.probability_labels(b)))]


def _input_checks(draw: _Draw, law: Law) -> Found:
    rows = np.arange(len(draw.x))
    x = draw.x[rows, rows % draw.x.shape[1]]
    if (x == x[0]).all():
        return []
    error, radius = statistics.probability_labels(draw.one_each), statistics.probability_labels(draw.radius)
    sizes = statistics.norms(law, draw.x)
    return [
        ("is independent of the input", statistics.independence(statistics.value_labels(x), error)),
        ("radius is independent of the input", statistics.independence(statistics.value_labels(sizes), radius)),
        (
            "is independent of its input's size",
            statistics.independence(statistics.value_labels(np.abs(x)), error),
        ),
    ]


def _neighbours(draw: _Draw) -> Found:
    found: Found = []
    for lag in _LAGS:
        whole = len(draw.radius) // (2 * lag) * 2 * lag
        for about, u in (("is", draw.one_each), ("radius is", draw.radius)):
            pairs = u[:whole].reshape(-1, 2, lag)
            first, second = pairs[:, 0].ravel(), pairs[:, 1].ravel()
            found += _pair(f"{about} independent of the sub-vector {lag} on", first, second)
    return found

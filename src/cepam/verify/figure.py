"""The certificate's figure: error histogram over the density, Q-Q, error against input."""

from __future__ import annotations

from os import PathLike
from typing import Any

import numpy as np

from cepam.distributions.laws import Floats, Law

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

"""Pictures of the convergence part: gaps under their bounds, and training that clipping holds fast."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cepam_paper.convergence_sweep import SWEEPS, Outcome, vary
from cepam_paper.theory.counterexamples import Stall
from cepam_paper.theory.synthetic import Kind

COLOURS = ("#1f77b4", "#d95f02", "#2a9d5c")
_NAMES = {"sigma": "noise sigma", "tau": "local steps tau", "K": "clients K", "heterogeneity": "heterogeneity"}


def _pyplot() -> Any:
    try:
        import matplotlib
    except ModuleNotFoundError as missing:
        raise ValueError("the figures need matplotlib: pip install 'cepam[plots]'") from missing
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def draw_sweeps(kind: Kind, outcomes: dict[str, Outcome], path: Path) -> None:
    """Draw one panel for each swept parameter to the file."""
    pyplot = _pyplot()
    figure, panels = pyplot.subplots(2, 2, figsize=(12, 9), layout="constrained", sharey=True)
    for panel, (name, values) in zip(panels.flat, SWEEPS.items()):
        _panel(panel, name, values, [outcomes[vary(kind, name, value).label] for value in values])
    for panel in panels[:, 0]:
        panel.set_ylabel("E[F(W_T)] - F(w*)")
    figure.suptitle(f"{kind}: measured gap with its 95 % band, and the bounds above it")
    figure.legend(handles=_styles(), loc="outside lower center", ncols=5, fontsize=9)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _styles() -> list[Any]:
    from matplotlib.lines import Line2D

    measured = Line2D([], [], color="0.3", lw=2.2, label="measured")
    met = Line2D([], [], color="0.3", lw=1.0, alpha=0.6, marker=".", ms=4, label="iterated, drift and energy as met")
    bounds = (("repaired, iterated", "-."), ("repaired, closed form", "--"), ("printed", ":"))
    return [measured, met, *(Line2D([], [], color="0.3", ls=style, label=text) for text, style in bounds)]


def _panel(panel: Any, name: str, values: Sequence[float], outcomes: Sequence[Outcome]) -> None:
    for colour, value, found in zip(COLOURS, values, outcomes):
        t = found.totals[1:]
        panel.plot(t, found.mean[1:], color=colour, lw=2.2, label=f"{name} = {value:g}")
        panel.fill_between(t, found.low[1:].clip(1e-9), found.high[1:], color=colour, alpha=0.25, lw=0)
        panel.plot(t, found.measured_recursion[1:], color=colour, lw=1.0, alpha=0.6, marker=".", ms=3)
        panel.plot(t, found.recursion[1:], color=colour, lw=1.0, ls="-.")
        panel.plot(t, found.bound[1:], color=colour, lw=1.2, ls="--")
        panel.plot(t, found.printed[1:], color=colour, lw=1.0, ls=":")
    panel.set(xscale="log", yscale="log", xlabel="T, local steps in all", title=_NAMES[name])
    panel.grid(True, which="major", alpha=0.25)
    panel.legend(loc="lower left", fontsize=9)


def draw_stall(stall: Stall, path: Path) -> None:
    """Draw the gap that stays, and the printed bound that falls below it, to the file."""
    pyplot = _pyplot()
    figure, panel = pyplot.subplots(figsize=(8, 5), layout="constrained")
    t = stall.totals[1:]
    panel.plot(t, stall.gaps[1:], color=COLOURS[0], lw=2, label="measured: F(W_T) - F(w*) under Algorithm 1")
    panel.plot(t, stall.printed[1:], color=COLOURS[1], ls=":", lw=2, label="printed bound")
    panel.plot(t, stall.clipped[1:], color=COLOURS[2], ls="--", lw=1.5, label="repaired bound, with its floor")
    if stall.violated_at is not None:
        panel.axvline(stall.violated_at, color="0.5", lw=0.8)
        panel.annotate(f"T = {stall.violated_at}", (stall.violated_at, 60), xytext=(-70, 0), textcoords="offset points")
    panel.set(xscale="log", yscale="log", xlabel="T, local steps in all", ylabel="optimality gap")
    panel.set_title("clipped gradients of two clients cancel: the weights stay where they started")
    panel.grid(True, which="major", alpha=0.25)
    panel.legend(loc="upper right", fontsize=9)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)

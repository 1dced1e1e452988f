"""Pictures of training runs: convergence by reading, and accuracies beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cepam_paper import printed
from cepam_paper.section import Figure
from cepam_paper.training import TrainingOutcome
from cepam_paper.variants import TELL, VARIANTS, Variant

Found = Mapping[tuple[Variant, str], TrainingOutcome]
INSET = (85.0, 95.0)
"""Per cent: where the paper's schemes differ."""
COLOURS = ("#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377", "#bbbbbb", "#000000")


def canvas(columns: int, rows: int = 1, width: float = 4.2, height: float = 3.4, **how: Any) -> tuple[Any, Any]:
    """A figure without a screen and its axes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    size = (width * columns, height * rows)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, constrained_layout=True, squeeze=False, **how)
    return figure, axes


def legend_outside(figure: Any, axis: Any, columns: int = 4) -> None:
    """Put the legend under the axes, where it covers no mark."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(columns, len(labels)), fontsize=8, frameon=False
    )


def whole_percent(axis: Any, along: str = "y", least: float | None = None) -> None:
    """End an axis of accuracies at 100 %, and begin it at `least` or below the lowest mark."""
    getter, setter = (axis.get_ylim, axis.set_ylim) if along == "y" else (axis.get_xlim, axis.set_xlim)
    setter(max(0.0, getter()[0]) if least is None else least, 100.0)


def kept(report: Path, name: str, title: str, caption: str, figure: Any) -> Figure:
    """The figure written to the report's folder."""
    from matplotlib import pyplot

    path = report / "figures" / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    pyplot.close(figure)
    return Figure(name, title, f"figures/{name}.png", caption)


def curves(report: Path, name: str, found: Found, rows: Sequence[str]) -> Figure:
    """Validation accuracy over the rounds, one panel a reading, mean and 95 % band over the seeds."""
    figure, axes = canvas(len(VARIANTS), height=3.8)
    for axis, reading in zip(axes[0], VARIANTS):
        ends = [100 * float(np.mean(found[reading, row].validation, axis=0)[-1]) for row in rows]
        inset = _inset(axis) if max(ends) > INSET[0] else None
        for colour, row in zip(COLOURS, rows):
            made = found[reading, row]
            values = 100 * np.array(made.validation)
            mean, spread = values.mean(0), values.std(0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])
            half = 1.96 * spread / len(values) ** 0.5
            for shown in (axis, inset):
                if shown is not None:
                    shown.plot(made.rounds, mean, color=colour, label=printed.LABELS[row], lw=1.3)
                    shown.fill_between(made.rounds, mean - half, mean + half, color=colour, alpha=0.15, lw=0)
        axis.set(title=f"{reading}: {TELL[reading]}", xlabel="round", ylabel="validation accuracy, %")
        axis.title.set_fontsize(9)
        axis.grid(alpha=0.3)
        whole_percent(axis, least=0.0)
    legend_outside(figure, axes[0][0])
    caption = (
        "Mean over seeds with a 95 % band; insets: 85 to 95 %. Look for schemes that leave the bundle, and in which "
        "reading they do."
    )
    return kept(report, name, "Convergence", caption, figure)


def _inset(axis: Any) -> Any:
    """Axes inside of `axis` for the accuracies in dispute."""
    inset = axis.inset_axes((0.34, 0.08, 0.62, 0.5))
    inset.set_ylim(*INSET)
    inset.tick_params(labelsize=6)
    inset.grid(alpha=0.3)
    return inset


def dots(report: Path, name: str, numbers: Mapping[str, Any], rows: Sequence[str]) -> Figure:
    """Test accuracies with their intervals side by side, by reading, beside the paper's."""
    figure, axes = canvas(2, width=5.6, height=0.55 * len(rows) + 1.4)
    for axis, shown in zip(axes[0], (("published", "correct"), ("text",))):
        marks = [("paper", "#777777", "s", [printed.ACCURACY[row] for row in rows])]
        for place, reading in enumerate(shown):
            values = [numbers["accuracy"][reading][row] for row in rows]
            pairs = [(one["mean"], 0.0 if one["low"] is None else one["high"] - one["mean"]) for one in values]
            marks.append((reading, COLOURS[4 * place], "o", pairs))
        for place, (label, colour, shape, pairs) in enumerate(marks):
            spots = np.arange(len(rows)) + 0.24 * (place - (len(marks) - 1) / 2)
            axis.errorbar(
                [mean for mean, _ in pairs], spots, xerr=[half for _, half in pairs], fmt=shape, ms=4, color=colour,
                label=label, capsize=2,
            )  # fmt: skip
        axis.set_yticks(np.arange(len(rows)), [printed.LABELS[row] for row in rows], fontsize=8)
        axis.invert_yaxis()
        axis.set(xlabel="test accuracy, %")
        axis.grid(alpha=0.3)
        whole_percent(axis, "x")
        axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, frameon=False)
    caption = "Left: the published arithmetic and the same training done right. Right: Algorithm 1 as printed."
    return kept(report, name, "Test accuracy beside the paper's", caption, figure)

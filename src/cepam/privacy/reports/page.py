"""The page that explains a guarantee: figures, epsilon over rounds, delta over epsilon.

One self-contained HTML file; the plots are inside it. Needs matplotlib (`pip install "cepam[plots]"`).
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np

from cepam._internal.page import bullets, heading, joined, number, page, paragraph, picture, table
from cepam.distributions.laws import Floats
from cepam.privacy.cohorts.cohort import CohortMechanism
from cepam.privacy.composition.account import delta_without_noise, epsilon, epsilon_by_round, slack
from cepam.privacy.composition.accountant import Accountant
from cepam.privacy.matrix.mechanism import MatrixMechanism
from cepam.privacy.mechanisms.local import LocalMechanism
from cepam.privacy.mechanisms.mechanism import Mechanism
from cepam.privacy.numerics.slack import NOT_COVERED
from cepam.privacy.reports.guarantee import Guarantee, report
from cepam.privacy.reports.warnings import AS_ACCOUNTED, Practice, privacy_warnings

POINTS = 24
SHOWN_ROUNDS = 64
MOST_ROWS = 40


def explain(
    mechanism: Mechanism,
    delta: float,
    path: str | Path,
    practice: Practice = AS_ACCOUNTED,
    observers: Mapping[str, float] | None = None,
) -> Path:
    """The page written: what the release guarantees at delta, to whom, with two plots and every caution.

    Adjacency, sampling, colluders: as recorded, and said on the page. Trust: trusted server, said on the
    page; where the server learns sums only, `observers` (`cepam.secure_aggregation.epsilons`) are shown beside.
    Rests on: `epsilon`, `report`, `privacy_warnings`, `slack`.
    """
    if not (0.0 < delta < 1.0):
        raise ValueError(f"delta must lie in (0, 1) for a page with plots, got {delta!r}")
    spent = epsilon(mechanism, delta)
    title = f"epsilon = {number(spent)} at delta = {number(delta)}"
    found = privacy_warnings(mechanism, spent, delta, practice)
    place = Path(path)
    body = [
        heading(title, 1),
        paragraph(_meaning(spent, delta, "record" if mechanism.unit == "record" else "client's data")),
        heading("What was released"),
        bullets(_facts(mechanism)),
        heading("Cautions"),
        bullets(str(one) for one in found) if found else paragraph("None."),
        *(_observers(observers) if observers else []),
        heading("Each client, epsilon against whom"),
        _table(report(mechanism, delta)),
        heading("epsilon against rounds"),
        _plot_rounds(mechanism, delta),
        heading("delta against epsilon, over the whole run"),
        _plot_curve(mechanism, spent),
        *(_correlation(mechanism) if isinstance(mechanism, MatrixMechanism) else []),
        heading("What this does not cover"),
        bullets(_uncovered(mechanism)),
        paragraph(_numerics(mechanism, spent)),
    ]
    place.write_text(page(f"cepam: {title}", body), encoding="utf-8")
    return place


def _observers(observers: Mapping[str, float]) -> list[str]:
    """The section about a server that learns sums only."""
    said = "The server learns one noisy sum a round. epsilon over the whole run, against each who looks:"
    rows = [[who, number(spent)] for who, spent in observers.items()]
    return [heading("A server that learns sums only"), paragraph(said), table(("against", "epsilon"), rows)]


def _meaning(spent: float, delta: float, unit: str) -> str:
    if spent > 700:
        return f"This is no guarantee: whatever is published may tell any {unit} apart with certainty."
    return (
        f"Whoever sees every published model, and knows all data but one {unit}, can raise the odds of a "
        f"guess about it at most e^epsilon = {number(math.exp(spent))} times, except with chance {number(delta)}."
    )


def _uncovered(mechanism: Mechanism) -> Sequence[str]:
    """What no figure covers; a server that sees noised steps only is covered."""
    return NOT_COVERED[1:] if isinstance(mechanism, LocalMechanism) else NOT_COVERED


def _facts(mechanism: Mechanism) -> list[str]:
    scales = sorted({client.law.scale for client in mechanism.clients})
    records = sorted({client.records for client in mechanism.clients})
    chances = sorted({mechanism.chance(j) for j in range(len(mechanism.clients))})
    unit = "each client's whole update" if mechanism.clipped == "update" else "each example's gradient"
    return [
        f"{number(mechanism.enrolled)} clients, {_span(records)} records each, {number(mechanism.rounds)} rounds"
        if mechanism.unit == "record"
        else f"{number(mechanism.enrolled)} clients, {number(mechanism.rounds)} rounds; protects all data of a client",
        f"{unit} clipped to {mechanism.clip.norm} norm {number(mechanism.clip.bound)}",
        f"{type(mechanism.clients[0].law).__name__} noise of scale {_span(scales)} in each {_noised(mechanism)}",
        *(_fixed_order(mechanism) if isinstance(mechanism, MatrixMechanism) else []),
        *_draws(mechanism, chances),
        f"adjacency {mechanism.adjacency}; {_trusted(mechanism)}",
        f"with no noise at all delta would be {number(delta_without_noise(mechanism))}",
    ]


def _noised(mechanism: Mechanism) -> str:
    return "local step's mean gradient" if isinstance(mechanism, LocalMechanism) else "decoded vector"


def _trusted(mechanism: Mechanism) -> str:
    if isinstance(mechanism, LocalMechanism):
        return "nobody else is trusted: the server and all other clients together see what is noised already"
    return f"{mechanism.colluders} colluding clients; the server is trusted"


def _draws(mechanism: Mechanism, chances: Sequence[float]) -> list[str]:
    if isinstance(mechanism, LocalMechanism):
        return [
            f"{_span(sorted(set(mechanism.steps)))} local steps a client and round; a given record is drawn in a step "
            f"with chance {_span(chances)} (poisson)"
        ]
    if not isinstance(mechanism, CohortMechanism):
        return [f"sampling {mechanism.sampling.kind}: a given record is drawn in a round with chance {_span(chances)}"]
    cohort = mechanism.cohort
    return [
        f"cohorts of {number(cohort.size)} ({cohort.kind}, at most {number(cohort.cap)}): a given client is asked "
        f"with chance {number(mechanism.chance(0))}, fresh and in secret; an adversary who "
        "sees participation gets another epsilon",
        f"noise of every sum {number(mechanism.topup.total)}, whoever replies: the server brings what is missing",
    ]


def _fixed_order(mechanism: MatrixMechanism) -> list[str]:
    link = mechanism.link
    shape = f"carry {number(link.carry)}" if link.bands is None else f"a matrix of {link.bands} bands"
    return [
        f"records in {link.slices} fixed slices, one a message in turn; each decoded stream is undone by {shape}",
        f"the run is {mechanism.events} event(s) of sensitivity {number(mechanism.sensitivity)}",
        f"protected: one {mechanism.unit}",
    ]


def _correlation(mechanism: MatrixMechanism) -> list[str]:
    """The noise of one stream: its correlation between rounds, and how far a sum over rounds strays."""
    shown = min(mechanism.rounds, SHOWN_ROUNDS)
    covariance = mechanism.link.noise_covariance(shown)
    spread = np.sqrt(np.diag(covariance))
    summed = np.sqrt(np.cumsum(np.cumsum(covariance, axis=0), axis=1).diagonal())
    alone = replace(mechanism, link=replace(mechanism.link, carry=0.0, coefficients=None, rows=None))
    level = alone.mu(0) / mechanism.mu(0)  # what independent noise must be multiplied by for the same epsilon
    rounds = np.arange(1, shown + 1)
    return [
        heading(f"Correlation of a stream's noise between its first {shown} messages"),
        _heat(covariance / np.outer(spread, spread)),
        heading("Noise of the sum over messages, in units of a message's noise"),
        _drawn(
            rounds.tolist(), summed.tolist(), "messages", "standard deviation", ("linear", "linear"),
            also=("independent noise of the same epsilon", (level * np.sqrt(rounds)).tolist()),
        ),
    ]  # fmt: skip


def _heat(values: Floats) -> str:
    """A picture of a correlation matrix as inline SVG."""
    figure, axes = _figure()
    shown = axes.imshow(values, cmap="RdBu", vmin=-1.0, vmax=1.0)
    axes.set(xlabel="message", ylabel="message")
    figure.colorbar(shown)
    return _svg(figure, "correlation of the noise between messages")


def _span(values: Sequence[float]) -> str:
    return number(values[0]) if len(values) == 1 else f"{number(values[0])} to {number(values[-1])}"


def _numerics(mechanism: Mechanism, spent: float) -> str:
    if mechanism.coordinates is None:
        return "The mechanism's own rounding is not charged: say how many coordinates an update has."
    found = slack(mechanism)
    extra = found.at(spent)
    return (
        f"The mechanism's own rounding is in the figure: {number(found.epsilon)} of epsilon, {number(extra)} of delta."
    )


def _table(guarantees: Sequence[Guarantee]) -> str:
    head = (
        "client",
        "noise",
        "weight",
        "records",
        "p",
        "delta",
        "outsider",
        "one curious client",
        "all others collude",
    )
    rows = (astuple(each)[: len(head)] for each in guarantees)
    shown = joined([[str(row[0]), *(number(cell) for cell in row[1:])] for row in rows])
    left_out = sum(many for _, many in shown[MOST_ROWS:])
    said = paragraph(f"And {left_out:,} more clients.") if left_out else ""
    return table(head, [row for row, _ in shown[:MOST_ROWS]]) + said


def _plot_rounds(mechanism: Mechanism, delta: float) -> str:
    last = mechanism.rounds
    rounds = sorted({max(1, round(x)) for x in np.geomspace(1, max(2, last), POINTS)})
    spent = epsilon_by_round(mechanism, delta, rounds)
    return _drawn(rounds, spent, "rounds", f"epsilon at delta = {number(delta)}", ("log", "linear"))


def _plot_curve(mechanism: Mechanism, spent: float) -> str:
    accountant = Accountant((mechanism,))
    grid = np.linspace(0.0, max(1.5 * min(spent, 700.0), 0.1), 2 * POINTS)
    curve = [max(accountant.delta(float(at)), 1e-12) for at in grid]
    return _drawn(grid.tolist(), curve, "epsilon", "delta", ("linear", "log"))


def _drawn(
    x: Sequence[float],
    y: Sequence[float],
    x_name: str,
    y_name: str,
    scales: tuple[str, str],
    also: tuple[str, Sequence[float]] | None = None,
) -> str:
    """The plot as inline SVG, with another named line where there is one."""
    figure, axes = _figure()
    axes.plot(x, y, marker=".")
    if also is not None:
        axes.plot(x, also[1], linestyle="--", label=also[0])
        axes.legend()
    axes.set(xlabel=x_name, ylabel=y_name, xscale=scales[0], yscale=scales[1])
    axes.grid(True, which="both", alpha=0.3)
    return _svg(figure, f"{y_name} against {x_name}")


def _svg(figure: Any, described: str) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight")
    return picture(buffer.getvalue(), described)


def _figure() -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise ValueError('plots need matplotlib: pip install "cepam[plots]"') from missing
    figure = Figure(figsize=(6.4, 3.6))
    return figure, figure.subplots()

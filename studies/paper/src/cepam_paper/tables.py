"""The paper's two tables and its convergence figures, in three readings beside its own numbers.

Paper: Section V-B, Tables I and II and the convergence figures.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

from cepam import fl
from cepam_paper import picture, printed
from cepam_paper.estimate import differences, estimate, median, median_words, percent, words
from cepam_paper.published import ARITHMETIC
from cepam_paper.run_size import Extent, RunSize, run_size
from cepam_paper.section import Part, Say, Table
from cepam_paper.training import TrainingOutcome, outcomes
from cepam_paper.variants import TELL, VARIANTS, Variant, run_of

LawName = Literal["gaussian", "laplace"]
Outcomes = dict[tuple[Variant, str], TrainingOutcome]
ROWS = {"gaussian": printed.GAUSSIAN_ROWS, "laplace": printed.LAPLACE_ROWS}
EXTRA: tuple[tuple[Variant, str], ...] = (
    ("text", "fl-clipped"), ("text", "fl-momentum"), ("text", "fl-server-momentum"), ("correct", "fl-rate-0.4"),
)  # fmt: skip
"""Rows that the tables do not have: other readings of "momentum 0.9", and another rate."""
SUMMARY = (
    "Test accuracy of each seed's best-validation model, mean and 95 % interval over seeds, with the paper's own "
    "figures beside them. Reading `text` is Algorithm 1 as printed; `published` is the arithmetic of the published "
    "code; `correct` is the published training with every row clipped alike and LRSUQ done right."
)


def gaussian(report: Path, extent: Extent, say: Say) -> Part:
    """Table I and its convergence figure."""
    return _part("gaussian", report, extent, say)


def laplace(report: Path, extent: Extent, say: Say) -> Part:
    """Table II and its convergence figure."""
    return _part("laplace", report, extent, say)


def _part(law: LawName, report: Path, extent: Extent, say: Say) -> Part:
    start, much = time.monotonic(), run_size(extent)
    data = fl.prepared(run_of("text", "fl", much).settings)
    found = _outcomes(law, much, report, data, say)
    numbers = _numbers(law, found, much) | {"parameters": fl.build("cnn", data).size}
    figures = (
        picture.curves(report, f"convergence-{law}", found, ROWS[law]),
        picture.dots(report, f"accuracy-{law}", numbers, ROWS[law]),
    )
    title = f"Table {'I' if law == 'gaussian' else 'II'}: test accuracy, {law.capitalize()}, in three readings"
    return Part(
        law, title, SUMMARY, f"cepam reproduce {law}", tuple(range(1, much.seeds + 1)), time.monotonic() - start,
        numbers, (_accuracy(law, numbers), _snr(law, numbers)), figures, _notes(much),
    )  # fmt: skip


def _outcomes(law: LawName, much: RunSize, report: Path, data: fl.Dataset, say: Say) -> Outcomes:
    wanted: list[tuple[Variant, str]] = [(reading, row) for reading in VARIANTS for row in ROWS[law]]
    wanted += EXTRA
    runs = {(reading, row): run_of(reading, row, much) for reading, row in wanted}
    return outcomes(runs, report, data, say)


def _numbers(law: LawName, found: Outcomes, much: RunSize) -> dict[str, Any]:
    rows = ROWS[law]
    cepam = [row for row in rows if row.startswith("cepam")]
    numbers: dict[str, Any] = {
        "seeds": much.seeds, "rounds": much.rounds,
        "paper": {row: dict(zip(("mean", "half"), printed.ACCURACY[row])) for row in rows},
        "paper_snr_db": {row: printed.SNR[row] for row in rows if row in printed.SNR},
        "accuracy": {}, "difference": {}, "curve_difference": {}, "snr_db": {}, "program_snr_db": {}, "sent_norm": {},
        "bits": {}, "arithmetic": ARITHMETIC,
    }  # fmt: skip
    for (reading, row), made in found.items():
        numbers["accuracy"].setdefault(reading, {})[row] = estimate(percent(made.accuracy))
        if made.snr is not None:
            numbers["snr_db"].setdefault(reading, {})[row] = made.snr
        ratios = [ratio for ratio in made.program_snr if ratio is not None]
        if len(ratios) == len(made.seeds):
            numbers["program_snr_db"].setdefault(reading, {})[row] = median(ratios)
        numbers["sent_norm"].setdefault(reading, {})[row] = made.largest_norm
        if made.bits_per_coordinate is not None:
            numbers["bits"].setdefault(reading, {})[row] = made.bits_per_coordinate
    for reading in VARIANTS:
        for at, row in enumerate(cepam):
            others = [other for other in rows if not other.startswith("cepam")] + cepam[at + 1 :]
            one = {other: _paired(found, reading, row, other) for other in others}
            numbers["difference"].setdefault(reading, {})[row] = {other: pair[0] for other, pair in one.items()}
            numbers["curve_difference"].setdefault(reading, {})[row] = {other: pair[1] for other, pair in one.items()}
    return numbers


def _paired(found: Outcomes, reading: Variant, row: str, other: str) -> tuple[Any, Any]:
    """Differences paired by seed: of test accuracy, and of mean validation accuracy over the last ten rounds."""
    a, b = found[reading, row], found[reading, other]
    tails = [[sum(curve[-10:]) / len(curve[-10:]) for curve in each.validation] for each in (a, b)]
    return estimate(differences(a.accuracy, b.accuracy)), estimate(differences(*tails))


def _accuracy(law: LawName, numbers: dict[str, Any]) -> Table:
    lines = []
    for row in dict.fromkeys((*ROWS[law], *(row for _, row in EXTRA))):
        own = numbers["paper"].get(row)
        cells = [printed.LABELS[row], f"{own['mean']:.2f} ± {own['half']:.2f}" if own else "–"]
        for reading in VARIANTS:
            value = numbers["accuracy"][reading].get(row)
            cells.append(words(value) if value else "–")
        bits = numbers["bits"].get("correct", {}).get(row)
        lines.append((*cells, f"{bits:.2f}" if bits is not None else "–"))
    columns = ("scheme", "paper", *VARIANTS, "bits per coordinate (correct)")
    caption = "; ".join(f"{name}: {TELL[name]}" for name in VARIANTS)
    return Table(f"accuracy-{law}", "Test accuracy in per cent", columns, tuple(lines), caption)


def _snr(law: LawName, numbers: dict[str, Any]) -> Table:
    lines = []
    for row in ROWS[law]:
        if row in printed.SNR:
            theirs = [numbers["program_snr_db"].get(reading, {}).get(row) for reading in VARIANTS]
            ours = numbers["snr_db"].get("correct", {}).get(row)
            cells = ["–" if value is None else median_words(value) for value in theirs]
            own = "–" if ours is None else f"{ours:.2f}"
            lines.append((printed.LABELS[row], f"{printed.SNR[row]:.2f}", *cells, own))
    caption = (
        "The program's ratio, which the paper prints: for each client and tensor the variance of the update before "
        "clipping over that of what decoding and clipping change; the plain mean of these ratios over clients, tensors "
        "and rounds; 20 log10 of it. It says how much of one client's gradient survives clipping and noise, and is led "
        "by "
        "its largest ratios: the median over seeds with a distribution-free 95 % interval, since for n = 3 the ratio "
        "has "
        "no finite mean. The last column is ours: 10 log10 of the power of the clients' clipped average over that "
        "of "
        "the noise in it, the mean over rounds and seeds."
    )
    columns = ("scheme", "paper", *(f"the program's ratio, {name}" for name in VARIANTS), "ours, correct")
    return Table(f"snr-{law}", "Average SNR in dB", columns, tuple(lines), caption)


def _notes(much: RunSize) -> tuple[str, ...]:
    return (
        f"{much.seeds} seeds, {much.rounds} rounds, 30 clients with 1,666 records each, 10,000 records for validation.",
        "The published program makes no bytes, so the `published` CEPAM rows have no bits.",
        "The paper's text asks for momentum 0.9; Algorithm 1 has none. The last rows show what local momentum does, "
        "what momentum of the server's step does, and clipped FL at the rate 0.4, which was chosen after seeing the "
        "printed accuracy. The published program applies no momentum.",
    )

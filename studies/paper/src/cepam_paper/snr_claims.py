"""The rule of the SNR columns: by the program's own definition, every row, with ours beside it."""

from __future__ import annotations

import math

from cepam_paper.printed import LABELS
from cepam_paper.verdict import Estimate, Findings, Label, Ruling
from cepam_paper.weighing import together

DECIBEL = 1.0
"""A ratio within this many decibels of the printed one is taken as reproduced."""


def average_snr(found: Findings, rows: tuple[str, ...]) -> Ruling:
    """All rows of a table by the program's definition, for the scheme done right and for the published program."""
    labels = {reading: [_row(found, reading, row) for row in rows] for reading in ("correct", "published")}
    listed = "; ".join(_told(found, row) for row in rows)
    counts = {reading: sum(label is Label.HOLDS for label in made) for reading, made in labels.items()}
    said = (
        f"Rows within {DECIBEL:g} dB of print: {counts['correct']} of {len(rows)} with the correct quantizer, "
        f"{counts['published']} with the published one. Printed, correct, published: {listed}. These are medians over "
        "seeds of the program's ratio, which the table below explains; for $n = 3$ it has no finite mean. A row fails "
        f"if the median's interval lies more than {DECIBEL:g} dB away."
    )
    return Ruling(together(labels["correct"]), said, together(labels["published"]))


def _row(found: Findings, reading: str, row: str) -> Label:
    """Reproduced within a decibel, excluded by the median's interval widened by a decibel, or neither."""
    printed = found.number(f"paper_snr_db/{row}")
    made = _ratio(found, reading, row)
    if made.low > printed + DECIBEL or made.high < printed - DECIBEL:
        return Label.FAILS
    return Label.HOLDS if abs(made.mean - printed) <= DECIBEL and math.isfinite(made.low) else Label.INCONCLUSIVE


def _ratio(found: Findings, reading: str, row: str) -> Estimate:
    return found.median(f"program_snr_db/{reading}/{row}")


def _told(found: Findings, row: str) -> str:
    ratios = ", ".join(f"{_ratio(found, reading, row).mean:.2f}" for reading in ("correct", "published"))
    return f"{LABELS[row]} {found.number(f'paper_snr_db/{row}'):.2f}, {ratios}"

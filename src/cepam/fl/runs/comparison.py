"""Comparing schemes: the same run under each, paired by seed, as a table, a figure and a page."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cepam._internal import page as writer
from cepam._internal.files import write_atomically
from cepam.fl.aggregation.aggregator import Line
from cepam.fl.aggregation.warnings import SIMULATED, told
from cepam.fl.config import toml
from cepam.fl.config.settings import LATTICES, SCHEMES, Settings
from cepam.fl.data.dataset import Dataset
from cepam.fl.runs.curve import series
from cepam.fl.runs.sources import prepared
from cepam.fl.runs.summary import interval
from cepam.fl.runs.training import Progress, read_metrics, train

Watcher = Callable[[str, Progress], None]
PLAIN = ("fl", "fl+gaussian", "fl+laplace")
"""The schemes whose updates are float32."""
SECURE = "cepam-gaussian-secure-aggregation"
"""The scheme with secure aggregation."""


@dataclass(frozen=True)
class Row:
    """One scheme's figures over all seeds; `gain` is the accuracy paired by seed against the first scheme."""

    scheme: str
    accuracy: float
    half_width: float | None
    gain: float
    gain_half_width: float | None
    epsilon: float | None
    simulated: bool
    snr_db: float | None
    bits_per_coordinate: float | None
    bits_per_coordinate_down: float
    uplink_bytes: int
    downlink_bytes: int
    round_trip_bytes: int
    seconds: float
    warnings: tuple[str, ...]
    epsilon_against: dict[str, float | None]


def with_scheme(settings: Settings, name: str) -> Settings:
    """The settings under another scheme, named as `fl`, `fl+gaussian`, `cepam-gaussian-n2`, `cepam-gaussian-E8`, …

    A scheme that sends float32 up gets float32 down, and one without noise has no step to quantize by. With
    `-secure-aggregation` no one sees a single update; the others have a server that is trusted.
    """
    if name == SECURE:
        return settings.updated(
            {"compression.scheme": "cepam-gaussian", "compression.lattice": "Z1", "privacy.trust": "secure-aggregation"}
        )
    scheme, dash, tail = name.rpartition("-")
    if name not in SCHEMES and dash and scheme in SCHEMES and scheme.startswith("cepam"):
        lattice = f"Z{tail[1:]}" if tail.startswith("n") else tail
    else:
        scheme, lattice = name, settings.compression.lattice
    if scheme not in SCHEMES or lattice not in LATTICES:
        raise ValueError(
            f"unknown scheme {name!r}: one of {', '.join(SCHEMES)}, cepam ones with -n2, -n3, -A2, -D4, -E8, {SECURE}"
        )
    noisy = "gaussian" in scheme or "laplace" in scheme
    return settings.updated({
        "compression.scheme": scheme, "compression.lattice": lattice,
        "privacy.noise_scale": settings.privacy.noise_scale if noisy else None,
        "privacy.epsilon": settings.privacy.epsilon if noisy else None,
        "compression.downlink": settings.compression.downlink if noisy and scheme not in PLAIN else "float32",
        "privacy.trust": "server", "privacy.colluders": 0, "compression.masked_bits": None,
        "compression.quantization_range": None, "compression.sketch": None,
    })  # fmt: skip


def compare(
    settings: Settings, schemes: Sequence[str], folder: Path | str, watch: Watcher = lambda name, progress: None
) -> list[Row]:
    """A row for each scheme; the folder holds every run, `comparison.json`, `comparison.png` and `index.html`.

    Runs that the folder already holds are gone on with, so an interrupted comparison can be called again. Schemes are
    paired by seed, so keys and draws come from the seeds: a comparison is always a simulation, and says so.
    """
    if not schemes:
        raise ValueError("schemes must name at least one scheme")
    folder, settings = Path(folder), settings.updated({"run.simulate": True})
    chosen = {name: with_scheme(settings, name) for name in schemes}
    data = prepared(settings)
    rows: list[Row] = []
    metrics: dict[str, list[Line]] = {}
    first: dict[str, float] = {}
    for name, each in chosen.items():
        summary = _run(each, folder / name, data, partial(watch, name))
        first = first or summary["accuracy_by_seed"]
        rows.append(_row(name, summary, first))
        metrics[name] = read_metrics(folder / name)
    write_atomically(folder / "comparison.json", json.dumps([vars(row) for row in rows], indent=2).encode())
    draw_comparison(folder / "comparison.png", metrics)
    write_atomically(folder / "index.html", page(settings, rows, folder).encode())
    return rows


def _run(settings: Settings, folder: Path, data: Dataset, watch: Callable[[Progress], None]) -> dict[str, Any]:
    """The summary of this scheme's run, gone on with where an earlier comparison was interrupted."""
    return train(settings, folder, data, resume=(folder / "config.toml").exists(), watch=watch, say=_unsaid)


def _unsaid(text: str) -> None:
    """Nothing: the comparison itself says that it is a simulation."""


def _row(name: str, summary: dict[str, Any], first: dict[str, float]) -> Row:
    gain, half = interval([accuracy - first[seed] for seed, accuracy in summary["accuracy_by_seed"].items()])
    return Row(
        name, summary["accuracy"], summary["accuracy_half_width"], gain, half, summary["epsilon"], summary["simulated"],
        summary["snr_db"], summary["bits_per_coordinate"], summary["bits_per_coordinate_down"],
        summary["uplink_bytes"], summary["downlink_bytes"], summary["round_trip_bytes"], summary["seconds"],
        tuple(summary["warnings"]), summary["epsilon_against"],
    )  # fmt: skip


def draw_comparison(path: Path, metrics: dict[str, list[Line]]) -> None:
    """Nothing; the file holds each scheme's accuracy (mean of the seeds, band from worst to best), by bytes and rounds.

    Bytes are those of all clients, both ways, mean of the seeds. One panel above the other: readable on a phone.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    figure, (by_bytes, by_round) = pyplot.subplots(2, 1, figsize=(6, 7.5), layout="constrained")
    for name, lines in metrics.items():
        rounds, mean, low, high = series(lines, "accuracy")
        every, bits, _, _ = series(lines, "bits_round_trip")
        so_far = dict(zip(every, bits.cumsum() / 8e6))
        for axis, along in ((by_bytes, [so_far[number] for number in rounds]), (by_round, rounds)):
            axis.plot(along, mean, label=name)
            axis.fill_between(along, low, high, alpha=0.12)
    by_bytes.set(xlabel="MB both ways, all clients, so far", ylabel="test accuracy", xscale="log")
    by_round.set(xlabel="round", ylabel="test accuracy")
    by_round.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axis in (by_bytes, by_round):
        axis.grid(alpha=0.3)
    figure.legend(*by_round.get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def cells(row: Row) -> list[str]:
    """The row as it is printed: percentages, with half-widths where there are several seeds."""

    def share(value: float, half: float | None, signed: bool = False) -> str:
        text = f"{100 * value:+.2f}" if signed else f"{100 * value:.2f}"
        return text if half is None else f"{text} ± {100 * half:.2f}"

    def number(value: float | None, digits: int) -> str:
        return "–" if value is None else f"{value:.{digits}f}"

    return [
        row.scheme, share(row.accuracy, row.half_width), share(row.gain, row.gain_half_width, True),
        "–" if row.epsilon is None else told(row.epsilon, row.simulated, ".2f"), number(row.snr_db, 2),
        number(row.bits_per_coordinate, 3), number(row.bits_per_coordinate_down, 3),
        f"{row.round_trip_bytes / 1e6:,.2f}",
        f"{row.seconds:.0f}",
    ]  # fmt: skip


HEADINGS = (
    "scheme",
    "accuracy %",
    "against first",
    "epsilon",
    "SNR dB",
    "bits up",
    "bits down",
    "MB both",
    "seconds",
)


def _by_observer(rows: list[Row]) -> list[list[str]]:
    """epsilon of every observer, one column a scheme; a server that is trusted sees every update, and has no line."""
    observers = list(dict.fromkeys(who for row in sorted(rows, key=lambda r: -len(r.epsilon_against))
                                   for who in row.epsilon_against))  # fmt: skip
    return [
        [who, *(told(row.epsilon_against[who], row.simulated, ".2f") if who in row.epsilon_against else "none"
                for row in rows)]
        for who in observers
    ]  # fmt: skip


def warnings_of(rows: Sequence[Row]) -> list[str]:
    """Every warning once, after the schemes that it is about."""
    about: dict[str, list[str]] = {}
    for row in rows:
        for text in row.warnings:
            about.setdefault(text, []).append(row.scheme)
    return [f"{', '.join(schemes)}: {text}" for text, schemes in about.items()]


def page(settings: Settings, rows: list[Row], folder: Path) -> str:
    """A page that opens without a network: the table, the figure inside it, warnings and configuration."""
    many = f"{settings.run.seeds} seed{'s' if settings.run.seeds > 1 else ''}"
    lead = (
        f"{settings.clients.count} clients, {settings.training.rounds} rounds, {many}; mean with 95 % confidence "
        "intervals, differences paired by seed. epsilon is for the whole run against an outsider who sees every "
        "broadcast model. Bits are per coordinate and client, up and down; MB are those of all clients, rounds and "
        "seeds, both ways. Schemes that send float32 up are sent float32 down."
    )
    notice = f"{SIMULATED}: keys and draws come from the seeds, so every epsilon is that of a simulation."
    title = f"Schemes on {settings.data.name}"
    return writer.page(title, [
        writer.heading(title, 1), writer.paragraph(lead), writer.paragraph(notice, "notice"),
        writer.table(HEADINGS, [cells(row) for row in rows]),
        writer.heading("epsilon, by observer"),
        writer.table(("against", *(row.scheme for row in rows)), _by_observer(rows)),
        writer.picture(folder / "comparison.png", "accuracy over bytes both ways, and over rounds"),
        writer.heading("Warnings"), writer.bullets(warnings_of(rows) or ["none"]),
        writer.heading("Configuration"), writer.verbatim(toml.write(settings)),
    ])  # fmt: skip

"""Comparing schemes: the same run under each, paired by seed, as a table, a figure and a page."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from cepam._internal import page as writer
from cepam._internal.chart import Axis, Series, byte_unit, in_bytes, line_chart
from cepam._internal.files import write_atomically
from cepam.fl.aggregation.accounting import SIMULATED, shown_epsilon
from cepam.fl.aggregation.trusted_server import Line
from cepam.fl.config.settings import LATTICES, SCHEMES, Settings
from cepam.fl.data.dataset import Dataset
from cepam.fl.models.interface import AUC
from cepam.fl.runs.progress import Progress
from cepam.fl.runs.run_page import ROUNDS, marked, privacy_in_words, settings_table, times_fewer
from cepam.fl.runs.sources import prepared
from cepam.fl.runs.summary import interval, series
from cepam.fl.runs.training import read_metrics, train

# The page of a comparison: a verdict for each scheme, accuracy over rounds and bytes, epsilon by observer, bytes.
#
# A comparison is always a simulation, so it shows what it measured, and says "simulated" beside every figure.


SAME = 0.01
"""Accuracies are called the same where the interval of their difference stays within this on both sides of zero."""
Judgment = Literal["higher", "lower", "same", "inconclusive"]
APART = 20.0
"""Bytes of schemes that differ by more than this factor are shown on a logarithmic axis."""


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
    auc: float | None = None
    auc_half_width: float | None = None


def cells(row: Row) -> list[str]:
    """The row as it is printed: percentages, with half-widths where there are several seeds."""
    return [
        row.scheme, *_accuracy(row), _epsilon(row), _number(row.snr_db, 2),
        _number(row.bits_per_coordinate, 3), _number(row.bits_per_coordinate_down, 3),
        f"{row.round_trip_bytes / 1e6:,.2f}", f"{row.seconds:.0f}",
    ]  # fmt: skip


HEADINGS = (
    "scheme", "accuracy %", "against first", "epsilon", "SNR dB", "bits up", "bits down", "MB both", "seconds",
)  # fmt: skip


def _accuracy(row: Row) -> list[str]:
    """Accuracy, and its difference from the first scheme's, in percent."""
    shown = []
    for value, half, sign in ((row.accuracy, row.half_width, ""), (row.gain, row.gain_half_width, "+")):
        text = f"{100 * value:{sign}.2f}"
        shown.append(text if half is None else f"{text} ± {100 * half:.2f}")
    return shown


def _auc(row: Row) -> str:
    text = _number(row.auc, 4)
    return text if row.auc_half_width is None else f"{text} ± {row.auc_half_width:.2g}"


def _epsilon(row: Row) -> str:
    return shown_epsilon(row.epsilon, row.simulated, ".2f") if row.epsilon_against else "–"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def judged(gain: float, half: float | None) -> Judgment:
    """What the interval of a difference in accuracy tells: one side of zero, within `SAME` of it, or nothing."""
    if half is None:
        return "inconclusive"
    if abs(gain) > half:
        return "higher" if gain > 0.0 else "lower"
    return "same" if abs(gain) + half <= SAME else "inconclusive"


def accuracy_in_words(gain: float, half: float | None) -> str:
    """A difference in accuracy as the verdict says it, in percentage points."""
    found, points = judged(gain, half), f"{100 * gain:+.2f}".replace("-", "−")
    if half is None:
        return f"accuracy inconclusive (one seed: {points} points)"
    if found == "same":
        widest = math.ceil(1000 * (abs(gain) + half) - 1e-9) / 10
        return f"same accuracy within ±{max(widest, 0.1):g} points"
    if found == "inconclusive":
        return f"accuracy inconclusive ({points} ± {100 * half:.2f} points)"
    return f"accuracy {100 * abs(gain):.2f} ± {100 * half:.2f} points {found}"


def verdicts(settings: Settings, rows: Sequence[Row]) -> list[str]:
    """A sentence for each scheme after the first: accuracy and bytes against the first, and its privacy."""
    if not rows:
        return []
    first, made = rows[0], []
    for row in rows[1:]:
        said = (
            accuracy_in_words(row.gain, row.gain_half_width),
            times_fewer(first.round_trip_bytes, row.round_trip_bytes),
            _guarantee(settings, row),
        )
        made.append(f"{row.scheme} against {first.scheme}: {', '.join(said)}.")
    alone = f"{first.scheme}: {_accuracy(first)[0]} % test accuracy ({SIMULATED}), {_guarantee(settings, first)}."
    return made or [alone]


def _guarantee(settings: Settings, row: Row) -> str:
    return privacy_in_words(row.epsilon_against, row.simulated, settings.privacy.unit)


def _by_observer(rows: Sequence[Row]) -> list[list[str]]:
    """epsilon of every observer, one column per scheme; a server that is trusted has no line."""
    longest = sorted(rows, key=lambda row: -len(row.epsilon_against))
    observers = dict.fromkeys(who for row in longest for who in row.epsilon_against)
    found = []
    for who in observers:
        each = (row.epsilon_against.get(who, math.inf) for row in rows)
        found.append([who, *("none" if value == math.inf else shown_epsilon(value, True, ".2f") for value in each)])
    return found


def warnings_of(rows: Sequence[Row]) -> list[str]:
    """Every warning once, after the schemes that it is about."""
    about: dict[str, list[str]] = {}
    for row in rows:
        for text in row.warnings:
            about.setdefault(text, []).append(row.scheme)
    return [f"{', '.join(schemes)}: {text}" for text, schemes in about.items()]


def _charts(metrics: Mapping[str, Sequence[Line]], seeds: int) -> list[str]:
    by_round, by_bytes, spent = [], [], []
    for name, lines in metrics.items():
        at, mean, low, high = (each.tolist() for each in series(list(lines), "accuracy"))
        band = (low, high) if seeds > 1 else ((), ())
        every, bits, _, _ = (each.tolist() for each in series(list(lines), "bits_round_trip"))
        so_far = dict(zip(every, accumulate(bits)))
        by_round.append(Series(name, at, mean, *band))
        by_bytes.append((name, [so_far[number] / 8.0 for number in at], mean, band))
        seen = {int(line["round"]): next(iter(line["epsilon_against"].values())) for line in lines
                if line.get("epsilon_against")}  # fmt: skip
        spent.append(Series(name, sorted(seen), [seen[number] for number in sorted(seen)]))
    ends = [along[-1] for _, along, _, _ in by_bytes if along]
    size, unit = byte_unit(max(ends, default=1.0))
    axis = Axis(f"{unit} both ways, all clients", log=bool(ends) and max(ends) > APART * min(ends))
    accuracy = Axis(marked("test accuracy", True), percent=True)
    said = "Mean of the seeds, band from the lowest to the highest." if seeds > 1 else ""
    made = [
        line_chart(by_round, ROUNDS, accuracy, said),
        line_chart([Series(n, [x / size for x in along], y, *band) for n, along, y, band in by_bytes], axis, accuracy),
    ]
    if any(each.x for each in spent):
        made.append(line_chart(spent, ROUNDS, Axis(marked("epsilon so far, against outsiders", True))))
    return made


def comparison_page(
    settings: Settings, rows: Sequence[Row], metrics: Mapping[str, Sequence[Line]], waiting: Sequence[str] = ()
) -> str:
    """A page that opens without a network.

    Args:
        settings: What the schemes have in common.
        rows: The figures of every scheme that is done.
        metrics: The lines of each of them, by scheme.
        waiting: Schemes that are not done yet.
    """
    many = f"{settings.run.seeds} seed{'s' if settings.run.seeds > 1 else ''}"
    title = f"Schemes on {settings.data.name}"
    lead = (
        f"{settings.clients.count:,} clients, {settings.training.rounds:,} rounds, {many}. Intervals have 95 % "
        f'confidence; differences are paired by seed. "Same accuracy" means that the whole interval lies within '
        f"{100 * SAME:g} point{'' if SAME == 0.01 else 's'} of zero."
    )
    warnings = [f"{SIMULATED}: keys and draws come from the seeds, so every figure is that of a simulation."]
    if waiting:
        warnings.append(f"Unfinished: {', '.join(waiting)} not done yet. Give the same command again to go on.")
    first = rows[0]
    judged_too = any(row.auc is not None for row in rows)
    scores = [
        [row.scheme, *_accuracy(row), *([_auc(row)] if judged_too else ()), _epsilon(row), _number(row.snr_db, 2)]
        for row in rows
    ]
    sizes = [
        [
            row.scheme, _number(row.bits_per_coordinate, 3), _number(row.bits_per_coordinate_down, 3),
            in_bytes(row.uplink_bytes), in_bytes(row.downlink_bytes),
            "–" if row is first else times_fewer(first.round_trip_bytes, row.round_trip_bytes), f"{row.seconds:.0f}",
        ]
        for row in rows
    ]  # fmt: skip
    observers = _by_observer(rows)
    whole = writer.table(("observer", *(row.scheme for row in rows)), observers) if observers else ""
    return writer.page(f"cepam: {title}", [
        writer.heading(title, 1),
        *(writer.paragraph(each, "verdict") for each in verdicts(settings, rows)),
        *(writer.paragraph(each, "warning") for each in warnings),
        writer.paragraph(lead),
        writer.side_by_side(_charts(metrics, settings.run.seeds)),
        writer.heading("Accuracy and privacy"),
        writer.table(
            ("scheme", "accuracy %", "against first", *(["AUC"] if judged_too else ()), "epsilon", "SNR dB"), scores,
            f"{SIMULATED.capitalize()}. epsilon is for the whole run, against outsiders.",
        ),
        writer.heading("Bytes"),
        writer.table(
            ("scheme", "bits up", "bits down", "bytes up", "bytes down", "both ways", "seconds"), sizes,
            f"{SIMULATED.capitalize()}. Bits are per coordinate and client; bytes those of all clients, rounds and "
            "seeds.",
        ),
        writer.heading("Privacy by observer"),
        whole or writer.paragraph("No scheme has differential privacy."),
        writer.heading("Warnings"), writer.bullets(warnings_of(rows) or ["none"]),
        writer.heading("Settings in common"), *settings_table(settings),
        writer.heading("Pages of the runs"),
        writer.links([(row.scheme, f"{row.scheme}/index.html") for row in rows]),
    ])  # fmt: skip


Watcher = Callable[[str, Progress], None]
PLAIN = ("fl", "fl+gaussian", "fl+laplace")
"""The schemes whose updates are float32."""
SECURE = "cepam-gaussian-secure-aggregation"
"""The scheme with secure aggregation."""


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
    settings: Settings, schemes: Sequence[str], folder: Path | str, watch: Watcher = lambda name, progress: None,
    progress: bool | None = None,
) -> list[Row]:  # fmt: skip
    """Run schemes on the same data, starts and draws, in a folder that can be called again after an interruption.

    Args:
        settings: What the schemes have in common. A comparison pairs schemes by seed: it is always a simulation.
        schemes: Their names, as `with_scheme` knows them.
        folder: Holds every run, `comparison.json`, the page `index.html`, which is written after every scheme, and
            `comparison.png` where matplotlib is installed.
        watch: Called with the scheme after every round.
        progress: As for `train`.

    Returns:
        A row for each scheme.

    Raises:
        ValueError: A scheme is unknown, or the folder holds runs of other settings.
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
        summary = _run(each, folder / name, data, partial(watch, name), progress)
        first = first or summary["accuracy_by_seed"]
        rows.append(_row(name, summary, first))
        metrics[name] = read_metrics(folder / name)
        made = comparison_page(settings.fitted(data.clients), rows, metrics, waiting=list(chosen)[len(rows) :])
        write_atomically(folder / "index.html", made.encode())
    write_atomically(folder / "comparison.json", json.dumps([vars(row) for row in rows], indent=2).encode())
    if find_spec("matplotlib") is not None:
        draw_comparison(folder / "comparison.png", metrics)
    return rows


def _run(
    settings: Settings, folder: Path, data: Dataset, watch: Callable[[Progress], None], progress: bool | None
) -> dict[str, Any]:
    """The summary of this scheme's run, gone on with where an earlier comparison was interrupted."""
    resume = (folder / "config.toml").exists()
    return train(settings, folder, data, resume=resume, watch=watch, say=_unsaid, progress=progress)


def _unsaid(text: str) -> None:
    """Show no warning: the comparison itself says that it is a simulation."""


def _row(name: str, summary: dict[str, Any], first: dict[str, float]) -> Row:
    gain, half = interval([accuracy - first[seed] for seed, accuracy in summary["accuracy_by_seed"].items()])
    auc = summary["metrics"].get(AUC, {})
    return Row(
        name, summary["accuracy"], summary["accuracy_half_width"], gain, half, summary["epsilon"], summary["simulated"],
        summary["snr_db"], summary["bits_per_coordinate"], summary["bits_per_coordinate_down"],
        summary["uplink_bytes"], summary["downlink_bytes"], summary["round_trip_bytes"], summary["seconds"],
        tuple(summary["warnings"]), summary["epsilon_against"], auc.get("mean"), auc.get("half_width"),
    )  # fmt: skip


def draw_comparison(path: Path, metrics: dict[str, list[Line]]) -> None:
    """Draw each scheme's accuracy (mean of the seeds, band from worst to best), by bytes and rounds.

    Bytes are those of all clients, both ways, mean of the seeds. One panel above the other: readable on a phone.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(6, 7.5), layout="constrained")  # not pyplot's: the caller's backend stays as it is
    by_bytes, by_round = figure.subplots(2, 1)
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

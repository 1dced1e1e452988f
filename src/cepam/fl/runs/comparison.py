"""Comparing schemes: the same run under each, paired by seed, as a table, a figure and a page."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cepam._internal.files import write_atomically
from cepam.fl.aggregation.aggregator import Line
from cepam.fl.config.settings import LATTICES, SCHEMES, Settings
from cepam.fl.data.dataset import Dataset
from cepam.fl.models.interface import AUC
from cepam.fl.runs.comparison_page import Row, comparison_page
from cepam.fl.runs.curve import series
from cepam.fl.runs.progress import Progress
from cepam.fl.runs.sources import prepared
from cepam.fl.runs.summary import interval
from cepam.fl.runs.training import read_metrics, train

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

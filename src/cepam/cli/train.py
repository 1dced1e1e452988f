"""`cepam train`: one command, a trained model, an honest privacy figure, a byte count and a picture."""

from __future__ import annotations

import errno
import json
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import current_thread, main_thread
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from cepam import fl
from cepam.cli.options import JsonOption
from cepam.cli.progress import Watch, wide
from cepam.cli.settings import (
    Config,
    HelpAll,
    Name,
    Preset,
    Runs,
    Set,
    chosen_settings,
    differing,
    fresh_folder,
    rate_stays,
    takes_settings,
)
from cepam.cli.tables import MOST_CLIENTS
from cepam.fl.aggregation.accounting import shown_epsilon
from cepam.fl.config.toml import read_settings


def _unfinished(runs: Path, name: str | None) -> Path:
    """The run to go on with: the one named, or the latest without a summary."""
    if name is not None:
        if not (runs / name / "config.toml").exists():
            raise ValueError(f"no run named {name!r} in {runs}")
        return runs / name
    open_runs = [p.parent for p in runs.glob("*/config.toml") if not (p.parent / "summary.json").exists()]
    if not open_runs:
        raise ValueError(f"no unfinished run in {runs}: name one with --name")
    return max(open_runs, key=lambda folder: (folder / "config.toml").stat().st_mtime)


def _whom(summary: dict[str, Any]) -> str:
    return "secure aggregation, " if summary.get("trust") == "secure-aggregation" else ""


def _print_summary(console: Console, summary: dict[str, Any], folder: Path) -> None:
    table = Table(title=f"{summary['scheme']}, {_whom(summary)}{summary['rounds']} rounds", show_header=False)
    half = summary["accuracy_half_width"]
    if summary["accuracy"] is not None:
        spread = f" ± {100 * half:.2f}" if half is not None else ""
        table.add_row("test accuracy", f"{100 * summary['accuracy']:.2f}{spread} %")
    for name, judged in summary["metrics"].items():
        if name != "loss" or summary["accuracy"] is None:
            spread = f" ± {judged['half_width']:.2g}" if judged["half_width"] is not None else ""
            table.add_row(f"test {name}", f"{judged['mean']:.4g}{spread}")
    for who, epsilon in summary["epsilon_against"].items():
        table.add_row(
            f"epsilon against {who}",
            f"{shown_epsilon(epsilon, summary['simulated'])}, delta {summary['delta']:g}, {summary['adjacency']}",
        )
    if not summary["epsilon_against"]:
        table.add_row("epsilon", "none: no differential privacy")
    for name, scale in _noise_scales(summary["noise_scales"]).items():
        table.add_row(name, f"{scale:.4g}, {_unit(summary, 'noise_scale')}")
    if (multiplier := summary["noise_multiplier"]) is not None:
        table.add_row("noise multiplier", f"{multiplier:.4g}, {_unit(summary, 'noise_multiplier')}")
    table.add_row("server step", f"{summary['server_optimizer']}, learning rate {summary['server_learning_rate']:.4g}")
    bits = summary["bits_per_coordinate"]
    table.add_row("bits per coordinate up", "–" if bits is None else f"{bits:.4f}")
    table.add_row("bits per coordinate down", f"{summary['bits_per_coordinate_down']:.4f} ({summary['downlink']})")
    for way in ("uplink", "downlink", "round_trip"):
        table.add_row(way.replace("_", " "), f"{summary[f'{way}_bytes']:,} bytes")
    table.add_row("SNR", "–" if summary["snr_db"] is None else f"{summary['snr_db']:.2f} dB")
    table.add_row("time", f"{summary['seconds']:.1f} s")
    console.print(table)
    _print_clients(console, summary)
    for text in summary["warnings"]:
        console.print(f"[yellow]warning[/] {text}")
    console.print(f"run: {folder}")
    console.print(f"page: {folder / 'index.html'}")


def _noise_scales(values: list[float]) -> dict[str, float]:
    """The one of all clients, or the smallest and the largest of sorted values."""
    if len(values) > 1:
        return {"smallest noise scale": values[0], "largest noise scale": values[-1]}
    return dict(zip(["noise scale"], values))


def _unit(summary: dict[str, Any], name: str) -> str:
    """What a figure of the noise is measured in; without a guarantee nothing is known of clips."""
    units = summary["noise_units"]
    return units[name] if units else "per coordinate and client"


def _print_clients(console: Console, summary: dict[str, Any]) -> None:
    """Print the clients with what each was promised and has spent, the first few of many."""
    rows = summary["clients"]
    if not rows:
        return
    numbers = {"noise_scale": "noise scale", "noise_multiplier": "noise multiplier of local steps"}
    numbers = {key: heading for key, heading in numbers.items() if any(row[key] is not None for row in rows)}
    table = Table(title="clients")
    for heading in ("name", "records", *numbers.values(), "target epsilon", "epsilon", "delta"):
        table.add_column(heading, justify="left" if heading == "name" else "right")
    for row in rows[:MOST_CLIENTS]:
        table.add_row(
            row["name"], f"{row['records']:,}", *(_number(row[key]) for key in numbers), _number(row["target_epsilon"]),
            shown_epsilon(row["epsilon"], summary["simulated"]), f"{row['delta']:g}",
        )  # fmt: skip
    console.print(table)
    if len(rows) > MOST_CLIENTS:
        console.print(f"and {len(rows) - MOST_CLIENTS:,} more clients: summary.json has them all")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


class _Stopped(KeyboardInterrupt):
    """A signal asked the command to end."""


@contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does, with `_Stopped`; what `nohup` ignores stays ignored."""

    def stop(number: int, _: object) -> None:
        raise _Stopped(number)

    known = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    if current_thread() is not main_thread():  # only the main thread may set handlers
        known = []
    before = {number: signal.signal(number, stop) for number in known if signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _stoppable(watch: Watch, folder: Path) -> Iterator[None]:
    """One line that says how to go on after Ctrl-C, SIGTERM, SIGHUP (exit code 128 and the signal) or a full disk."""
    resume = f"cepam train --resume --runs {folder.parent} --name {folder.name}"
    try:
        with _signals():
            yield
    except KeyboardInterrupt as stopped:
        again = resume if (folder / "config.toml").exists() else "the same command"
        number = stopped.args[0] if isinstance(stopped, _Stopped) else signal.SIGINT
        at = f"after round {watch.round} of {watch.rounds}" if watch.rounds else "before the first round was done"
        with suppress(OSError):  # after SIGHUP the terminal may be gone
            watch.bar.stop()
            print(f"cepam: stopped {at}; the run is in {folder}: go on with {again}", file=sys.stderr)
        raise typer.Exit(128 + number) from None
    except OSError as failed:
        if failed.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        why = "the disk is full" if failed.errno == errno.ENOSPC else "your quota on this disk is used up"
        again = f"resume: {resume}" if (folder / "config.toml").exists() else "repeat the command"
        reason = f"{why}: make room, then {again}"
        raise OSError(failed.errno, reason, _file_of(failed) or str(folder)) from None


def _file_of(failed: BaseException | None) -> str | None:
    """The file that could not be written: closing it may have failed again, without its name."""
    while isinstance(failed, OSError):
        if failed.filename is not None:
            return str(failed.filename)
        failed = failed.__context__
    return None


@takes_settings()
def train(
    preset: Preset = None,
    config: Config = None,
    sets: Set = None,
    name: Name = None,
    runs: Runs = Path("runs"),
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", rich_help_panel="Output", help="Continue a run: that of --name, or the latest unfinished one."
        ),
    ] = False,
    as_json: JsonOption = False,
    help_all: HelpAll = False,
    **flags: Any,
) -> None:
    """Train a model with federated clients whose every update goes through encode, bytes and decode.

    A run that is private: eps under 2 over the whole run, against anyone who sees every broadcast model:

      cepam train --preset private

    The paper's text (about 20 % on MNIST) with the hexagonal lattice, a simulation of five seeds side by side:

      cepam train --preset algorithm1 --set compression.lattice=A2 --seeds 5 --simulate

    Your own settings; the first ten clients add more noise:

      cepam train --config mine.toml --set "clients.overrides=0-9 noise_scale=0.05"

    Your own records and module, clients by name (load and build are functions of my_module.py):

      cepam train --data my_module:load --model my_module:build --set "clients.overrides='site A' epsilon=2"

    A table, with a column that names the client of a row:

      cepam train --data patients.csv --set data.target_column=ill --set data.client_column=site --model linear
      --noise-scale 0.1

    A reproducible run for a study (keys and draws from the seed: it protects nobody):

      cepam train --preset private --simulate --seed 3

    After a crash, or kill -9:

      cepam train --resume

    Every setting, for --set and for TOML files:

      cepam train --help-all
    """
    console = wide(stderr=as_json)
    if resume:
        folder = _unfinished(runs, name)
        settings = read_settings(folder / "config.toml")
        if others := differing(settings, preset, config, sets, flags):
            raise ValueError(f"--resume goes on with {folder} as it was started: {'; '.join(others)}")
    else:
        settings = chosen_settings(preset, config, sets, flags)
        if said := rate_stays(preset, config, sets, flags, settings):
            console.print(said)
        what = preset or re.sub(r"[^\w.-]+", "-", Path(settings.data.name).name)
        folder = runs / name if name else fresh_folder(runs, f"{what}-{settings.compression.scheme}", "config.toml")
        if (folder / "config.toml").exists():
            raise ValueError(f"{folder} already holds a run: choose another --name, or --resume it")
    with Watch(console, shown=not as_json, simulated=settings.run.simulate) as watch, _stoppable(watch, folder):
        data = fl.prepared(settings, watch.fetch)
        if settings.run.device == "cuda":
            console.print(
                "the first run on a GPU compiles its kernels, once: half a minute or so before the first round is over"
            )
        summary = fl.train(
            settings, folder, data, resume=resume, watch=lambda done: watch.follow(folder.name, done),
            say=console.print, progress=False,
        )  # fmt: skip
    if as_json:
        print(json.dumps({**summary, "folder": str(folder), "page": str(folder / "index.html")}))
    else:
        _print_summary(console, summary, folder)

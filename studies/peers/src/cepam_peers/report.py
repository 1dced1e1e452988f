"""What was measured as a table and a picture: rows of the study, and the engine's own bench for ours on more seeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cepam import fl
from cepam.fl.runs.summary import interval

Found = dict[str, Any]

NAMES = {
    "server": ("trusted server", "o"), "sum": ("secure aggregation", "s"),
    "sum-sketch": ("secure aggregation, sketch of 1,600", "D"),
    "secagg+": ("SecAgg+ quantization, Gaussian noise", "X"), "ddg-16": ("discrete Gaussian, 16 bits", "^"),
    "skellam-16": ("Skellam, 16 bits", "v"), "ddg-12": ("discrete Gaussian, 12 bits", "<"),
    "skellam-12": ("Skellam, 12 bits", ">"), "ddg-8": ("discrete Gaussian, 8 bits", "P"),
    "skellam-8": ("Skellam, 8 bits", "d"), "local": ("local noise", "*"),
}  # fmt: skip
"""Every row in the table's order: what it is called, and its marker in the picture."""
OBSERVERS = ("outsider", "server", "lying server")
SKETCH = 1600
MISSING = "not measured"


def engine_rows(path: Path, trips: dict[str, int]) -> list[Found]:
    """Our own rows as `bench/engine.py --suite sum` kept them, of the preset as it stands today."""
    preset = fl.preset("private").values()
    wanted = {
        "preset": "private", "data.name": "mnist", "compression.scheme": "cepam-gaussian",
        "compression.downlink": "quantized",
    }  # fmt: skip
    told = ("privacy.epsilon", "training.server_learning_rate", "training.rounds", "training.expected_batch_size")
    wanted |= {name: preset[name] for name in told}
    other = ("step_factor", "data.validation_records", "clients.dropout_rate")
    found: list[Found] = []
    for run in json.loads(path.read_text())["runs"] if path.exists() else []:
        job = run["job"]
        if not wanted.items() <= job.items() or any(name in job for name in other):
            continue
        size, secure = job.get("compression.sketch"), job.get("privacy.trust", "server") != "server"
        name = "server" if not secure else "sum" if size is None else "sum-sketch"
        found.append(
            {"row": name if size in (None, SKETCH) else f"sum-sketch-{size}", "seed": job["run.seed"],
             "accuracy": run["accuracy"][0], "trips": trips[name.partition("-")[0]], "numbers": size,
             "epsilon": {who: run["epsilon_against"].get(who) for who in OBSERVERS},
             **{field: run[field] for field in ("bits_up", "bytes_up", "bytes_down")}}
        )  # fmt: skip
    return found


def sketches(engine: list[Found]) -> str:
    """What sketches of each size cost, paired by seed with a trusted server; nothing where one size was measured."""
    sizes = sorted({each["numbers"] for each in engine if each["numbers"]})
    lines = [
        _line(["numbers sent", "seeds", "accuracy, %", "minus server", "bits per coordinate up"]),
        _line(["---"] * 5),
    ]
    beside = {each["seed"]: each["accuracy"] for each in engine if each["row"] == "server"}
    for size in sizes:
        runs = [each for each in engine if each["numbers"] == size]
        less = percent([each["accuracy"] - beside[each["seed"]] for each in runs if each["seed"] in beside], "+")
        cells = [f"{size:,}", str(len(runs)), percent([each["accuracy"] for each in runs]), less]
        lines.append(_line([*cells, f"{_mean(runs, 'bits_up'):.2f}"]))
    return "Sketches by size:\n\n" + "\n".join(lines) + "\n" if len(sizes) > 1 else ""


def chosen(study: list[Found], engine: list[Found], name: str) -> tuple[list[Found], list[Found]]:
    """The runs of a row where it has most seeds, and those of the trusted server beside it, paired by seed."""
    rows = max((study, engine), key=lambda source: sum(each["row"] == name for each in source))
    return [each for each in rows if each["row"] == name], [each for each in rows if each["row"] == "server"]


def place_of(run: Found) -> tuple[str, int, float]:
    """What a run is of: its row, seed and dropouts; there is one of each."""
    return run["row"], run["seed"], run.get("dropout", 0.0)


def tables(study: list[Found], engine: list[Found]) -> str:
    """The table of runs without dropouts, and one for each share of dropouts that was measured."""
    shares = sorted({place_of(each)[2] for each in study} - {0.0})
    made = [table([each for each in study if not place_of(each)[2]], engine)]
    for share in shares:
        runs = [each for each in study if place_of(each)[2] == share]
        made.append(f"With {100 * share:g} % of the clients missing in each round, at random:\n\n" + table(runs, []))
    return "\n".join([*made, *filter(None, [sketches(engine)])])


def percent(values: list[float], sign: str = "") -> str:
    """The mean in per cent, with its 95 % interval where there are several."""
    middle, half = interval([100 * value for value in values])
    return f"{middle:{sign}.2f}" + ("" if half is None else f" ± {half:.2f}")


def table(study: list[Found], engine: list[Found]) -> str:
    """Every row as Markdown: means over its seeds; a row that nobody ran says so."""
    head = ["", "seeds", "accuracy, %", "minus server", "epsilon: outsider", "server", "lying server",
            "bits per coordinate up", "MB up", "MB down", "round trips", "rounds lost"]  # fmt: skip
    lines = [_line(head), _line(["---"] * len(head))]
    for name, (label, _) in NAMES.items():
        mine, trusted = chosen(study, engine, name)
        if not mine:
            lines.append(_line([label, MISSING, *[""] * (len(head) - 2)]))
            continue
        beside = {each["seed"]: each["accuracy"] for each in trusted if name != "server"}
        less = [each["accuracy"] - beside[each["seed"]] for each in mine if each["seed"] in beside]
        cells = [label, str(len(mine)), percent([each["accuracy"] for each in mine])]
        cells += [percent(less, "+") if less else "–"]
        shown = [mine[0]["epsilon"][who] for who in OBSERVERS]
        cells += ["–" if value is None else f"{value:.2f}" for value in shown]
        cells += [f"{_mean(mine, 'bits_up'):.2f}"]
        cells += [f"{_mean(mine, way) / 1e6:,.1f}" for way in ("bytes_up", "bytes_down")]
        lost = sum(each.get("lost", 0) for each in mine) / len(mine)
        lines.append(_line([*cells, str(mine[0]["trips"]), f"{lost:g}"]))
    return "\n".join(lines) + "\n"


def _line(cells: list[str]) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def _mean(rows: list[Found], field: str) -> float:
    return float(sum(each[field] for each in rows) / len(rows))


def draw(study: list[Found], engine: list[Found], path: Path) -> None:
    """Draw accuracy against bits up: a marker per row, 95 % intervals where it has several seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    figure, axis = pyplot.subplots(figsize=(10, 5), constrained_layout=True)
    study, absent = [each for each in study if not place_of(each)[2]], []
    for place, (name, (label, marker)) in enumerate(NAMES.items()):
        mine, _ = chosen(study, engine, name)
        if not mine:
            absent.append(label)
            continue
        middle, half = interval([100 * each["accuracy"] for each in mine])
        many = f"{label} ({len(mine)} seed{'s'[: len(mine) > 1]})"
        axis.errorbar(_mean(mine, "bits_up"), middle, yerr=half, fmt=marker, color=f"C{place}", markersize=9,
                      capsize=4, label=many)  # fmt: skip
    for label in absent:
        axis.plot([], [], " ", label=f"{label}: {MISSING}")
    axis.set(xscale="log", xlabel="bits per coordinate up (log)", ylabel="test accuracy, %")
    axis.set_title("MNIST, epsilon 1.99, 30 clients, 600 rounds (simulated)")
    axis.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.grid(alpha=0.3, which="both")
    axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=9)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)

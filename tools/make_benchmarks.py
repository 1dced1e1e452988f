"""The benchmark pages, the overview of them, and the table of README, from the stored results.

    python tools/make_benchmarks.py                  writes docs/benchmarks/index.md and figures of README.md and
                                                     docs/search.md
    python tools/make_benchmarks.py --pages FOLDER   writes every page there; the site makes them when it is built

Sources are bench/results/*.json and studies/peers/results/*.json. Every figure of a page comes from these
files. Every table names its command, machine and date, or says that an older file did not record them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from cepam.fl.config.presets import preset_values
from cepam.fl.config.settings import Settings
from cepam.fl.runs.summary import interval
from cepam.protocol.settings import QuantizedBroadcast
from cepam_peers.__main__ import TRIPS
from cepam_peers.report import engine_rows, tables
from cepam_peers.tasks import TASKS
from cepam_peers.updates import table as peers_table
from site_tasks import coder, of_task, promise, score, traffic
from site_tasks import kept as kept_tasks
from site_tasks import page as tasks_page

ROOT = Path(__file__).resolve().parents[1]
RESULTS, SUMS = ROOT / "bench" / "results", ROOT / "studies" / "peers" / "results" / "sums.json"
PEERS = SUMS.with_name("updates.json")
PAGES = ROOT / "docs" / "benchmarks"
README, NOTE = ROOT / "README.md", ROOT / "docs" / "search.md"
MARK = "<!-- Written by `python tools/make_benchmarks.py`; edit the script or rerun the benchmark, not this page. -->"
MARKS = ("<!-- results: python tools/make_benchmarks.py -->", "<!-- /results -->")
MISSING = "not recorded"
Row = dict[str, Any]


def result(name: str) -> Any:
    """The stored result of this name."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


def measured(stamp: Row | None, command: str, machine: str = "") -> str:
    """The line under a heading that says how the figures were made.

    Args:
        stamp: the stamp of the result, or what an older result has in its place.
        command: the command, for results whose stamp has none.
        machine: the machine, for results whose stamp has none.
    """
    known = stamp or {}
    cores = f", {known['cores']} cores" if "cores" in known else ""
    place = known.get("processor", machine) or f"machine {MISSING}"
    graphics = f", {known['gpu']}" if "gpu" in known else ""
    load = f", load {known['load']:.0f}" if "load" in known else ""
    made = f"{place}{cores}{graphics}{load}; {known.get('date', f'date {MISSING}')}"
    return f"`{known.get('command', command)}` ({made})\n"


def percent(values: Sequence[float], sign: str = "") -> str:
    """Mean in per cent and its 95 % confidence interval where there are several values."""
    middle, half = interval([100 * value for value in values])
    shown = f"{middle:{sign}.2f}" if abs(middle) >= 0.005 else "0.00"
    return shown + ("" if half is None else f" ± {half:.2f}")


def mean(values: Iterable[float]) -> float:
    """The mean."""
    found = list(values)
    return sum(found) / len(found)


# Rate

LINES = {
    "Z1, adaptive": "`Integer(1)`", "E8, adaptive": "`E8`", "default": "the default codec",
    "Z1, paper": "`Integer(1)`, the paper's code", "E8, paper": "`E8`, the paper's code",
    "H(M \\| U, V), n = 1": "entropy of the quantizer, `Integer(1)`", "I(X; X + Z)": "mutual information I(X; X + Z)",
    "shifted layered, ideal code": "shifted layered quantizer, ideal code",
    "Gaussian + SDQ, ideal code": "noise, then dithered quantization, ideal code",
}  # fmt: skip
UPDATES = ("early_single",)
ABLATED = ("early_single, sigma 0.2", "early_single, sigma 0.01", "early_single, sigma 0.001", "gaussian, sigma 0.01")


def rate() -> str:
    """Bits per coordinate."""
    kept, sizes, larger = map(result, ("rate", "rate_sizes", "larger_lattices"))
    ablation = result("ablation")
    parts_shown = [ablation["columns"].index(name) for name in ABLATED]
    shown = [kept["sigmas"].index(sigma) for sigma in (0.2, 0.05, 0.01, 0.001)]
    head = ["sigma", *(f"{kept['sigmas'][place]:g}" for place in shown)]
    parts = [
        "# Rate: bits per coordinate", MARK,
        "Bits per coordinate are 8 times the bytes of the whole message over the number of coordinates: header, seal "
        "and side information included. float32 is 32. What determines the rate: [Compression](../compression.md).",
        *over_snr(),
        "## The layered quantizer against the noise scale",
        "![Bits per coordinate against the noise scale](../img/rate.png)",
        "Updates of l2 norm 1 with 6,422 coordinates, gradients of one record early in training, Gaussian noise of "
        "standard deviation sigma. The last four rows are computed for independent entries of known distribution, "
        "without a header: the quantizer's entropy, a bound for every scheme, and two schemes with an ideal coder.",
        measured(kept.get("stamp", kept.get("machine")), "python bench/rate_plot.py"),
    ]  # fmt: skip
    for data in UPDATES:
        lines = {name.replace("|", "\\|"): values for name, values in kept["bits_per_coordinate"][data].items()}
        known = [(name, label) for name, label in LINES.items() if name in lines]
        rows = [[label, *(f"{lines[name][place]:.3f}" for place in shown)] for name, label in known]
        parts += [table(head, rows)]
    each = {name: result("rate_messages")[name] for name in ("Z1", "E8")}
    found = {name: one["figures"] for name, one in each.items()}
    picked = [found["Z1"]["sigmas"].index(sigma) for sigma in (0.2, 0.01, 0.001)]
    rows = [[f"`{data}`", *(f"{found[name]['bits_per_coordinate'][data][place]:.3f}" for place in picked
                            for name in found)] for data in found["Z1"]["bits_per_coordinate"]]  # fmt: skip
    columns = [f"{name}, sigma {found[name]['sigmas'][place]:g}" for place in picked for name in found]
    parts += ["## By kind of update", "\n".join(measured(one["stamp"], "") for one in each.values()),
              table(["update", *columns], rows)]  # fmt: skip
    parts += [
        "`python bench/gradients.py` makes them: gradients of the paper's CNN of one record or averaged over 15, early"
        " and late in training; updates of larger networks (327,680 coordinates); independent entries.",
        "## By length of the update",
        "Independent entries of root mean square 0.0125, one message each.",
        measured(sizes["stamp"], ""),
        table(["entries", "coordinates", *sizes["columns"]],
              ([row["entries"], f"{row['coordinates']:,}", *(f"{bits:.3f}" for bits in row["bits_per_coordinate"])]
               for row in sizes["rows"] if row["entries"] == "Gaussian")),
        "## What each part of the scalar model is worth",
        "The coder for `Integer(1)` with one part taken out and trained again, without header and seal.",
        measured(ablation["stamp"], ""),
        table(["", *ABLATED],
              ([row["part"], *(f"{row['bits_per_coordinate'][place]:.3f}" for place in parts_shown)]
               for row in ablation["rows"])),
        "## Larger lattices",
        "From packing densities; rates at large noise relative to Z1. Barnes-Wall and Leech are not implemented.",
        measured(larger["stamp"], ""),
        table(["lattice", "trials per sub-vector", "bits above I(X; X + Z) at small noise", "rate at large noise"],
              ([row["lattice"], f"{row['trials']:.0f}", f"{row['bits_above_information']:.3f}",
                f"{row['bits_relative_to_integers']:.2f}"] for row in larger["rows"])),
    ]  # fmt: skip
    return "\n\n".join(parts)


OVERHEAD = 8 * 18  # bits of header and seal


def over_snr() -> list[str]:
    """The default coder beside its limit and other coders, over the ratio of update to noise."""
    found = result("search")
    names = ("limit", "search", "layered Z1", "layered E8", "noise, then SDQ of step sigma")
    rows = []
    for row in found["gaussian updates, bits"]:
        shares = [(row[name] - OVERHEAD) / row["limit"] for name in ("search", "layered Z1")]
        rows.append([f"{row['snr_db']:.0f}", *(f"{row[name]:,.0f}" for name in names), f"{32 * found['weights']:,}",
                     *(f"{share:.1f}" for share in shares)])  # fmt: skip
    real = [[f"{row['round']:.0f}", f"{row['snr_db']:.1f}", f"{row['limit']:.0f}", f"{row['search']:,.0f}",
             f"{row['layered Z1']:,.0f}", f"{row['payload over limit']:.1f}",
             f"{row['payload over limit, layered Z1']:.1f}"]
            for row in found["updates of private, bits"]]  # fmt: skip
    head = ["default coder", "layered, Z1", "layered, E8", "noise, then SDQ", "float32"]
    ratios = ["payload over limit", "the same, layered Z1"]
    return [
        "## The default coder over the ratio of update to noise",
        f"Bits of whole messages of {found['weights']:,} independent Gaussian weights. *SNR* is the mean square of the "
        "update over that of the noise; *limit* is the information I = |x|²/(2σ² ln 2). Ratios leave out the 18 bytes "
        "of header and seal. Above -8.5 dB the default coder is the layered quantizer ([The search "
        "coder](../search.md)).",
        measured(found["stamps"].get("snr", found["stamps"].get("all")), ""),
        table(["SNR, dB", "limit", *head, *ratios], rows),
        "Clipped updates of six clients in rounds of preset `private`, means:",
        measured(found["stamps"].get("runs", found["stamps"].get("all")), ""),
        table(["round", "SNR, dB", "limit", "default coder", "layered, Z1", *ratios], real),
    ]  # fmt: skip


# Speed


def searched_on_cpu() -> list[str]:
    """Time of the default coder where it searches."""
    found = result("search")
    names = ("encode", "decode", "layered Z1 encode", "layered Z1 decode", "NumPy noise")
    return [
        "## The default coder on a CPU",
        "Where noise is far above the update. Times are relative to `x + sigma * torch.randn` of float32 on the same "
        "machine, one thread, sealing included.",
        measured(found["stamps"].get("time", found["stamps"].get("all")), ""),
        table(["weights", "SNR, dB", "bytes", "encode", "decode", "layered encode", "layered decode", "NumPy noise"],
              ([f"{row['size']:,.0f}", f"{row['snr_db']:.0f}", f"{row['bytes']:,.0f}",
                *(f"{row[f'{name} over noise']:.1f}" for name in names)] for row in found["time"])),
    ]  # fmt: skip


def searched_in_a_run() -> list[str]:
    """A whole run with the default coder beside one with the layered quantizer."""
    coders = by_setting("engine_coders", "compression.coder", "auto")
    plain = average(coders["layered"], "processor_seconds")
    return [
        "## The default coder in a run",
        "Preset `private`, MNIST, 600 rounds of 30 clients, one thread. The two runs of a seed went on side by side; "
        "training is in the time.",
        engine("coders --seeds 1 --processes 2", coders.values()),
        table(["coder", "seeds", "processor seconds", "ratio", "bits per coordinate up", "test accuracy, %"],
              ([f"`{coder}`", len(runs), f"{average(runs, 'processor_seconds'):.0f}",
                f"{average(runs, 'processor_seconds') / plain:.2f}", f"{average(runs, 'bits_up'):.4f}",
                percent(accuracies(runs))] for coder, runs in sorted(coders.items()))),
    ]  # fmt: skip


def giga(found: Row, *names: str) -> str:
    """Billions of coordinates per second of several rows."""
    return " / ".join(f"{found[name]['giga_coordinates_a_second']:.3g}" for name in names)


def by_energy(rows: list[Row]) -> str:
    """Billions of coordinates per second by size and energy."""
    rows = [row for row in rows if "seconds" in row]
    energies = sorted({row["snr_db"] for row in rows})
    known = {(row["coordinates"], row["snr_db"]): row["giga_coordinates_a_second"] for row in rows}
    lines = [
        [f"{size:,}", *(f"{known[size, energy]:.1f}" if (size, energy) in known else "" for energy in energies)]
        for size in sorted({row["coordinates"] for row in rows})
    ]
    return table(["coordinates", *(f"{energy} dB" for energy in energies)], lines)


def searched_on_gpu() -> list[str]:
    """The search coder's segments on a GPU."""
    found = result("gpu_search")
    made = [
        "## Decode searched messages on a GPU",
        "Billions of coordinates per second, from coded segments on the host to float32 values on the GPU, without"
        f" seals. Values and refusals are the CPU's in {found['compared'] - len(found['different'])} of"
        f" {found['compared']} cases.",
        measured(found["stamp"], ""),
        by_energy(found["decode"]),
    ]
    if "encode" not in found:
        return made
    alike = found["compared_encoded"] - len(found["different_encoded"])
    return [
        *made,
        "## Encode searched messages on a GPU",
        "From float32 values on the GPU to coded segments on the host, likewise. Segments are the CPU's in"
        f" {alike} of {found['compared_encoded']} cases.",
        by_energy(found["encode"]),
    ]


def speed() -> str:
    """Time of the codec on CPUs and GPUs, and of training on a GPU."""
    kept, first, gpu, trained = map(result, ("speed", "first_call", "gpu", "gpu_train"))
    parts = [
        "# Speed", MARK,
        "Read the ratios: times compare schemes, not machines. `cepam bench` measures yours. See [GPU](../gpu.md).",
        *searched_on_cpu(), *searched_in_a_run(),
        "## The layered quantizer on a CPU",
        "Ten million coordinates, Laplace entries of root mean square 0.0125, sigma 0.01, one thread unless a row "
        "says otherwise, sealing included.",
        measured(kept.get("stamp", kept.get("machine")), "python bench/speed.py"),
        table(["", "ns per coordinate", "ratio to drawing the noise", "bits per coordinate"],
              ([row["what"], f"{row['nanoseconds']:.1f}", f"{row['ratio']:.2f}",
                "" if row["bits_per_coordinate"] is None else f"{row['bits_per_coordinate']:.3f}"]
               for row in kept["speed"])),
        "Memory beyond input, message and output at {coordinates:,} coordinates: {encode_extra_mib:.0f} MiB to encode,"
        " {decode_extra_mib:.0f} MiB to decode.".format(**kept["memory"]),
        "## First call",
        "Kernels are compiled once per machine. Until then NumPy codes short updates to the same bytes, and long ones "
        "wait. Seconds where nothing was compiled.",
        measured(first["stamp"], ""),
        table(["codec", "first encode, s", "first decode, s", "all compiled after, s"],
              ([f"`{row['codec']}`", *(f"{row[name]:.1f}" for name in
                ("encode_seconds", "decode_seconds", "compiled_after_seconds"))] for row in first["rows"])),
        "## The layered quantizer on a GPU",
        "Billions of coordinates per second, median by the clock, sigma 0.01. Blocks are coded on the GPU and sealed "
        "on the host.",
        measured(gpu.get("stamps", {}).get("user"), "python bench/gpu.py --only user", gpu["device"]),
    ]  # fmt: skip
    large, small, rows = 2**28, 10**7, []
    for label, lattice in (('`Integer(1)`, `coder="layered"`', "Integer(1)"),):
        rows.append([f"tensor to sealed bytes / back, {label}",
                     *(giga(gpu, f"tensor to sealed bytes, {lattice}, {m}", f"sealed bytes to tensor, {lattice}, {m}")
                       for m in (large, small))])  # fmt: skip
    for name in ("Z1", "E8"):
        rows.append([f"blocks alone, encode / decode, {name}",
                     *(giga(gpu, f"coded blocks, {name}, encode, {m}", f"coded blocks, {name}, decode, {m}")
                       for m in (large, small))])  # fmt: skip
        rows.append([f"`LRSUQ.quantize` / `reconstruct`, {name}",
                     giga(gpu, f"quantize, {name}, {large}", f"reconstruct, {name}, {large}"), ""])  # fmt: skip
    rows.append(["PyTorch: copy / `x + sigma * randn`", giga(gpu, "PyTorch copy", "PyTorch x + sigma*randn"), ""])
    same = [value for kind in ("identity", "symbols") for value in gpu[kind].values()]
    parts += [
        table(["", f"{large:,} coordinates", f"{small:,} coordinates"], rows),
        f"Messages, vectors and symbols are the CPU's in {sum(each == 'identical' for each in same)} of {len(same)}"
        " combinations of distribution and lattice (`python bench/gpu.py --only identity,symbols`).",
        *searched_on_gpu(),
        "## Training on a GPU",
        "Milliseconds per round on synthetic images, GPU beside 16 cores. Each part waits for the device, so a real"
        " round takes less.",
        measured(trained.get("stamps", {}).get("private"), "python bench/gpu_train.py", trained["device"]),
    ]  # fmt: skip
    rows = []
    for name in ("private", "convolutional", "many clients"):
        for device in ("cpu", "cuda"):
            found = trained[name][device]
            cells = [f"{1e3 * found[part]:.1f}" for part in ("gradients", "encode", "decode", "evaluation", "round")]
            label = f"{name}, {trained[name]['clients']:,} clients"
            rows.append([label, {"cpu": "CPU", "cuda": "GPU"}[device], *cells])
    whole = trained["private, whole command"]
    parts += [
        table(["preset", "device", "gradients", "encode", "decode", "evaluation", "whole round"], rows),
        "The whole command `cepam train --preset private` (600 rounds, MNIST) took"
        f" {whole['cuda']:.1f} s on the GPU and {whole['cpu, 16 cores']:.1f} s on the CPU.",
    ]  # fmt: skip
    return "\n\n".join(parts)


# Training

PRIVATE = {
    "preset": "private", "data.name": "mnist", "compression.scheme": "cepam-gaussian",
    "compression.downlink": "quantized", "privacy.epsilon": 1.99, "training.server_learning_rate": 4.0,
    "training.rounds": 600, "training.expected_batch_size": 4096.0, "run.seeds": 1,
}  # fmt: skip
RIVALS = (
    ("fl+gaussian", "float32", "float32 both ways, Gaussian noise"),
    ("fl+gaussian+sdq", "quantized", "noise, then dithered quantization up, quantized down"),
    ("cepam-gaussian", "float32", "cepam up, float32 down"),
    ("cepam-gaussian", "quantized", "cepam up, quantized down"),
)
FREE = ("run.seed", "suite", "model.name")


def runs_of(settings: Row) -> dict[int, Row]:
    """The runs with exactly these settings, by seed."""
    found = {}
    for run in result("engine")["runs"]:
        if {name: value for name, value in run["job"].items() if name not in FREE} == settings:
            found[run["job"]["run.seed"]] = run
    return found


def groups(preset: str) -> list[tuple[Row, dict[int, Row]]]:
    """All settings of a preset that were run, with their runs by seed."""
    made: list[Row] = []
    for run in result("engine")["runs"]:
        settings = {name: value for name, value in run["job"].items() if name not in FREE}
        if settings["preset"] == preset and settings not in made:
            made.append(settings)
    return [(settings, runs_of(settings)) for settings in made]


def provenance(stamps: Iterable[Row]) -> str:
    """The machines and dates of several runs."""
    found = list(stamps)
    machines, dates = ([each.get(name, MISSING) for each in found] for name in ("processor", "date"))
    return f"({'; '.join(dict.fromkeys(machines))}; date {', '.join(dict.fromkeys(sorted(dates)))})\n"


def by_setting(name: str, setting: str, default: str) -> dict[str, dict[int, Row]]:
    """The runs of a file of their own, by the value of one setting, then by seed."""
    found: dict[str, dict[int, Row]] = {}
    for run in result(name)["runs"]:
        found.setdefault(run["job"].get(setting, default), {})[run["job"]["run.seed"]] = run
    return found


def engine(suite: str, groups: Iterable[dict[int, Row]]) -> str:
    """How the runs of a suite were made."""
    runs = [run for by_seed in groups for run in by_seed.values()]
    stamps = provenance(run.get("stamp", run.get("machine", {})) for run in runs)
    return f"`python bench/engine.py --suite {suite}` {stamps}"


def accuracies(runs: dict[int, Row]) -> list[float]:
    """Test accuracies by seed."""
    return [runs[seed]["accuracy"][0] for seed in sorted(runs)]


EARLIER = (
    "Rows of coder `layered` are older than the default coder and than the downlink rules that presets ship: their "
    "step has factor 64, exponent 1 and no hysteresis."
)


def coder_of(runs: dict[int, Row]) -> str:
    """The coder of the runs' messages: older runs, whose file has no stamp, had the layered quantizer."""
    return "`auto`" if all("stamp" in run for run in runs.values()) else "`layered`"


def average(runs: dict[int, Row], name: str) -> float:
    """The mean of a figure over seeds."""
    return mean(run[name] for run in runs.values())


def paired(runs: dict[int, Row], beside: dict[int, Row]) -> str:
    """Mean difference in points, paired by seed."""
    both = sorted(set(runs) & set(beside))
    return percent([runs[seed]["accuracy"][0] - beside[seed]["accuracy"][0] for seed in both], "+") if both else ""


def main_table() -> tuple[str, list[dict[int, Row]]]:
    """Accuracy and bytes of the preset `private` and its rivals."""
    ours, rows, every = runs_of(PRIVATE), [], []
    plain = runs_of(PRIVATE | {"compression.scheme": "fl+gaussian", "compression.downlink": "float32"})
    whole = average(plain, "bytes_up") + average(plain, "bytes_down")
    for scheme, downlink, label in RIVALS:
        runs = runs_of(PRIVATE | {"compression.scheme": scheme, "compression.downlink": downlink})
        up, down = average(runs, "bytes_up"), average(runs, "bytes_down")
        less = "" if runs == ours else paired(ours, runs)
        rows.append([label, percent(accuracies(runs)), less, f"{average(runs, 'bits_up'):.3f}",
                     f"{average(runs, 'bits_down'):.3f}", f"{up / 1e6:,.1f}", f"{down / 1e6:,.1f}",
                     f"{whole / (up + down):,.0f}"])  # fmt: skip
        every.append(runs)
    head = ["", "test accuracy, %", "cepam both ways minus this, points", "bits per coordinate up", "down", "MB up",
            "MB down", "times smaller"]  # fmt: skip
    return table(head, rows), every


def budgets_table() -> tuple[str, list[dict[int, Row]]]:
    """Accuracy over epsilon on both data sets, for features and for the CNN."""
    best: dict[tuple[float, str, str], dict[int, Row]] = {}
    for preset in ("private", "convolutional"):
        for settings, runs in groups(preset):
            plain = set(settings) <= {*PRIVATE, "data.validation_records"} and settings["preset"] == preset
            held = "data.validation_records" in settings
            same = settings["compression.scheme"] == "cepam-gaussian" and held == (preset == "convolutional")
            if preset == "private":
                rate = chosen_rate(settings["data.name"], settings["privacy.epsilon"])
                same = same and settings["compression.downlink"] == "quantized"
                same = same and settings["training.server_learning_rate"] == rate
            if not plain or not same:
                continue
            key = (settings["privacy.epsilon"], settings["data.name"], preset)
            if key not in best or held_out(runs) > held_out(best[key]):
                best[key] = runs
    rows = []
    for epsilon in sorted({key[0] for key in best}):
        cells: list[str] = []
        for preset in ("private", "convolutional"):
            for data in ("mnist", "fashion-mnist"):
                runs = best.get((epsilon, data, preset))
                cells.append(f"{percent(accuracies(runs))} ({len(runs)})" if runs else "not measured")
        rows.append([f"{epsilon:g}", *cells])
    head = ["epsilon", "features, MNIST, %", "features, Fashion-MNIST, %", "CNN, MNIST, %", "CNN, Fashion-MNIST, %"]
    return table(head, rows), list(best.values())


def chosen_rate(data: str, epsilon: float) -> float | None:
    """The learning rate that was best on held-out records at the batch and the rounds of the preset `private`."""
    here = (data, epsilon, PRIVATE["training.expected_batch_size"], PRIVATE["training.rounds"])
    rows = [row for row in result("choose_private")["rows"] if
            (row["data"], row["epsilon"], row["batch"], row["rounds"]) == here]  # fmt: skip
    return float(max(rows, key=lambda row: float(row["accuracy"]))["rate"]) if rows else None


def held_out(runs: dict[int, Row]) -> float:
    """Mean accuracy on held-out records, 0 where none were held out."""
    return mean(each or 0.0 for run in runs.values() for each in run["validation_accuracy"])


def training() -> str:
    """Accuracy and bytes of the presets."""
    main, made = main_table()
    budgets, budget_runs = budgets_table()
    ftrl, users = groups("dp-ftrl"), groups("users")
    personal, traffic = result("personal"), result("flower_traffic")
    parts = [
        "# Training: accuracy and bytes", MARK,
        "Simulations with fixed seeds, so schemes are paired: the same records, cohorts and keys. Means and 95 % "
        "intervals over seeds. Unless a table says otherwise, epsilon is for one record against an outsider at delta "
        "1e-5. Presets: [Train in simulation](../train.md).",
        "## Preset `private` and other schemes",
        "MNIST, 30 clients, 600 rounds, 39,700 weights on fixed scattering features, epsilon 1.99, five seeds. MB are "
        "those of all clients over the whole run. Row three has the layered quantizer; row two a downlink step of "
        "factor 64, where the preset has 256.",
        engine("main", made), main,
        "## Over epsilon",
        "Features: preset `private`. CNN: preset `convolutional`. Learning rates were chosen on held-out records; "
        "that is not in epsilon. Other settings of `convolutional` were chosen by test accuracy on one seed. Seeds are "
        "in parentheses.",
        engine("budgets convolutional", budget_runs), budgets,
        "## Without secret sampling",
        f"Preset `dp-ftrl`: correlated noise, a fixed order of records, epsilon 1.99. {EARLIER}",
        engine("no-sampling", (runs for _, runs in ftrl)),
        table(["data", "dropouts", "seeds", "test accuracy, %", "coder", "bits per coordinate up", "down"],
              ([settings["data.name"], f"{100 * settings.get('clients.dropout_rate', 0.0):g} %", len(runs),
                percent(accuracies(runs)), coder_of(runs), f"{average(runs, 'bits_up'):.3f}",
                f"{average(runs, 'bits_down'):.3f}"] for settings, runs in ftrl)),
        "## User-level privacy",
        f"Preset `users`: epsilon of all records of one client, sampled cohorts, MNIST. {EARLIER}",
        engine("users", (runs for _, runs in users)),
        table(["epsilon", "seeds", "test accuracy, %", "coder", "bits per coordinate up", "down"],
              ([f"{settings['privacy.epsilon']:g}", len(runs), percent(accuracies(runs)), coder_of(runs),
                f"{average(runs, 'bits_up'):.3f}", f"{average(runs, 'bits_down'):.3f}"]
               for settings, runs in sorted(users, key=lambda each: each[0]["privacy.epsilon"]))),
        "## Personalized layers",
        "Clients with two labels each, client-level epsilon 4. Learning rates by held-out records.",
        measured(personal.get("stamp"), "python bench/personal.py --seeds 3"),
        table(["", "seeds", "accuracy, mean over clients, %"], personal_rows(personal["rows"])),
        *beside_flower(),
        *per_example(),
        *simulated(),
        "## Bytes over Flower",
        "A whole run by the SuperLink's own counters, Flower's own messages included: {size:,} coordinates, {nodes} "
        "SuperNodes on one machine, {rounds} rounds, sigma {sigma:g}.".format(
            **traffic, rounds=traffic["num-server-rounds"]),
        measured(traffic["stamp"], ""),
        table(["", "bytes in", "bytes out"],
              ([{"quantized": "cepam up, quantized down", "plain": "Flower alone, float32"}[row["run"]],
                f"{row['bytes_in']:,}", f"{row['bytes_out']:,}"] for row in traffic["rows"])),
        "## How settings were chosen",
        "On held-out training records, with central noise in place of messages. Test records were not read. The choice "
        "is not in epsilon.",
        *choices(),
    ]  # fmt: skip
    return "\n\n".join(parts)


def beside_flower() -> list[str]:
    """Record-level privacy over Flower beside the engine, where that was measured."""
    if not (RESULTS / "flower_records.json").exists():
        return []
    kept = result("flower_records")
    pairs, told = kept["runs"], kept["settings"]
    known = kept.get("stamp", {name: kept[name] for name in ("date",) if name in kept})
    rows = [[name, len(pairs), percent([pair[key]["accuracy"] for pair in pairs]),
             "" if key == "engine" else percent([p[key]["accuracy"] - p["engine"]["accuracy"] for p in pairs], "+")]
            for name, key in (("simulation engine", "engine"), ("Flower", "flower"))]  # fmt: skip
    return [
        "## Record-level privacy over Flower",
        f"The app of `examples/flower-mnist` and the simulation engine with the same model, noise and start: epsilon "
        f"{told['epsilon']:g}, {told['rounds']} rounds, {told['clients']} clients, paired by seed.",
        measured(known, "python bench/flower_records.py"),
        table(["", "seeds", "test accuracy, %", "minus engine, points"], rows),
    ]


CASES = {"mlp": "MLP", "cnn": "CNN, group normalisation", "small-cnn": "small CNN", "gru": "`nn.GRU` language model",
         "lstm": "`nn.LSTM` language model", "transformer": "transformer"}  # fmt: skip


def per_example() -> list[str]:
    """Per-example gradients beside plain ones, for each device and precision that was measured."""
    if not (RESULTS / "per_example.json").exists():
        return []
    parts = [
        "## Per-example gradients",
        "A training step with `PerExampleGradients`, its gradients clipped one by one, beside a plain step: times and "
        "the most memory beyond the model's, relative to plain. The columns of Opacus are times too.",
    ]
    for key, stored in result("per_example").items():
        found, rows = stored["figures"], []
        for each in found["cases"]:
            ways = {row["way"]: row for row in each["rows"]}
            plain, ours = ways["plain"], ways["ours"]
            known = key.startswith("cuda") and "ratio" in ours
            more = f"{ours['memory_mib'] / plain['memory_mib']:.2f}" if known else "not measured"
            time = f"{ours['ratio']:.2f}" if "ratio" in ours else "one by one"
            others = [_ratio(ways.get(way)) for way in ("opacus", "opacus-ghost")]
            rows.append([CASES[each["case"]], f"{each['weights']:,}", f"{each['examples']:,}", f"{plain['ms']:.1f}",
                         time, more, *others])  # fmt: skip
        device, precision = key.split()
        parts += [
            f"### {'GPU' if device == 'cuda' else 'CPU'}, {precision}{' autocast' if precision == 'bfloat16' else ''}",
            measured(stored["stamp"], ""),
            table(["model", "weights", "batch", "plain, ms", "time", "memory", f"Opacus {found['opacus']}",
                   "Opacus, ghost norms"], rows),
        ]  # fmt: skip
    return parts


def _ratio(row: Row | None) -> str:
    return "not measured" if row is None else f"{row['ratio']:.2f}" if "ratio" in row else "refused"


def simulated() -> list[str]:
    """A run of many clients in Flower's own simulation engine, where that was measured."""
    if not (RESULTS / "flower_simulation.json").exists():
        return []
    kept = result("flower_simulation")
    return [
        "## Many clients in Flower's simulation",
        f"{kept['clients']:,} simulated clients, about {kept['expected_cohort']} of them in a round by secret Poisson "
        f"sampling, {kept['rounds']} rounds, {kept['coordinates']:,} weights, noise scale {kept['sigma']:g}, clipping "
        "norm 1. The clients train nothing: the time is that of Flower and of cepam.",
        measured(kept["stamp"], ""),
        table(["seconds per round", "bytes up per reply", "float32 would take", "bytes down per client", "memory, MiB",
               f"epsilon at delta {kept['delta']:g}", "if participation is seen"],
              [[f"{kept['seconds_per_round']:.0f}",
                "not logged" if kept["bytes_up_per_reply"] is None else f"{kept['bytes_up_per_reply']:,.0f}",
                f"{4 * kept['coordinates']:,}", f"{kept['bytes_down_per_reply']:,}", f"{kept['memory_mib']:,}",
                f"{kept['epsilon']:.2f}", f"{kept['epsilon_sees_participation']:.2f}"]]),
    ]  # fmt: skip


def personal_rows(rows: list[Row]) -> list[list[Any]]:
    """Accuracy of each kind of model at the learning rates that held-out records chose."""
    made = []
    kinds = (("one model for all", None, "accuracy"), ("the same, tuned by each client", None, "tuned"),
             ("last layer stays on the client", "last", "accuracy"), ("each client alone", None, "alone"))  # fmt: skip
    for label, personal, judged in kinds:
        mine = [row for row in rows if row["job"].get("model.personal_layers") == personal]
        job = max((row for row in mine if "data.validation_records" in row["job"]), key=lambda row: row[judged])["job"]
        rates = {name: job[name] for name in ("training.local_learning_rate", "training.server_learning_rate")}
        tested = [row for row in mine if "data.validation_records" not in row["job"]]
        values = [row[judged] for row in tested if rates.items() <= row["job"].items()]
        made.append([label, len(values), percent(values)])
    return made


def choices() -> list[str]:
    """The best rows of the searches on held-out records."""
    searches = (
        ("private", "choose_private", "python bench/choose_private.py"),
        ("dp-ftrl", "choose_dp_ftrl", "python bench/choose_private.py --slices 30"),
        ("users", "choose_users", "python bench/choose_users.py"),
    )
    head = ["preset", "data", "epsilon", "batch", "clipping norm", "rounds", "learning rate", "held-out accuracy, %"]
    rows, made = [], []
    for name, file, command in searches:
        found = result(file)
        best: dict[tuple[str, float], Row] = {}
        for row in found["rows"]:
            key = (row["data"], row["epsilon"])
            if key not in best or row["accuracy"] > best[key]["accuracy"]:
                best[key] = row
        rows += [[f"`{name}`", data, f"{epsilon:g}", row.get("batch", ""), row.get("clip", ""), row["rounds"],
                  f"{row['rate']:.3g}", f"{100 * row['accuracy']:.2f}"]
                 for (data, epsilon), row in sorted(best.items()) if epsilon > 0.5]  # fmt: skip
        where = {"cuda": "one NVIDIA H200"}.get(found.get("device", ""), "")
        made.append(f"The best of {len(found['rows'])} settings: {measured(found.get('stamp'), command, where)}")
    return ["\n".join(made), table(head, rows)]


# Accounting


def accounting() -> str:
    """Time of the accountant, and the noise that mechanisms leave in the weights."""
    answers, rounds, noise = result("privacy"), result("accounting"), result("correlated")
    two, batches = noise["two epsilons"], noise["over batches"]
    found = two["figures"]
    parts = [
        "# Accounting: time and noise", MARK,
        "What the accountant computes: [Accounting](../accounting.md).",
        "## Time of one answer",
        "30 clients with 2,000 records each, 80 rounds; one thread.",
        measured(answers["stamp"], ""),
        table(["", "processor seconds"],
              ([row["what"], f"{row['processor_seconds']:.3f}"] for row in answers["rows"])),
        "## Time per round of a server",
        "A server adds the round's mechanism, computes epsilon, and saves the accountant. Other nodes are sampled in "
        "each round. Means of five rounds.",
    ]  # fmt: skip
    for each in rounds.values():
        kept = each["figures"]
        by_id = "nodes identified" if "stable_nodes" in kept["options"] else "nodes not identified"
        saved = "saved" in kept["options"]
        by_id += ", unlike weights" if "unlike" in kept["options"] else ""
        by_id += ", the account in its folder, processor time" if saved else ""
        saving = "charge and save, ms" if saved else "save and load, ms"
        rows = [[row["round"], f"{row['epsilon_ms']:.2f}", f"{row['saving_ms']:.2f}"]
                for row in (kept["rows"][0], kept["rows"][-1])]  # fmt: skip
        parts += [f"{kept['sampled']} of {kept['nodes']} nodes per round, {by_id}: {measured(each['stamp'], '')}",
                  table(["round", "add and epsilon, ms", saving], rows)]  # fmt: skip
    parts += [
        "## Noise left in the weights",
        "As the multiplier of independent noise that would leave as much. Computed for one client of"
        f" {found['records']:,} records, {found['rounds']} rounds,"
        f" {found['slices']} batches per pass, momentum {found['momentum']:g}, delta 1e-5.",
        measured(two["stamp"], ""),
        table(["", *(f"epsilon {e:g}" for e in found["epsilons"])],
              ([row["what"], *(f"{each:.2f}" for each in row["noise_multipliers"])] for row in found["rows"])),
        f"The same at epsilon {batches['figures']['epsilon']:g} over {batches['figures']['rounds']} rounds, scaled to a"
        " batch of 2,000 so that batches compare:",
        measured(batches["stamp"], ""),
        table(["sampling", "batch", "bands or slices", "noise multiplier"],
              ([row["sampling"], f"{row['batch']:g}", parts_of(row), f"{row['noise_multiplier']:.3f}"]
               for row in batches["figures"]["rows"] if row.get("bands", 1) in (1, 8))),
    ]  # fmt: skip
    return "\n\n".join(parts)


def parts_of(row: Row) -> str:
    """The bands of the noise, or the slices of a pass."""
    if "slices" in row:
        return f"{row['slices']} slices"
    return "1 band" if row["bands"] == 1 else f"{row['bands']} bands"


# Secure aggregation


def secure_aggregation() -> str:
    """Cost of secure aggregation, and other mechanisms for a private sum."""
    kept = result("secure")
    sums = json.loads(SUMS.read_text(encoding="utf-8"))
    ours = engine_rows(RESULTS / "engine.json", TRIPS)
    cases = [runs_of(PRIVATE), runs_of(PRIVATE | {"privacy.trust": "secure-aggregation"}),
             runs_of(PRIVATE | {"privacy.trust": "secure-aggregation", "compression.sketch": 1600})]  # fmt: skip
    labels = ("trusted server", "secure aggregation", "secure aggregation, sketch of 1,600")
    parts = [
        "# Secure aggregation: cost and alternatives",
        MARK,
        "How to use it: [Secure aggregation](../secure-aggregation.md).",
        "## Time and bytes of one round",
        "One thread: one answer of a client without its training, one whole round of the server.",
    ]
    shown = [each for each in kept.values() if "processor_seconds" in each["figures"]]
    figures = [each["figures"] for each in shown]
    columns = [f"{each['coordinates']:,} coordinates, {each['clients']} clients, {each['dropped']} dropped"
               for each in figures]  # fmt: skip
    rows = [[name, *(f"{each['processor_seconds'][name]:.4f} s" for each in figures)]
            for name in figures[0]["processor_seconds"]]  # fmt: skip
    rows += [["upload of one client", *(f"{each['upload bytes']:,} bytes" for each in figures)],
             ["bits per coordinate up", *(f"{each['bits_per_coordinate']:.2f}" for each in figures)]]  # fmt: skip
    parts += [
        "\n".join(measured(each["stamp"], "") for each in shown),
        table(["processor time or size", *columns], rows),
    ]
    parts += [
        "## In training",
        "Preset `private`, MNIST, 30 clients, 600 rounds, epsilon 1.99, paired by seed with the trusted server."
        + ("" if coder_of(cases[1]) == "`auto`" else " Rows of secure aggregation had a downlink step of factor 64, "
           "where the preset has 256: their bits down are those of an older rule."),
        engine("sum", cases),
        table(["", "seeds", "test accuracy, %", "minus trusted server, points", "bits per coordinate up", "down",
               "processor seconds"],
              ([label, len(runs), percent(accuracies(runs)), "" if runs is cases[0] else paired(runs, cases[0]),
                f"{average(runs, 'bits_up'):.3f}", f"{average(runs, 'bits_down'):.3f}",
                f"{average(runs, 'processor_seconds'):.0f}"] for label, runs in zip(labels, cases))),
        "## Other mechanisms for a private sum",
        "The same preset with the distributed discrete Gaussian and Skellam mechanisms, the quantization of Flower's "
        "legacy SecAgg+, and local noise; each at epsilon 1.99, without dropouts. Bytes of other mechanisms are those "
        "of their vectors alone, padded to a power of two: protocol messages are not counted, in their favour.",
        "`python -m cepam_peers --seeds 5 --processes 16`, `python bench/engine.py --suite sum sketches` "
        + provenance(run.get("stamp", {}) for run in sums),
        tables(sums, ours),
        "![Test accuracy against bits per coordinate up for every mechanism](../img/sums.png)",
    ]  # fmt: skip
    return "\n\n".join(parts)


# Downlink


def downlink() -> str:
    """Bits and accuracy of the quantized downlink."""
    preset, speed = result("downlink_preset"), result("downlink_speed")
    quantized, plain = runs_of(PRIVATE), runs_of(PRIVATE | {"compression.downlink": "float32"})
    late = {"2": "2 rounds late", "10": "10 rounds late", "60": "60 rounds late", "start": "from the start",
            "new": "new client"}  # fmt: skip
    parts = [
        "# Downlink: bits and accuracy", MARK,
        "How it works: [Quantized downlink](../downlink.md).",
        "## Bits by step",
        "Preset `convolutional`, MNIST, one seed: bits per coordinate of the mean message, and of messages to clients "
        "that missed rounds, at half of the run.",
        measured(preset.get("stamp", preset.get("machine")), "python bench/downlink.py --seeds 1 --factors 0 64"),
        table(["step factor", "bits per coordinate", *late.values()],
              ([f"{row['factor']:g}", f"{row['bits']:.3f}", *(f"{row['behind'][gap]:.2f}" for gap in late)]
               for row in preset["rows"][0]["beside"])),
        f"Preset `private` with {len(quantized)} seeds: {percent(accuracies(quantized))} % quantized,"
        f" {percent(accuracies(plain))} % in float32, {paired(quantized, plain)} points by seed, at"
        f" {average(quantized, 'bits_down'):.3f} bits per coordinate ([Training](training.md)).",
    ]  # fmt: skip
    parts += [
        *users_pairs(), *flower_step(), *public_points(),
        "## Speed",
        measured(speed.get("stamp", speed.get("machine")), "python bench/downlink.py --speed"),
        table(["coordinates, one thread", "publish, ns per coordinate", "apply, ns per coordinate"],
              ([f"{row['coordinates']:,}", f"{row['publish_ns']:.1f}", f"{row['apply_ns']:.1f}"]
               for row in speed["rows"] if row["threads"] == 1)),
    ]  # fmt: skip
    return "\n\n".join(parts)


def users_pairs() -> list[str]:
    """Preset `users` as it ships beside a float32 downlink."""
    ways = by_setting("engine_users", "compression.downlink", "quantized")
    both = set.intersection(*(set(runs) for runs in ways.values()))
    ways = {way: {seed: run for seed, run in runs.items() if seed in both} for way, runs in ways.items()}
    told = Settings.of(preset_values("users")).compression
    return [
        "## Preset `users`",
        f"The preset as it ships (step factor {told.downlink_step_factor:g}, exponent {told.downlink_step_exponent:g}, "
        f"zone {told.downlink_hysteresis:g}) beside a float32 downlink. MNIST, paired by seed: the same keys, users "
        "and records. Bits down include messages to clients that missed rounds.",
        engine("users-downlink", ways.values()),
        table(["downlink", "seeds", "bits per coordinate down", "up", "test accuracy, %", "minus float32, points"],
              ([way, len(runs), f"{average(runs, 'bits_down'):.3f}", f"{average(runs, 'bits_up'):.4f}",
                percent(accuracies(runs)), "" if way == "float32" else paired(runs, ways.get("float32", {}))]
               for way, runs in sorted(ways.items()))),
    ]  # fmt: skip


def flower_step() -> list[str]:
    """The step factor of Flower's rule, on held-out records."""
    found, shipped = result("choose_flower_step"), QuantizedBroadcast().step_factor
    rows: list[list[str]] = []
    lost: dict[float, float] = {}
    for row in found["rows"]:
        told = {name: row[name] for name in ("model", "noise", "rounds")}
        plain = next(each for each in found["rows"] if each["factor"] == 0 and told.items() <= each.items())
        off = 100.0 * (mean(plain["seeds"]) - mean(row["seeds"]))
        lost[row["factor"]] = max(lost.get(row["factor"], off), off)
        rows.append([row["model"], f"{row['noise']:g}", "float32" if not row["factor"] else f"{row['factor']:g}",
                     f"{row['bits_down']:.3f}", percent(row["seeds"]),
                     percent([a - b for a, b in zip(row["seeds"], plain["seeds"])], "+")])  # fmt: skip
    return [
        "## Flower's step on held-out records",
        "Federated averaging of ten clients on pixels of MNIST, 50 rounds. Bits are whole messages. Flower's default "
        f"is factor {shipped:g}, by held-out accuracy: against float32 it loses at most {lost[shipped]:.2f} points, "
        f"factor {2 * shipped:g} {lost[2 * shipped]:.2f}.",
        measured(found.get("stamp"), "python bench/choose_flower_step.py"),
        table(["model", "noise", "step factor", "bits per coordinate", "held-out accuracy, %", "minus float32, points"],
              rows),
    ]  # fmt: skip


def public_points() -> list[str]:
    """Runs of the engine with the chosen rule, beside float32 by seed."""
    found = result("downlink_gpu")
    kinds: dict[str, dict[int, Row]] = {}
    for row in found["rows"]:
        job = {name: value for name, value in row["job"].items() if name not in ("predict", "run.seed")}
        kinds.setdefault(json.dumps(job), {})[row["job"]["run.seed"]] = row
    rows = []
    for text, by_seed in kinds.items():
        job = json.loads(text)
        if job["preset"] not in ("private", "users"):
            continue
        floats = json.dumps({"preset": job["preset"], "compression.downlink": "float32"})
        base = kinds.get(floats, {})
        off = [by_seed[seed]["accuracy"] - base[seed]["accuracy"] for seed in sorted(by_seed) if seed in base]
        names = ("step_factor", "step_exponent", "hysteresis")
        told = ["float32"] * 3 if text == floats else [f"{job[f'compression.downlink_{name}']:g}" for name in names]
        bits = mean([row.get("bits_down", 32.0) for row in by_seed.values()])
        rows.append([f"`{job['preset']}`", *told, f"{bits:.3f}",
                     percent([row["accuracy"] for row in by_seed.values()]), percent(off, "+") if off else "",
                     len(by_seed)])  # fmt: skip
    shipped = Settings.of(preset_values("users")).compression.downlink_step_factor
    return [
        "## The chosen rules in the engine",
        "MNIST test data. Messages were coded after the runs. Preset `private` ships this rule; preset `users` ships "
        f"factor {shipped:g}, a finer step than the one measured here.",
        measured(found.get("stamp"), "python bench/downlink_gpu.py --run FOLDER; --code FOLDER"),
        table(["preset", "step factor", "exponent", "zone", "bits per coordinate", "test accuracy, %",
               "minus float32, points", "seeds"], rows),
        "## Public prediction",
        "Energy left in an update less the best multiple of a public vector from past broadcasts, and bytes of whole "
        "messages of the layered quantizer with the vector `last`. One seed, four clients per round.",
        table(["preset", "rounds", "last", "aggregate", "ten rounds", "bytes", "bytes, predicted"],
              ([f"`{row['job']['preset']}`", "{} to {}".format(*part["rounds"]),
                *(f"{100 * part['left'][name]:.1f} %" if name in part["left"] else ""
                  for name in ("last", "aggregate", "ten rounds")),
                f"{part['bytes']:.0f}", f"{part['predicted']:.0f}"]
               for row in found["rows"] for part in row["prediction"][1::3])),
    ]  # fmt: skip


# Scale


COPIES = (
    "A linear head of {weights:,} weights on frozen features, five images per user. Clients are copies of 10,000 "
    "users: this is the work for so many clients, not what they would teach."
)


def scale() -> str:
    """Rounds of large populations."""
    parts = [
        "# Scale: large populations",
        MARK,
        "Simulated rounds with 1,000 sampled clients: user-level privacy, a linear model of 1,010 weights, both "
        "directions compressed. Only the draw of the cohort grows with the population.",
    ]
    titles = {"scale": "On a CPU", "scale_gpu": "On a GPU", "scale_cifar": "Preset `cifar10-users`, on a CPU"}
    for name, title in titles.items():
        kept = result(name)
        device = "NVIDIA H200" if name == "scale_gpu" else ""
        more = " --device cuda --out bench/results/scale_gpu.json" if name == "scale_gpu" else ""
        about = [COPIES.format(weights=kept["rows"][0]["weights"])] if name == "scale_cifar" else []
        loads = sorted({row["load"] for row in kept["rows"]})
        rows = [[f"{row['clients']:,}", f"{row['cohort']:,}", f"{row['seconds_a_round']:.2f}",
                 f"{row['processor_seconds_a_round']:.2f}", f"{1e3 * row['seconds_of_the_draw']:.1f}",
                 f"{row['peak_bytes'] / 1e9:.2f}"] for row in kept["rows"]]  # fmt: skip
        parts += [
            f"## {title}", *about,
            measured(kept.get("stamp"), f"python bench/scale.py --rounds 3{more}", device)
            + f"Load of the machine: {loads[0]:g} to {loads[-1]:g}.\n",
            table(["clients", "sampled per round", "seconds per round", "processor seconds", "draw of the cohort, ms",
                   "peak memory, GB"], rows),
        ]  # fmt: skip
    return "\n\n".join(parts)


# Peers


def peers() -> str:
    """Other programs and mechanisms beside ours."""
    rows = json.loads(PEERS.read_text(encoding="utf-8"))
    parts = [
        "# Other tools, side by side", MARK,
        "The same data, model (a linear head on fixed features), rounds and target epsilon in every row of a table. "
        "All runs are simulations in one process. The picture shows `chitchat-prompts`.",
        "![Accuracy over bytes up per client and round, chitchat-prompts](../img/peers.svg)",
        "## How to read the tables",
        "- **Proved epsilon** is by our accountant, for an outsider who sees every model. A sum of updates that were "
        "noised and then compressed one by one is no post-processing of the noisy sum, so its epsilon is *unproven*. "
        "Discrete Gaussian and Skellam rows charge rounding on average, in their favour.\n"
        "- **It reports** is what the tool itself says.\n"
        "- **Unit** is whom the row hides. Flower's wrappers hide whole clients, whatever the task needs.\n"
        "- **Bytes** are per client and round: our messages with header and seal, Flower's records without transport, "
        "FLARE's arrays alone, bare payloads for mechanisms that we wrote. All but ours broadcast float32; our "
        "quantized downlink would serve them too.\n"
        "- **Seconds** are processor seconds per run on two shared cores. **Lines** are those that a user adds.\n"
        "- Missing rows were not run.\n"
        "- **Opacus, central**, holds all records on one machine: a ceiling.",
    ]  # fmt: skip
    for task, told in TASKS.items():
        mine = [row for row in rows if row["task"] == task]
        if not mine:
            continue
        first = mine[0]
        judged = "area under the curve" if first["judge"] == "auc" else "accuracy"
        parts += [
            f"## `{task}`",
            f"Preset `{told.preset}`: {told.about}. {first['clients']} clients, {first['rounds']} rounds, "
            f"{first['weights']:,} weights; epsilon {first['target_epsilon']:g} at delta {first['delta']:.2g}. "
            f"Test {judged}, 95 % intervals over seeds.",
            f"`python -m cepam_peers.updates --task {task}` with {peers_versions(mine)} "
            + provenance(row["stamp"] for row in mine),
            peers_table(rows, task),
            peers_bytes(mine),
        ]
    return "\n\n".join([*parts, "## What we saw", *peers_notes(rows)])


def peers_bytes(rows: list[Row]) -> str:
    """Bytes of both directions beside float32."""
    sums = {row["row"]: row["bytes_up"] + row["bytes_down"] for row in rows if row.get("bytes_up") is not None}
    if not {"cepam", "float32"} <= set(sums):
        return ""
    return (
        f"Both directions together: {sums['cepam']:,.0f} bytes per client and round with cepam, {sums['float32']:,.0f} "
        f"with float32, {sums['float32'] / sums['cepam']:.1f} times as many."
    )


def peers_versions(rows: list[Row]) -> str:
    """The versions of the other programs."""
    found = {name: row["stamp"][name] for row in rows for name in ("flwr", "nvflare", "opacus") if name in row["stamp"]}
    return ", ".join(f"{name} {version}" for name, version in found.items())


def peers_notes(rows: list[Row]) -> list[str]:
    """What a reader must know about the programs' rows."""
    adaptive = [row for row in rows if row["row"] == "flower-server-adaptive" and row.get("last_clip")]
    moved = "; ".join(f"`{row['task']}`: from {row['chosen']:g} to {row['last_clip']:.3g}" for row in adaptive)
    clips = "; ".join(f"`{row['task']}`: {row['chosen']:g}" for row in rows if row["row"] == "flower-server-fixed")
    secagg = "No row was measured; the tests run it on twelve clients."
    if any(row["row"] == "flower-secagg" and "refused" not in row for row in rows):
        secagg = "Its row has the legacy client-side fixed clipping, 5 shares, threshold 3, one seed, all four stages."
    return [
        "**Flower** 1.41 was driven in process: real messages, the shipped strategies and mods, `strategy.start`. All "
        "clients take part in every round with equal weights, one step on all their records, and `FedAvg`, the only "
        "strategy that its accountant admits, so without momentum. The clipping norm is the best of three or four on "
        f"held-out clients ({clips}); that choice is not in epsilon.",
        "**Flower's adaptive clipping** moves its norm the wrong way: it counts updates that were clipped where the "
        "paper (Andrew et al. 2021) counts those that were not. A norm that is too small shrinks, and one that is too "
        f"large grows (last norms of first seeds: {moved}). It also scales the noise by the next round's norm, so our "
        "epsilon is above the target. It refuses noise multipliers above a tenth of the clients; there we set "
        "`clipped_count_stddev` to the noise multiplier.",
        "**An update of zeros** stops Flower's clipping with `ZeroDivisionError`. On `hospitals` clients with one "
        "record soon fit it.",
        "**Flower's SecAgg+** is part of the legacy API; strategies of the message API cannot use it. "
        f"{secagg} The server adds the noise: epsilon does not hold against it.",
        "**FLARE's filters** saw the differences of plain federated averaging; gamma by held-out clients. SVT reports "
        "the sum of its budgets, but accepts more values than it paid for, so nothing is proved. The percentile filter "
        "adds no noise.",
        "**Opacus** hides users where a sample is a user, padded to the same number of records: ten more lines.",
    ]


# Overview


def overview() -> str:
    """What is measured where: a question, one figure, the page and the command."""
    ours, plain = runs_of(PRIVATE), float_runs()
    moved = [sum(average(runs, way) for way in ("bytes_up", "bytes_down")) for runs in (plain, ours)]
    gpu = result("gpu")[f"tensor to sealed bytes, Integer(1), {2**28}"]
    answer = result("privacy")["rows"][0]
    secure = max((each["figures"] for each in result("secure").values() if "processor_seconds" in each["figures"]),
                 key=lambda found: (found["coordinates"], -found["dropped"]))  # fmt: skip
    largest, hospitals = result("scale")["rows"][-1], of_task(kept_tasks(RESULTS), "hospitals", "cepam")
    low, attacked = quiet(), [row["figures"] for row in result("fuzz").values()]
    rows = [
        ["Bytes of training?", f"preset `private`: {moved[0] / moved[1]:,.0f} times fewer than float32, both ways",
         "[Training](training.md)", "bench/engine.py"],
        ["Accuracy?", f"{paired(ours, plain)} points against float32, paired by seed", "[Training](training.md)",
         "bench/engine.py"],
        ["Real tasks?", f"`hospitals`: AUC {score('hospitals', hospitals)} at epsilon 2", "[Real tasks](tasks.md)",
         "bench/tasks.py"],
        ["Other tools?", "Flower, FLARE, Opacus and rival mechanisms at equal epsilon", "[Other tools](peers.md)",
         "-m cepam_peers.updates"],
        ["Size of a message?", f"{low['bytes']:.0f} bytes for {low['size']:,.0f} weights at {low['snr_db']:.0f} dB, "
         "default coder", "[Rate](rate.md)", "bench/search.py"],
        ["Time on a CPU?", f"the same message: {low['encode over noise']:.0f} times drawing the noise to encode, "
         f"{low['decode over noise']:.1f} times to decode", "[Speed](speed.md)", "bench/search.py"],
        ["Time on a GPU?", f"layered quantizer: {gpu['giga_coordinates_a_second']:.1f} billion coordinates per second "
         "to sealed bytes", "[Speed](speed.md)", "bench/gpu.py"],
        ["The accountant?", f"{answer['what']}: {answer['processor_seconds']:.3f} s", "[Accounting](accounting.md)",
         "bench/privacy.py"],
        ["Secure aggregation?", f"{secure['bits_per_coordinate']:.2f} bits per coordinate up and "
         f"{secure['processor_seconds']['client train']:.3f} s per client at {secure['coordinates']:,} coordinates",
         "[Secure aggregation](secure-aggregation.md)", "bench/secure.py"],
        ["The downlink?", f"{average(ours, 'bits_down'):.3f} bits per coordinate (preset `private`)",
         "[Downlink](downlink.md)", "bench/downlink.py"],
        ["Large populations?", f"{largest['clients']:,} clients: {largest['seconds_a_round']:.2f} s per round with "
         f"{largest['cohort']:,} sampled", "[Scale](scale.md)", "bench/scale.py"],
        ["Hostile bytes?", f"{len(attacked)} parsers, {sum(row['cases'] for row in attacked):,} mutated messages and "
         f"files: {sum(row['found'] for row in attacked)} endings that are not documented", "[Limits](../limits.md)",
         "tools/fuzz.py"],
    ]  # fmt: skip
    return "\n\n".join([
        "# Benchmarks", MARK,
        "This page is stored in the repository: `make pages` writes it. The pages that it links are built from "
        "`bench/results` with the site: run `make docs` and open `site/benchmarks/index.html`. To read them as "
        "Markdown, run `python tools/make_benchmarks.py --pages FOLDER`.",
        "## Main results",
        "Test scores with 95 % intervals; bytes per client and round. *float32 DP* has the same clipping, noise and "
        "epsilon. Epsilon is for the whole run, against an outsider who sees every model.",
        results_table(),
        "## What is measured where",
        "One figure of each page. Each table there names command, machine and date. The paper's own experiments are in "
        "[the reproduction](../paper/reproduction.md).",
        table(["what", "figure", "page", "`python …`"], ([*row[:3], f"`{row[3]}`"] for row in rows)),
    ])  # fmt: skip


def float_runs() -> dict[int, Row]:
    """The runs beside preset `private` with float32 in both directions."""
    return runs_of(PRIVATE | {"compression.scheme": "fl+gaussian", "compression.downlink": "float32"})


def quiet() -> Row:
    """The stored message of preset `private`'s size where the noise is 30 dB above the update."""
    here = (result("search")["weights"], -30.0)
    return dict(next(row for row in result("search")["time"] if (row["size"], row["snr_db"]) == here))


# README


def results_table() -> str:
    """README's results: MNIST and the real tasks, beside float32 at the same noise, with the coder of each row."""
    ours, plain = runs_of(PRIVATE), float_runs()
    sdq = runs_of(PRIVATE | {"compression.scheme": "fl+gaussian+sdq"})
    whole = [sum(average(runs, way) for way in ("bytes_up", "bytes_down")) for runs in (plain, sdq, ours)]
    messages = 30 * PRIVATE["training.rounds"]

    def moved(runs: dict[int, Row]) -> str:
        return " / ".join(f"{average(runs, way) / messages:,.0f}" for way in ("bytes_up", "bytes_down"))

    protects = f"record, {PRIVATE['privacy.epsilon']}, {PRIVATE.get('privacy.delta', 1e-5):.2g}"
    rows = [["`private`: MNIST", protects, f"{percent(accuracies(ours))} %",
             f"{percent(accuracies(plain))} %", moved(ours), moved(plain), coder_of(ours)]]  # fmt: skip
    stored = kept_tasks(RESULTS)
    base = score("chitchat-lora", of_task(stored, "chitchat-lora", "base model"))
    told = {"hospitals": ", AUC", "cifar10": ", frozen public features",
            "chitchat-lora": f", perplexity (SmolLM2 alone {base}, one seed)"}  # fmt: skip
    for task in ("hospitals", "chitchat-prompts", "chitchat-lora", "shakespeare", "cifar10"):
        mine, floats = of_task(stored, task, "cepam"), of_task(stored, task, "float32")
        assert mine is not None
        unit, judged = promise(mine), f"`{task}`{told.get(task, '')}"
        rows.append([judged, unit, score(task, mine), score(task, floats), traffic(mine), traffic(floats), coder(mine)])
    low = quiet()
    head = [
        "Preset",
        "Protects, epsilon, delta",
        "cepam",
        "float32 DP",
        "Bytes up / down",
        "float32, up / down",
        "Coder",
    ]
    return "\n".join([
        table(head, rows).replace(" --- |", "---|"),
        f"On MNIST both directions together take {whole[0] / whole[2]:,.0f} times fewer bytes than float32; "
        f"accuracy differs by {paired(ours, plain)} points, paired by seed. The usual way, noise first and then "
        f"quantizing, saves a factor of {whole[0] / whole[1]:,.0f}. Encoding such an update takes "
        f"{low['encode over noise']:.0f} times as long as drawing the noise, decoding "
        f"{low['decode over noise']:.1f} times.",
    ])  # fmt: skip


def search_figures() -> str:
    """The technical note's figures: payloads over the limit, and times."""
    found = result("search")
    rows = {row["snr_db"]: row for row in found["gaussian updates, bits"]}
    payloads = {name: {ratio: row[name] - OVERHEAD for ratio, row in rows.items()} for name in ("search", "layered Z1")}
    over = {name: [bits / rows[ratio]["limit"] for ratio, bits in each.items() if -31.0 <= ratio <= -9.0]
            for name, each in payloads.items()}  # fmt: skip
    smaller = {ratio: payloads["layered Z1"][ratio] / payloads["search"][ratio] for ratio in (-10.0, -20.0, -28.0)}
    largest = max(row["size"] for row in found["time"])
    timed = [row for row in found["time"] if row["size"] == largest]
    encode, decode = ([row[f"{way} over noise"] for row in timed] for way in ("encode", "decode"))

    def span(values: list[float]) -> str:
        return f"{min(values):.1f} to {max(values):.1f}"

    return "\n".join([
        "",
        "Between -31 and -9 dB (mean square of the update over that of the noise) the payload is "
        f"{span(over['search'])} times I, the layered quantizer's {span(over['layered Z1'])} times.",
        f"It is {smaller[-10.0]:.1f} times smaller than the layered one at -10 dB, {smaller[-20.0]:.1f} times at "
        f"-20 dB and {smaller[-28.0]:.1f} times at -28 dB.",
        "Header and seal add 18 bytes ([rate tables](benchmarks/rate.md)).",
        f"On a CPU, {largest:,.0f} weights take {span(encode)} times as long to encode as drawing the noise, and "
        f"{span(decode)} times to decode, from {timed[0]['snr_db']:.0f} to {timed[-1]['snr_db']:.0f} dB.",
        "",
    ])  # fmt: skip


def with_results(text: str, write: Callable[[], str] = results_table) -> str:
    """README's text, or that of another page, with the figures between its marks renewed.

    Raises:
        ValueError: The two marks are missing.
    """
    before, begin, rest = text.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not begin or not end:
        raise ValueError(f"the text must have the lines {MARKS[0]} and {MARKS[1]}")
    return f"{before}{begin}\n{write()}\n{end}{after}"


WRITERS: dict[str, Callable[[], str]] = {
    "training": training, "tasks": lambda: tasks_page(RESULTS, table, MARK), "peers": peers, "rate": rate,
    "speed": speed, "accounting": accounting, "secure-aggregation": secure_aggregation, "downlink": downlink,
    "scale": scale,
}  # fmt: skip


def tidy(text: str) -> str:
    """The text with single empty lines and one at its end."""
    return text.replace("\n\n\n", "\n\n").rstrip("\n") + "\n"


def pages() -> dict[str, str]:
    """Every page that the site makes, by its file name; the overview is stored."""
    return {f"{name}.md": tidy(write()) for name, write in WRITERS.items()}


def main() -> None:
    """Write what is stored, or every page into a folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pages", type=Path, metavar="FOLDER", help="write every page into this folder, nothing else")
    folder = parser.parse_args().pages
    if folder is None:
        (PAGES / "index.md").write_text(tidy(overview()), encoding="utf-8")
        README.write_text(with_results(README.read_text(encoding="utf-8")), encoding="utf-8")
        NOTE.write_text(with_results(NOTE.read_text(encoding="utf-8"), search_figures), encoding="utf-8")
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"index.md": tidy(overview()), **pages()}.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

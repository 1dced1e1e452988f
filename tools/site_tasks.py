"""The benchmark page of the real tasks, from bench/results/tasks.json, and the figures that README takes from it.

Rows of one task and method are averaged over folds of the test hospitals; other rows are as they were measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from cepam.fl.runs.summary import interval

Row = dict[str, Any]
Table = Callable[[Sequence[str], Iterable[Sequence[Any]]], str]
TASKS = ("hospitals", "chitchat-prompts", "shakespeare", "cifar10", "cifar10-users", "cifar10-scattering")
UNITS = {"record": "record", "client": "user", "none": "–"}
JUDGED = {"hospitals": "AUC", "chitchat-lora": "perplexity"}
UNTRAINED = {
    "most alike prompt": "the most alike prompt",
    "majority": "the commonest prompt",
    "base model": "base model",
}


def kept(results: Path) -> dict[str, Row]:
    """The stored rows by their key."""
    return dict(json.loads((results / "tasks.json").read_text(encoding="utf-8")))


def score(task: str, row: Row | None) -> str:
    """The score with its half-width, in the task's measure; a dash for a row that was not measured."""
    if row is None:
        return "–"
    value, half = row["score"], row["half_width"]
    if JUDGED.get(task) == "perplexity":
        return f"{value:.1f}" + ("" if half is None else f" ± {half:.1f}")
    if task in JUDGED:
        return f"{value:.3f}" + ("" if half is None else f" ± {half:.3f}")
    return f"{100 * value:.1f}" + ("" if half is None else f" ± {100 * half:.1f}") + " %"


def traffic(row: Row | None) -> str:
    """Bytes up and down per client and round."""
    if row is None or row["bytes_up"] is None:
        return "–"
    return f"{row['bytes_up']:,.0f} / {row['bytes_down']:,.0f}"


def coder(row: Row) -> str:
    """The coder of the row's messages; floats and masked sums have none."""
    return f"`{row['coder']}`" if row.get("coder") else "–"


def of_task(rows: dict[str, Row], task: str, name: str) -> Row | None:
    """A row of a task; over several folds their mean with the interval over folds."""
    found = [row for row in rows.values() if row["task"] == task and row["row"] == name]
    if len(found) < 2:
        return found[0] if found else None
    middle, half = interval([row["score"] for row in found])
    numbers = {key: sum(row[key] for row in found) / len(found) for key in ("bytes_up", "bytes_down")
               if found[0][key] is not None}  # fmt: skip
    return {**found[0], **numbers, "score": middle, "half_width": half}


def promise(row: Row) -> str:
    """Unit, epsilon and delta of a row."""
    return f"{UNITS[row['unit']]}, {row['epsilon']:.3g}, {row['delta']:.2g}"


def page(results: Path, table: Table, mark: str) -> str:
    """The page of the tasks' results."""
    rows = kept(results)
    scattering = rows["cifar10-scattering cepam"]
    floats = scattering["changes"].get("compression.downlink") == "float32"
    shown = [task for task in TASKS if of_task(rows, task, "cepam")]
    parts = [
        "# Real tasks: results", mark,
        "What the tasks are and how to run them: [Real tasks](../tasks.md). Scores are on test data, means over seeds "
        "with 95 % intervals, for `hospitals` over four folds of test hospitals. Bytes are per client and round. "
        "*float32 DP* has the same clipping, noise and epsilon. *Without privacy* trains the same model centrally.",
        "## Presets",
        made(rows.values()),
        table(["task", "unit, epsilon, delta", "cepam", "float32 DP", "without privacy"],
              [scores(rows, task) for task in shown]),
        table(["task", "coder", "bytes up / down", "float32, up / down"], [sizes(rows, task) for task in shown]),
        "`auto` is the default coder; rows of coder `layered` were measured before it."
        + (" `cifar10-scattering` was measured with float32 broadcasts; the preset broadcasts quantized models."
           if floats else ""),
        "## Folds of hospitals",
        table(["test hospitals", "cepam", "float32 DP", "without privacy"],
              ([f"fold {fold}", *(score("hospitals", rows.get(f"hospitals {name} fold {fold}"))
                for name in ("cepam", "float32", "ceiling"))] for fold in range(4))),
        "## Other epsilons, fewer users",
        "At the preset's settings, two seeds, float32 in both directions; `hospitals` with cepam, five seeds, fold 0. "
        "Rows with fewer users keep a random part of the real ones; delta follows their number.",
        table(["task", "what differs", "clients", "epsilon, delta", "score"], list(curves(rows))),
        "## Without training",
        table(["task", "answer", "score"],
              ([f"`{row['task']}`", UNTRAINED[row["row"]], score(row["task"], row)] for row in rows.values()
               if row["row"] in UNTRAINED)),
        "## What options cost on `cifar10`",
        "Features of one network instead of three, 150 rounds, two seeds: differences of some tenths mean nothing.",
        table(["", "accuracy", "coder", "bytes up / down", "epsilon"],
              ([row["row"].removeprefix("option "), score("cifar10", row), coder(row), traffic(row),
                f"{row['epsilon']:.3g}"] for row in rows.values() if row["row"].startswith("option "))),
        "## `chitchat-lora`",
        *lora(results, rows, table),
    ]  # fmt: skip
    return "\n\n".join(parts)


def made(rows: Iterable[Row]) -> str:
    """Command, machines and dates of the rows."""
    found = list(rows)
    machines = "; ".join(dict.fromkeys(row["machine"] for row in found))
    dates = sorted({row["date"][:10] for row in found})
    return f"`python bench/tasks.py` ({machines}; {' to '.join(dict.fromkeys((dates[0], dates[-1])))})"


def scores(rows: dict[str, Row], task: str) -> list[str]:
    """What a preset promises and reaches, beside float32 and training without privacy."""
    ours, plain, free = (of_task(rows, task, name) for name in ("cepam", "float32", "ceiling"))
    assert ours is not None
    judged = f"`{task}`, {JUDGED.get(task, 'accuracy')}"
    return [judged, promise(ours), score(task, ours), score(task, plain), score(task, free)]


def sizes(rows: dict[str, Row], task: str) -> list[str]:
    """What a preset sends, beside float32."""
    ours, plain = (of_task(rows, task, name) for name in ("cepam", "float32"))
    assert ours is not None
    return [f"`{task}`", coder(ours), traffic(ours), traffic(plain)]


def curves(rows: dict[str, Row]) -> Iterable[list[str]]:
    """Rows that differ from a preset in epsilon, users or settings."""
    for row in rows.values():
        if row["row"].startswith(("epsilon", "users", "rounds")):
            yield [f"`{row['task']}`", row["row"].replace("users", "users:"), str(row["clients"]),
                   f"{row['epsilon']:.3g}, {row['delta']:.2g}", score(row["task"], row)]  # fmt: skip


def lora(results: Path, rows: dict[str, Row], table: Table) -> list[str]:
    """What is known of the adapters: a search on held-out users; no finished private run unless one is stored."""
    searches = [json.loads((results / f"{name}.json").read_text("utf-8"))
                for name in ("choose_lora", "choose_lora_refined")]  # fmt: skip
    tried = sorted((row for each in searches for row in each["rows"]), key=lambda row: float(row["loss"]))
    base, stamp = searches[0]["base_loss"], searches[0]["stamp"]
    said = [
        "The search trained on four fifths of the training users, with exact Gaussian noise of epsilon 8 in place of "
        "messages, and judged on the other fifth. The best of many settings is too good a figure for that setting.",
        f"`{stamp['command'].partition(' --tokens')[0]}` ({stamp.get('gpu') or stamp['processor']}; {stamp['date']}), "
        f"the best three of {len(tried)} settings:",
        table(["layers", "rank", "clipping norm", "rate", "held-out perplexity"],
              [["none: base model", "", "", "", f"{math.exp(base):.1f}"],
               *([str(len(row["layers"])), str(row["rank"]), f"{row['clip']:.2f}", f"{row['rate']:.1f}",
                  f"{math.exp(row['loss']):.1f}"] for row in tried[:3])]),
    ]  # fmt: skip
    run = of_task(rows, "chitchat-lora", "cepam")
    if run is None:
        return ["No private run of it has been measured to its end.", *said]
    plain = of_task(rows, "chitchat-lora", "base model")
    assert plain is not None
    found = f"Perplexity of the private run: {score('chitchat-lora', run)}, where the base model has "
    found += f"{score('chitchat-lora', plain)} (user, epsilon {run['epsilon']:.3g}, delta {run['delta']:.2g}; "
    found += f"{run['seeds']} seed{'s' * (run['seeds'] > 1)}). Bytes up / down: {traffic(run)}."
    if "of_base" in run:
        found += f" That is {run['of_base']:.3f} times the base model's; by test users ({run['test_users']}) the 95 % "
        found += f"interval is {run['of_base_low']:.3f} to {run['of_base_high']:.3f}."
    return [found, *said]

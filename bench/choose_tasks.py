"""Settings of the presets on real tasks, chosen on held-out training records; test data is never read.

    python bench/choose_tasks.py hospitals chitchat-prompts           the searches of these tasks
    python bench/choose_tasks.py --downlink hospitals                 steps of the quantized downlink, by the engine
    python bench/choose_tasks.py --report                             the best rows of all that were kept

Held out are a quarter of the training hospitals, a fifth of the training users, or an eighth of the roles; images:
choose_cifar.py. Each setting is a linear head (or the tables of the next-token model) from zero, momentum 0.9,
the rate held for half of the run and then falling to zero, and central Gaussian noise of the multiplier that
`cepam.privacy` asks for: a stand-in for the engine's run, good enough to choose by. Every clip and rate of a number
of rounds sees the same draws and noise. The search looks at held-out training records without noise; that is not in
epsilon, as if settings had been found on other data of the kind. Rows are added to bench/results/choose_tasks.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cepam import L2, fl, privacy
from cepam.fl.models.network import areas

RESULTS = Path(__file__).parent / "results" / "choose_tasks.json"
Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Task:
    """What is learned, from whom, and which settings are tried; `units` gives one row of records per unit."""

    load: Callable[[], fl.Dataset]
    units: Callable[[fl.Dataset, int], tuple[list[Index], Index]]
    judge: str
    unit: str
    epsilon: float
    delta: float
    chances: tuple[float, ...]
    rounds: tuple[int, ...]
    clips: tuple[float, ...]
    rates: tuple[float, ...]
    """Learning rates times the clip."""
    decays: tuple[float, ...] = (0.0,)
    seeds: int = 3


def by_owner(every: int) -> Callable[[fl.Dataset, int], tuple[list[Index], Index]]:
    """Records as units, those of every so many owners held out."""

    def cut(data: fl.Dataset, seed: int) -> tuple[list[Index], Index]:
        owners = np.asarray(data.owners)
        order = np.random.default_rng([seed, 11]).permutation(len(data.clients))
        out = np.isin(owners, order[: len(order) // every])
        return [np.array([k]) for k in np.flatnonzero(~out)], np.flatnonzero(out)

    return cut


def owners_themselves(every: int) -> Callable[[fl.Dataset, int], tuple[list[Index], Index]]:
    """Users as units, every so many of them held out."""

    def cut(data: fl.Dataset, seed: int) -> tuple[list[Index], Index]:
        owners = np.asarray(data.owners)
        order = np.random.default_rng([seed, 11]).permutation(len(data.clients))
        out = order[: len(order) // every]
        kept = [np.flatnonzero(owners == k) for k in sorted(set(order) - set(out))]
        return kept, np.flatnonzero(np.isin(owners, out))

    return cut


TASKS = {
    "hospitals": Task(
        lambda: fl.load("medpar"), by_owner(4), "auc", "record", 2.0, 1e-5, (0.25, 0.5, 1.0), (25, 50, 100, 200),
        (1.0, 2.0, 4.0), (0.05, 0.1, 0.2, 0.5, 1.0), seeds=6,
    ),
    "chitchat-prompts": Task(
        lambda: fl.load("chitchat-prompts"), owners_themselves(5), "accuracy", "client", 8.0, 0.0,
        (0.5, 1.0), (3, 6, 12), (0.5, 2.0), (3.0, 10.0, 20.0, 30.0), seeds=3,
    ),
}  # fmt: skip


def multiplier(task: Task, units: int, chance: float, rounds: int, size: int) -> tuple[float, float]:
    """The noise of a sum over the clip that the whole run needs, and its delta; users sample users, records records."""
    delta = task.delta or units**-1.1
    if chance >= 1.0:
        chance = 1.0 - 1e-9
    cohort = privacy.Cohort(units, chance * units)
    made = privacy.calibrate(
        privacy.CohortMechanism.of(cohort, L2(1.0), 1.0, rounds=rounds, adjacency="add-remove", coordinates=size),
        task.epsilon, delta,
    )  # fmt: skip
    assert isinstance(made, privacy.CohortMechanism)
    return made.compensation.total, delta


def sums(x: Tensor, labels: Tensor, units: Tensor, weights: Tensor, clips: Tensor) -> Tensor:
    """The sums of units' clipped gradients (settings, classes, features and bias).

    A unit's gradient is the mean over its records; `units` has the number of each record's unit, from 0.
    """
    count = torch.bincount(units)
    both = torch.cat((x, torch.ones(len(x), 1)), 1)
    logits = torch.einsum("nf,rcf->rnc", both, weights)
    residual = logits.softmax(2)
    residual[:, torch.arange(len(labels)), labels] -= 1.0
    residual /= count[units][:, None]
    if len(count) == len(units):
        norms = residual.norm(dim=2) * both.norm(dim=1)
        factors = (clips[:, None] / norms.clamp(min=1e-12)).clamp(max=1.0)
    else:
        ends = torch.cumsum(count, 0).tolist()
        norms = torch.zeros(len(weights), len(count))
        for unit, end in enumerate(ends):
            mine = slice(end - int(count[unit]), end)
            gram = both[mine] @ both[mine].T
            norms[:, unit] = (
                torch.einsum("rnc,nm,rmc->r", residual[:, mine], gram, residual[:, mine]).clamp(min=0).sqrt()
            )
        factors = (clips[:, None] / norms.clamp(min=1e-12)).clamp(max=1.0)[:, units]
    return torch.einsum("rnc,nf->rcf", residual * factors[:, :, None], both)


def trained(
    x: Tensor, labels: Tensor, kept: list[Index], chance: float, rounds: int, noise: float,
    grid: list[tuple[float, float, float]], classes: int, seed: int,
) -> Tensor:  # fmt: skip
    """The last weights of every (clip, rate, decay)."""
    draw = torch.Generator().manual_seed(1_000_003 * seed + rounds)
    clips, rates, decays = (torch.tensor(column) for column in zip(*grid))
    weights = torch.zeros((len(grid), classes, x.shape[1] + 1))
    velocity, expected = torch.zeros_like(weights), chance * len(kept)
    single = all(len(each) == 1 for each in kept)
    flat = torch.from_numpy(np.concatenate(kept))
    for at in range(rounds):
        drawn = torch.nonzero(torch.rand(len(kept), generator=draw) < chance)[:, 0]
        records = flat[drawn] if single else torch.from_numpy(np.concatenate([kept[k] for k in drawn.tolist()]))
        units = torch.repeat_interleave(torch.tensor([len(kept[k]) for k in drawn.tolist()]))
        total = sums(x[records].float(), labels[records], units, weights, clips)
        total += noise * clips[:, None, None] * torch.randn(total.shape[1:], generator=draw)
        velocity = 0.9 * velocity + total / expected + decays[:, None, None] * weights
        weights = weights - rates[:, None, None] * min(1.0, 2.0 * (1.0 - at / rounds)) * velocity
    return weights


def judged(task: Task, x: Tensor, labels: Tensor, out: Tensor, weights: Tensor) -> list[float]:
    """Accuracy or area under the curve on the held-out records, for every setting."""
    both = torch.cat((x[out].float(), torch.ones(len(out), 1)), 1)
    logits = torch.einsum("nf,rcf->rnc", both, weights)
    if task.judge == "auc":
        return areas((logits[:, :, 1] - logits[:, :, 0]).double().numpy(), labels[out].numpy()).tolist()  # type: ignore[no-any-return]
    return (logits.argmax(2) == labels[out]).float().mean(1).tolist()  # type: ignore[no-any-return]


def search(name: str, task: Task, rows: list[dict[str, Any]], out: Path) -> None:
    """Add a row for every setting to the rows, and write all of them."""
    data = task.load()
    x, labels = torch.from_numpy(np.array(data.train_inputs)), torch.from_numpy(data.train_labels)
    x = x if data.scale == 1.0 else x * data.scale
    size = data.classes * (x.shape[1] + 1)
    grid = [(clip, rate / clip, decay) for clip, rate, decay in itertools.product(task.clips, task.rates, task.decays)]
    units = data.records if task.unit == "record" else len(data.clients)
    for chance, rounds in itertools.product(task.chances, task.rounds):
        begun = time.perf_counter()
        noise, delta = multiplier(task, units, chance, rounds, size)
        found = []
        for seed in range(task.seeds):
            kept, held = task.units(data, seed)
            last = trained(x, labels, kept, chance, rounds, noise, grid, data.classes, seed)
            found.append(judged(task, x, labels, torch.from_numpy(held), last))
        for (clip, rate, decay), column in zip(grid, zip(*found)):
            rows.append({"task": name, "epsilon": task.epsilon, "delta": delta, "chance": chance, "rounds": rounds,
                         "clip": clip, "rate": rate, "weight_decay": decay, "noise_multiplier": noise,
                         "judge": task.judge, "score": float(np.mean(column)), "seeds": list(column)})  # fmt: skip
        best = max(rows[-len(grid) :], key=lambda row: row["score"])
        print(f"{name} chance {chance:g} rounds {rounds} noise {noise:.3f}: best {best['score']:.4f} at clip "
              f"{best['clip']:g} rate {best['rate']:g} ({time.perf_counter() - begun:.0f} s)", flush=True)  # fmt: skip
        out.write_text(json.dumps(rows, indent=1) + "\n")


TOKENS = [(lags, rounds, rate) for lags, rounds, rate in (
    (2, 60, 60.0), (3, 30, 60.0), (3, 60, 30.0), (3, 60, 60.0), (3, 60, 120.0), (3, 120, 60.0), (4, 60, 60.0),
)]  # fmt: skip
"""Lags of the next-token model, rounds and rates that are tried for Shakespeare; the clip is 0.05, the chance 0.2."""
ROWS, CLIP, CHANCE = 8, 0.05, 0.2


def slope(tables: Tensor, tokens: Tensor, targets: Tensor) -> Tensor:
    """The gradient of the mean loss of some rows of one user by the tables of the lags."""
    shifted = [torch.nn.functional.pad(tokens, (lag, 0))[:, : tokens.shape[1]] for lag in range(len(tables))]
    real = targets > 0
    chances = sum(table[each][real] for table, each in zip(tables, shifted)).softmax(1)  # type: ignore[union-attr]
    chances[torch.arange(len(chances)), targets[real]] -= 1.0
    chances /= max(1, len(chances))
    return torch.stack([torch.zeros_like(tables[0]).index_add_(0, each[real], chances) for each in shifted])


def search_tokens(rows: list[dict[str, Any]], out: Path) -> None:
    """Try the next-token model on the roles of the plays, an eighth of whom are held out."""
    data, name = fl.load("shakespeare"), "shakespeare"
    assert data.owners is not None
    tokens, targets = torch.from_numpy(data.train_inputs).long(), torch.from_numpy(data.train_labels)
    users, vocabulary = len(data.clients), 98
    order = np.random.default_rng([1, 11]).permutation(users)
    held = torch.from_numpy(np.flatnonzero(np.isin(data.owners, order[: users // 8])))[::4]
    kept = [torch.from_numpy(np.flatnonzero(data.owners == k)) for k in order[users // 8 :]]
    task = Task(lambda: data, owners_themselves(8), "accuracy", "client", 8.0, users**-1.1, (), (), (), ())
    for lags, rounds, rate in TOKENS:
        begun = time.perf_counter()
        noise, delta = multiplier(task, users, CHANCE, rounds, lags * vocabulary**2)
        draw = torch.Generator().manual_seed(rounds)
        tables = torch.zeros(lags, vocabulary, vocabulary)
        velocity = torch.zeros_like(tables)
        for at in range(rounds):
            total = noise * CLIP * torch.randn(tables.shape, generator=draw)
            for user in torch.nonzero(torch.rand(len(kept), generator=draw) < CHANCE)[:, 0].tolist():
                few = kept[user][torch.randint(len(kept[user]), (ROWS,), generator=draw)]
                mine = slope(tables, tokens[few], targets[few])
                total += mine * min(1.0, CLIP / max(1e-12, float(mine.norm())))
            velocity = 0.9 * velocity + total / (CHANCE * len(kept))
            tables = tables - rate * min(1.0, 2.0 * (1.0 - at / rounds)) * velocity
        shifted = [torch.nn.functional.pad(tokens[held], (lag, 0))[:, : tokens.shape[1]] for lag in range(lags)]
        best = sum(table[each] for table, each in zip(tables, shifted)).argmax(2)  # type: ignore[union-attr]
        score = float((best == targets[held])[targets[held] > 0].float().mean())
        rows.append({"task": name, "epsilon": 8.0, "delta": delta, "chance": CHANCE, "rounds": rounds, "clip": CLIP,
                     "rate": rate, "weight_decay": 0.0, "noise_multiplier": noise, "lags": lags, "judge": "accuracy",
                     "score": score, "seeds": [score]})  # fmt: skip
        print(f"{name} lags {lags} rounds {rounds} rate {rate:g} noise {noise:.3f}: {score:.4f} "
              f"({time.perf_counter() - begun:.0f} s)", flush=True)  # fmt: skip
        out.write_text(json.dumps(rows, indent=1) + "\n")


STEPS = {
    "hospitals": ((1.0, 1.0), (64.0, 1.0), (256.0, 0.5), (512.0, 0.5)),
    "chitchat-prompts": ((0.25, 1.0), (2.0, 1.0), (4.0, 0.5), (8.0, 0.5), (16.0, 0.5), (256.0, 0.5)),
    "shakespeare": ((1.0, 1.0), (64.0, 1.0), (128.0, 0.5), (256.0, 0.5)),
}
"""Factor and exponent of the downlink's step that are tried, the finest first."""


def search_downlink(name: str, rows: list[dict[str, Any]], out: Path, seeds: int = 2) -> None:
    """Try every step of the downlink, by simulated runs of the preset on the kept users or hospitals."""
    data = fl.prepared(fl.preset(name))
    assert data.owners is not None
    for (factor, exponent), seed in itertools.product(STEPS[name], range(seeds)):
        kept, held = owners_themselves(5)(data, seed)
        records = np.concatenate(kept)
        few = replace(
            data, train_inputs=data.train_inputs[records], train_labels=data.train_labels[records],
            test_inputs=data.train_inputs[held], test_labels=data.train_labels[held],
            owners=np.repeat(np.arange(len(kept)), [len(each) for each in kept]),
            clients=tuple(data.clients[int(data.owners[each[0]])] for each in kept),
        )  # fmt: skip
        settings = fl.preset(name).updated({
            "run.simulate": True, "run.evaluate_every": 1000, "run.seed": seed + 1,
            "compression.downlink_step_factor": factor, "compression.downlink_step_exponent": exponent,
        })  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            found = fl.train(settings, Path(folder) / "run", few, say=lambda text: None)
        judge = "auc" if "auc" in found else "accuracy"
        task = {"task": f"{name} downlink", "factor": factor, "exponent": exponent, "judge": judge}
        mine = next((row for row in rows if task.items() <= row.items()), None)
        if mine is None:
            rows.append(mine := {**task, "seeds": [], "bits": []})
        mine["seeds"].append(found[judge])
        mine["bits"].append(found["bits_per_coordinate_down"])
        mine |= {"score": float(np.mean(mine["seeds"])), "bits_down": float(np.mean(mine["bits"]))}
        print(f"{name} factor {factor:g} exponent {exponent:g} seed {seed}: {judge} {found[judge]:.4f}, "
              f"{found['bits_per_coordinate_down']:.3f} bits per coordinate down", flush=True)  # fmt: skip
        out.write_text(json.dumps(rows, indent=1) + "\n")


def report(rows: list[dict[str, Any]]) -> None:
    """Print the best settings of every task."""
    for name in dict.fromkeys(row["task"] for row in rows if "clip" in row):
        mine = sorted((row for row in rows if row["task"] == name), key=lambda row: -row["score"])
        for row in mine[:8]:
            lags = f"lags {row['lags']} " if "lags" in row else ""
            print(f"{name:18} {lags}chance {row['chance']:g} rounds {row['rounds']} clip {row['clip']:g} "
                  f"rate {row['rate']:g} "
                  f"noise {row['noise_multiplier']:.3f}: {row['judge']} {row['score']:.4f}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", choices=[*TASKS, "shakespeare", []], help="which searches to run")
    parser.add_argument("--downlink", nargs="+", default=[], choices=[*STEPS], metavar="TASK")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(chosen.out.read_text()) if chosen.out.exists() else []
    for name in chosen.tasks:
        rows = [row for row in rows if row["task"] != name]
        if name == "shakespeare":
            search_tokens(rows, chosen.out)
        else:
            search(name, TASKS[name], rows, chosen.out)
    for name in chosen.downlink:
        rows = [row for row in rows if row["task"] != f"{name} downlink"]
        search_downlink(name, rows, chosen.out)
    report(rows)


if __name__ == "__main__":
    main()

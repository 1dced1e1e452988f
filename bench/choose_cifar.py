"""Settings of the presets on CIFAR-10, chosen on held-out training images; test images are never read.

    python bench/choose_cifar.py                      every search: minutes on a GPU, many hours on two cores
    python bench/choose_cifar.py cifar10-users        one of cifar10, cifar10-users, cifar10-scattering
    python bench/choose_cifar.py --report             the best rows of all that were kept

Held out is a tenth of the training images. A run starts like the engine's, with momentum 0.9, the rate held for half of
the run and then falling to zero, and central Gaussian noise of the multiplier that `cepam.privacy` asks for all 50,000
images (or 10,000 users): a stand-in for the engine's run, good enough to choose by. All rates of a linear head see the
same draws. The search looks at held-out images without noise; that is not in epsilon, as if settings had been found on
other data of the kind. Rows go to bench/results/choose_cifar.json.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cepam import L2, fl, privacy
from cepam.fl.data.partition import partition
from cepam.fl.models.network import TorchNetwork
from cepam.fl.models.pretrained import efficientnet_lite
from cepam.fl.models.scattering import MAPS, Scattering
from stamp import save

RESULTS = Path(__file__).parent / "results" / "choose_cifar.json"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
AVERAGES = (0.0, 0.9, 0.97)
ALL = "lite2+lite1+lite0"
RATES = (16.0, 32.0, 64.0, 128.0, 256.0)
USERS, CLIP = 10_000, 0.1


@dataclass(frozen=True)
class Run:
    """A setting: how many units a round expects of how many, rounds, clip, and the rates tried side by side."""

    population: int
    epsilon: float
    expected: int
    rounds: int
    rates: tuple[float, ...]
    clip: float = CLIP

    def multiplier(self, size: int) -> float:
        """The noise of a sum over the clip that the whole run needs."""
        made = privacy.calibrate(
            privacy.CohortMechanism.of(
                privacy.Cohort(self.population, float(self.expected)), L2(1.0), 1.0, rounds=self.rounds,
                adjacency="add-remove", coordinates=size,
            ),
            self.epsilon, 1e-5,
        )  # fmt: skip
        assert isinstance(made, privacy.CohortMechanism)
        return made.compensation.total

    def rate(self, at: int) -> float:
        """The share of the rate at a round."""
        return min(1.0, 2.0 * (1.0 - at / self.rounds))


class Search:
    """The data on the device, and the rows found."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows, self.data = rows, fl.load("cifar10")
        self.labels = torch.from_numpy(self.data.train_labels).to(DEVICE)
        self.known: dict[str, Tensor] = {}

    def pretrained(self, names: str) -> Tensor:
        """Normalized features of the training images by these networks, beside each other."""
        for name in names.split("+"):
            if name not in self.known:
                held = efficientnet_lite(name, self.data).of(self.data, DEVICE)
                self.known[name] = torch.from_numpy(np.array(held.train_inputs)).float().to(DEVICE)
        return torch.cat([self.known[name] for name in names.split("+")], 1)

    def split(self, seed: int) -> tuple[Tensor, Tensor]:
        """Kept and held-out images."""
        kept, held = self.data.holding_out(self.data.records // 10, 1000 + seed)
        return torch.from_numpy(kept).to(DEVICE), torch.from_numpy(held).to(DEVICE)

    def users(self, seed: int) -> Tensor:
        """The kept images of every user, a row each, filled up with -1."""
        kept = self.split(seed)[0].cpu().numpy()
        many = len(kept) * USERS // self.data.records
        parts = partition("dirichlet-even", self.data.train_labels[kept], many, seed, 0.5, 2).within(kept)
        rows = np.full((len(parts), max(len(each) for each in parts)), -1)
        for k, each in enumerate(parts):
            rows[k, : len(each)] = each
        return torch.from_numpy(rows).to(DEVICE)

    def note(self, task: str, about: dict[str, Any], run: Run, noise: float, scores: list[dict[float, list[float]]],
             begun: float) -> None:  # fmt: skip
        """Keep a row for every rate and average; `scores` has a dictionary for every seed."""
        for average in scores[0]:
            for k, rate in enumerate(run.rates):
                each = [found[average][k] for found in scores]
                self.rows.append({
                    "task": task, **about, "batch": run.expected, "rounds": run.rounds, "clip": run.clip, "rate": rate,
                    "weight_averaging": average, "noise_multiplier": noise, "score": float(np.mean(each)),
                    "seeds": each,
                })  # fmt: skip
        best = max(self.rows[-len(run.rates) * len(AVERAGES) :], key=lambda row: row["score"])
        print(f"{task} {about} batch {run.expected} rounds {run.rounds} clip {run.clip:g}: best {best['score']:.4f} at "
              f"rate {best['rate']:g}, average {best['weight_averaging']:g} ({time.perf_counter() - begun:.1f} s)",
              flush=True)  # fmt: skip
        save(RESULTS, {"rows": self.rows})

    def best(self, task: str, **about: Any) -> dict[str, Any]:
        """The best row of a task, among those of which this holds."""
        return max(
            (row for row in self.rows if row["task"] == task and all(row.get(k) == v for k, v in about.items())),
            key=lambda row: row["score"],
        )

    def linear(
        self, x: Tensor, run: Run, noise: float, seed: int, users: Tensor | None = None
    ) -> dict[float, list[float]]:
        """Held-out accuracies of a linear head, by weight average and rate."""
        kept, held = self.split(seed)
        draw = torch.Generator(DEVICE).manual_seed(run.rounds * 31 + run.expected + seed)
        units = len(kept) if users is None else len(users)
        chance, rates = run.expected / run.population, torch.tensor(run.rates, device=DEVICE)[:, None, None]
        weights = torch.zeros(len(run.rates), 10, x.shape[1] + 1, device=DEVICE)
        velocity, averages = torch.zeros_like(weights), [torch.zeros_like(weights) for _ in AVERAGES]
        for at in range(run.rounds):
            drawn = torch.nonzero(torch.rand(units, generator=draw, device=DEVICE) < chance)[:, 0]
            if users is None:
                total = self._by_record(x, kept[drawn], weights, run.clip)
            else:
                total = self._by_user(x, users[drawn], weights, run.clip)
            total = total + noise * run.clip * torch.randn(weights.shape[1:], generator=draw, device=DEVICE)
            velocity = 0.9 * velocity + total / (chance * units)
            weights = weights - rates * run.rate(at) * velocity
            averages = _averaged(averages, weights, at)
        seen = _with_ones(x[held])
        return {
            name: [float(((seen @ row.T).argmax(1) == self.labels[held]).float().mean()) for row in each]
            for name, each in zip(AVERAGES, averages)
        }

    def _by_record(self, x: Tensor, index: Tensor, weights: Tensor, clip: float) -> Tensor:
        """The sums of records' clipped gradients, one for each rate."""
        rows, count = _with_ones(x[index]), len(weights)
        slopes = (rows @ weights.flatten(0, 1).T).reshape(len(index), count, 10).softmax(2)
        slopes[torch.arange(len(index)), :, self.labels[index]] -= 1.0
        norms = slopes.norm(dim=2) * rows.norm(dim=1)[:, None]
        slopes = slopes * (clip / norms.clamp(min=1e-12)).clamp(max=1.0)[:, :, None]
        return (slopes.flatten(1).T @ rows).reshape(weights.shape)

    def _by_user(self, x: Tensor, members: Tensor, weights: Tensor, clip: float) -> Tensor:
        """The sums of users' clipped mean gradients."""
        real, index = members >= 0, members.clamp(min=0)
        rows = _with_ones(x[index.flatten()]).reshape(*index.shape, -1)
        slopes = torch.einsum("umf,rcf->umrc", rows, weights).softmax(3)
        slopes = slopes - nn.functional.one_hot(self.labels[index], 10)[:, :, None, :]
        slopes = slopes * (real / real.sum(1, keepdim=True))[:, :, None, None]
        each = torch.einsum("umrc,umf->urcf", slopes, rows)
        factors = (clip / each.flatten(2).norm(dim=2).clamp(min=1e-12)).clamp(max=1.0)
        return torch.einsum("ur,urcf->rcf", factors, each)

    def module(
        self, data: fl.Dataset, make: Callable[[], nn.Module], run: Run, noise: float
    ) -> dict[float, list[float]]:
        """Held-out accuracies of a small network at one rate; gradients are the engine's."""
        kept, held = (each.cpu().numpy() for each in self.split(0))
        net, draw = TorchNetwork(make(), data, DEVICE), torch.Generator(DEVICE).manual_seed(run.rounds + run.expected)
        chooses, one = np.random.default_rng(run.rounds + run.expected), np.zeros(1, np.int64)
        weights = torch.from_numpy(fl.Model(make).initial(1)).to(DEVICE)[None]
        velocity, averages = torch.zeros_like(weights), [torch.zeros_like(weights) for _ in AVERAGES]
        for at in range(run.rounds):
            drawn = kept[chooses.random(len(kept)) < run.expected / run.population][None]
            bound = torch.tensor([run.clip], device=DEVICE)
            total, _ = net.summed_gradients(weights, one, drawn, np.array([drawn.shape[1]]), bound)
            total = total + noise * run.clip * torch.randn(weights.shape, generator=draw, device=DEVICE)
            velocity = 0.9 * velocity + total / (run.expected * len(kept) / run.population)
            weights = weights - run.rates[0] * run.rate(at) * velocity
            averages = _averaged(averages, weights, at)
        found = net.evaluate(torch.cat(averages), held).accuracy
        return {name: [float(score)] for name, score in zip(AVERAGES, found)}


def _with_ones(x: Tensor) -> Tensor:
    return torch.cat([x.float(), torch.ones(len(x), 1, device=x.device)], 1)


def _averaged(averages: list[Tensor], weights: Tensor, at: int) -> list[Tensor]:
    """Running averages as the engine's; the first has decay 0 and is the last weights."""
    pasts = [min(decay, (at + 1) / (at + 10)) for decay in AVERAGES]
    return [past * each + (1.0 - past) * weights for past, each in zip(pasts, averages)]


def search_records(search: Search) -> None:
    """Heads on frozen features: which networks, how many rounds, which clip; two splits each."""

    def tried(names: str, expected: int, rounds: int, clip: float = CLIP) -> None:
        rates = tuple(CLIP / clip * rate for rate in RATES)
        begun, x = time.perf_counter(), search.pretrained(names)
        run = Run(search.data.records, 2.0, expected, rounds, rates, clip)
        noise = run.multiplier(10 * (x.shape[1] + 1))
        scores = [search.linear(x, run, noise, seed) for seed in (0, 1)]
        search.note("cifar10", {"features": names}, run, noise, scores, begun)

    for names, rounds in (("lite2", 150), ("lite2", 300), ("lite2", 600), ("lite2+lite0", 300), ("lite2+lite1", 300)):
        tried(names, 4096, rounds)
    for rounds in (100, 200, 300, 500, 800):
        tried(ALL, 4096, rounds)
    rounds = search.best("cifar10", features=ALL)["rounds"]
    for clip in (0.02, 0.05, 0.3, 1.0):
        tried(ALL, 4096, rounds, clip)
    tried(ALL, 8192, rounds)


def search_users(search: Search) -> None:
    """The same heads where a unit is a user: cohorts, rounds and clips."""
    users = search.users(0)

    def tried(names: str, expected: int, rounds: int, clip: float = CLIP) -> None:
        rates = tuple(CLIP / clip * rate for rate in RATES)
        begun, x = time.perf_counter(), search.pretrained(names)
        run = Run(USERS, 4.0, expected, rounds, rates, clip)
        noise = run.multiplier(10 * (x.shape[1] + 1))
        scores = [search.linear(x, run, noise, 0, users)]
        search.note("cifar10-users", {"features": names}, run, noise, scores, begun)

    for names in ("lite2", ALL):
        for expected, rounds in ((500, 100), (1000, 100), (1000, 50), (1000, 200), (500, 200)):
            tried(names, expected, rounds)
        best = search.best("cifar10-users", features=names)
        for clip in (0.3, 1.0):
            tried(names, best["batch"], best["rounds"], clip)


def network_on_maps(first: int, second: int) -> Callable[[], nn.Module]:
    """Two convolutions and a linear layer, as `scattering-cnn` has, of other widths."""
    return lambda: nn.Sequential(
        nn.Conv2d(3 * MAPS, first, 3, padding=1), nn.MaxPool2d(2), nn.Tanh(),
        nn.Conv2d(first, second, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(16 * second, 10),
    )  # fmt: skip


def search_scattering(search: Search) -> None:
    """Scattering features: groups of the normalization, a linear head, then small networks."""
    task, plain, made = "cifar10-scattering", Scattering((3, 32, 32), 0).to(DEVICE), []
    images = search.data.train_inputs
    for at in range(0, len(images), 500):
        pixels = torch.from_numpy(images[at : at + 500]).to(DEVICE).float() / 255
        made.append(plain(pixels.reshape(-1, 3, 32, 32)).reshape(-1, MAPS, 64))
    raw, parts = torch.cat(made), 30_000

    def normalized(groups: int) -> Tensor:
        held = [nn.functional.group_norm(raw[at : at + parts], groups).half() for at in range(0, len(raw), parts)]
        return torch.cat(held).reshape(len(images), -1)

    def tried(groups: int, x: Tensor, expected: int, rounds: int, rates: tuple[float, ...]) -> None:
        begun, run = time.perf_counter(), Run(search.data.records, 3.0, expected, rounds, rates)
        noise = run.multiplier(10 * (x.shape[1] + 1))
        about = {"model": "linear", "groups": groups}
        search.note(task, about, run, noise, [search.linear(x, run, noise, 0)], begun)

    for groups in (27, 9, 81):
        tried(groups, normalized(groups), 4096, 300, (1.0, 2.0, 4.0, 8.0, 16.0))
    groups, rate = (search.best(task)[name] for name in ("groups", "rate"))
    x = normalized(groups)
    for expected, rounds in ((8192, 300), (4096, 800), (4096, 500)):
        tried(groups, x, expected, rounds, (rate / 4, rate / 2, rate, 2 * rate))
    few = replace(
        search.data, shape=(3 * MAPS, 8, 8), train_inputs=x.cpu().numpy(), scale=1.0, shift=0.0,
        test_inputs=np.zeros((len(search.data.test_labels), x.shape[1]), np.float16),
    )  # fmt: skip
    for widths, expected, rounds, rate in _networks(search, task):
        begun, run = time.perf_counter(), Run(search.data.records, 3.0, expected, rounds, (rate,))
        make = network_on_maps(*widths)
        noise = run.multiplier(fl.Model(make).size)
        about = {"model": f"cnn {widths[0]} {widths[1]}", "groups": groups}
        search.note(task, about, run, noise, [search.module(few, make, run, noise)], begun)


def _networks(search: Search, task: str) -> Iterator[tuple[tuple[int, int], int, int, float]]:
    """Widths, batch, rounds and rate, one after the other; later ones start from the best so far."""
    for rate in (8.0, 16.0, 4.0):
        yield (64, 64), 4096, 300, rate
    rate = search.best(task, model="cnn 64 64")["rate"]
    yield (64, 64), 4096, 500, rate
    yield (64, 64), 4096, 200, rate
    yield (32, 64), 4096, 300, rate
    yield (128, 64), 4096, 300, rate
    best = max((row for row in search.rows if row.get("model", "").startswith("cnn")), key=lambda row: row["score"])
    first, second = map(int, best["model"].split()[1:])
    yield (first, second), 8192, best["rounds"], rate
    yield (first, second), best["batch"], best["rounds"], rate * math.sqrt(2)
    yield (first, second), best["batch"], best["rounds"], rate / math.sqrt(2)
    yield (first, second), 4096, 800, rate
    yield (first, second), 8192, 500, rate


SEARCHES = {"cifar10": search_records, "cifar10-users": search_users, "cifar10-scattering": search_scattering}


def report(rows: list[dict[str, Any]]) -> None:
    """Print the best settings of every task."""
    for name in SEARCHES:
        mine = sorted((row for row in rows if row["task"] == name), key=lambda row: -row["score"])
        for row in mine[:8]:
            print(f"{name:18} {row.get('features', row.get('model'))} batch {row['batch']} rounds {row['rounds']} clip "
                  f"{row['clip']:g} rate {row['rate']:g} average {row['weight_averaging']:g} noise "
                  f"{row['noise_multiplier']:.3f}: {row['score']:.4f}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", choices=[*SEARCHES, []], help="which searches to run; default: all")
    parser.add_argument("--report", action="store_true", help="run nothing")
    chosen = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    if not chosen.report:
        tasks = chosen.tasks or list(SEARCHES)
        search = Search([row for row in rows if row["task"] not in tasks])
        for name in tasks:
            SEARCHES[name](search)
        rows = search.rows
    report(rows)


if __name__ == "__main__":
    main()

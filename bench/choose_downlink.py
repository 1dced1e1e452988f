"""Step and dead zone of the quantized downlink, chosen on held-out training records; test data is never read.

    python bench/choose_downlink.py                       presets private and users, on a GPU where there is one
    python bench/choose_downlink.py --only private --seeds 5
    python bench/choose_downlink.py --hysteresis          late moves without lag: bench/results/choose_hysteresis.json
    python bench/choose_downlink.py --report              the rows that were kept

Each row trains the linear head of a preset with gradients taken at the public weights, under central Gaussian noise of
the covariance that the clients' noise adds up to: a stand-in for the engine, good enough to choose by. Bits per
coordinate are the entropy of each message's steps, without its header. A client of `users` is sent the difference from
the round in which it was sampled last. All rows of a seed see the same draws and the same noise.

- `factor`: the step is factor times learning rate times noise of the average, rounded down to a power of two.
- `dead_zone`: weights move once they are farther than this many steps from their public values (0.5: nearest point).
- `directions`: the lag of the dead zone is kept orthogonal to so many leading directions of the aggregates so far, as
  in `cepam.downlink.grid` (0: nothing is done about it). `--hysteresis` searches with them.
- `exponent`: the step follows this power of the learning-rate schedule.
- `period`: rounds from one message to the next; gradients in between are taken at the weights of the last one.
- `momentum`: of the server, with a learning rate that keeps rate / (1 - momentum); the step stays that of the preset.
- `floor`: the step never falls below this fraction of the first.
- `exact`: accuracy of the exact weights at the end, which a last message with a fine step would publish.

The choice is not in epsilon. Written to bench/results/choose_downlink.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stamp import save

RESULTS = Path(__file__).parent / "results" / "choose_downlink.json"
HELD_OUT, CLIP, MOMENTUM = 10_000, 0.1, 0.9
PASSES = 4
GAPS = (1, 2, 4, 7, 12, 20, 32, 50, 75)
"""Rounds since a client of `users` was sampled last, at which its message is measured."""


@dataclass(frozen=True)
class Rule:
    """One rule of the downlink: how wide a step is, and when a weight moves."""

    factor: float
    dead_zone: float = 0.5
    exponent: float = 1.0
    period: int = 1
    momentum: float = MOMENTUM
    floor: float = 0.0
    directions: int = 0


@dataclass(frozen=True)
class Task:
    """A preset as a stand-in: how many rounds, which rate, which noise multiplier, what is sampled how."""

    name: str
    rounds: int
    rate: float
    multiplier: float
    chance: float
    records_each: int = 1


PRIVATE = Task("private", 600, 4.0, 3.4823450762034853, 4096 / 60_000)
USERS = Task("users", 100, 2.5, 0.9395737207262483, 0.05, 6)


HYSTERESIS = {
    "private": [
        [Rule(factor, zone, exponent, directions=count) for factor, exponent in ((256.0, 0.5), (256.0, 1.0))
         for zone in (0.5, 0.65, 0.75, 0.85, 1.0)]
        for count in (0, 8, 16)
    ],
    "users": [
        [Rule(factor, zone, exponent, directions=count)
         for factor, exponent in ((128.0, 0.0), (128.0, 0.25), (128.0, 0.5), (256.0, 0.25), (256.0, 0.5))
         for zone in (0.5, 0.65, 0.75, 0.85)]
        for count in (0, 8, 16, 32)
    ],
}  # fmt: skip
"""Groups of rules that are tried with `--hysteresis`, each with one number of directions."""


def falling(at: int, rounds: int) -> float:
    """The learning rate of a round over the full one: held for half of the run, then down to zero."""
    return min(1.0, 2.0 * (1.0 - at / rounds))


def gradients(x: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Sums of clipped gradients (rules, classes, features and bias); x is (units, records of each, features)."""
    units, each = labels.shape
    logits = torch.einsum("unf,rcf->runc", x, weights[:, :, :-1]) + weights[:, None, None, :, -1]
    residual = (logits.softmax(3) - torch.nn.functional.one_hot(labels, logits.shape[3])) / each
    gram = x @ x.transpose(1, 2) + 1.0
    norms = (torch.einsum("runc,rumc->runm", residual, residual) * gram).sum((2, 3)).clamp(min=0.0).sqrt()
    scaled = residual * (CLIP / norms.clamp(min=1e-12)).clamp(max=1.0)[:, :, None, None]
    flat = scaled.reshape(len(weights), units * each, -1).transpose(1, 2)
    return torch.cat((flat @ x.reshape(units * each, -1), flat.sum(2, keepdim=True)), 2)


def entropy(moves: Tensor) -> Tensor:
    """Bits per coordinate of whole steps (rules, coordinates), coded by their own frequencies."""
    clamped = moves.clamp(-200, 200).long() + 200
    counts = torch.zeros((len(moves), 401), device=moves.device)
    counts.scatter_add_(1, clamped, torch.ones(moves.shape, device=moves.device))
    share = counts / moves.shape[1]
    return -(share * share.clamp(min=1e-12).log2()).sum(1)


class Public:
    """The public weights of every rule: multiples of a step, shifted by one dither for the whole run."""

    def __init__(self, start: Tensor, rules: list[Rule], rate: float, noise: float, draw: torch.Generator) -> None:
        self.rules, self.rate, self.noise = rules, rate, noise
        self.zone = torch.tensor([rule.dead_zone for rule in rules], device=start.device)[:, None]
        self.dither = torch.rand(start[0].numel(), generator=draw, device=start.device, dtype=torch.float64)
        self.values = start.reshape(len(rules), -1).double()
        self.step = self._steps(1.0)
        self.classes, self.directions = start.shape[1], max(rule.directions for rule in rules)
        self.leading = torch.zeros((len(rules), 0, start.shape[2]), device=start.device, dtype=torch.float64)
        self.values = self._nearest(self.values)  # as the first message finds them: on the dithered grid

    def _steps(self, schedule: float) -> Tensor:
        wide = [rule.factor * self.rate * max(schedule**rule.exponent, rule.floor) * self.noise for rule in self.rules]
        return 2.0 ** torch.tensor(wide, device=self.values.device, dtype=torch.float64).log2().floor()[:, None]

    def publish(self, weights: Tensor, schedule: float, left: int, aggregate: Tensor) -> None:
        """Move what has left its dead zone to the nearest point of the grid, where a message is due."""
        due = torch.tensor([left % rule.period == 0 for rule in self.rules], device=weights.device)[:, None]
        step = torch.minimum(self.step, self._steps(max(schedule, 1e-3)))
        step = self.step = torch.where(due, step, self.step)
        exact, before = weights.reshape(len(self.rules), -1).double(), self.values

        def moved(target: Tensor) -> Tensor:
            return torch.where(((target - before).abs() > self.zone * step) & due, self._nearest(target), before)

        self.values = moved(exact)
        if self.directions:
            both = torch.cat((self.leading, aggregate.double()), 1)
            vectors = torch.linalg.eigh(both @ both.transpose(1, 2))[1].flip(2)[:, :, : self.directions]
            self.leading = vectors.transpose(1, 2) @ both
            unit = self.leading / self.leading.norm(dim=2, keepdim=True).clamp(min=1e-30)
            shift = torch.zeros_like(aggregate, dtype=torch.float64)
            for _ in range(PASSES):
                lag = (self.values - exact).reshape(aggregate.shape)
                shift = shift - lag @ unit.transpose(1, 2) @ unit
                self.values = moved(exact + shift.reshape(exact.shape))

    def _nearest(self, exact: Tensor) -> Tensor:
        shift = (self.dither * 2.0**20) % self.step
        return ((exact - shift) / self.step).round() * self.step + shift

    def bits_from(self, earlier: Tensor) -> Tensor:
        """Bits per coordinate of a message that leads here from earlier public weights."""
        return entropy(((self.values - earlier) / self.step).round())


def trained(
    task: Task, x: Tensor, labels: Tensor, units: Tensor, rules: list[Rule], seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The last public weights, the last exact ones, and mean bits per coordinate, client and round, of every rule."""
    draw = torch.Generator(device=x.device).manual_seed(1_000_003 * seed + task.rounds)
    weights = torch.zeros((len(rules), 10, x.shape[1] + 1), device=x.device)
    velocity, bits = torch.zeros_like(weights), torch.zeros(len(rules), device=x.device)
    expected = task.chance * len(units)
    public = Public(weights, rules, task.rate, task.multiplier * CLIP / expected, draw)
    momentum = torch.tensor([rule.momentum for rule in rules], device=x.device)[:, None, None]
    rates = task.rate * (1.0 - momentum) / (1.0 - MOMENTUM)
    history = [public.values]
    for at in range(task.rounds):
        picked = units[torch.rand(len(units), generator=draw, device=x.device) < task.chance]
        seen = public.values.reshape(weights.shape).float()
        total = gradients(x[picked.flatten()].float().reshape(*picked.shape, -1), labels[picked], seen)
        total += task.multiplier * CLIP * torch.randn(total.shape[1:], generator=draw, device=x.device)
        aggregate = total / expected
        velocity = momentum * velocity + aggregate
        weights = weights - rates * falling(at, task.rounds) * velocity
        public.publish(weights, falling(at, task.rounds), task.rounds - 1 - at, aggregate)
        history = [*history[-1:], public.values] if task.records_each == 1 else [*history, public.values]
        if at + 1 < task.rounds:  # the last weights are sent to nobody
            bits += message_bits(task, public, history)
    return public.values.reshape(weights.shape).float(), weights, bits / task.rounds


def message_bits(task: Task, public: Public, history: list[Tensor]) -> Tensor:
    """Bits per coordinate of what a sampled client is sent: all follow every round, or each since its last one."""
    if task.records_each == 1:
        return public.bits_from(history[-2])
    reached = len(history) - 1
    near = [gap for gap in GAPS if gap < reached]
    made = [public.bits_from(history[-1 - gap]) for gap in near] + [public.bits_from(history[0])]
    ends = [*near[1:], reached] if near else []
    total, left = torch.zeros_like(made[0]), 1.0
    for bits, end in zip(made, ends):
        share = left - (1.0 - task.chance) ** (end - 1)
        total, left = total + share * bits, left - share
    return total + left * made[-1]


def accuracies(x: Tensor, labels: Tensor, held: Tensor, weights: Tensor) -> list[float]:
    """The share of right answers on the held-out records, for the weights of every rule."""
    right = torch.zeros(len(weights), device=x.device)
    for part in held.split(2000):
        logits = torch.einsum("nf,rcf->nrc", x[part].float(), weights[:, :, :-1]) + weights[:, :, -1]
        right += (logits.argmax(2) == labels[part, None]).sum(0)
    return [float(value) / len(held) for value in right]


def units_of(task: Task, labels: np.ndarray, kept: np.ndarray, seed: int) -> np.ndarray:
    """Who is sampled: records one by one, or users by the Dirichlet partition of the preset."""
    if task.records_each == 1:
        return kept[:, None]
    from cepam.fl.data.partition import partition

    parts = partition("dirichlet-even", labels[kept], len(kept) // task.records_each, seed, 0.5, 2)
    return np.stack(list(parts.within(kept)))


def search(task: Task, x: Tensor, answers: np.ndarray, rules: list[Rule], seeds: int) -> list[dict[str, Any]]:
    """One row for every rule: held-out accuracy of public and exact weights, and bits, by seed."""
    labels = torch.from_numpy(answers.astype(np.int64)).to(x.device)
    found = []
    for seed in range(seeds):
        begun = time.perf_counter()
        order = np.random.Generator(np.random.PCG64([seed, 0x43484F])).permutation(len(answers))
        held, kept = order[:HELD_OUT], np.sort(order[HELD_OUT:])
        units = torch.from_numpy(units_of(task, answers, kept, seed)).to(x.device)
        last, exact, bits = trained(task, x, labels, units, rules, seed)
        out = torch.from_numpy(held).to(x.device)
        found.append((accuracies(x, labels, out, last), accuracies(x, labels, out, exact), bits.tolist()))
        print(f"{task.name} seed {seed}: {time.perf_counter() - begun:.1f} s", flush=True)
    rows = []
    for place, rule in enumerate(rules):
        public, exact_too, bits_too = ([one[part][place] for one in found] for part in range(3))
        rows.append({"preset": task.name, **asdict(rule), "accuracy": float(np.mean(public)), "seeds": public,
                     "exact": float(np.mean(exact_too)), "bits_down": float(np.mean(bits_too))})  # fmt: skip
    return rows


def features(name: str, device: str) -> tuple[Tensor, np.ndarray]:
    """The scattering features of a data set's training images, and their labels."""
    from cepam.fl.data.catalog import load
    from cepam.fl.models.scattering import Scattering

    data = load(name)
    scattering = Scattering(data.shape).to(device)
    parts = torch.from_numpy(np.array(data.train_inputs)).split(1000 if device == "cuda" else 16)
    made = [scattering(few.to(device).float().reshape(-1, *data.shape) / 255.0).half() for few in parts]
    return torch.cat(made), data.train_labels


def report(rows: list[dict[str, Any]]) -> None:
    """Print the rows of each preset, fewest bits last, with the loss against the finest rule, paired by seed."""
    for name in dict.fromkeys(row["preset"] for row in rows):
        mine = sorted((row for row in rows if row["preset"] == name), key=lambda row: -row["bits_down"])
        finest = next(row for row in mine if row["factor"] <= 1.0)
        for row in mine:
            loss = np.mean(np.subtract(row["seeds"], finest["seeds"]))
            print(f"{name:8} factor {row['factor']:6g} dead zone {row['dead_zone']:.2f} exponent {row['exponent']:g} "
                  f"directions {row.get('directions', 0)}: "
                  f"{row['bits_down']:.4f} bits, {100 * row['accuracy']:.2f} % ({100 * loss:+.3f}), exact "
                  f"{100 * row['exact']:.2f} %")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["private", "users"])
    parser.add_argument("--factors", nargs="+", type=float, default=[64, 128, 256, 362, 512, 724, 1024, 2048])
    parser.add_argument("--dead-zones", nargs="+", type=float, default=[0.5, 0.75, 1.0])
    parser.add_argument("--exponents", nargs="+", type=float, default=[1.0, 2.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--hysteresis", action="store_true")
    parser.add_argument("--report", action="store_true")
    chosen = parser.parse_args()
    if chosen.hysteresis and chosen.out == RESULTS:
        chosen.out = RESULTS.with_name("choose_hysteresis.json")
    if chosen.report:
        return report(json.loads(chosen.out.read_text())["rows"])
    x, answers = features(chosen.data, chosen.device)
    plain = [Rule(*each) for each in itertools.product(chosen.factors, chosen.dead_zones, chosen.exponents)]
    rows: list[dict[str, Any]] = []
    for task in (PRIVATE, USERS):
        if task.name in chosen.only:
            for rules in ([Rule(1.0)], *(HYSTERESIS[task.name] if chosen.hysteresis else [plain])):
                rows += search(task, x, answers, rules, chosen.seeds)
            save(chosen.out, {"device": chosen.device, "data": chosen.data, "rows": rows})
    return report(rows)


if __name__ == "__main__":
    main()

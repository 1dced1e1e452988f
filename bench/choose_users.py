"""Settings of the preset `users`, chosen on held-out training records; test data is never read.

    python bench/choose_users.py                                  the grid of the preset, MNIST, epsilon 4
    python bench/choose_users.py --epsilon 1 2 4 --rounds 100     targets of their own

Users of six records each hold all but the held-out training records. A round draws each user with chance 0.05, clips
its full-batch gradient (one local step of rate 1), adds central Gaussian noise of the multiplier that `cepam.privacy`
asks for, and divides by the expected cohort: a stand-in for the engine's run, good enough to choose by. With records
held out the cohort is 417, not 500, so accuracies are a little low. Looking at held-out records is not in epsilon.
Every clip and rate of a number of rounds sees the same draws and noise. Written to bench/results/choose_users.json.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cepam import L2, fl, privacy
from cepam.fl.data.partition import partition
from stamp import save

RESULTS = Path(__file__).parent / "results" / "choose_users.json"
USERS, CHANCE, DELTA, EACH = 10_000, 0.05, 1e-5, 6


def multiplier(epsilon: float, rounds: int, size: int) -> float:
    """The noise of a sum over the clip that the whole run needs."""
    cohort = privacy.Cohort(USERS, CHANCE * USERS)
    mechanism = privacy.CohortMechanism.of(
        cohort, L2(1.0), 1.0, rounds=rounds, adjacency="add-remove", coordinates=size
    )
    made = privacy.calibrate(mechanism, epsilon, DELTA)
    assert isinstance(made, privacy.CohortMechanism)
    return made.compensation.total


def summed(x: Tensor, labels: Tensor, weights: Tensor, clips: Tensor) -> Tensor:
    """The sums of users' clipped gradients (settings, classes, features and bias); x is (users, records, features)."""
    users, records = x.shape[:2]
    logits = torch.einsum("unf,rcf->runc", x, weights[:, :, :-1]) + weights[:, None, None, :, -1]
    residual = (logits.softmax(3) - torch.nn.functional.one_hot(labels, logits.shape[3])) / records
    gram = x @ x.transpose(1, 2) + 1.0
    norms = (torch.einsum("runc,rumc->runm", residual, residual) * gram).sum((2, 3)).clamp(min=0.0).sqrt()
    scaled = residual * (clips[:, None] / norms.clamp(min=1e-12)).clamp(max=1.0)[:, :, None, None]
    flat = scaled.reshape(len(weights), users * records, -1).transpose(1, 2)
    return torch.cat((flat @ x.reshape(users * records, -1), flat.sum(2, keepdim=True)), 2)


def trained(
    x: Tensor, labels: Tensor, held: Tensor, rounds: int, noise: float, grid: list[tuple[float, float]], seed: int
) -> Tensor:
    """The last weights of every (clip, rate): momentum 0.9, the rate held for half of the run, then falling to zero."""
    draw = torch.Generator().manual_seed(1_000_003 * seed + rounds)
    clips, rates = (torch.tensor(column) for column in zip(*grid))
    weights = torch.zeros((len(grid), 10, x.shape[1] + 1))
    velocity = torch.zeros_like(weights)
    for at in range(rounds):
        picked = held[torch.rand(len(held), generator=draw) < CHANCE]
        total = summed(x[picked.flatten()].float().reshape(*picked.shape, -1), labels[picked], weights, clips)
        total += noise * clips[:, None, None] * torch.randn(total.shape[1:], generator=draw)
        velocity = 0.9 * velocity + total / (CHANCE * len(held))
        weights = weights - rates[:, None, None] * min(1.0, 2.0 * (1.0 - at / rounds)) * velocity
    return weights


def accuracies(x: Tensor, labels: Tensor, kept: Tensor, weights: Tensor) -> list[float]:
    """The share of right answers on the held-out records, for every setting."""
    right = torch.zeros(len(weights))
    for part in kept.split(2000):
        logits = torch.einsum("nf,rcf->nrc", x[part].float(), weights[:, :, :-1]) + weights[:, :, -1]
        right += (logits.argmax(2) == labels[part, None]).sum(0)
    return [float(value) / len(kept) for value in right]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--epsilon", nargs="+", type=float, default=[4.0])
    parser.add_argument("--rounds", nargs="+", type=int, default=[100, 200, 400])
    parser.add_argument("--clips", nargs="+", type=float, default=[0.1, 0.5])
    parser.add_argument("--rates", nargs="+", type=float, default=[1.0, 2.0, 4.0, 8.0], help="rate times clip")
    parser.add_argument("--alpha", type=float, default=0.5)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--held-out", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    settings = fl.Settings.of(
        {"data.name": chosen.data, "model.name": "scattering-linear", "data.pixels": "unit", "privacy.noise_scale": 1.0}
    )
    data = fl.prepared(settings)
    model = fl.build("scattering-linear", data)
    assert model.features is not None
    x = torch.from_numpy(np.array(model.features.of(data).train_inputs))
    labels = torch.from_numpy(data.train_labels)
    rows: list[dict[str, Any]] = []
    for epsilon, rounds in itertools.product(chosen.epsilon, chosen.rounds):
        begun, noise = time.perf_counter(), multiplier(epsilon, rounds, model.size)
        grid, found = [(clip, rate / clip) for clip in chosen.clips for rate in chosen.rates], []
        for seed in range(chosen.seeds):
            records, out = data.holding_out(chosen.held_out, 1000 + seed)
            users = len(records) // EACH
            parts = partition("dirichlet-even", data.train_labels[records], users, seed, chosen.alpha, 2)
            held = torch.from_numpy(np.stack(list(parts.within(records))))
            last = trained(x, labels, held, rounds, noise, grid, seed)
            found.append(accuracies(x, labels, torch.from_numpy(out), last))
        for (clip, rate), column in zip(grid, zip(*found)):
            rows.append({"data": chosen.data, "epsilon": epsilon, "rounds": rounds, "clip": clip, "rate": rate,
                         "noise_multiplier": noise, "alpha": chosen.alpha, "accuracy": float(np.mean(column)),
                         "seeds": list(column)})  # fmt: skip
            print(f"eps {epsilon:g} rounds {rounds} clip {clip:g} rate {rate:g} noise {noise:.3f}: "
                  f"{100 * np.mean(column):.2f} %", flush=True)  # fmt: skip
        print(f"{time.perf_counter() - begun:.0f} s", flush=True)
        save(chosen.out, {"rows": rows})


if __name__ == "__main__":
    main()

"""A rival of the quantized downlink: a public sketch in both directions, momentum replayed by clients.

    python bench/sketch_both_ways.py                 preset private, five seeds, on a GPU where there is one
    python bench/sketch_both_ways.py --report        the rows that were kept

In every round a public count sketch, drawn anew, maps each class's features to fewer numbers. Clients clip examples
after the map, add Gaussian noise, and send with subtractive dither. The server sends everyone the average, rounded with
a public dither. Everyone maps it back and takes the momentum step. A client must see every round. Trained on 50,000
records of MNIST, judged on 10,000 held out; the stand-in, draws and pairing of choose_downlink.py. Bits per coordinate
are entropies of a client's message and of the broadcast, without headers. Steps are in units of the noise of a client's
message (up) and of the average (down). Written to bench/results/sketch_both_ways.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import choose_downlink as plain
from stamp import save

RESULTS = Path(__file__).parent / "results" / "sketch_both_ways.json"
CLIENTS = 30
SKETCHES = ((0, 0.0, 0.0), (100, 2.0, 2.0), (200, 2.0, 2.0), (400, 2.0, 2.0), (800, 2.0, 2.0), (400, 3.0, 3.0))
"""Numbers per class (0: no sketch), steps up and down."""


def dithered(values: Tensor, step: float, draw: torch.Generator) -> tuple[Tensor, float]:
    """Values rounded with subtractive dither, and bits per value."""
    dither = torch.rand(values.shape, generator=draw, device=values.device)
    places = (values / step - dither).round()
    return (places + dither) * step, float(plain.entropy(places.reshape(1, -1)))


def trained(x: Tensor, labels: Tensor, kept: Tensor, width: int, up: float, down: float, seed: int) -> Any:
    """The last weights, and mean bits per coordinate up and down."""
    task, classes = plain.PRIVATE, 10
    draw = torch.Generator(device=x.device).manual_seed(1_000_003 * seed + task.rounds)
    weights = torch.zeros((1, classes, x.shape[1] + 1), device=x.device)
    velocity, expected, bits = torch.zeros_like(weights), task.chance * len(kept), np.zeros(2)
    noise = task.multiplier * plain.CLIP
    for at in range(task.rounds):
        picked = kept[torch.rand(len(kept), generator=draw, device=x.device) < task.chance]
        inputs = torch.cat((x[picked].float(), torch.ones((len(picked), 1), device=x.device)), 1)
        logits = inputs @ weights[0].T
        residual = logits.softmax(1) - torch.nn.functional.one_hot(labels[picked], classes)
        if width:
            place = torch.randint(width, (inputs.shape[1],), generator=draw, device=x.device)
            sign = torch.randint(2, (inputs.shape[1],), generator=draw, device=x.device) * 2.0 - 1.0
            inputs = torch.zeros((len(picked), width), device=x.device).index_add_(1, place, inputs * sign)
        norms = residual.norm(dim=1) * inputs.norm(dim=1)
        residual *= (plain.CLIP / norms.clamp(min=1e-12)).clamp(max=1.0)[:, None]
        total = torch.zeros((classes, inputs.shape[1]), device=x.device)
        if not width:
            total = residual.T @ inputs + noise * torch.randn(total.shape, generator=draw, device=x.device)
        for client in range(CLIENTS if width else 0):
            mine = residual[client::CLIENTS].T @ inputs[client::CLIENTS]
            mine += noise / CLIENTS**0.5 * torch.randn(mine.shape, generator=draw, device=x.device)
            sent, cost = dithered(mine, up * noise / CLIENTS**0.5, draw)
            total += sent
            bits[0] += cost * mine.numel() / weights.numel() / CLIENTS
        if width:
            total, cost = dithered(total, down * noise, draw)
            bits[1] += cost * total.numel() / weights.numel()
            total = total[:, place] * sign
        velocity = plain.MOMENTUM * velocity + total / expected
        weights = weights - task.rate * plain.falling(at, task.rounds) * velocity
    return weights, bits / task.rounds if width else np.array([32.0, 32.0])


def report(rows: list[dict[str, Any]]) -> None:
    """Print every row with its loss against no sketch, paired by seed."""
    for row in rows:
        loss = 100 * np.subtract(row["seeds"], rows[0]["seeds"])
        print(f"{row['numbers_per_class']:4} numbers per class, steps {row['step_up']:g} and {row['step_down']:g}: "
              f"{row['bits_up']:.3f} up, {row['bits_down']:.3f} down, {100 * row['accuracy']:.2f} % "
              f"({loss.mean():+.2f}) {np.round(loss, 2).tolist()}", flush=True)  # fmt: skip


def measured(x: Tensor, answers: Any, seeds: int, out: Path, device: str) -> list[dict[str, Any]]:
    """One row for every sketch."""
    labels, rows = torch.from_numpy(answers.astype(np.int64)).to(x.device), []
    for width, up, down in SKETCHES:
        scores, costs = [], []
        for seed in range(seeds):
            order = np.random.Generator(np.random.PCG64([seed, 0x43484F])).permutation(len(answers))
            held, kept = (torch.from_numpy(part).to(x.device) for part in np.split(order, [plain.HELD_OUT]))
            last, bits = trained(x, labels, kept, width, up, down, seed)
            scores += plain.accuracies(x, labels, held, last)
            costs.append(bits)
        both = np.mean(costs, 0)
        rows.append({"numbers_per_class": width, "step_up": up, "step_down": down, "bits_up": float(both[0]),
                     "bits_down": float(both[1]), "accuracy": float(np.mean(scores)), "seeds": scores})  # fmt: skip
        save(out, {"device": device, "rows": rows})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true")
    chosen = parser.parse_args()
    if chosen.report:
        return report(json.loads(chosen.out.read_text())["rows"])
    x, answers = plain.features("mnist", chosen.device)
    return report(measured(x, answers, chosen.seeds, chosen.out, chosen.device))


if __name__ == "__main__":
    main()

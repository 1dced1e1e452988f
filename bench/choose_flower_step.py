"""Step factor of Flower's quantized downlink, chosen on held-out training records of MNIST; test data is never read.

    python bench/choose_flower_step.py              two models, three seeds, every factor
    python bench/choose_flower_step.py --report     the rows that were kept

A federation of ten clients in one process: federated averaging with server rate 1, local updates clipped to 1, Gaussian
noise on the average, and the server's half of the downlink as Flower uses it (`cepam.protocol.models`). The step is
the factor times the noise of the average, as in `QuantizedBroadcast`. Factor 0 is a float32 downlink. Bits are whole
messages to clients that follow every round. Runs of a seed see the same records and noise. The choice is not in
epsilon. Written to bench/results/choose_flower_step.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cepam import fl
from cepam.downlink import Broadcast
from cepam.protocol.models import Downlink
from stamp import save

RESULTS = Path(__file__).parent / "results" / "choose_flower_step.json"
CLIENTS, STEPS, BATCH, RATE, HELD_OUT = 10, 10, 32, 0.1, 10_000
FACTORS = (0.0, 8.0, 16.0, 32.0, 64.0, 128.0)
NOISES = (0.001, 0.004)
"""Standard deviation per coordinate of the noise in the average of updates of norm at most 1."""
MODELS = {
    "linear": lambda: nn.Linear(784, 10),
    "mlp": lambda: nn.Sequential(nn.Linear(784, 64), nn.Tanh(), nn.Linear(64, 10)),
}


def moves(images: Tensor, labels: Tensor, parts: Tensor, start: Tensor, model: nn.Module, draw: np.random.Generator
          ) -> Tensor:  # fmt: skip
    """How the local steps of every client move these weights, each clipped to norm 1."""
    named = {name: weight.shape for name, weight in model.named_parameters()}

    def loss(weights: Tensor, few: Tensor, told: Tensor) -> Tensor:
        pieces = weights.split([shape.numel() for shape in named.values()])
        made = {name: piece.reshape(shape) for (name, shape), piece in zip(named.items(), pieces)}
        return nn.functional.cross_entropy(torch.func.functional_call(model, made, (few,)), told)

    slopes = torch.func.vmap(torch.func.grad(loss))
    local, rows = start.repeat(CLIENTS, 1), torch.arange(CLIENTS)[:, None]
    for _ in range(STEPS):
        few = parts[rows, torch.from_numpy(draw.integers(0, parts.shape[1], (CLIENTS, BATCH)))]
        local = local - RATE * slopes(local, images[few], labels[few])
    moved = local - start
    return moved / moved.norm(dim=1, keepdim=True).clamp(min=1.0)


def run(images: Tensor, labels: Tensor, name: str, noise: float, factor: float, rounds: int, seed: int) -> Any:
    """Held-out accuracy of the public weights at the end, and bits per coordinate, client and round."""
    draw = np.random.default_rng(seed)
    order = torch.from_numpy(draw.permutation(len(labels)))
    held, parts = order[:HELD_OUT], order[HELD_OUT:].reshape(CLIENTS, -1)
    torch.manual_seed(seed)
    model = MODELS[name]()
    exact = nn.utils.parameters_to_vector(model.parameters()).detach()
    step = Broadcast.step_for(1.0, noise, factor) if factor else 1.0
    server = Downlink({"weights": exact.numpy()}, step) if factor else None
    sent, public = [], exact
    for _ in range(rounds):
        if server is None:
            public = exact
        else:
            public = torch.from_numpy(np.array(server.public["weights"]))
            sent.append(len(server.message_for(0).message))
            server.hear(0, {"version": server._broadcast.version, "check": server._broadcast.check})
        average = moves(images, labels, parts, public, model, draw).mean(0)
        exact = exact + average + torch.from_numpy(draw.normal(size=len(exact)) * noise).float()
        if server is not None:
            server.publish({"weights": exact.numpy()}, step)
    last = exact if server is None else torch.from_numpy(np.array(server.public["weights"]))
    nn.utils.vector_to_parameters(last, model.parameters())
    right = float((model(images[held]).argmax(1) == labels[held]).float().mean())
    return right, 8 * float(np.mean(sent[1:])) / len(exact) if sent else 32.0


def report(rows: list[dict[str, Any]]) -> None:
    """Print every row with its loss against float32, paired by seed."""
    for row in rows:
        told = ("model", "noise", "rounds")
        plain = next(each for each in rows if each["factor"] == 0 and all(each[name] == row[name] for name in told))
        loss = 100 * np.subtract(row["seeds"], plain["seeds"])
        print(f"{row['model']:6} noise {row['noise']:g} factor {row['factor']:5g}: {row['bits_down']:.3f} bits, "
              f"{100 * row['accuracy']:.2f} % ({loss.mean():+.2f}) {np.round(loss, 2).tolist()}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--report", action="store_true")
    chosen = parser.parse_args()
    if chosen.report:
        return report(json.loads(RESULTS.read_text())["rows"])
    torch.set_num_threads(1)
    data = fl.load("mnist")
    images = torch.from_numpy(np.array(data.train_inputs, dtype=np.float32) / 255.0)
    labels = torch.from_numpy(data.train_labels.astype(np.int64))
    rows: list[dict[str, Any]] = []
    for name, noise, factor in itertools.product(MODELS, NOISES, FACTORS):
        begun = time.perf_counter()
        made = [run(images, labels, name, noise, factor, chosen.rounds, seed) for seed in range(chosen.seeds)]
        seeds: npt.NDArray[Any] = np.array(made)
        rows.append({"model": name, "noise": noise, "factor": factor, "rounds": chosen.rounds,
                     "accuracy": float(seeds[:, 0].mean()), "seeds": seeds[:, 0].tolist(),
                     "bits_down": float(seeds[:, 1].mean())})  # fmt: skip
        print(f"{name} {noise:g} {factor:g}: {rows[-1]} {time.perf_counter() - begun:.0f} s", flush=True)
        save(RESULTS, {"rows": rows})
    report(rows)


if __name__ == "__main__":
    main()

"""The way down: bits of the broadcast and accuracy of the public weights, by step rule.

    PYTHONPATH=src python bench/downlink.py --rounds 500 --seeds 3              # preset `convolutional`, MNIST
    PYTHONPATH=src python bench/downlink.py --model linear --seeds 3            # 3,969 fixed features, a linear head
    PYTHONPATH=src python bench/downlink.py --speed                             # ns per coordinate

For every factor F, clients compute at the public weights of step F x rate x noise (rounded down to a power of two), and
a receiver in the loop must hold the same bits. F = 0 is a float32 downlink, beside which the same weights are coded at
several steps. Bits are whole messages, accuracies those of test data; the rule was chosen on them (docs/downlink.md).
Writes bench/results/downlink_MODEL.json.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import cepam
from cepam import fl
from stamp import save

RESULTS = Path(__file__).parent / "results"
FACTORS = (0.0, 64.0)
BESIDE = (8.0, 16.0, 32.0, 64.0, 128.0)
GAPS = (1, 2, 5, 10, 25, 60)
Vector = npt.NDArray[Any]


class Channel:
    """A server and a receiver in the loop, and what they cost."""

    def __init__(self, run: bytes, start: Vector, factor: float, noise: float) -> None:
        self.factor, self.noise, self.start = factor, noise, start
        self.server, self.receiver = cepam.Broadcast(run, start), cepam.Receiver(run, start)
        self.bits: list[float] = []
        self.behind: dict[Any, float] = {}
        # Beside a float32 downlink the same weights are coded at several steps: bits without a run for each.
        self.beside = [] if factor else [Channel(run, start, each, noise) for each in BESIDE]

    def send(self, weights: Vector, rate: float) -> Vector:
        """The public weights that clients hold after this round."""
        if not self.factor:
            self.bits.append(32.0)
            for channel in self.beside:
                channel.send(weights, rate)
            return np.asarray(weights, dtype=np.float32)
        message = self.server.publish(weights, self.factor * rate * self.noise)
        held = self.receiver.apply(message)
        assert held.tobytes() == self.server.weights.tobytes()
        self.bits.append(8 * len(message) / len(weights))
        return held

    def look_back(self) -> None:
        """Note what receivers that missed rounds would be sent now, None standing for a new one."""
        for channel in self.beside:
            channel.look_back()
        if self.factor:
            now = self.server.version
            asked: dict[Any, int | None] = {gap: now - gap for gap in GAPS if gap <= now} | {"start": 0, "new": None}
            size = len(self.start)
            self.behind = {gap: 8 * len(self.server.message_from(held)) / size for gap, held in asked.items()}


class Downlink(fl.Simulation):
    """The engine with steps of any factor: clients and evaluation see public weights, the optimizer its exact ones."""

    channels_down: list[Channel]

    def _move(self, aggregates: Any) -> None:
        rate = float(self.rates.at((self.state.round + 1) * self.settings.training.local_steps - 1))
        super()._move(aggregates)
        self.state.weights = np.stack([c.send(w, rate) for c, w in zip(self.channels_down, self.state.exact)])
        if self.state.round == self.settings.training.rounds // 2:
            for channel in self.channels_down:
                channel.look_back()


def train_preset(factor: float, options: argparse.Namespace, data: fl.Dataset) -> tuple[list[float], list[Channel]]:
    """Accuracies of the seeds' public weights at the end of a private run, and the channels."""
    rounds = options.rounds
    changes = {
        "training.rounds": rounds,
        "run.evaluate_every": rounds,
        "run.seeds": options.seeds,
        "run.simulate": True,
    }
    run = Downlink(fl.preset("convolutional").updated(changes), data)
    noise = run.aggregators[0].noise
    assert noise is not None
    run.channels_down = [Channel(b"bench %d" % s, w, factor, noise) for s, w in enumerate(run.state.exact)]
    lines: list[dict[str, Any]] = []
    while not run.done:
        lines = run.step()
    return [line["accuracy"] for line in lines], run.channels_down


class Linear:
    """A linear head on fixed features, trained centrally with clipped examples and noise, as the private preset is.

    81 random oriented waves of 7 x 7 pixels, sizes averaged over 4 x 4 pixels, normalised an image at a time.
    """

    batch, clip, momentum, rate = 1920.0, 0.1, 0.9, 4.0
    noise = 8.635e-5

    def __init__(self, data: fl.Dataset) -> None:
        import torch

        self.torch = torch
        draw = np.random.default_rng(0)
        y, x = np.mgrid[-3:4, -3:4]
        waves = []
        for _ in range(81):
            angle, turns, phase = draw.uniform(0, np.pi), draw.uniform(0.15, 1.6), draw.uniform(0, 2 * np.pi)
            wave = np.cos(turns * (np.cos(angle) * x + np.sin(angle) * y) + phase) * np.exp(-(x * x + y * y) / 8.0)
            waves.append(wave - wave.mean())
        self.waves = torch.tensor(np.stack(waves)[:, None], dtype=torch.float32)
        self.train, self.test = self._features(data.train_inputs), self._features(data.test_inputs)
        self.labels, self.test_labels = data.train_labels, data.test_labels
        self.size = 10 * self.train.shape[1]

    def _features(self, images: Vector) -> Any:
        torch, parts = self.torch, []
        for first in range(0, len(images), 1000):
            pixels = torch.tensor(images[first : first + 1000].reshape(-1, 1, 28, 28) / 255.0, dtype=torch.float32)
            sizes = torch.nn.functional.conv2d(pixels, self.waves, padding=3).abs()
            flat = torch.nn.functional.avg_pool2d(sizes, 4).flatten(1)
            flat = (flat - flat.mean(1, keepdim=True)) / (flat.std(1, keepdim=True) + 1e-3)
            parts.append(torch.cat([flat, torch.ones(len(flat), 1)], 1).half())
        return torch.cat(parts)

    def gradient(self, weights: Vector, drawn: Vector) -> Vector:
        """The sum of clipped gradients over the expected batch, without noise."""
        torch = self.torch
        x = self.train[drawn].float()
        error = torch.softmax(x @ torch.tensor(weights.reshape(10, -1)).float().T, 1)
        error[torch.arange(len(drawn)), torch.tensor(self.labels[drawn])] -= 1
        error *= torch.clamp(self.clip / (error.norm(dim=1) * x.norm(dim=1)), max=1.0)[:, None]
        return np.asarray((error.T @ x).double().numpy().ravel() / self.batch)

    def run(self, factor: float, seed: int, rounds: int) -> tuple[float, Channel]:
        """The accuracy of the public weights at the end, and the channel."""
        draw = np.random.default_rng(seed)
        exact, velocity = np.zeros(self.size), np.zeros(self.size)
        channel = Channel(b"bench %d" % seed, exact, factor, self.noise)
        public: Vector = exact
        for number in range(rounds):
            drawn = np.flatnonzero(draw.random(len(self.labels)) < self.batch / len(self.labels))
            step = self.gradient(public, drawn) + draw.normal(size=self.size) * self.noise
            velocity = self.momentum * velocity + step
            rate = self.rate * min(1.0, 2.0 * (1.0 - number / rounds))
            exact = exact - rate * velocity
            public = channel.send(exact, rate)
            if number + 1 == rounds // 2:
                channel.look_back()
        scores = self.test.float() @ self.torch.tensor(public.reshape(10, -1)).float().T
        return float((scores.argmax(1).numpy() == self.test_labels).mean()), channel


def train_linear(factor: float, options: argparse.Namespace, model: Linear) -> tuple[list[float], list[Channel]]:
    """Accuracies and channels of several seeds of the linear model."""
    made = [model.run(factor, seed, options.rounds) for seed in range(1, options.seeds + 1)]
    return [accuracy for accuracy, _ in made], [channel for _, channel in made]


def compare(train: Callable[..., Any], options: argparse.Namespace, given: Any) -> list[dict[str, Any]]:
    """One row a factor: bits, and accuracies paired by seed with the float32 downlink."""
    rows: list[dict[str, Any]] = []
    for factor in options.factors:
        begun = time.perf_counter()
        accuracies, channels = train(factor, options, given)
        bits = np.array([channel.bits for channel in channels])
        row = {
            "factor": factor, "bits": float(bits.mean()), "bits_largest_round": float(bits.mean(0).max()),
            "accuracy": accuracies, "mean": float(np.mean(accuracies)), "behind": channels[0].behind,
            "seconds": time.perf_counter() - begun,
            "beside": [
                {"factor": each.factor, "bits": float(np.mean(each.bits)), "behind": each.behind}
                for each in channels[0].beside
            ],
        }  # fmt: skip
        rows.append(row)
        base = rows[0]["accuracy"] if rows[0]["factor"] == 0 else accuracies
        off = [100 * (a - b) for a, b in zip(accuracies, base)]
        row["paired_points"] = off
        print(
            f"F {factor:5.0f}: {row['bits']:.3f} bits per coordinate (largest round {row['bits_largest_round']:.2f}), "
            f"{100 * row['mean']:.2f} %, {np.mean(off):+.2f} points {[round(d, 2) for d in off]}, "
            f"behind { ({k: round(v, 2) for k, v in row['behind'].items()}) }, {row['seconds']:.0f} s",
            flush=True,
        )
        for each in row["beside"]:
            behind = {gap: round(bits, 2) for gap, bits in each["behind"].items()}
            print(f"    coded beside it, F {each['factor']:3.0f}: {each['bits']:.3f} bits, behind {behind}", flush=True)
    return rows


def time_halves(size: int, threads: int, density: float = 0.06) -> dict[str, float]:
    """ns per coordinate of `publish` and `apply`, at a density of moved coordinates as in the private preset."""
    draw, step = np.random.default_rng(0), 2.0**-5
    first = (draw.normal(size=size) * 0.1).astype(np.float32)
    second = (first + draw.normal(size=size) * step * density / 0.8).astype(np.float32)
    server = cepam.Broadcast(b"speed", first, threads=threads)
    receiver = cepam.Receiver(b"speed", first, threads=threads)
    receiver.apply(server.publish(first, step))
    kept, held, spent = server.state_dict(), receiver.state_dict(), []
    for _ in range(4):
        server.load_state_dict(kept)
        receiver.load_state_dict(held)
        begun = time.perf_counter()
        message = server.publish(second, step)
        between = time.perf_counter()
        receiver.apply(message)
        spent.append((between - begun, time.perf_counter() - between))
    publish, apply = (1e9 * float(best) / size for best in np.min(spent, axis=0))
    bits = 8 * len(message) / size
    print(
        f"{size:>11,} coordinates, {threads} threads, {bits:.3f} bits: publish {publish:.1f} ns, apply {apply:.1f} ns"
    )
    return {"coordinates": size, "threads": threads, "bits": bits, "publish_ns": publish, "apply_ns": apply}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["preset", "linear"], default="preset")
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--factors", type=float, nargs="+", default=list(FACTORS))
    parser.add_argument("--speed", action="store_true")
    options = parser.parse_args()
    if options.speed:
        name, rows = "speed", [time_halves(size, n) for size in (10_000, 1_000_000, 10_000_000) for n in (1, 2)]
    else:
        data = fl.load("mnist")
        name = options.model
        train, given = (train_preset, data) if name == "preset" else (train_linear, Linear(data))
        rows = compare(train, options, given)
    save(f"downlink_{name}", {"rounds": options.rounds, "rows": rows})


if __name__ == "__main__":
    main()

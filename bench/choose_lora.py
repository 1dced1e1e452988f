"""Choose adapters, rounds, sampling, clip and rate of preset chitchat-lora on held-out training users.

    python bench/choose_lora.py --tokens tokens.npz --gguf SmolLM2-135M-Instruct.Q4_1.gguf    # a GPU; three minutes
    python bench/choose_lora.py … --refine                                                    # a minute more
    python bench/choose_lora.py … --smoke                                                     # tiny: does it run

A fifth of the training users is held out; test users are never looked at. The others train as in a run: a Poisson
cohort, each user's mean gradient over some records clipped, Gaussian noise of epsilon 8 for all training users,
momentum and the linear schedule on the server. Products are in bfloat16 here. First the adapted layers, the rank and
the fixed factor A are compared, then for the best the rest. Each row keeps the loss of the held-out users; rates follow
from a line search along the first mean gradient. Writes bench/results/choose_lora.json (with --refine
choose_lora_refined.json) and, where $OUT is set, a copy there.

The tokens are those of `fl.load("chitchat-smollm2")`: arrays `train` (the labels) and `owners`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
import types
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

if "--bare" in sys.argv:  # where NumPy and PyTorch are all there is: the modules needed, without their packages
    for name in ("cepam", "cepam.fl", "cepam.fl.data", "cepam.fl.models"):
        made = types.ModuleType(name)
        made.__path__ = [str(Path(__file__).parents[1] / "src" / name.replace(".", "/"))]
        sys.modules[name] = made

from cepam.fl.models.llama import Llama, LlamaShape, _read, signs
from stamp import stamp

RESULTS = Path(__file__).parent / "results"
MULTIPLIERS = {
    (1.0, 8): 1.428, (1.0, 16): 2.019, (1.0, 32): 2.856, (0.5, 16): 1.193, (0.5, 32): 1.576, (0.25, 16): 0.7972,
    (0.25, 32): 0.9743, (0.25, 64): 1.228,
}  # fmt: skip
"""Noise of the sum over the clip for epsilon 8, delta 1183^-1.1, add-or-remove, by sampling rate and rounds."""
ALL = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


@dataclass(frozen=True)
class Setting:
    """What is tried: adapters, then training. `push` scales the rate that the line search suggests."""

    layers: tuple[str, ...] = ("attn_q", "attn_v")
    rank: int = 2
    rows: str = "signs"
    chance: float = 0.25
    rounds: int = 16
    records: int = 1
    quantile: float = 0.5
    push: float = 2.0
    momentum: float = 0.9


class Search:
    """The model, the records on the device, and which users are held out."""

    def __init__(self, llama: Llama, train: Tensor, owners: np.ndarray[Any, Any], at_once: int, users: int) -> None:
        self.llama, self.train, self.at_once = llama, train, at_once
        self.device = train.device.type
        many = int(owners.max()) + 1
        order = np.random.default_rng([35, 5]).permutation(many)
        self.records = [np.flatnonzero(owners == k) for k in range(many)]
        self.held = np.concatenate([self.records[k] for k in order[: many // 5]])[: 40 * at_once]
        self.kept = order[many // 5 :][:users]
        self.right: dict[str, Tensor] = {}
        self.draw = torch.Generator(self.device).manual_seed(35)

    def factor(self, key: str, kind: str, rank: int) -> Tensor:
        """The fixed factor A of a layer: random signs, or the weight's leading right singular vectors."""
        block, _, name = key.partition("_")
        weight = self.llama.weight(name, int(block))
        if kind == "signs":
            return signs(key, rank, weight.shape[1]).to(weight.device)
        if key not in self.right:
            vectors = torch.randn(weight.shape[1], 16, device=weight.device, generator=self.draw)
            for _ in range(20):
                vectors = torch.linalg.qr(weight.T @ (weight @ vectors))[0]
            self.right[key] = vectors.T.contiguous()
        return self.right[key][:rank]

    def losses(self, rows: Tensor, trained: dict[str, Tensor], fixed: dict[str, Tensor]) -> Tensor:
        """The mean loss per token of each row; B is one for all rows, or one for each."""

        def added(block: int, name: str, x: Tensor) -> Tensor | None:
            key = f"{block}_{name}"
            return None if key not in fixed else (x @ fixed[key].T) @ trained[key].mT

        with torch.autocast(self.device, torch.bfloat16):
            before = torch.nn.functional.pad(rows, (1, 0))[:, :-1]
            logits = self.llama(before, added)
        each = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), rows.flatten(), reduction="none")
        real = (rows > 0).float()
        return (each.view(rows.shape) * real).sum(1) / real.sum(1).clamp(min=1)

    def gradients(self, users: np.ndarray[Any, Any], trained: dict[str, Tensor], fixed: dict[str, Tensor], count: int,
                  draw: np.random.Generator) -> Tensor:  # fmt: skip
        """Each user's mean gradient over so many records drawn with replacement, one row each."""
        chosen = np.concatenate([draw.choice(self.records[k], count) for k in users])
        parts = []
        for at in range(0, len(chosen), self.at_once):
            rows = self.train[torch.from_numpy(chosen[at : at + self.at_once]).to(self.train.device)]
            each = {k: b.expand(len(rows), *b.shape).clone().requires_grad_() for k, b in trained.items()}
            slopes = torch.autograd.grad(self.losses(rows, each, fixed).sum(), list(each.values()))
            parts.append(torch.cat([slope.flatten(1).float() for slope in slopes], 1))
        return torch.cat(parts).view(len(users), count, -1).mean(1)

    @torch.no_grad()
    def judged(
        self, trained: dict[str, Tensor], fixed: dict[str, Tensor], few: int | None = None
    ) -> tuple[float, float]:
        """The held-out users' loss: mean of records, and mean of tokens."""
        held = self.held[:: max(1, len(self.held) // few)] if few else self.held
        rows = self.train[torch.from_numpy(held).to(self.train.device)]
        found = torch.cat([self.losses(each, trained, fixed) for each in rows.split(2 * self.at_once)]).double()
        tokens = (rows > 0).sum(1)
        return float(found.mean()), float((found * tokens).sum() / tokens.sum())

    def run(self, s: Setting, seed: int = 0) -> dict[str, Any]:
        """The held-out loss of a setting after its rounds."""
        begun = time.perf_counter()
        shape, draw = self.llama.shape, np.random.default_rng([seed, s.rounds])
        noise = torch.Generator(self.device).manual_seed(seed)
        keys = [f"{block}_{name}" for block in range(shape.layers) for name in s.layers]
        fixed = {key: self.factor(key, s.rows, s.rank) for key in keys}
        sizes = [(key, (self.llama.weight(key.partition("_")[2], int(key.partition("_")[0])).shape[0], s.rank))
                 for key in keys]  # fmt: skip

        def split(vector: Tensor) -> dict[str, Tensor]:
            cut = torch.split(vector, [a * b for _, (a, b) in sizes])
            return {key: piece.view(size) for piece, (key, size) in zip(cut, sizes)}

        weights = torch.zeros(sum(a * b for _, (a, b) in sizes), device=self.train.device)
        probe = self.gradients(self.kept[: 4 * self.at_once], split(weights), fixed, s.records, draw)
        norms = probe.norm(dim=1)
        clip = float(norms.quantile(s.quantile))
        mean = (probe * (clip / norms.clamp(min=clip))[:, None]).mean(0)
        scales = [2.0**k for k in range(-3, 9)]
        lines = [self.judged(split(-scale * mean / mean.norm()), fixed, 64)[0] for scale in scales]
        far = scales[int(np.argmin(lines))]
        rate = s.push * far / (float(mean.norm()) * s.rounds * 0.75 / (1.0 - s.momentum))
        deviation = MULTIPLIERS[s.chance, s.rounds] * clip / (s.chance * len(self.kept))
        velocity, path = torch.zeros_like(weights), []
        for at in range(s.rounds):
            drawn = self.kept[draw.random(len(self.kept)) < s.chance]
            each = self.gradients(drawn, split(weights), fixed, s.records, draw)
            lengths = each.norm(dim=1)
            total = (each * (clip / lengths.clamp(min=clip))[:, None]).sum(0) / (s.chance * len(self.kept))
            total = total + deviation * torch.randn(total.shape, device=total.device, generator=noise)
            velocity = s.momentum * velocity + total
            weights = weights - rate * min(1.0, 2.0 * (1.0 - at / s.rounds)) * velocity
            if at % 8 == 7 and at + 1 < s.rounds:
                path.append(round(self.judged(split(weights), fixed, 128)[0], 4))
        loss, tokens = self.judged(split(weights), fixed)
        return {**asdict(s), "weights": len(weights), "clip": clip, "rate": rate, "line": far,
                "first_loss": min(lines), "mean_norm": float(mean.norm()) / clip, "noise_norm":
                deviation / clip * math.sqrt(len(weights)), "path": path, "loss": loss, "token_loss": tokens,
                "moved": float(weights.norm()), "seconds": time.perf_counter() - begun}  # fmt: skip


ADAPTERS = [
    Setting(), Setting(rank=8), Setting(layers=ALL, rank=1), Setting(layers=ALL, rank=4),
    Setting(rows="singular", rank=4), Setting(layers=ALL, rank=2, rows="singular"),
    Setting(layers=("attn_v", "attn_output"), rank=4), Setting(layers=("attn_output", "ffn_down"), rank=4),
]  # fmt: skip


EVERY = Setting(layers=ALL, rank=1)
REFINED = [
    replace(EVERY, push=8.0), replace(EVERY, push=16.0), replace(EVERY, push=16.0, rank=4),
    replace(EVERY, push=16.0, quantile=0.1), replace(EVERY, push=32.0),
]  # fmt: skip
"""What is tried after a first search: all layers were best, larger rates were better, and a rank of 4 gained little."""


def training(best: Setting) -> list[Setting]:
    """What is tried for the best adapters."""
    return [
        replace(best, push=4.0), replace(best, push=8.0), replace(best, rounds=32), replace(best, rounds=32, push=4.0),
        replace(best, rounds=32, push=8.0), replace(best, rounds=32, push=4.0, quantile=0.1),
        replace(best, rounds=32, push=4.0, records=2), replace(best, chance=0.5, rounds=16, push=4.0),
        replace(best, rounds=32, push=4.0, rank=2 * best.rank), replace(best, rounds=64, push=4.0),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=Path, required=True)
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--seconds", type=float, default=180.0, help="no setting is begun later")
    parser.add_argument("--refine", action="store_true", help="go on from what a first search found")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--bare", action="store_true", help="import nothing that needs more than NumPy and PyTorch")
    chosen = parser.parse_args()
    begun = time.perf_counter()
    held = np.load(chosen.tokens)
    train = torch.from_numpy(held["train"].astype(np.int64))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if chosen.smoke:
        shape = LlamaShape(2, 64, 96, 4, 2, 49152)
        sizes = {"token_embd": (49152, 64), "output_norm": (64,)}
        sizes |= {f"blk.{b}.{name}": size for b in range(2) for name, size in shape.sizes().items()}
        llama = Llama(shape, {name: torch.randn(size) * 0.1 for name, size in sizes.items()})
        search = Search(llama.to(device), train[:, :16].to(device), held["owners"], 4, 20)
        global ADAPTERS
        ADAPTERS = ADAPTERS[::4]
    else:
        search = Search(_read(chosen.gguf).to(device), train.to(device), held["owners"], 96, 10**6)
    rows: list[dict[str, Any]] = []
    loss, tokens = search.judged({}, {})
    print(f"base: loss {loss:.4f}, perplexity {math.exp(loss):.2f}, per token {math.exp(tokens):.2f}; "
          f"{len(search.held)} records held out, {time.perf_counter() - begun:.0f} s", flush=True)  # fmt: skip

    def tried(settings: list[Setting]) -> list[tuple[float, Setting]]:
        made = []
        for setting in settings:
            if time.perf_counter() - begun > chosen.seconds:
                break
            row = search.run(setting)
            rows.append(row)
            made.append((row["loss"], setting))
            print({name: value if not isinstance(value, float) else round(value, 4) for name, value in row.items()},
                  flush=True)  # fmt: skip
            keep("choose_lora_refined.json" if chosen.refine else "choose_lora.json", rows, loss, tokens)
        return made

    if chosen.refine:
        tried(REFINED)
        return
    first = sorted(tried(ADAPTERS), key=lambda each: each[0])
    second = tried([replace(first[1][1], push=4.0), *training(first[0][1])])
    print("best:", min([*first, *second], key=lambda each: each[0]))


def keep(file: str, rows: list[dict[str, Any]], loss: float, tokens: float) -> None:
    """Write what was found so far."""
    made = json.dumps({"stamp": stamp(), "base_loss": loss, "base_token_loss": tokens, "rows": rows}, indent=1) + "\n"
    for folder in (RESULTS, *map(Path, filter(None, [os.environ.get("OUT")]))):
        (folder / file).write_text(made)


if __name__ == "__main__":
    main()

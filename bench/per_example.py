"""Per-example clipped gradients beside plain ones: time and memory of a step, side by side in one process.

    python bench/per_example.py                          # CPU: an MLP, a CNN, a GRU, a transformer
    python bench/per_example.py --device cuda --precision float32 bfloat16 --save
    python bench/per_example.py --only transformer --ways plain ours --batch 2 --repeat 3 --save

`plain` is one backward pass of the mean loss. `ours` is `cepam.torch` (src/cepam/torch/mapped.py), `layers` the path of
the engine for sequences of known layers. `func` is `torch.func`'s vmap(grad), every example's gradient in memory.
`opacus` and `opacus-ghost` are Opacus's hooks and fast gradient clipping, where it is installed. Every row is a median
of `--repeat` steps, in turn; the ratio is to `plain`. On the CPU it is the time of the processor, which other programs
hardly change. All must agree on the clipped sum: `off` is the largest difference from
`func` relative to the largest number (from `ours` where `func` was left out). `bfloat16` is autocast.

`--save` keeps each case with its stamp in bench/results/per_example.json, one entry for each device and precision;
cases of earlier runs stay.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stamp import RESULTS, merge, stamp, version

CLIP = 0.05


class Recurrent(nn.Module):
    """A language model with an unmodified `nn.GRU`."""

    def __init__(self, kind: Any = nn.GRU) -> None:
        super().__init__()
        self.table, self.cells, self.head = (
            nn.Embedding(1000, 128),
            kind(128, 256, batch_first=True),
            nn.Linear(256, 1000),
        )

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(self.cells(self.table(x))[0]).transpose(1, 2)
        return made


class Transformer(nn.Module):
    """A causal language model: 8 layers of width 512, 30 million weights."""

    def __init__(self, words: int = 8000, width: int = 512, layers: int = 8, length: int = 128) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, x: Tensor) -> Tensor:
        # Positions of every example: Opacus's hooks need the axis of the batch, `nn.Embedding` of a range has none.
        where = torch.arange(x.shape[1], device=x.device).expand(x.shape)
        made: Tensor = self.head(self.encoder(self.table(x) + self.places(where), mask=self.mask, is_causal=True))
        return made.transpose(1, 2)


def convolutions() -> nn.Module:
    """Six convolutions with group normalisation on 32 by 32 pixels, 1.2 million weights."""
    layers: list[nn.Module] = []
    for ins, outs, stride in ((3, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1)):
        layers += [nn.Conv2d(ins, outs, 3, stride=stride, padding=1), nn.GroupNorm(8, outs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    x: Callable[[int], Tensor]
    y: Callable[[int, Tensor], Tensor]
    batch: dict[str, int]


def classes(batch: int, x: Tensor) -> Tensor:
    return torch.arange(batch) % 10


CASES = {
    "mlp": Case(
        lambda: nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)),
        lambda n: torch.randn(n, 784), classes, {"cpu": 256, "cuda": 4096},
    ),
    "cnn": Case(convolutions, lambda n: torch.randn(n, 3, 32, 32), classes, {"cpu": 32, "cuda": 512}),
    "small-cnn": Case(
        lambda: nn.Sequential(
            nn.Conv2d(1, 6, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(6, 6, 5), nn.MaxPool2d(2), nn.ReLU(),
            nn.Flatten(), nn.Linear(96, 50), nn.ReLU(), nn.Linear(50, 10),
        ),
        lambda n: torch.randn(n, 1, 28, 28), classes, {"cpu": 64, "cuda": 4096},
    ),
    "gru": Case(
        Recurrent, lambda n: torch.randint(0, 1000, (n, 40)), lambda n, x: x.roll(-1, 1), {"cpu": 64, "cuda": 512}
    ),
    "lstm": Case(
        lambda: Recurrent(nn.LSTM), lambda n: torch.randint(0, 1000, (n, 40)), lambda n, x: x.roll(-1, 1),
        {"cpu": 64, "cuda": 512},
    ),
    "transformer": Case(
        Transformer, lambda n: torch.randint(0, 8000, (n, 128)), lambda n, x: x.roll(-1, 1), {"cpu": 4, "cuda": 64}
    ),
}  # fmt: skip


Step = Callable[[], Tensor]


def plain(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    def step() -> Tensor:
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        return torch.zeros(())

    return step


def ours(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    from cepam.torch.mapped import Mapped

    passes = Mapped(model, lambda answer, target: F.cross_entropy(answer[None], target[None]), x.device.type)
    passes.probe(x[:2], y[:2])
    assert passes.recorded
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    keep, bounds = torch.ones((1, len(x)), dtype=torch.bool, device=x.device), torch.full((1,), CLIP, device=x.device)
    return lambda: passes.summed(weights, x, y, keep, bounds)[0][0]


def layers(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    from cepam.fl.models.interface import Objective
    from cepam.fl.models.layers import layers_of
    from cepam.fl.models.network import Layered

    found = layers_of(model, tuple(x.shape[1:]))
    if found is None:
        raise ValueError("not a sequence of known layers")
    passes = Layered(found, Objective())
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    keep, bounds = torch.ones((1, len(x)), dtype=torch.bool, device=x.device), torch.full((1,), CLIP, device=x.device)
    return lambda: passes.summed(weights, x, y, keep, bounds, None)[0][0]


def func(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    from torch.func import functional_call, grad, vmap

    weights = {name: p.detach() for name, p in model.named_parameters()}
    if len(x) * sum(p.numel() for p in weights.values()) > 2**28:
        raise ValueError("every example's gradient would not fit")

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, weights, x[None]), y[None])

    def step() -> Tensor:
        each = vmap(grad(loss), in_dims=(None, 0, 0))(weights, x, y)
        norms = torch.sqrt(sum(g.flatten(1).square().sum(1) for g in each.values()))  # type: ignore[arg-type]
        scale = CLIP / norms.clamp(min=CLIP)
        return torch.cat([torch.tensordot(scale, g, 1).flatten() for g in each.values()])

    return step


def opacus(model: nn.Module, x: Tensor, y: Tensor, ghost: bool = False) -> Step:
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping

    params = [p for p in model.parameters() if p.requires_grad]
    if ghost:
        wrapped: Any = GradSampleModuleFastGradientClipping(
            model, batch_first=True, max_grad_norm=CLIP, loss_reduction="sum", use_ghost_clipping=True
        )

        def fast() -> Tensor:
            wrapped.zero_grad()
            wrapped.enable_hooks()
            losses = F.cross_entropy(wrapped(x), y, reduction="none")
            losses = losses.flatten(1).mean(1) if losses.dim() > 1 else losses
            losses.sum().backward(retain_graph=True)
            factors = wrapped.get_clipping_coef()
            wrapped.zero_grad()
            wrapped.disable_hooks()
            (losses * factors).sum().backward()
            return torch.cat([p.grad.flatten() for p in params if p.grad is not None])

        return fast
    wrapped = GradSampleModule(model, batch_first=True, loss_reduction="sum")

    def step() -> Tensor:
        wrapped.zero_grad()
        losses = F.cross_entropy(wrapped(x), y, reduction="none")
        (losses.flatten(1).mean(1) if losses.dim() > 1 else losses).sum().backward()
        each = [p.grad_sample for p in params]
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in each]).norm(dim=0)
        scale = CLIP / norms.clamp(min=CLIP)
        return torch.cat([torch.tensordot(scale, g, 1).flatten() for g in each])

    return step


WAYS: dict[str, Callable[..., Step]] = {
    "plain": plain, "func": func, "ours": ours, "layers": layers, "opacus": opacus,
    "opacus-ghost": lambda *given: opacus(*given, ghost=True),
}  # fmt: skip


class Memory:
    """The most memory that a step takes beyond what was there before, in MiB."""

    def __init__(self, device: str) -> None:
        self.device, self.most = device, 0.0

    def __enter__(self) -> Memory:
        gc.collect()
        if self.device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self.start = torch.cuda.memory_allocated()
        else:
            self.start, self.going = _resident(), True
            self.thread = threading.Thread(target=self._watch)
            self.thread.start()
        return self

    def _watch(self) -> None:
        while self.going:
            self.most = max(self.most, (_resident() - self.start) / 2**20)
            time.sleep(0.002)

    def __exit__(self, *_: object) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()
            self.most = (torch.cuda.max_memory_allocated() - self.start) / 2**20
        else:
            self.going = False
            self.thread.join()


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def measured(case: Case, device: str, batch: int, repeat: int, autocast: bool, ways: list[str]) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    start = case.make().to(device)
    x = case.x(batch)
    x, y = x.to(device), case.y(batch, x).to(device)
    rows: list[dict[str, Any]] = []
    steps: dict[str, Step] = {}
    within = torch.autocast(device, torch.bfloat16) if autocast else nullcontext()
    sums: dict[str, Tensor] = {}
    with within:
        for way in ways:
            row: dict[str, Any] = {"way": way}
            rows.append(row)
            try:
                step = WAYS[way](copy.deepcopy(start), x, y)
                sums[way] = step()
                with Memory(device) as memory:
                    step()
                row["memory_mib"] = round(memory.most, 1)
                steps[way] = step
            except Exception as refused:
                row["refused"] = f"{type(refused).__name__}: {str(refused).partition(chr(10))[0][:100]}"
        times: dict[str, list[float]] = {way: [] for way in steps}
        clock = time.perf_counter if device == "cuda" else time.process_time
        for _ in range(repeat):  # in turn, so that what else the machine does hits all alike
            for way, step in steps.items():
                begin = clock()
                step()
                if device == "cuda":
                    torch.cuda.synchronize()
                times[way].append(clock() - begin)
    base = statistics.median(times["plain"])
    reference = sums.get("func", sums.get("ours"))
    for row in rows:
        if row["way"] in times:
            row["ms"] = round(1e3 * statistics.median(times[row["way"]]), 2)
            row["ratio"] = round(statistics.median(times[row["way"]]) / base, 2)
            if row["way"] != "plain" and reference is not None:
                off = (sums[row["way"]].float() - reference.float()).abs().max() / reference.abs().max()
                row["off"] = float(f"{float(off):.1e}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--batch", type=int, help="examples in a step (default: by case and device)")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch on the CPU")
    parser.add_argument("--precision", nargs="*", default=["float32"], choices=("float32", "bfloat16"))
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which no new case is begun")
    parser.add_argument("--save", action="store_true", help="keep the rows in bench/results")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    begin = time.perf_counter()
    for precision in given.precision:
        for name in given.only:
            if time.perf_counter() - begin > given.limit:
                print(f"{name} {precision}: no time left", flush=True)
                continue
            case = CASES[name]
            batch = given.batch or case.batch[given.device]
            weights = sum(p.numel() for p in case.make().parameters())
            print(f"{name}: {weights:,} weights, {batch} examples, {given.device}, {precision}", flush=True)
            rows = measured(case, given.device, batch, given.repeat, precision == "bfloat16", given.ways)
            for row in rows:
                print("   ", json.dumps(row), flush=True)
            if given.save:
                about = {"precision": precision, "threads": given.threads, "opacus": version("opacus")}
                case_rows = {"case": name, "weights": weights, "examples": batch, "stamp": stamp(), "rows": rows}
                keep(f"{given.device} {precision}", about, case_rows)


def keep(key: str, about: dict[str, Any], case: dict[str, Any]) -> None:
    """Put one case into the results in place of an earlier one of its name; all others stay."""
    target = RESULTS / "per_example.json"
    held = json.loads(target.read_text(encoding="utf-8")) if target.exists() else {}
    earlier = held.get(key, {"figures": {"cases": []}})
    others = [{"stamp": earlier.get("stamp")} | each for each in earlier["figures"]["cases"]]
    cases = [each for each in others if each["case"] != case["case"]]
    merge("per_example", key, about | {"cases": [*cases, case]})


if __name__ == "__main__":
    main()

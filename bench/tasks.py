"""Real tasks, with noise and compression, in float32, and without privacy: the site's page "Real tasks, results".

    python bench/tasks.py                          every row that bench/results/tasks.json lacks or has with fewer seeds
    python bench/tasks.py --only hospitals         rows of one task
    python bench/tasks.py --again --rows cepam     these rows anew, although they are kept
    python bench/tasks.py --take FILE              nothing runs: rows that bench/on_gpu.py measured elsewhere, kept too

A row is `cepam train --preset NAME --simulate --seeds N` with the changes that the row names: the preset itself
(scheme cepam-gaussian), and float32 updates and models with Gaussian noise (fl+gaussian, the same accountant and
epsilon). `ceiling` is the same model, trained centrally without privacy until it converges, its weight decay chosen on
held-out training records. Curves change epsilon, or keep a part of the users.
Accuracy and area under the curve are on test data, as means over seeds with 95 % intervals (Student). Bytes are per
client and round. Seconds are of one seed, on the machine that the row names.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import platform
import re
import shlex
import tempfile
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats
from torch import Tensor

from cepam import fl
from cepam.fl.config.presets import preset_values
from cepam.fl.config.settings import checked
from cepam.fl.data.smollm2 import LENGTH, smollm2, tokenizer
from cepam.fl.data.tables import FOLDS, medpar
from cepam.fl.data.texts import chitchat, packed
from cepam.fl.models.network import areas
from cepam.fl.models.sequences import LaggedTokens, token_accuracy, token_loss
from stamp import graphics

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "tasks.json"
PLAIN = {"compression.scheme": "fl+gaussian", "compression.downlink": "float32"}
RECORDS = {
    "privacy.unit": "record", "privacy.delta": 7.6e-5, "training.update": "examples",
    "training.record_sampling": "poisson", "training.batch_size": 1, "training.expected_batch_size": 300.0,
    "clients.sampling": "fixed", "clients.sampling_rate": 1.0,
}  # fmt: skip
"""Preset chitchat-lora with records protected instead of users: delta is 1 / records^1.1."""
LITE = {"model.name": "efficientnet-lite2-linear", "training.rounds": 150, "training.server_learning_rate": 256.0}
"""Preset `cifar10` with features of one network: rounds and rate that bench/choose_cifar.py found for it."""
OPTIONS: dict[str, dict[str, Any]] = {
    "as the preset": {},
    "downlink float32": {"compression.downlink": "float32"},
    "both ways float32": PLAIN,
    "correlated noise, 10 slices": {
        "training.record_sampling": "cyclic", "training.slices": 10, "privacy.noise_correlation": "matrix",
    },
    "secure aggregation": {"privacy.trust": "secure-aggregation", "clients.dropout_handling": "charge"},
}  # fmt: skip
"""What is changed in that, and what it is called in the table of options."""


@dataclass(frozen=True)
class Row:
    """One measurement: a task, what is changed in its preset, and how many seeds."""

    task: str
    name: str
    changes: dict[str, Any] = field(default_factory=dict)
    seeds: int = 5
    data: str = ""
    """A fold of the hospitals, or how many of the users there are."""

    @property
    def key(self) -> str:
        """What tells a row from the others."""
        return " ".join(filter(None, (self.task, self.name, self.data)))

    @property
    def command(self) -> str:
        """The command that repeats it; a row with data of its own needs this script."""
        given = ["cepam", "train", "--preset", self.task, "--simulate", "--seeds", str(self.seeds)]
        for name, value in self.changes.items():
            given += ["--set", f"{name}={'none' if value is None else value}"]
        told = shlex.join(given)
        return f"python bench/tasks.py --only {self.task}  # {told}; {self.data}" if self.data else told


def rows() -> list[Row]:
    """Every row of the table and of the curves."""
    made = []
    for fold in range(FOLDS):
        part = f"fold {fold}"
        made += [Row("hospitals", "cepam", {}, 5, part), Row("hospitals", "float32", PLAIN, 5, part)]
        made += [Row("hospitals", "ceiling", {}, 1, part)]
    made += [Row("hospitals", f"epsilon {eps:g}", {"privacy.epsilon": eps}, 5, "fold 0") for eps in (0.5, 1.0, 4.0)]
    made += [Row("chitchat-prompts", "cepam"), Row("chitchat-prompts", "float32", PLAIN, 5),
             Row("chitchat-prompts", "ceiling", {}, 1)]  # fmt: skip
    made += [Row("shakespeare", "cepam", {}, 3), Row("shakespeare", "float32", PLAIN, 3),
             Row("shakespeare", "ceiling", {}, 1)]  # fmt: skip
    made += [Row("chitchat-prompts", "most alike prompt", {}, 1), Row("chitchat-prompts", "majority", {}, 1)]
    for task in ("chitchat-prompts", "shakespeare"):
        made += [Row(task, f"epsilon {eps:g}", {**PLAIN, "privacy.epsilon": eps}, 2) for eps in (2.0, 4.0, 16.0)]
        made += [Row(task, f"users {part}", PLAIN, 2, part) for part in ("1/4", "1/2")]
    made += [Row("cifar10", "cepam"), Row("cifar10", "float32", PLAIN, 5), Row("cifar10", "ceiling", {}, 1)]
    made += [Row("cifar10", f"option {name}", LITE | changes, 2) for name, changes in OPTIONS.items()]
    made += [Row("cifar10-users", "cepam", {}, 3), Row("cifar10-users", "float32", PLAIN, 3),
             Row("cifar10-users", "ceiling", {}, 1)]  # fmt: skip
    made += [Row("chitchat-lora", "base model", {}, 1), Row("chitchat-lora", "cepam", {}, 3),
             Row("chitchat-lora", "float32", PLAIN, 3), Row("chitchat-lora", "records", RECORDS, 3),
             Row("chitchat-lora", "users 1000", {}, 1, "1000/1183"),
             Row("chitchat-lora", "epsilon 2", {**PLAIN, "privacy.epsilon": 2.0}, 2),
             Row("chitchat-lora", "users 1/4", PLAIN, 2, "1/4"), Row("chitchat-lora", "ceiling", {}, 1),
             Row("chitchat-lora", "epsilon 4", {**PLAIN, "privacy.epsilon": 4.0}, 2),
             Row("chitchat-lora", "users 1/2", PLAIN, 2, "1/2")]  # fmt: skip
    longer = {"training.rounds": 500, "privacy.clipping_norm": 0.05, "compression.downlink": "float32"}
    made += [Row("cifar10", "rounds 500, clip 0.05, downlink float32", longer, 1)]
    made += [Row("cifar10-scattering", "cepam", {}, 4)]
    return made


def settings_of(row: Row) -> fl.Settings:
    """The preset with the row's changes, as a simulation of its seeds."""
    changed = checked(preset_values(row.task), "the preset") | checked(row.changes, "the row")
    return fl.Settings.of(changed | {"run.simulate": True, "run.seeds": row.seeds, "run.evaluate_every": 1000})


def data_of(row: Row, settings: fl.Settings) -> fl.Dataset:
    """The task's data, or the part that the row names."""
    if row.task == "hospitals":
        return medpar(fold=int(row.data.split()[1]))
    data = _texts() if row.task == "chitchat-lora" else fl.prepared(settings)
    return part_of(data, row.data) if "/" in row.data else data


@cache
def _texts() -> fl.Dataset:
    """The tokens of chitchat-lora, made once for all rows."""
    return fl.load("chitchat-smollm2")


def part_of(data: fl.Dataset, part: str) -> fl.Dataset:
    """The data of a part of the users, the first of a fixed order; test examples stay."""
    assert data.owners is not None
    above, below = map(int, part.split("/"))
    order = np.random.default_rng(35).permutation(len(data.clients))
    kept = np.sort(order[: len(order) * above // below])
    mine = np.isin(data.owners, kept)
    places = np.searchsorted(kept, data.owners[mine])
    return replace(
        data, train_inputs=data.train_inputs[mine], train_labels=data.train_labels[mine], owners=places,
        clients=tuple(data.clients[k] for k in kept),
    )  # fmt: skip


def private(row: Row, runs: Path | None = None) -> dict[str, Any]:
    """The figures of a federated row; a run that the folder `runs` holds of it goes on where it was stopped."""
    settings = settings_of(row)
    data = data_of(row, settings)
    if "/" in row.data:  # fewer users, so a larger delta by the same rule
        settings = settings.updated({"privacy.delta": len(data.clients) ** -1.1})
    said: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "run" if runs is None else runs / re.sub(r"\W+", "-", row.key)
        found = fl.train(settings, place, data, resume=(place / "config.toml").exists(), say=said.append)
        beside = against_base(data, place) if row.task == "chitchat-lora" else {}
    clients = settings.fitted(data.clients).clients
    messages = settings.training.rounds * clients.count * clients.sampling_rate * row.seeds
    score, half = found["accuracy"], found["accuracy_half_width"]
    if "auc" in found["metrics"]:
        score, half = found["metrics"]["auc"]["mean"], found["metrics"]["auc"]["half_width"]
    if JUDGED.get(row.task) == PERPLEXITY:
        score = math.exp(found["metrics"]["loss"]["mean"])
        half = None if row.seeds == 1 else score * found["metrics"]["loss"]["half_width"]
    worst = max((each["epsilon"] for each in found["clients"] if each["epsilon"] is not None), default=None)
    return {
        "score": score, "half_width": half, "accuracy": found["accuracy"],
        "loss": found["metrics"]["loss"]["mean"],
        "epsilon": found["epsilon"], "worst_client_epsilon": worst, "delta": found["delta"],
        "unit": settings.privacy.unit, "scheme": found["scheme"], "coder": coder_of(settings, said),
        "rounds": found["rounds"], "seeds": row.seeds,
        "against": found.get("epsilon_against"), "clients": clients.count, "weights": found["weights"],
        "model": settings.model.name,
        "bytes_up": found["uplink_bytes"] / messages, "bytes_down": found["downlink_bytes"] / messages,
        "seconds": found["seconds"] / row.seeds, **beside,
    }  # fmt: skip


def against_base(data: fl.Dataset, run: Path) -> dict[str, Any]:
    """The share of the base model's perplexity that a run's models have, with a 95 % interval over test users.

    Users are drawn, not records: a user's records are alike. The mean over seeds is one model's loss here, so the
    interval says what other users would change, not what other noise would.
    """
    model = fl.build("smollm2-lora", data)
    states = torch.load(run / "final.pt", weights_only=True)
    base = _losses(model, model.state_dict(model.initial(1)), data)
    lost = np.mean([_losses(model, state, data) for state in states.values()], axis=0) - base
    users = test_users()
    number, summed = np.bincount(users), np.bincount(users, lost)
    mean = summed.sum() / number.sum()
    spread = math.sqrt(((summed - mean * number) ** 2).sum() * len(number) / (len(number) - 1)) / number.sum()
    half = float(stats.t.ppf(0.975, len(number) - 1)) * spread
    return {"of_base": math.exp(mean), "of_base_low": math.exp(mean - half), "of_base_high": math.exp(mean + half),
            "test_users": len(number)}  # fmt: skip


def _losses(model: fl.Model, state: dict[str, Tensor], data: fl.Dataset) -> npt.NDArray[np.float64]:
    """The loss of every test record."""
    module = model.assembled(state).to("cuda" if torch.cuda.is_available() else "cpu").eval()
    device = next(module.parameters()).device
    inputs, targets = (torch.from_numpy(each).to(device).long() for each in (data.test_inputs, data.test_labels))
    with torch.no_grad():
        each = [model.objective.losses(module(x), y) for x, y in zip(inputs.split(8), targets.split(8))]
    return torch.cat(each).double().cpu().numpy()


def test_users() -> npt.NDArray[np.int64]:
    """Which user of the test each test record of chitchat-lora is of."""
    encode, said = tokenizer(smollm2()), chitchat()
    rows = [len(packed([encode(each + "\n")[:LENGTH] for each in said.utterances[user]], LENGTH))
            for user, unseen in enumerate(said.held_out(10)) if unseen]  # fmt: skip
    return np.repeat(np.arange(len(rows)), rows)


def coder_of(settings: fl.Settings, said: list[str]) -> str | None:
    """The coder of a run's messages; `said` has what the run said at its start. Floats and masked sums have none."""
    if not settings.compression.scheme.startswith("cepam") or settings.privacy.trust == "secure-aggregation":
        return None
    replaced = any(text.startswith("compression.coder is layered") for text in said)
    return "layered" if replaced else settings.compression.coder


def ceiling(row: Row) -> dict[str, Any]:
    """The same model trained centrally without privacy; of three weight decays, the best on held-out records."""
    settings = settings_of(row)
    data, begun = data_of(row, settings), time.perf_counter()
    if row.task == "chitchat-lora":
        made = {"score": _adapters(data), "weight_decay": None}
    elif data.tokens:
        made = {"score": _tokens(data), "weight_decay": None}
    else:
        model = fl.build(settings.model.name, data, settings.model.activation)
        held = model.features.of(data) if model.features is not None else data
        made = _linear(held)
    return {**made, "half_width": None, "scheme": "none", "seeds": 1, "clients": 1, "epsilon": None, "unit": "none",
            "bytes_up": None, "bytes_down": None, "model": settings.model.name,
            "seconds": time.perf_counter() - begun}  # fmt: skip


def _linear(data: fl.Dataset) -> dict[str, Any]:
    x, test = (torch.from_numpy(np.array(each)).float() * data.scale + data.shift
               for each in (data.train_inputs, data.test_inputs))  # fmt: skip
    labels, answers = torch.from_numpy(data.train_labels), torch.from_numpy(data.test_labels)
    owners = np.arange(len(x)) if data.owners is None else data.owners
    out = torch.from_numpy(owners % 5 == 0)
    decays = (1e-6, 1e-5, 1e-4, 1e-3)
    tried = [_score(_fitted(x[~out], labels[~out], data.classes, decay), x[out], labels[out]) for decay in decays]
    decay = decays[int(np.argmax(tried))]
    return {"score": _score(_fitted(x, labels, data.classes, decay), test, answers), "weight_decay": decay}


def _fitted(x: Tensor, labels: Tensor, classes: int, decay: float) -> Tensor:
    weights = torch.zeros(classes, x.shape[1] + 1, requires_grad=True)
    method = torch.optim.LBFGS([weights], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        method.zero_grad()
        loss = torch.nn.functional.cross_entropy(x @ weights[:, :-1].T + weights[:, -1], labels)
        loss = loss + decay * weights.square().sum()
        loss.backward()
        return loss

    method.step(closure)  # type: ignore[no-untyped-call]
    return weights.detach()


def _score(weights: Tensor, x: Tensor, labels: Tensor) -> float:
    logits = x @ weights[:, :-1].T + weights[:, -1]
    if len(weights) == 2:
        return float(areas((logits[:, 1] - logits[:, 0]).double().numpy()[None], labels.numpy())[0])
    return float((logits.argmax(1) == labels).float().mean())


def _tokens(data: fl.Dataset) -> float:
    torch.manual_seed(1)
    module = LaggedTokens()
    method = torch.optim.Adam(module.parameters(), lr=0.05)
    inputs, targets = torch.from_numpy(data.train_inputs).long(), torch.from_numpy(data.train_labels)
    steps = 400
    decay = torch.optim.lr_scheduler.LambdaLR(method, lambda step: 1.0 - step / steps)
    for _ in range(steps):
        few = torch.randint(len(inputs), (128,))
        method.zero_grad()
        token_loss(module(inputs[few]), targets[few]).backward()  # type: ignore[no-untyped-call]
        method.step()
        decay.step()
    with torch.no_grad():
        each = [token_accuracy(module(torch.from_numpy(row[None]).long()), torch.from_numpy(target[None]))
                for row, target in zip(data.test_inputs, data.test_labels)]  # fmt: skip
    return float(torch.stack(each).mean())


def _adapters(data: fl.Dataset) -> float:
    """Perplexity after two epochs of Adam on all training records; the rate was not searched."""
    torch.manual_seed(1)
    model = fl.build("smollm2-lora", data)
    network = model.on(data, "auto")
    module = copy.deepcopy(model.module)
    method = torch.optim.Adam(module.parameters(), lr=3e-3)
    device = next(module.parameters()).device
    inputs, targets = (torch.from_numpy(each).to(device).long() for each in (data.train_inputs, data.train_labels))
    orders = [torch.randperm(len(inputs)).split(16) for _ in range(2)]
    steps = [few.to(device) for order in orders for few in order]
    decay = torch.optim.lr_scheduler.LambdaLR(method, lambda step: 1.0 - step / len(steps))
    for few in steps:
        method.zero_grad()
        model.objective.losses(module(inputs[few]), targets[few]).mean().backward()  # type: ignore[no-untyped-call]
        method.step()
        decay.step()
    weights = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
    return math.exp(float(network.evaluate(weights[None]).loss[0]))


def untrained(row: Row) -> dict[str, Any]:
    """The base model, the prompt that an answer is most alike, or the one that most training answers have: nothing is
    trained."""
    data, begun = data_of(row, settings_of(row)), time.perf_counter()
    if row.name == "base model":
        model = fl.build("smollm2-lora", data)
        loss = float(model.on(data, "auto").evaluate(model.initial(1)[None]).loss[0])
        return {"score": math.exp(loss), "half_width": None, "scheme": "none", "seeds": 1, "clients": 0,
                "epsilon": None, "delta": None, "unit": "none", "bytes_up": None, "bytes_down": None,
                "model": "smollm2-lora", "seconds": time.perf_counter() - begun}  # fmt: skip
    guessed = data.test_inputs[:, -data.classes :].argmax(1)
    if row.name == "majority":
        guessed = np.full_like(guessed, np.bincount(data.train_labels).argmax())
    return {"score": float((guessed == data.test_labels).mean()), "half_width": None, "scheme": "none", "seeds": 1,
            "clients": 0, "epsilon": None, "delta": None, "unit": "none", "bytes_up": None, "bytes_down": None,
            "model": "none", "seconds": time.perf_counter() - begun}  # fmt: skip


UNTRAINED = ("most alike prompt", "majority", "base model")


def measured(row: Row, runs: Path | None = None) -> dict[str, Any]:
    """The row's figures with what is needed to repeat them; on a GPU a language model's products are in TF32."""
    torch.set_float32_matmul_precision("high" if row.task == "chitchat-lora" else "highest")
    if row.name == "ceiling":
        found = ceiling(row)
    else:
        found = untrained(row) if row.name in UNTRAINED else private(row, runs)
    return {
        "task": row.task, "row": row.name, "data": row.data, **found, "changes": row.changes, "command": row.command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": " and ".join(filter(None, (graphics(), f"{os.cpu_count()} cores of {platform.machine()}"))),
        "torch": torch.__version__,
    }  # fmt: skip


PERPLEXITY = "perplexity"
JUDGED = {"hospitals": "AUC", "chitchat-lora": PERPLEXITY}


def _figure(task: str, score: float, half: float | None) -> str:
    if JUDGED.get(task) == PERPLEXITY:
        return f"{score:.2f}" + (f" ± {half:.2f}" if half is not None else "")
    if task in JUDGED:
        return f"{score:.3f}" + (f" ± {half:.3f}" if half is not None else "")
    return f"{100 * score:.1f}" + (f" ± {100 * half:.1f}" if half is not None else "") + " %"


def keep(kept: dict[str, dict[str, Any]], path: Path) -> None:
    """Write the rows so that a stop at any time leaves the old file or the new one."""
    beside = path.with_suffix(".tmp")
    beside.write_text(json.dumps(kept, indent=1) + "\n")
    beside.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="TASK")
    parser.add_argument("--rows", nargs="+", default=[], metavar="ROW", help="such as cepam, float32, ceiling")
    parser.add_argument("--again", action="store_true", help="measure rows anew that the results hold")
    parser.add_argument("--seeds", type=int, default=99, help="at most so many; the stored row says how many it had")
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="keep the runs here; a stopped one goes on")
    parser.add_argument("--take", type=Path, nargs="+", default=[], metavar="FILE", help="run nothing; keep these rows")
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    kept: dict[str, dict[str, Any]] = json.loads(chosen.out.read_text()) if chosen.out.exists() else {}
    for path in chosen.take:
        kept |= json.loads(path.read_text())
        keep(kept, chosen.out)
    for row in [] if chosen.take else rows():
        row = replace(row, seeds=min(row.seeds, chosen.seeds))
        held = row.key in kept and kept[row.key]["seeds"] >= row.seeds
        if (held and not chosen.again) or (chosen.only and row.task not in chosen.only) or (
            chosen.rows and row.name not in chosen.rows
        ):  # fmt: skip
            continue
        kept[row.key] = measured(row, chosen.runs)
        keep(kept, chosen.out)
        print(row.key, _figure(row.task, kept[row.key]["score"], kept[row.key]["half_width"]), flush=True)


if __name__ == "__main__":
    main()

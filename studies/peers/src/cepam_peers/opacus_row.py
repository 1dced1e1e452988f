"""Opacus as shipped: one party holds all records, and `PrivacyEngine.make_private` wraps its own loop. The ceiling.

Where users are hidden, a user is one sample: its records are padded to the same number, and the loss of a sample is the
mean over its records. Install it by `pip install "studies/peers[opacus]"`.
"""

from __future__ import annotations

import warnings
from itertools import chain, repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cepam import fl
from cepam_peers.tasks import Floats, Problem, epsilon_of, noise_for, pooled


def central(
    inputs: Tensor, labels: Tensor, classes: int, batch: int, noise: float, clip: float, rates: list[float],
    delta: float,
) -> tuple[Any, float]:  # fmt: skip
    """What a user of Opacus writes around a loop."""
    from opacus import PrivacyEngine

    model = nn.Linear(inputs.shape[-1], classes)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=rates[0], momentum=0.9)
    data = torch.utils.data.TensorDataset(inputs, labels)
    loader = torch.utils.data.DataLoader(data, batch_size=batch)
    engine = PrivacyEngine(accountant="prv")
    private, optimizer, loader = engine.make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=noise, max_grad_norm=clip
    )
    for rate, (x, y) in zip(rates, chain.from_iterable(repeat(loader))):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        sample_loss(private(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model, float(engine.get_epsilon(delta))


def sample_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy; of padded users the mean over each user's own records, then over users."""
    if labels.ndim == 1:
        return nn.functional.cross_entropy(logits, labels)
    each = nn.functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-1, reduction="none")
    return (each.sum(1) / (labels >= 0).sum(1)).mean()


def padded(problem: Problem) -> tuple[Tensor, Tensor]:
    """One row per user: its records, and labels that are -1 where there is none."""
    most = max(map(len, problem.parts))
    inputs = np.zeros((problem.clients, most, problem.columns), np.float32)
    labels = np.full((problem.clients, most), -1, np.int64)
    for k, mine in enumerate(problem.parts):
        inputs[k, : len(mine)], labels[k, : len(mine)] = problem.inputs[mine], problem.data.train_labels[mine]
    return torch.from_numpy(inputs), torch.from_numpy(labels)


def train(problem: Problem, seed: int) -> tuple[dict[str, Floats], dict[str, Any]]:
    """One run: the last weights, and what was spent and is reported."""
    torch.manual_seed(seed)
    warnings.simplefilter("ignore")
    settings = problem.settings
    clip, delta, rounds = settings.privacy.clipping_norm, settings.privacy.delta, settings.training.rounds
    assert settings.privacy.epsilon is not None
    if settings.privacy.unit == "client":
        inputs, labels = padded(problem)
        batch, noise = problem.clients, noise_for(problem.clients, rounds, settings.privacy.epsilon, delta)
        proved = epsilon_of(problem.clients, rounds, noise, delta)
    else:
        inputs, labels = torch.from_numpy(problem.inputs), torch.from_numpy(problem.data.train_labels)
        batch, noise, proved = of_records(problem)
    model, reported = central(inputs, labels, problem.data.classes, batch, noise, clip, problem.rates(), delta)
    weights = {name: np.array(value.detach()) for name, value in model.named_parameters()}
    told = {"up": None, "down": None, "messages": 1, "proved": proved, "reported": reported}
    return {name.removeprefix("_module."): value for name, value in weights.items()}, told


def of_records(problem: Problem) -> tuple[int, float, float]:
    """Batch size, noise multiplier and our epsilon at the sampling rate that Opacus' loader takes: one over batches."""
    records, told = problem.data.records, problem.settings
    batches = max(1, round(records / told.training.expected_batch_size))
    central = problem.settings.updated(
        {"training.expected_batch_size": records / batches, "compression.scheme": "fl+gaussian", "clients.count": 1,
         "compression.downlink": "float32"}
    )  # fmt: skip
    found = fl.Simulation(central, pooled(problem.data)).aggregators[0]
    plan = found.plans[0]
    assert plan.law is not None
    noise = plan.law.scale * plan.batch / told.privacy.clipping_norm
    book = type(found.accountant)()
    for _ in range(told.training.rounds):
        assert found.mechanism is not None
        book = book.add(found.mechanism)
    return -(-records // batches), noise, book.observers(told.privacy.delta)["outsider"]

"""Algorithm 1 as the paper writes it: one client at a time, one step at a time, PyTorch's own autograd.

Slow and plain on purpose: the vectorised engine must agree with it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from cepam.fl import Dataset, Settings, Simulation
from cepam.fl.clients import sampling as draws
from cepam.fl.data import partition


def gradient(module: nn.Module, data: Dataset, weights: np.ndarray, records: np.ndarray) -> np.ndarray:
    """The mean gradient of these records at these weights."""
    torch.nn.utils.vector_to_parameters(torch.from_numpy(weights.copy()), module.parameters())
    module.zero_grad()
    inputs = torch.from_numpy(data.train_inputs[records]).float() * data.scale + data.shift
    logits = module(inputs.reshape(-1, *data.shape))
    nn.functional.cross_entropy(logits, torch.from_numpy(data.train_labels[records])).backward()
    return torch.cat([p.grad.flatten() for p in module.parameters()]).numpy()


def clipped_sum(
    module: nn.Module, data: Dataset, weights: np.ndarray, records: np.ndarray, bound: float
) -> tuple[np.ndarray, float]:
    """The sum of these records' gradients, each scaled to the bound by itself, and of their losses."""
    total, lost = np.zeros(len(weights)), 0.0
    for record in records:
        slope = gradient(module, data, weights, np.array([record])).astype(np.float64)
        total += slope * min(1.0, bound / max(float(np.linalg.norm(slope)), 1e-30))
        with torch.no_grad():
            inputs = torch.from_numpy(data.train_inputs[[record]]).float() * data.scale + data.shift
            logits = module(inputs.reshape(-1, *data.shape))
            lost += float(nn.functional.cross_entropy(logits, torch.from_numpy(data.train_labels[[record]])))
    return total, lost


def algorithm_1(settings: Settings, data: Dataset, simulation: Simulation, rounds: int) -> np.ndarray:
    """The weights after so many rounds of one seed.

    Takes from the simulation only what both must share: start, codecs, clips, weights p_k, and message addresses.
    """
    module, seed = simulation.vector.module, settings.run.seed
    kept, _ = data.holding_out(settings.data.validation_records, seed)
    made = partition.partition(
        settings.data.partition,
        data.train_labels[kept],
        settings.clients.count,
        seed,
        settings.data.concentration,
        settings.data.shards_per_client,
    )
    parts = [kept[part] for part in made]
    held = np.array([len(part) for part in parts])
    weights, tau, plans = (
        simulation.vector.initial(seed),
        settings.training.local_steps,
        simulation.aggregators[0].plans,
    )
    for number in range(rounds):
        index = draws.with_replacement(simulation.rows[0], number, held, tau, settings.training.batch_size)
        total = np.zeros_like(weights, dtype=np.float64)
        for k in range(settings.clients.count):
            local, velocity = weights.copy(), np.zeros_like(weights)
            for step in range(tau - 1):
                slope = gradient(module, data, local, parts[k][index[k, step]])
                velocity = settings.training.local_momentum * velocity + slope
                local = local - simulation.work.local.at(number * tau + step) * velocity
            update = gradient(module, data, local.astype(np.float32), parts[k][index[k, tau - 1]])
            update = update / max(1.0, float(np.linalg.norm(update)) / settings.privacy.clipping_norm)
            at = simulation.aggregators[0].senders.address(number, k)
            message = plans[k].codec.encode(update.astype(np.float32), at)
            total += plans[k].weight * plans[k].codec.decode(message, at)
        weights = (weights - simulation.rates.at(number * tau + tau - 1) * total).astype(np.float32)
    return weights

"""NVIDIA FLARE's privacy filters as shipped, applied to the clients' weight differences of plain federated averaging.

`SVTPrivacy` and `PercentilePrivacy` see a real `DXO` in a real `Shareable`; only the transport is left out. Neither
bounds what all data of a client or one record can change over a run: the percentile adds no noise, and the sparse
vector filter takes its budget to be per value, passes over all values at once, and accepts more than it paid for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_common.filters.svt_privacy import SVTPrivacy

from cepam_peers.tasks import Floats, Problem

DEFAULT_GAMMA = {"flare-svt": 1e-5, "flare-percentile": 0.01}


def svt(gamma: float) -> Any:
    """The sparse vector technique."""
    return SVTPrivacy(gamma=gamma)


def percentile(gamma: float) -> Any:
    """The largest differences, cut at gamma."""
    return PercentilePrivacy(gamma=gamma)


FLARE: dict[str, tuple[str, Callable[[float], Any]]] = {
    "flare-svt": ("FLARE, SVTPrivacy", svt),
    "flare-percentile": ("FLARE, PercentilePrivacy", percentile),
}
RATES = {"hospitals": (0.5,), "chitchat-prompts": (20.0,), "private": (4.0,)}
SCALES = (None, 0.02)
"""gamma as shipped, and as a part of the learning rate."""


def settings_tried(task: str, name: str) -> tuple[tuple[float, float], ...]:
    """Learning rates and values of gamma that held-out clients choose among."""
    gammas = [(rate, DEFAULT_GAMMA[name] if part is None else part * rate) for rate in RATES[task] for part in SCALES]
    return tuple(dict.fromkeys(gammas))


def train(problem: Problem, name: str, chosen: tuple[float, float], seed: int) -> tuple[dict[str, Floats], Any]:
    """One run: the last weights, and what it sent and reports."""
    logging.getLogger("nvflare").setLevel(logging.ERROR)
    logging.disable(logging.WARNING)
    rate, gamma = chosen
    np.random.seed(seed)
    weights, sent, context = problem.start(), 0, FLContext()
    filters = [FLARE[name][1](gamma) for _ in range(problem.clients)]
    size = sum(array.nbytes for array in weights.values())
    for _ in range(problem.settings.training.rounds):
        total = {key: np.zeros_like(array) for key, array in weights.items()}
        for client, filtering in enumerate(filters):
            slope = problem.gradient(weights, client)
            moved = DXO(DataKind.WEIGHT_DIFF, {key: -np.float32(rate) * array for key, array in slope.items()})
            made = from_shareable(filtering.process(moved.to_shareable(), context)).data
            sent += sum(array.nbytes for array in made.values())
            for key in total:
                total[key] += made[key]
        weights = {key: array + total[key] / np.float32(problem.clients) for key, array in weights.items()}
    logging.disable(logging.NOTSET)
    messages = problem.clients * problem.settings.training.rounds
    spent = filters[0].get_privacy_spent() if name == "flare-svt" else None
    return weights, {
        "up": sent, "down": size * messages, "messages": messages, "proved": None, "reported": spent,
    }  # fmt: skip

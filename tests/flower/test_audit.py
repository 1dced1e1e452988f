"""An attack on Flower's whole path: sample, seal, compensate, publish, by whole clients, with the real encoder."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

import cepam
from cepam import privacy
from cepam.flower import Poisson, Private

from .fakes import FakeGrid, Node, adding, start_arrays, vector_of

NODES, SIGMA, SILENT = 4, 0.75, (3, 4)
RARE = 1e-9


class Published:
    """What a round publishes of one client's values: two of four nodes reply, each coordinate is a trial of its own.

    The clip of the run bounds the whole vector, so that no trial is scaled; a trial moves by one clip of the claim.
    """

    def __call__(self, updates: np.ndarray, client: int, round: int) -> np.ndarray:
        size = len(updates)
        length = 4 * -(-size // 4)
        sent = np.append(updates, np.zeros(length - size))
        grid = FakeGrid([Node(k, adding(sent if k == 1 else np.zeros(length))) for k in range(1, NODES + 1)])
        grid.meddle = lambda node, reply: [] if node in SILENT else [reply]
        strategy = Private(
            FedAvg(), noise=cepam.Gaussian(SIGMA), clip=cepam.L2(1.01 * max(1.0, np.linalg.norm(updates))),
            sampling=Poisson(1.0),
        )  # fmt: skip
        return vector_of(strategy.start(grid, start_arrays(length), num_rounds=1).arrays)[:size] * float(NODES)


def audited() -> privacy.Audit:
    claim = privacy.Mechanism.uniform(
        1, cepam.Gaussian(SIGMA * np.sqrt(NODES)), cepam.L2(1.0), privacy.Sampling("all"), 1, unit="client"
    )
    return privacy.audit(Published(), claim, 1e-2, 20_000, 1 - RARE, seed=1)


def test_the_published_model_tells_no_more_than_the_account_says(monkeypatch: pytest.MonkeyPatch) -> None:
    found = audited()
    assert not found.refuted
    assert found.lower > 0.3 * found.claim
    # Control: a server that forgets its part of the noise is caught.
    monkeypatch.setattr(
        "cepam.privacy.cohorts.dropouts.server_noise", lambda sigma, coordinates, *_: np.zeros(coordinates)
    )
    assert audited().refuted

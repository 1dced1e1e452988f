"""The package's own audit on what the server sees: the best distinguisher does not beat the account.

Confidence 1 - 1e-9, so a false alarm has chance under 1e-9; the control uses less noise than it says and is refuted.
"""

from __future__ import annotations

import math
import secrets

import numpy as np
import pytest

import cepam
from cepam import privacy
from cepam.secure import fit

SHARE, CLIENTS, CLIP = 0.5, 6, 0.8


class ServerView:
    """One client moves, the others stand still; what comes back is the sum as the server opens it."""

    def __init__(self, noisy: int) -> None:
        self.noisy = noisy

    def __call__(self, updates: np.ndarray, client: int, round: int) -> np.ndarray:
        code = fit(cepam.Gaussian(SHARE), CLIENTS, len(updates), CLIENTS * CLIP)
        vectors, keys = [], [(secrets.token_bytes(32), 1) for _ in range(CLIENTS)]
        for number, key in enumerate(keys):
            update = updates if number == 0 else np.zeros(len(updates))
            drawn = code.noised(update, secrets.token_bytes(32))
            if number >= self.noisy:
                drawn = np.rint(update / code.grid).astype(np.int64)
            vectors.append(code.mask(drawn, [key]))
        return code.open(vectors, keys)


def claimed(shares: int) -> privacy.Release:
    """One round of the sum as one Gaussian mechanism."""
    law = cepam.Gaussian(SHARE * math.sqrt(shares))
    return privacy.Release.uniform(1, law, cepam.L2(CLIP), privacy.Sampling("all"), records=1)


@pytest.mark.parametrize("shares", [CLIENTS, CLIENTS - 2])
def test_the_account_of_the_servers_view_stands(shares: int) -> None:
    found = privacy.audit(ServerView(shares), claimed(shares), 1e-2, trials=60_000, confidence=1 - 1e-9)
    assert not found.refuted
    assert found.lower > 0.2 * found.claim


def test_shares_that_are_not_there_are_found_out() -> None:
    assert privacy.audit(ServerView(1), claimed(CLIENTS), 1e-2, trials=60_000, confidence=1 - 1e-9).refuted

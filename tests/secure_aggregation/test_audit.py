"""The package's own audit on what the server sees: the best distinguisher does not beat the account.

Confidence 1 - 1e-9, so a false alarm has chance under 1e-9; the control uses less noise than it says and is refuted.
"""

from __future__ import annotations

import math

import pytest

import cepam
from cepam import privacy
from cepam.secure_aggregation.channel import OpenedSum

SHARE, CLIENTS, CLIP = 0.5, 6, 0.8


def claimed(shares: int) -> privacy.Mechanism:
    """One round of the sum as one Gaussian mechanism."""
    law = cepam.Gaussian(SHARE * math.sqrt(shares))
    return privacy.Mechanism.uniform(1, law, cepam.L2(CLIP), privacy.Sampling("all"), records=1)


def audited(noisy: int, shares: int) -> privacy.Audit:
    """The audit of a sum in which so many bring noise, against the account of `shares`."""
    mechanism = OpenedSum(cepam.Gaussian(SHARE), noisy)
    return privacy.audit(mechanism, claimed(shares), 1e-2, trials=60_000, confidence=1 - 1e-9)


@pytest.mark.parametrize("shares", [CLIENTS, CLIENTS - 2])
def test_the_account_of_the_servers_view_stands(shares: int) -> None:
    found = audited(shares, shares)
    assert not found.refuted
    assert found.lower > 0.2 * found.claim


def test_shares_that_are_not_there_are_found_out() -> None:
    assert audited(1, CLIENTS).refuted

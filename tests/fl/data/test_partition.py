from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cepam.fl.data.partition import NAMES, partition

LABELS = np.random.default_rng(0).integers(0, 10, 997)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(NAMES), st.integers(1, 60), st.integers(0, 5), st.floats(0.05, 5.0))
def test_no_record_is_held_twice(name: str, clients: int, seed: int, alpha: float) -> None:
    parts = partition(name, LABELS, clients, seed, alpha, 2)
    assert len(parts) == clients
    assert min(len(part) for part in parts) >= 1
    whole = np.concatenate(parts)
    assert len(np.unique(whole)) == len(whole)
    assert whole.min() >= 0
    assert whole.max() < len(LABELS)
    if name not in ("iid", "dirichlet-even"):
        assert len(whole) == len(LABELS)
    elif name == "dirichlet-even":
        assert {len(part) for part in parts} == {len(LABELS) // clients}


def test_iid_is_equal_and_reproducible() -> None:
    parts = partition("iid", LABELS, 30, 3, 1.0, 2)
    assert {len(part) for part in parts} == {33}
    again = partition("iid", LABELS, 30, 3, 1.0, 2)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again))


def test_label_partition_has_few_labels() -> None:
    parts = partition("label", LABELS, 5, 0, 1.0, 2)
    assert max(len(np.unique(LABELS[part])) for part in parts) <= 4


@pytest.mark.parametrize("name", ["dirichlet", "dirichlet-even"])
def test_small_alpha_is_more_skewed(name: str) -> None:
    def skew(alpha: float) -> float:
        parts = partition(name, LABELS, 10, 0, alpha, 2)
        return float(np.mean([np.bincount(LABELS[p], minlength=10).max() / len(p) for p in parts]))

    assert skew(0.05) > skew(100.0) + 0.2


def test_too_many_clients_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot share"):
        partition("iid", LABELS, 1000, 0, 1.0, 2)
    with pytest.raises(ValueError, match="partition must be one of"):
        partition("random", LABELS, 3, 0, 1.0, 2)

"""What the statistical tests share: fixed keys, so that every run draws the same numbers.

Stated false-alarm rate: each certificate is judged at 1e-3 over all its checks, each other test at 1e-4; with
the keys fixed, a pass stays a pass. Another `KEY` would fail one of some 40 verdicts with chance under 4 %.
"""

from __future__ import annotations

import numpy as np
import pytest

from cepam import Address, Key

KEY = Key(bytes(range(32)))


@pytest.fixture
def key() -> Key:
    return KEY


@pytest.fixture
def address() -> Address:
    return Address(KEY, round=1, client=2)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240607)

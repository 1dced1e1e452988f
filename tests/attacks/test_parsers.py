"""Mutated bytes for every parser that reads what others sent: a documented refusal or a value, nothing else.

`make fuzz` runs the same targets for long, and looks at time and memory too.
"""

from __future__ import annotations

import warnings
from collections import Counter

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from ..flower.conftest import _fast_disk, _identity  # noqa: F401
from ..fuzz_targets import Target, all_targets, inside

CASES = 150
TARGETS = {target.name: target for target in all_targets()}
SEALED = {"checkpoint", "signature"}
"""Every case ends at a seal here; what lies behind has targets of its own."""


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_bytes_end_in_a_documented_refusal_or_a_value(name: str) -> None:
    target: Target = TARGETS[name]
    ends: Counter[str] = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(CASES):
            ends[target.attack(np.random.default_rng([31, number]))] += 1
    # A target whose cases all end in one refusal tests nothing behind it.
    assert (inside(ends) < 0.03) == (name in SEALED), ends.most_common(3)

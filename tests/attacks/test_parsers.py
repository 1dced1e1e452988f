"""Mutated bytes for every parser that reads what others sent: a documented refusal or a value, nothing else.

`make fuzz` runs the same targets for long, and looks at time and memory too.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from ..flower.conftest import _fast_disk, _identity  # noqa: F401
from ..fuzz_targets import Target, all_targets

CASES = 150
TARGETS = {target.name: target for target in all_targets()}


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_bytes_end_in_a_documented_refusal_or_a_value(name: str) -> None:
    target: Target = TARGETS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(CASES):
            target.attack(np.random.default_rng([31, number]))

"""What a GPU's first call has to compile does not depend on the update."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the GPU path needs Triton")

BY_KIND = {"fill_stage": 4, "walk_flat": 2, "walk_lanes": 2, "flatten_heads": 3, "score_heads": 2}
"""Two ways and, of the stage, two layouts; a head's kernels by the blocks' length, of which there are
three here and one in every message."""


def test_one_kernel_serves_every_size_place_and_type() -> None:
    """Updates of both types, aligned or not, whose numbers are 1, divisible by 16 or neither: no kernel is compiled
    twice. Whole numbers in a tuple, which Triton always looks into, would be."""
    script = Path(__file__).with_name("variants.py")
    made = subprocess.run([sys.executable, script], env=os.environ | {"TRITON_INTERPRET": "0"}, capture_output=True)
    assert made.returncode == 0, made.stderr.decode()
    found = json.loads(made.stdout)
    assert found.pop("grouped_numbers") > 3
    assert found.pop("later") == 0  # whatever the updates are, once `compile_ahead` is done
    assert len(found) == 15
    assert {name: many for name, many in found.items() if many > 1} == BY_KIND

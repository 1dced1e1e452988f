"""A changed constant in one file is seen by kernels compiled from another: no stale kernel is ever run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cepam
from cepam.kernels.numba.compiling import PACKAGE, STAMP, floor_divide, stamp_of

ASK = """
import numpy as np
from cepam.kernels.numba.keystream import start_lanes
state = np.zeros(256, np.uint32)
start_lanes(np.zeros(8, np.uint32), state)
print(state[0], sum(start_lanes.stats.cache_hits.values()))
"""


def asked(folder: Path) -> list[int]:
    """The first word that the copied package's keystream starts from, and how many kernels came from the cache."""
    plain = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    env = {**plain, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    made = subprocess.run([sys.executable, "-c", ASK], env=env, capture_output=True, text=True, check=True)
    return [int(part) for part in made.stdout.split()]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    shutil.copytree(PACKAGE, tmp_path / "cepam", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_a_changed_constant_is_seen(copied: Path) -> None:
    source = copied / "cepam" / "kernels" / "format" / "plan.py"
    first, hits = asked(copied)
    assert (first, hits) == (0x61707865, 0)
    assert asked(copied) == [first, 1]  # from the cache
    source.write_text(source.read_text().replace("expand 32-byte k", "Expand 32-byte k"))
    assert asked(copied) == [0x61707845, 0]
    assert len(list((copied / "cepam" / "kernels" / "numba" / "__pycache__").glob("*start_lanes*.nbi"))) == 1


def test_without_the_stamp_the_old_kernel_is_run(copied: Path) -> None:
    """The control: Numba's own rule keeps the old answer, which is why there is a stamp."""
    folder = copied / "cepam" / "kernels"
    stamp = folder / "numba" / "compiling.py"
    stamp.write_text(stamp.read_text().replace("STAMP = stamp_of(PACKAGE)", 'STAMP = "0"'))
    first, _ = asked(copied)
    source = folder / "format" / "plan.py"
    source.write_text(source.read_text().replace("expand 32-byte k", "Expand 32-byte k"))
    assert asked(copied) == [first, 1]


def test_the_stamp_follows_sources_and_tables(copied: Path) -> None:
    package = copied / "cepam"
    assert stamp_of(package) == STAMP == stamp_of(Path(cepam.__file__).parent)
    table = next((package / "distributions" / "tables").glob("*.npz"))
    table.write_bytes(table.read_bytes() + b"\0")
    assert stamp_of(package) != STAMP


def test_kernels_carry_it() -> None:
    assert floor_divide.py_func.__qualname__ == f"floor_divide_{STAMP}"
    assert floor_divide(np.int64(-7), np.int64(2)) == -4

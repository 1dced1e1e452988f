"""A user's shell: a key, a message, and the mistakes that would have cost privacy without a word."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

SCRIPT = """
set -e
cepam keygen alice.key
cepam encode update.npy message.cepam --key alice.key --round 1 --noise-scale 0.01 --clipping-norm 1
cepam decode message.cepam vector.npy --key alice.key --round 1 --noise-scale 0.01
! cepam encode update.npy again.cepam --key alice.key --round 1 --noise-scale 0.01 --clipping-norm 1
! cepam encode update.npy again.cepam --key alice.key --round 2 --noise-scale 0.01
cepam encode update.npy again.cepam --key alice.key --round 2 --noise-scale 0.01 --clipping-norm 1
"""


def test_a_key_a_message_and_two_mistakes(tmp_path: Path) -> None:
    np.save(tmp_path / "update.npy", np.random.default_rng(0).normal(0, 0.01, 500))
    command = f'cepam() {{ "{sys.executable}" -m cepam "$@"; }}\n{SCRIPT}'
    words = ["bash", "-c", command]
    done = subprocess.run(words, cwd=tmp_path, env=os.environ.copy(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "compiling" not in line]  # where no kernel was compiled yet
    assert lines[0] == "cepam encode: round 1, client 0, attempt 0 was used before"
    assert lines[1].startswith("cepam encode: give either --clipping-norm")
    assert len(lines) == 2
    assert np.load(tmp_path / "vector.npy").shape == (500,)
    assert (tmp_path / "alice.key.used").stat().st_size == 32

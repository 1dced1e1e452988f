"""The engine where only NumPy, SciPy, Numba and PyTorch are installed."""

from __future__ import annotations

import subprocess
import sys

MISSING = (
    "cryptography", "dp_accounting", "rich", "typer", "tensorboard", "matplotlib", "triton", "flwr", "pooch", "tomli_w",
)  # fmt: skip
SCRIPT = f"""
import sys
for name in {MISSING!r}:
    sys.modules[name] = None  # importing it raises, as where it is not installed

import numpy as np
from cepam import fl

class Plain:
    def encode(self, update, at):
        return update.tobytes()
    def decode(self, message, at):
        return np.frombuffer(message, dtype=np.float32)

values = {{
    "data": {{"name": "synthetic"}}, "model": {{"name": "linear"}}, "clients": {{"count": 2}},
    "training": {{"rounds": 1, "local_steps": 1}}, "privacy": {{"noise_scale": 0.1}},
}}
run = fl.Simulation(fl.Settings.of(values), fl.synthetic(40, 20), codecs=lambda client: Plain())
print(run.step()[0]["replies"])
"""


def test_import_and_a_round_need_no_other_package() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2"]

"""What may change the bits of a run beside its settings, data and model: versions, machine and device."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

import numba
import numpy as np
import scipy
import torch

import cepam
from cepam.fl.models.interface import Network

INSTRUCTIONS = ("sse", "ssse", "avx", "fma", "f16c", "bmi", "amx", "neon", "asimd", "sve")
"""How the names of instructions begin by which libraries choose their arithmetic."""


def environment_of(network: Network) -> str:
    """Versions, operating system, processor and device of this process, in one line."""
    versions = {
        "cepam": cepam.__version__, "Python": platform.python_version(), "numpy": np.__version__,
        "scipy": scipy.__version__, "numba": numba.__version__, "torch": torch.__version__,
    }  # fmt: skip
    device = str(getattr(network, "device", "cpu"))
    if device != "cpu":
        device = f"{torch.cuda.get_device_name()} with CUDA {torch.version.cuda}"
    return ", ".join([
        *(f"{name} {version}" for name, version in versions.items()), f"{platform.system()} {platform.machine()}",
        " ".join(platform.libc_ver()), _processor(), torch.backends.cpu.get_cpu_capability(), device,
    ])  # fmt: skip


def _processor() -> str:
    """The processor's name, family, model and instructions as far as the system tells them."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return platform.processor()
    entries = dict(line.split(":", 1) for line in first.splitlines() if ":" in line)
    known = {name.strip().lower(): value.strip() for name, value in entries.items()}
    names = ("model name", "cpu family", "model", "cpu implementer", "cpu part")
    flags = known.get("flags", known.get("features", "")).split()
    chosen = hashlib.sha256(" ".join(sorted(each for each in flags if each.startswith(INSTRUCTIONS))).encode())
    return " ".join([*(known[name] for name in names if name in known), f"instructions {chosen.hexdigest()[:8]}"])

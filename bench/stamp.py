"""What a result file says about itself: command, date, machine and versions; `save` writes it to bench/results/."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
import tomllib
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
PACKAGES = ("numpy", "numba", "scipy", "torch", "triton", "flwr", "cryptography")


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The model of the processor as the system names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def graphics() -> str | None:
    """The name of the GPU, if PyTorch was imported and sees one."""
    torch = sys.modules.get("torch")
    return torch.cuda.get_device_name() if torch is not None and torch.cuda.is_available() else None


def version(package: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def stamp() -> dict[str, Any]:
    """The provenance of figures that this process measures now.

    Returns:
        `command` (the script and its arguments), `date` (UTC), `processor`, `cores`, `load` (average of the last
        minute), `gpu` where PyTorch sees one, and the versions of Python, cepam and its libraries.
    """
    script = Path(sys.argv[0]).resolve()
    shown = script.relative_to(ROOT) if script.is_relative_to(ROOT) else script.name
    command = shlex.join(["python", str(shown), *sys.argv[1:]])
    found: dict[str, Any] = {"command": command, "date": datetime.now(UTC).date().isoformat()}
    found |= {"processor": processor(), "cores": cores(), "gpu": graphics(), "python": platform.python_version()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found |= {"cepam": project["version"], **{name: version(name) for name in PACKAGES}}
    if hasattr(os, "getloadavg"):
        found["load"] = round(os.getloadavg()[0], 2)
    return {name: value for name, value in found.items() if value is not None}


def save(path: str | Path, figures: dict[str, Any]) -> None:
    """Write figures with their stamp as JSON.

    Args:
        path: a file, or the name of a result without its ending (`rate_sizes` is bench/results/rate_sizes.json).
        figures: what was measured; a key `stamp` is added.
    """
    target = path if isinstance(path, Path) else RESULTS / f"{path}.json"
    target.parent.mkdir(exist_ok=True)
    beside = target.with_suffix(".tmp")
    beside.write_text(json.dumps({"stamp": stamp()} | figures, indent=1, default=str) + "\n", encoding="utf-8")
    beside.replace(target)
    print(f"written: {target}", flush=True)


def merge(name: str, key: str, figures: Any) -> None:
    """Write figures under one key of a result and keep its other keys; each key has a stamp of its own.

    Args:
        name: the name of the result without its ending.
        key: where the figures go.
        figures: what was measured.
    """
    target = RESULTS / f"{name}.json"
    earlier = json.loads(target.read_text(encoding="utf-8")) if target.exists() else {}
    target.write_text(json.dumps(earlier | {key: {"stamp": stamp(), "figures": figures}}, indent=1) + "\n", "utf-8")
    print(f"written: {target}, {key}", flush=True)

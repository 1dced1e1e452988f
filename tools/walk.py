"""Count the files that a round passes through: `python tools/walk.py [engine] [flower] [--list]`, by default both.

`engine` is `cepam train --preset private` with tiny synthetic data, the whole command and then its round alone.
`flower` is one round of `cepam.flower.Private` around FedAvg with three nodes in this process, as in tests/flower.
Files count in the order of their first call, as somebody would read them; code that runs at import does not count.
A return is a step to a package (the folder under `cepam`) that was left before.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from inspect import CO_NEWLOCALS
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))


def walk(run: Callable[[], object], inside: str = "") -> list[str]:
    """Return the files of the package that a call passes through, in the order of their first call.

    Args:
        run: the call.
        inside: the qualified name of a function; what runs outside of it does not count.
    """
    import cepam

    package = f"{Path(cepam.__file__).parent}{os.sep}"
    files: dict[str, None] = {}
    depth = 0 if inside else 1

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal depth
        code = frame.f_code
        if inside and code.co_qualname == inside and event in ("call", "return"):
            depth += 1 if event == "call" else -1
        is_function = bool(code.co_flags & CO_NEWLOCALS)
        if depth and event == "call" and is_function and code.co_filename.startswith(package):
            files.setdefault(code.co_filename[len(package) :])

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return list(files)


def returns(files: list[str]) -> int:
    """Return how often the walk goes back to a package that it had left."""
    packages = [name.split(os.sep)[0] if os.sep in name else "" for name in files]
    seen: set[str] = set()
    count = 0
    for before, now in zip(["", *packages], packages):
        count += now != before and now in seen
        seen.add(now)
    return count


def engine() -> None:
    """Train one round of the preset `private` on synthetic data."""
    from cepam.cli import app

    with tempfile.TemporaryDirectory() as folder, suppress(SystemExit):
        words = "train --preset private --data synthetic --model linear --clients 3 --rounds 1 --simulate --json"
        app([*words.split(), "--runs", folder], standalone_mode=False)


def flower() -> None:
    """Run one round of `Private` around FedAvg with three nodes."""
    import numpy as np
    from flwr.serverapp.strategy import FedAvg
    from flwr.supercore.task_identity import TaskIdentity
    from tests.flower.fakes import RUN, FakeGrid, Node, adding, start_arrays

    import cepam
    from cepam.flower import Private

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, 1
    nodes = [Node(k, adding(np.full(400, 0.01, np.float32))) for k in (100, 200, 300)]
    strategy = Private(FedAvg(), noise=cepam.Gaussian(0.1), clip=cepam.L2(1.0))
    strategy.start(grid=FakeGrid(nodes), initial_arrays=start_arrays(), num_rounds=1)


def _prepare(run: Callable[[], object]) -> None:
    """Let the call import its modules and wait for its kernels: until they are compiled, NumPy codes small updates."""
    from cepam.kernels import dispatch

    run()
    for compiler in dispatch._COMPILERS.values():
        if compiler is not None:
            compiler.wait()


RUNS = {"engine": engine, "flower": flower}


def main() -> None:
    """Print how many files a round passes through, and how often it returns to a package."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="engine|flower", help="which rounds (default: both)")
    parser.add_argument("--list", action="store_true", help="name the files, in the order of their first call")
    given = parser.parse_args()
    if unknown := set(given.names) - set(RUNS):
        parser.error(f"rounds are {', '.join(RUNS)}; got {', '.join(sorted(unknown))}")
    found: dict[str, list[str]] = {}
    for name in given.names or RUNS:
        run = RUNS[name]
        with tempfile.TemporaryDirectory() as home:
            os.environ["FLWR_HOME"] = home
            _prepare(run)
            found[name] = walk(run)
            if name == "engine":
                found["engine, the round alone"] = walk(run, "Simulation.step")
    for what, files in found.items():
        if given.list:
            print("\n".join(files))
        print(f"{what}: {len(files)} files, {returns(files)} returns to a package left before")


if __name__ == "__main__":
    main()

"""Which backend codes while kernels are compiled in the dispatch."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cepam
from cepam.kernels import dispatch
from cepam.kernels.numba import backend
from cepam.kernels.numba.backend import NumbaBackend
from cepam.kernels.numba.compiling import kernel_plan, layer_plan
from cepam.kernels.numpy.backend import NumpyBackend

SECRET = bytes(range(32))
CODEC = cepam.Codec(cepam.Gaussian(0.01), "Z1")
START = dispatch._start_compiler


class Compiler:
    """A process that compiles until it is waited for, or that ended with an error."""

    def __init__(self, status: int | None = None) -> None:
        self.status, self.waits = status, 0

    def poll(self) -> int | None:
        return self.status

    def wait(self, timeout: float) -> int:
        self.waits += 1
        self.status = 0
        return 0


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("_READY", "_COMPILERS", "_BEGUN", "_SPENT"):
        monkeypatch.setattr(dispatch, name, type(getattr(dispatch, name))())
    monkeypatch.setattr(backend, "mark_of", lambda kind: tmp_path / kind)


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    running = Compiler()
    monkeypatch.setattr(dispatch, "_start_compiler", lambda task, estimate: running)
    return running


def used(count: int = 100, codec: cepam.Codec = CODEC) -> type:
    task = codec.task(0, SECRET)
    with dispatch.backend_for(task, lambda: dispatch.decoding_seconds(task, 0, count)) as backend:
        return type(backend)


def test_numpy_codes_until_the_kernels_are_there(compiler: Compiler, tmp_path: Path) -> None:
    assert used() is NumpyBackend
    (tmp_path / backend.kind_of(CODEC.task(0, SECRET))).touch()
    assert used() is NumbaBackend
    assert compiler.waits == 0


def test_the_bytes_are_the_same(compiler: Compiler) -> None:
    update, at = np.linspace(-0.1, 0.1, 1000, dtype=np.float32), cepam.Address(SECRET, round=1, client=2)
    first = CODEC.encode(update, at)
    assert not dispatch._READY
    assert first == cepam.Codec(cepam.Gaussian(0.01), "Z1", backend="numba").encode(update, at)


def test_a_large_update_waits_and_says_so(compiler: Compiler, caplog: pytest.LogCaptureFixture) -> None:
    assert used() is NumpyBackend
    assert not caplog.messages
    assert used(20_000_000) is NumbaBackend
    assert compiler.waits == 1
    assert "waiting for the CPU kernels" in caplog.text


@pytest.mark.parametrize(
    ("lattice", "largest"), [("Z1", 2_000_000), ("A2", 400_000), ("E8", 65_536)], ids=["Z1", "A2", "E8"]
)
def test_what_numpy_codes_in_seconds_does_not_wait(compiler: Compiler, lattice: str, largest: int) -> None:
    codec = cepam.Codec(cepam.Gaussian(0.01), lattice)
    assert used(largest, codec) is NumpyBackend
    assert used(10 * largest, codec) is NumbaBackend
    assert compiler.waits == 1


def test_a_search_waits_the_more_the_update_rises_above_noise(compiler: Compiler) -> None:
    codec = cepam.Codec(cepam.Gaussian(0.01))
    task = codec.task(1, SECRET)
    assert task.coder == "search"

    def coded(count: int, level: float) -> type:
        values = np.full(count, 0.01 * level, dtype=np.float32)
        with dispatch.backend_for(task, lambda: dispatch.encoding_seconds(task, values)) as backend:
            return type(backend)

    assert coded(100_000, 0.05) is NumpyBackend
    assert coded(1_000_000, 0.05) is NumbaBackend
    assert compiler.waits == 1


def test_a_large_update_that_comes_first_compiles_here(compiler: Compiler) -> None:
    assert used(20_000_000) is NumbaBackend
    assert compiler.waits == 0


def test_patience_ends(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "PATIENCE_SECONDS", 0.0)
    assert used() is NumpyBackend
    assert used() is NumpyBackend
    dispatch._BEGUN[backend.kind_of(CODEC.task(0, SECRET))] -= dispatch.COMPILING_SECONDS
    assert used() is NumbaBackend
    assert compiler.waits == 1


def test_a_compiler_that_fails_leaves_it_to_this_process(compiler: Compiler) -> None:
    compiler.status = 1
    assert used() is NumbaBackend


def test_so_does_one_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise PermissionError("no processes here")

    monkeypatch.setattr(dispatch, "_start_compiler", START)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert used() is NumbaBackend


def test_no_key_leaves_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bytes] = []

    class Pipe(io.BytesIO):
        def close(self) -> None:
            given.append(self.getvalue())
            super().close()

    class Process(Compiler):
        stdin = Pipe()

    monkeypatch.setattr(dispatch, "_start_compiler", START)
    monkeypatch.setattr(subprocess, "Popen", lambda *arguments, **options: Process())
    assert used() is NumpyBackend
    assert SECRET not in given[0]
    assert pickle.loads(given[0]).key == bytes(32)


def test_the_compiler_runs_nothing_from_its_working_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An attack: a module of the standard library's name, in a folder that others can write to, such as /tmp."""
    (tmp_path / "logging.py").write_text("raise SystemExit(77)\n")
    started: dict[str, Any] = {}

    def keep(call: list[str], **options: Any) -> Any:
        started.update(call=call, env=options["env"])
        raise OSError("not now")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", keep)
    assert START(CODEC.task(0, SECRET)) is None
    monkeypatch.undo()
    call = started["call"]
    for flags, status in ((call[: call.index("-m")], 0), (call[:1], 77)):  # the second is the control
        command = [*flags, "-c", "import logging"]
        assert subprocess.run(command, env=started["env"], cwd=tmp_path, check=False).returncode == status


@pytest.mark.parametrize("lattice", ["Z1", "A2", "E8"])
@pytest.mark.parametrize("coder", ["auto", "layered"])
def test_a_task_from_a_pipe_needs_the_same_kernels(lattice: str, coder: Any) -> None:
    """What a pickled task compiles is of no use for one with arrays of other types, read-only ones among them."""
    numba = pytest.importorskip("numba")
    plan = cepam.Codec(cepam.Gaussian(0.01), lattice, coder=coder).task(0, SECRET).plan
    piped = pickle.loads(pickle.dumps(plan))
    assert numba.typeof(tuple(kernel_plan(plan))) == numba.typeof(tuple(kernel_plan(piped)))
    assert numba.typeof(tuple(layer_plan(plan))) == numba.typeof(tuple(layer_plan(piped)))
    assert numba.typeof(plan.table) != numba.typeof(piped.table)  # the control


@pytest.mark.slow
@pytest.mark.parametrize("lattice", ["Z1", "A2"])
def test_the_process_that_waited_compiles_nothing(tmp_path: Path, lattice: str) -> None:
    script = f"""
import numpy as np, cepam
from cepam.kernels import dispatch
from pathlib import Path
codec, at = cepam.Codec(cepam.Gaussian(0.01), "{lattice}"), cepam.Address(bytes(32), round=1, client=1)
message = codec.encode(np.zeros(10, dtype=np.float32), at)
for compiler in dispatch._COMPILERS.values():
    compiler.wait()
before = set(Path("{tmp_path}").rglob("*.nbc"))
at = cepam.Address(bytes(32), round=2, client=1)
codec.decode(codec.encode(np.zeros(10, dtype=np.float32), at), at)
assert dispatch._READY and before
print(sorted(str(new) for new in set(Path("{tmp_path}").rglob("*.nbc")) - before))
"""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
def test_a_fresh_machine_compiles_once(tmp_path: Path) -> None:
    script = """
import sys, numpy as np, cepam
from cepam.kernels import dispatch
codec, at = cepam.Codec(cepam.Gaussian(0.01), "Z1"), cepam.Address(bytes(32), round=1, client=1)
codec.encode(np.zeros(10, dtype=np.float32), at)
for compiler in dispatch._COMPILERS.values():
    print(compiler.wait())
"""
    for printed in ("0\n", ""):  # the second process finds the kernels on disk and starts no compiler
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == printed

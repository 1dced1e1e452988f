"""What tests of several packages share."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest

# A worker a core: threads of linear algebra beside them would wait for each other, turning. Before NumPy is imported.
WORKER = "PYTEST_XDIST_WORKER"
if WORKER in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# Before Triton is imported, by whomever: its own functions are interpreted or not from then on.
os.environ.setdefault("TRITON_INTERPRET", "1")

from numba.core.compiler_lock import global_compiler_lock  # noqa: E402
from numba.core.dispatcher import Dispatcher  # noqa: E402

import cepam  # noqa: E402
from cepam._internal.files import locked_file  # noqa: E402
from cepam.kernels import dispatch  # noqa: E402


@pytest.fixture(autouse=True)
def flower_log() -> Iterator[None]:
    """Restores the handlers of Flower's log, to which tests add pytest's own."""
    log = logging.getLogger("flwr")
    before = list(log.handlers)
    yield
    log.handlers[:] = before


@pytest.fixture(scope="session", autouse=True)
def compiled_by_one_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let one of several workers that need a kernel compile it, while the others wait for its file."""
    if WORKER not in os.environ:
        yield
        return
    folder, compile_now = tmp_path_factory.getbasetemp().parent, Dispatcher.compile

    def compile_alone(kernel: Any, signature: Any) -> Any:
        name = f"{kernel.py_func.__module__}.{kernel.py_func.__qualname__}.lock"
        # Numba's own lock first: it is held while a kernel that this one calls is compiled.
        with global_compiler_lock, locked_file(folder / name):
            return compile_now(kernel, signature)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Dispatcher, "compile", compile_alone)
        yield


@pytest.fixture(scope="session", autouse=True)
def compiled_in_this_process() -> Iterator[None]:
    """Kernels are compiled where they are needed: a process beside the suite would compile what no test asked for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "_start_compiler", lambda task, estimate: None)
        yield


@pytest.fixture
def fixed_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every key that is made is the same one: what a test draws does not change from run to run."""
    monkeypatch.setattr(cepam.Key, "generate", classmethod(lambda cls: cls(bytes(range(32)))))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Compile the kernels for tests that start processes of their own."""
    for item in items:
        if item.get_closest_marker("flower"):
            item.fixturenames.insert(0, "compiled_kernels")  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def compiled_kernels(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What nodes and servers run lies compiled on disk: by one process, and not by every node's at a time."""
    import numpy as np

    from cepam.secure_aggregation import fit

    law, update, key = cepam.Gaussian(0.1), np.ones(100, dtype=np.float32), bytes(32)
    with locked_file(tmp_path_factory.getbasetemp().parent / "kernels.lock"):
        codec, at = cepam.Codec(law), cepam.Address(cepam.Key.generate(), round=0, client=0)
        for sent in (update, 0 * update):  # on E8, and on the line as the server's own noise
            codec.decode(codec.encode(sent, at), at)
        code = fit(law, 3, len(update), 1.0)
        code.open([code.mask(code.noised(update, key), [(key, 1)])], [(key, 1)])
        start = np.zeros(len(update), dtype=np.float32)
        cepam.Receiver(b"kernels", start).apply(cepam.Broadcast(b"kernels", start).publish(update, 0.1))

"""Work ahead that is not done when its process ends: what the process ends with is what it would have ended with."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
import threading
from pathlib import Path
from weakref import WeakSet

import pytest

import cepam
from cepam._internal import prefetch as ahead
from cepam._internal.prefetch import give_up, start_ahead
from cepam.kernels import dispatch

# Fourier transforms without end. The process goes on when the first is done: from then on it ends in the midst of one,
# and while the interpreter takes its modules apart there is time for that one to come back.
TRANSFORMING = """
import os, sys, threading, time
import numpy as np
from scipy import fft
from cepam._internal.prefetch import start_ahead

class Lingering:
    def __del__(self, sleep=time.sleep):
        sleep(0.3)

masses, begun, last = np.ones(1 << 18), threading.Event(), Lingering()

def transform():
    while True:
        fft.rfft(masses)
        begun.set()

{start}
begun.wait()
{end}
"""
AHEAD = "start_ahead(transform)"
PLAIN = "threading.Thread(target=transform, daemon=True).start()"
FORKED = """
pid = os.fork()
if pid == 0:
    sys.exit(4)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def ended(start: str, end: str) -> tuple[int, str]:
    """Exit status and stderr of a process that ends in the midst of its work; a minute, and it hangs."""
    script = TRANSFORMING.format(start=start, end=end)
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script]  # of a fork beside threads
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stderr


@pytest.mark.parametrize(("end", "status"), [("", 0), ("sys.exit(3)", 3), (FORKED, 4)])
def test_a_process_ends_in_the_midst_of_it(end: str, status: int) -> None:
    assert ended(AHEAD, end) == (status, "")


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="threads that come back too late wait for the process to end")
def test_a_plain_daemon_would_end_it_by_a_signal() -> None:
    """On a busy machine not each time, 39 of 40 beside two others: it is given a dozen, and needs one."""
    ends = (ended(PLAIN, "") for _ in range(12))
    assert any(status == -signal.SIGABRT and "terminate called" in said for status, said in ends)


def test_an_interrupted_process_ends_interrupted() -> None:
    # Who is started by a shell in the background ignores what interrupts, and so do its children.
    heeds = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    script = heeds + TRANSFORMING.format(start=AHEAD, end="print('begun', flush=True)\ntime.sleep(60)")
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=50)  # before it would have ended by itself
    assert process.returncode == -signal.SIGINT
    assert said.count(b"Traceback") == said.count(b"KeyboardInterrupt") == 1


def test_work_that_catches_what_ends_it_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cepam._internal.prefetch._ASKED_AGAIN_SECONDS", 0.01)
    begun, caught = threading.Event(), []

    def stubborn() -> None:
        while len(caught) < 2:
            try:
                begun.set()
                while True:
                    threading.Event().wait(0.001)
            except SystemExit as asked:
                caught.append(asked)

    thread = start_ahead(stubborn)
    assert begun.wait(60)
    give_up(thread)
    assert not thread.is_alive()
    assert len(caught) == 2


def test_what_a_thread_starts_while_all_are_given_up_is_given_up_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cepam._internal.prefetch._STARTED", WeakSet())
    begun, second = threading.Event(), []

    def endless() -> None:
        while True:
            threading.Event().wait(0.001)

    def starting() -> None:
        try:
            begun.set()
            endless()
        except SystemExit:
            second.append(start_ahead(endless))

    first = start_ahead(starting)
    assert begun.wait(60)
    ahead._give_up_all()
    assert second
    assert not any(thread.is_alive() for thread in (first, *second))


def test_no_other_thread_of_the_package_is_left_running() -> None:
    """Pools are awaited by Python itself; a timer that says what takes long, by whoever set it."""
    package = Path(cepam.__file__).parent
    assert makers(package) == ["_internal/prefetch.py Thread", "kernels/dispatch.py Timer"]
    with dispatch._waiting_for("a test"):
        known = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    assert known
    assert not any(thread.is_alive() for thread in known)
    dispatch._SEEN.discard("a test")


def test_another_thread_would_be_seen(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("import threading\nthreading.Thread(target=print, daemon=True).start()\n")
    assert makers(tmp_path) == ["one.py Thread"]


def makers(package: Path) -> list[str]:
    """Where threads are made that no pool owns."""
    found = []
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
            if name in ("Thread", "Timer", "start_new_thread"):
                found.append(f"{path.relative_to(package).as_posix()} {name}")
    return found

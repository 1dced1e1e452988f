"""Processes that were started in sessions of their own, ended with their children: politely first, then for good."""

from __future__ import annotations

import os
import signal
import subprocess
import time

STEPS = ((signal.SIGCONT, 0.0), (signal.SIGTERM, 6.0), (signal.SIGKILL, 5.0))


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """End the processes and all of their groups."""
    for what, patience in STEPS:
        for process in processes:
            _signal(process.pid, what)
        until = time.monotonic() + patience
        while time.monotonic() < until and any(p.poll() is None or _signal(p.pid, 0) for p in processes):
            time.sleep(0.05)
    for process in processes:
        process.wait(timeout=5)


def _signal(group: int, what: int) -> bool:
    """Whether the group was there to be signalled."""
    try:
        os.killpg(group, what)
    except (ProcessLookupError, PermissionError):
        return False
    return True

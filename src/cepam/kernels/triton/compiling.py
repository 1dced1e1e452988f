"""Kernels compiled before they are asked for, side by side: most of its time a compiler needs no interpreter."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from threading import Lock, Thread

import triton

from cepam._internal.prefetch import start_ahead

_STARTED: dict[Hashable, Thread] = {}
_STARTING = Lock()


def compile_beside(name: Hashable, launch: Callable[[], None]) -> None:
    """Compile what this launches, on small inputs, in a thread, once per process, unless it is on disk."""
    if name in _STARTED or triton.knobs.runtime.interpret:
        return
    with _STARTING:
        if name not in _STARTED:
            _STARTED[name] = start_ahead(_launch, launch)


def wait_for(name: Hashable) -> None:
    """Wait until what was started under this name, if anything, is compiled. Never call it from its launch."""
    if name in _STARTED:
        _STARTED[name].join()


def _launch(work: Callable[[], None]) -> None:
    with suppress(Exception):  # whoever launches the kernel for its work is told
        work()

"""Work that a background thread does ahead of time, and that the end of the process gives up.

A thread that is in compiled code when the interpreter ends does not come back from there: before Python 3.14 it is
ended where it asks for the interpreter's lock, and if that is in C++ (SciPy's Fourier transforms, Triton's compiler)
the whole process dies by SIGABRT, however well its run went. So what is not done yet is given up before that.
"""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Any
from weakref import WeakSet

_ASKED_AGAIN_SECONDS = 1.0
_STARTED: WeakSet[Thread] = WeakSet()


def start_ahead(work: Callable[..., None], *arguments: Any) -> Thread:
    """The thread that does the work, for whose end nobody need wait: the end of the process gives the work up.

    Guarantee: a process that ends in the midst of it ends with the exit status it would have had
    (tests/internal/test_prefetch.py).
    """
    # A daemon: for others the interpreter waits until their work is done, before it asks `atexit`.
    thread = Thread(target=_until_given_up, args=(work, *arguments), daemon=True)
    _STARTED.add(thread)
    thread.start()
    return thread


def _until_given_up(work: Callable[..., None], *arguments: Any) -> None:
    with suppress(SystemExit):  # which Python's own hook would pass over in silence, but not everybody's
        work(*arguments)


def give_up(thread: Thread) -> None:
    """End the thread: at once, or when the compiled call that it is in comes back."""
    while thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
        thread.join(_ASKED_AGAIN_SECONDS)  # again, should something have caught it


def _give_up_all() -> None:
    # Again, since they may have started others; after a fork none of them is alive.
    while alive := [thread for thread in _STARTED if thread.is_alive()]:
        for thread in alive:
            give_up(thread)


atexit.register(_give_up_all)

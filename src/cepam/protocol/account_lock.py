"""Which process uses an account: a lock that ends with the process, however it ends."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from weakref import WeakValueDictionary, finalize

from cepam._internal.files import locked_file


class AccountHold:
    """An account that this process uses; given back when nobody in the process refers to it any more.

    Strategies of one process share it; the index's lock lets them write one at a time.
    """

    def __init__(self, path: Path) -> None:
        self.process = os.getpid()
        stack = ExitStack()
        file = stack.enter_context(locked_file(path, wait=False))
        finalize(self, stack.close)
        file.truncate(0)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        file.write(f"process {self.process} on {socket.gethostname()} since {now}".encode())
        file.flush()


_held: WeakValueDictionary[Path, AccountHold] = WeakValueDictionary()
_held_lock = Lock()


def hold(account: Path) -> AccountHold:
    """This process's hold of the account in that file.

    Raises:
        BlockingIOError: Another process holds it; the text says which process, on which host, since when.
    """
    path = account.with_name(f".{account.name}.lock").resolve()
    with _held_lock:
        known = _held.get(path)
        if known is not None and known.process == os.getpid():
            return known
        try:
            made = _held[path] = AccountHold(path)
        except BlockingIOError:
            raise BlockingIOError(path.read_text(errors="replace") or "another process") from None
        return made

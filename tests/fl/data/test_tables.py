"""Pickled tables are read without running anything that they name."""

from __future__ import annotations

import hashlib
import lzma
import os
import pickle
import pickletools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cepam.fl.data import tables
from cepam.fl.data.tables import medpar, read_frame

NAMES = ["los", "hmo", "white", "died", "age80", "type2", "type3", "provnum"]


class Call:
    """What a pickle calls: a name of some module, arguments, a state."""

    def __init__(self, module: str, name: str, given: tuple[Any, ...], state: Any = None) -> None:
        self.module, self.name, self.given, self.state = module, name, given, state


class Writer(pickle._Pickler):  # type: ignore[misc]
    """Writes calls by name, whether or not such a module is installed."""

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if not isinstance(obj, Call):
            return super().save(obj, save_persistent_id)
        self.write(pickle.GLOBAL + f"{obj.module}\n{obj.name}\n".encode())
        super().save(obj.given)
        self.write(pickle.REDUCE)
        if obj.state is not None:
            self.save(obj.state)
            self.write(pickle.BUILD)
        return None


def pickled(made: Any) -> bytes:
    import io

    out = io.BytesIO()
    Writer(out, 3).dump(made)
    return lzma.compress(out.getvalue())


def kind(code: str) -> Call:
    return Call("numpy", "dtype", (code, False, True), (3, "|" if code == "O8" else "<", None, None, None, -1, -1, 0))


def frame(columns: np.ndarray, names: list[str]) -> Call:
    """A frame as pandas 2 pickles it: one block of 64-bit numbers, an index of words."""
    held = Call("numpy.core.numeric", "_frombuffer", (columns.astype("<i8").tobytes(), kind("i8"), columns.shape, "C"))
    block = Call("pandas._libs.internals", "_unpickle_block", (held, Call("builtins", "slice", (0, len(names), 1)), 2))
    words = Call(
        "numpy.core.multiarray", "_reconstruct", (None, (0,), b"b"), (1, (len(names),), kind("O8"), False, names)
    )
    axes = [Call("pandas.core.indexes.base", "_new_Index", (None, {"data": words, "name": None}))]
    manager = Call("pandas.core.internals.managers", "BlockManager", ((block,), axes))
    return Call("pandas.core.frame", "DataFrame", (), {"_mgr": manager})


def stays() -> np.ndarray:
    draw = np.random.default_rng(4)
    made = draw.integers(0, 2, (len(NAMES), 60))
    made[0], made[-1] = draw.integers(1, 30, 60), np.repeat(30001 + np.arange(6), 10)
    return made


def test_columns_are_read() -> None:
    found = read_frame(pickled(frame(stays(), NAMES)))
    assert list(found) == NAMES
    np.testing.assert_array_equal(np.stack(list(found.values())), stays())


def test_hospitals_are_clients_and_the_test_has_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = pickled(frame(stays(), NAMES))
    files = {"medpar.pkl.compress": hashlib.sha256(content).hexdigest()}
    monkeypatch.setattr(tables, "MEDPAR", replace(tables.MEDPAR, files=files))
    (tmp_path / "medpar.pkl.compress").write_bytes(content)
    data = medpar(tmp_path)
    assert data.clients == ("hospital 30002", "hospital 30003", "hospital 30004", "hospital 30006")
    assert (data.records, len(data.test_labels), data.shape, data.classes) == (40, 20, (7,), 2)
    assert data.owners is not None
    np.testing.assert_array_equal(data.owners, np.repeat(np.arange(4), 10))
    np.testing.assert_array_equal(data.train_labels[:10], stays()[3, 10:20])
    others = medpar(tmp_path, fold=1)
    assert "hospital 30002" not in others.clients
    assert "hospital 30001" in others.clients
    with pytest.raises(ValueError, match="fold must be one of 0 to 3"):
        medpar(tmp_path, fold=4)


HOSTILE = {
    "os.system": Call("os", "system", ("touch {}",)),
    "builtins.eval": Call("builtins", "eval", ("open('{}', 'w')",)),
    "builtins.getattr": Call("builtins", "getattr", ("", "join")),
    "numpy.load": Call("numpy", "load", ("{}",)),
    "pandas.read_pickle": Call("pandas", "read_pickle", ("{}",)),
    "cepam.fl.data.tables.read_frame": Call("cepam.fl.data.tables", "read_frame", (b"",)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_runs_nothing(name: str, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    call = HOSTILE[name]
    armed = Call(call.module, call.name, tuple(g.format(mark) if isinstance(g, str) else g for g in call.given))
    with pytest.raises(ValueError, match=f"names {name}, which no table of numbers needs"):
        read_frame(pickled(armed))
    with pytest.raises(ValueError, match="names"):  # hidden inside a table
        read_frame(pickled(Call("pandas.core.frame", "DataFrame", (), {"_mgr": armed})))
    assert not mark.exists()


def test_the_attack_works_on_pickle_itself(tmp_path: Path) -> None:
    """The control: what is refused above does run where a pickle is loaded as it asks."""
    mark = tmp_path / "ran"
    pickle.loads(lzma.decompress(pickled(Call("os", "system", (f"touch {mark}",)))))
    assert mark.exists()
    assert os.path.getsize(mark) == 0


@pytest.mark.parametrize(
    "made",
    [7, [1, 2], frame(stays(), NAMES[:-1]), Call("numpy", "dtype", ("i8",)),
     Call("pandas.core.frame", "DataFrame", (), {"_mgr": 3}), Call("pandas.core.frame", "DataFrame", ())],
)  # fmt: skip
def test_other_pickles_are_refused_in_a_sentence(made: Any) -> None:
    with pytest.raises(ValueError, match=r"no pickled table|shorter|longer|reshape"):
        read_frame(pickled(made))


def test_no_archive_a_bomb_and_a_cut_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no pickled table"):
        read_frame(b"no archive")
    whole = lzma.decompress(pickled(frame(stays(), NAMES)))
    assert pickletools.genops(whole)
    for cut in range(0, len(whole) - 1, 97):
        with pytest.raises(ValueError, match=r"."):
            read_frame(lzma.compress(whole[:cut]))
    monkeypatch.setattr(tables, "LARGEST", 1000)
    with pytest.raises(ValueError, match="unpacks to more than 1000 bytes"):
        read_frame(lzma.compress(bytes(10_000)))

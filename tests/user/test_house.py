"""The house as `tools/house.py` prints it: what is there once, what nothing reaches, what is public and what is not."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "cepam"


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))


def test_what_matters_for_safety_is_written_once() -> None:
    import house_table

    assert {idea: len(where) for idea, where in house_table.once(PACKAGE).items() if len(where) != 1} == {}
    assert {kind: where for kind, where in house_table.imports(ROOT, PACKAGE).items() if where} == {}


def test_no_two_classes_share_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import house

    assert house.classes() == {}
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text("class Row: ...\n")
    monkeypatch.setattr(house, "PACKAGE", tmp_path)
    assert list(house.classes()) == ["Row"]


def test_a_second_ledger_would_be_seen(tmp_path: Path) -> None:
    import house_table

    (tmp_path / "book.py").write_text("class NodeLedger: ...\nLATTICES = ('Z1', 'E8')\n")
    found = house_table.once(tmp_path)
    assert found["ledgers of what was spent"] == ["book.py NodeLedger"]
    assert found["tables from names to lattices"] == ["book.py"]


def test_public_names_and_commands_reach_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import house_reach

    assert house_reach.unreached(PACKAGE) == {}
    made = tmp_path / "cepam"
    made.mkdir()
    (made / "__init__.py").write_text("from cepam.codec import encode\n__all__ = ['encode']\n")
    (made / "codec.py").write_text("def encode(): return helped()\ndef helped(): ...\ndef orphan(): ...\n")
    monkeypatch.setattr(house_reach, "PUBLIC", ("cepam",))
    left = house_reach.unreached(made)
    assert {room: [node.name for node in nodes] for room, nodes in left.items()} == {"cepam.codec": ["orphan"]}


def test_every_room_has_its_tests() -> None:
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    rooms |= {f"fl/{path.parent.name}" for path in PACKAGE.glob("fl/*/__init__.py")}
    rooms -= {"__init__", "__main__", "errors"}  # what can go wrong is tried where it does
    tests = PACKAGE.parents[1] / "tests"
    assert {room for room in rooms if not ((tests / room).is_dir() or (tests / f"test_{room}.py").exists())} == set()


def test_every_package_says_what_is_public() -> None:
    """A package lists its public names or says that it is internal; what lies below one that does is internal."""
    for folder in sorted(path.parent for path in PACKAGE.glob("*/__init__.py")):
        tree = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))
        listed = any("__all__" in ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign))
        assert listed or "Internal:" in (ast.get_docstring(tree) or ""), folder

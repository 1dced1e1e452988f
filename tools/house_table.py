"""What should be there once: clips, ledgers, slacks, tables of lattices, codec protocols, page writers; and imports."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

CODEC_METHODS = {"encode": ["self", "update", "at"], "decode": ["self", "message", "at"]}


def _trees(package: Path) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(package.rglob("*.py")):
        yield str(path.relative_to(package)), ast.parse(path.read_text())


def once(package: Path) -> dict[str, list[str]]:
    """Where each idea that matters for safety is written; one place each is the goal."""
    found: dict[str, list[str]] = {
        "rules of rounding in a clip": [], "ledgers of what was spent": [], "slacks on delta": [],
        "tables from names to lattices": [], "protocols of something that encodes": [], "writers of HTML": [],
    }  # fmt: skip
    for place, tree in _trees(package):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name == "margin":
                found["rules of rounding in a clip"].append(place)
            elif isinstance(node, ast.ClassDef):
                _file_class(found, place, node)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "<html" in node.value:
                found["writers of HTML"].append(place)
        for statement in tree.body:
            if _is_table(statement):
                found["tables from names to lattices"].append(place)
    return found


def _file_class(found: dict[str, list[str]], place: str, node: ast.ClassDef) -> None:
    for ending, idea in (("Ledger", "ledgers of what was spent"), ("Slack", "slacks on delta")):
        if node.name.endswith(ending):
            found[idea].append(f"{place} {node.name}")
    functions = [each for each in node.body if isinstance(each, ast.FunctionDef)]
    methods = {each.name: [one.arg for one in each.args.args] for each in functions}
    if any("Protocol" in ast.unparse(base) for base in node.bases) and CODEC_METHODS.items() <= methods.items():
        found["protocols of something that encodes"].append(f"{place} {node.name}")


def _is_table(statement: ast.stmt) -> bool:
    """Whether a statement of a module makes a collection that names E8, the list of public names apart."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or "__all__" in ast.unparse(statement):
        return False
    if not isinstance(statement.value, ast.Dict | ast.Tuple | ast.List):
        return False
    return any(isinstance(each, ast.Constant) and each.value == "E8" for each in ast.walk(statement.value))


def imports(root: Path, package: Path) -> dict[str, list[str]]:
    """What the import-linter's contracts leave open, integrations that import each other, and imports by name."""
    contracts = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layered = {name for one in contracts if one.get("exhaustive") for name in one["containers"]}
    found: dict[str, list[str]] = {
        "rooms whose layers do not name every module": sorted({"cepam", "cepam.kernels", "cepam.fl"} - layered),
        "sideways imports (flower, flare; NumPy, Numba, Triton)": [], "imports by a name that is made up": [],
    }  # fmt: skip
    sides = {"flower": ("cepam.flare",), "flare": ("cepam.flower",), "kernels/numpy": ("cepam.kernels.numba",),
             "kernels/triton": ("cepam.kernels.numba",)}  # fmt: skip
    for place, tree in _trees(package):
        beside = next((others for room, others in sides.items() if place.startswith(f"{room}/")), ())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(beside or "-"):
                found["sideways imports (flower, flare; NumPy, Numba, Triton)"].append(f"{place}: {node.module}")
            made_up = isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module")
            if made_up and not place.endswith("__init__.py") and "cepam" in ast.unparse(node):
                found["imports by a name that is made up"].append(place)
    return found

"""Prints the house at a glance: lines a room, names that mean two things, long signatures and bodies.

`python tools/house.py` from the repository's root; no arguments.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "cepam"
STUDIES = {"paper": "cepam_paper", "sums": "cepam_sums"}
MANY_ARGUMENTS = 10
LONG_FILE, LONG_BODY = 300, 40


def sources(folder: Path) -> list[Path]:
    """The Python files below a folder."""
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def lines(path: Path) -> int:
    """How many lines a file has."""
    return len(path.read_text().splitlines())


def rooms() -> dict[str, tuple[int, int]]:
    """(files, lines) of each room of the package; one floor down in `fl` and `kernels`."""
    found: dict[str, list[int]] = defaultdict(list)
    for path in sources(PACKAGE):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        room = "/".join(parts[:2]) if parts[0] in ("fl", "kernels") and len(parts) > 2 else parts[0]
        found[room].append(lines(path))
    return {room: (len(sizes), sum(sizes)) for room, sizes in sorted(found.items())}


def classes() -> dict[str, list[str]]:
    """Class names that several files define."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sources(PACKAGE):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(PACKAGE)))
    return {name: where for name, where in sorted(found.items()) if len(where) > 1}


def functions() -> tuple[dict[str, int], list[str], list[str]]:
    """How many functions of each room take ten or more arguments, and which bodies and files are long."""
    crowded: dict[str, int] = defaultdict(int)
    bodies, files = [], []
    for path in sources(PACKAGE):
        place = path.relative_to(PACKAGE)
        if lines(path) > LONG_FILE:
            files.append(f"{place} ({lines(path)})")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                taken = node.args
                if len(taken.args) + len(taken.posonlyargs) + len(taken.kwonlyargs) >= MANY_ARGUMENTS:
                    crowded[place.parts[0]] += 1
                first = node.body[1] if len(node.body) > 1 and ast.get_docstring(node) else node.body[0]
                if (node.end_lineno or 0) - first.lineno + 1 > LONG_BODY:
                    bodies.append(f"{place}:{node.name} ({(node.end_lineno or 0) - first.lineno + 1})")
    return dict(crowded), bodies, files


def main() -> None:
    """Prints the tables."""
    total = sum(lines(path) for path in sources(PACKAGE))
    print(f"src/cepam: {total:,} lines in {len(sources(PACKAGE))} files")
    for study, package in STUDIES.items():
        found = sources(ROOT / "studies" / study / "src" / package)
        print(f"studies/{study}: {sum(map(lines, found)):,} lines in {len(found)} files")
    print()
    for room, (files, size) in rooms().items():
        print(f"  {room:<20} {files:>3} files {size:>6,} lines")
    print("\nclasses of one name in several files:")
    for name, where in classes().items() or {"none": []}.items():
        print(f"  {name}: {', '.join(where)}")
    crowded, bodies, long_files = functions()
    print(f"\nfunctions of {MANY_ARGUMENTS} or more arguments: {sum(crowded.values())}, by room: {crowded}")
    print(f"files over {LONG_FILE} lines: {', '.join(long_files) or 'none'}")
    print(f"bodies over {LONG_BODY} lines: {', '.join(bodies) or 'none'}")
    print("\nwho may import whom: [tool.importlinter] in pyproject.toml, checked by `make lint`")


if __name__ == "__main__":
    main()

"""Prints the house at a glance: lines by room and by subject, what is there twice, what nothing reaches, what is long.

`python tools/house.py` from the repository's root; with `--history`, where git is at hand, also by lines: which stood
when the house was built, and which came with later subjects, in files of their own or in those of the house (a minute).
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import house_history
import house_reach
import house_table

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "cepam"
STUDIES = {"paper": "cepam_paper", "sums": "cepam_sums"}
MANY_ARGUMENTS = 10
LONG_FILE, LONG_BODY = 300, 40
SUBJECTS = {
    "sums": (
        "secure/*", "flower/sum_*", "flower/private_sum.py", "fl/engine/sum_*", "fl/engine/sketching.py",
        "fl/engine/trust.py", "fl/engine/checks/trust.py", "cli/release_sums.py",
    ),
    "correlated noise": (
        "privacy/correlat*", "privacy/attendance.py", "privacy/participation.py", "privacy/workload.py",
        "exchange/streams.py", "flower/node_streams.py", "flower/stream_policy.py", "fl/engine/streams.py",
        "fl/engine/correlated_*", "fl/engine/checks/streams.py",
    ),
    "users and cohorts": (
        "privacy/cohort*", "privacy/topup*", "privacy/adaptive*", "exchange/topup.py", "flower/cohort*",
        "flower/policy.py", "fl/engine/cohort_*", "fl/engine/adaptive_*", "fl/engine/checks/unit.py",
    ),
    "downlink": (
        "codec/broadcast/*", "kernels/*/difference_*", "exchange/downlink.py", "exchange/inventory.py",
        "exchange/parcels.py", "flower/copies.py", "flower/distribution.py", "flower/models.py",
        "fl/engine/downlink.py",
    ),
    "98 percent, privately: features, networks in PyTorch": (
        "fl/models/features.py", "fl/models/scattering.py", "fl/models/layers.py", "fl/models/passes.py",
        "fl/models/network.py", "fl/models/interface.py",
    ),
    "GPU as a user sees it": (
        "kernels/triton/*", "kernels/model/blocks.py", "codec/sealing*.py", "codec/vectors.py",
        "kernels/numba/transform.py", "kernels/numba/lanes.py", "kernels/numba/layers.py",
    ),
    "fits your code": (
        "codec/tree.py", "torch.py", "fl/data/clients.py", "fl/models/mapped.py", "fl/models/objective.py",
        "fl/runs/sources.py", "fl/runs/trackers.py", "fl/engine/private_steps.py", "fl/engine/local_uplink.py",
        "privacy/local.py", "cli/release_local.py", "cli/mounting.py", "flare/*", "exchange/target.py",
        "fl/engine/personal.py", "fl/engine/checks/personal.py", "privacy/noise_to_clip.py", "cli/figures.py",
    ),
    "safe by default": (
        "privacy/convolution.py", "privacy/events.py", "privacy/record.py", "exchange/account*", "flower/spending.py",
        "fl/engine/randomness.py", "fl/engine/notices.py", "fl/engine/calibration.py", "fl/runs/record.py",
        "fl/runs/checkpoint.py", "fl/runs/files.py", "files.py", "privacy/blending.py",
    ),
}  # fmt: skip
"""Which files came with which subject; a file counts for the first that names it, the rest is the first house."""
GPU = "GPU as a user sees it"
HOUSE = "the first house, and what grew in its files"


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


def subject_of(path: Path) -> str:
    """Which subject brought a file."""
    place = str(path.relative_to(PACKAGE))
    names = (name for name, patterns in SUBJECTS.items() if any(fnmatch(place, each) for each in patterns))
    return next(names, HOUSE)


def subjects() -> dict[str, int]:
    """Lines of the files that each later subject brought, and of the rest."""
    found = dict.fromkeys([*SUBJECTS, HOUSE], 0)
    for path in sources(PACKAGE):
        found[subject_of(path)] += lines(path)
    return found


def public_names() -> set[str]:
    """What the package's `__init__` files list as public."""
    found: set[str] = set()
    for path in PACKAGE.rglob("__init__.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assign) and any(
                isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets
            ):
                found |= {each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant)}
    return found


def signatures(tree: ast.AST, owner: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function with the name of the class that it stands in."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield owner, node
        yield from signatures(node, node.name if isinstance(node, ast.ClassDef) else owner)


def classes() -> dict[str, list[str]]:
    """Class names that several files define."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sources(PACKAGE):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(PACKAGE)))
    return {name: where for name, where in sorted(found.items()) if len(where) > 1}


def functions() -> tuple[dict[str, list[str]], list[str], list[str], list[str]]:
    """Functions of ten or more arguments by room, those of public classes apart; bodies and files that are long."""
    crowded: dict[str, list[str]] = defaultdict(list)
    faces, bodies, files, public = [], [], [], public_names()
    for path in sources(PACKAGE):
        place = path.relative_to(PACKAGE)
        if lines(path) > LONG_FILE:
            files.append(f"{place} ({lines(path)})")
        for owner, node in signatures(ast.parse(path.read_text())):
            taken, name = node.args, f"{owner}.{node.name}" if owner else node.name
            count = len(taken.args) + len(taken.posonlyargs) + len(taken.kwonlyargs)
            if count >= MANY_ARGUMENTS and owner in public:
                faces.append(f"{name} ({count})")
            elif count >= MANY_ARGUMENTS:
                crowded["/".join(place.parts[: 2 if place.parts[0] in ("fl", "kernels") else 1])].append(name)
            first = node.body[1] if len(node.body) > 1 and ast.get_docstring(node) else node.body[0]
            if (node.end_lineno or 0) - first.lineno + 1 > LONG_BODY:
                bodies.append(f"{place}:{node.name} ({(node.end_lineno or 0) - first.lineno + 1})")
    return dict(crowded), faces, bodies, files


def span(node: ast.stmt) -> int:
    """How many lines a statement has."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def print_history() -> None:
    """Prints which lines stood when the house was built, and which came later, in whose files."""
    found, (edits, places) = house_history.standing(ROOT, sources(PACKAGE), subject_of), house_history.edited(ROOT)
    then, moves, later = (found[kind] for kind in ("then", "moves", "later"))
    house, own = then.total() + moves[HOUSE], moves.total() + later.total() - moves[HOUSE] - later[HOUSE]
    print(f"\nby lines, since {house_history.BUILT}, when the study had left and rooms were made:")
    print(f"  lines then:                                 {house_history.lines_then(ROOT):>6,}")
    print(f"  stand today, where they were or moved:      {then.total():>6,}, of the GPU's {then[GPU]:,}")
    print(f"  came with work on the house itself:         {moves[HOUSE]:>6,}, so it has {house:,} lines today")
    print(f"  added by later subjects in their own files: {own:>6,}")
    print(f"  and in the house's files:                   {later[HOUSE]:>6,}")
    print(f"  old lines edited since, by whomever:        {edits:>6,}; took an old line's place: {places:,} at most")


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
    print("\nlines by the subject that brought their files:")
    for name, size in subjects().items():
        print(f"  {name:<52} {size:>6,} lines")
    print("\nwhat should be there once:")
    for name, where in house_table.once(PACKAGE).items():
        print(f"  {name}: {len(where)} ({', '.join(where)})")
    twice = classes()
    print(f"  classes of one name in several files: {len(twice)}", *(f"{n}: {', '.join(w)}" for n, w in twice.items()))
    print("\nwhat should not be there:")
    for name, where in house_table.imports(ROOT, PACKAGE).items():
        print(f"  {name}: {', '.join(where) or 'none'}")
    left = house_reach.unreached(PACKAGE)
    size = {room: sum(map(span, nodes)) for room, nodes in left.items()}
    on_gpu = sum(many for room, many in size.items() if room.startswith("cepam.kernels.triton"))
    print(f"  lines that no public name and no command reaches: {sum(size.values())}, of the GPU's {on_gpu}", *size)
    crowded, faces, bodies, long_files = functions()
    print(f"\nfunctions of {MANY_ARGUMENTS} or more arguments: {sum(map(len, crowded.values()))}")
    for room, names in crowded.items():
        print(f"  {room}: {len(names)} ({', '.join(names)})")
    print(f"  and of public classes, whose keywords are what users write: {', '.join(faces) or 'none'}")
    print(f"files over {LONG_FILE} lines: {', '.join(long_files) or 'none'}")
    print(f"bodies over {LONG_BODY} lines: {', '.join(bodies) or 'none'}")
    if "--history" in sys.argv[1:]:
        print_history()
    print("\nwho may import whom: [tool.importlinter] in pyproject.toml, checked by `make lint`")


if __name__ == "__main__":
    main()

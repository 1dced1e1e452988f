"""How many of the package's lines stood when the house was built, and how many later subjects added in whose files."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

BUILT = "926da84"
"""The study had left and rooms were made, and no later subject had been merged: 16,895 lines, all of them the house."""
HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


def _git(root: Path, *words: str) -> list[str]:
    run = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


def lines_then(root: Path) -> int:
    """The package's lines when the house was built."""
    files = [path for path in _git(root, "ls-tree", "-r", "--name-only", BUILT, "src/cepam") if path.endswith(".py")]
    return sum(len(_git(root, "show", f"{BUILT}:{path}")) for path in files)


def standing(root: Path, paths: list[Path], subject_of: Callable[[Path], str]) -> tuple[Counter[str], Counter[str]]:
    """By subject of their file the lines that stood then, also those that moved since, and the lines added since."""
    old: Counter[str] = Counter()
    new: Counter[str] = Counter()
    for path in paths:
        blamed = _git(root, "blame", "-s", "-w", "-M", "-C", "-C", f"{BUILT}..HEAD", "--", str(path))
        kept = sum(line.startswith("^") for line in blamed)
        old[subject_of(path)] += kept
        new[subject_of(path)] += len(blamed) - kept
    return old, new


def rewritten(root: Path) -> int:
    """At most so many of the lines added since stand in the place of one that was there: edits, not growth."""
    total = 0
    for line in _git(root, "diff", "-U0", "-w", "-M40%", BUILT, "HEAD", "--", "src/cepam"):
        if match := HUNK.match(line):
            gone, came = (1 if many is None else int(many) for many in match.groups())
            total += min(gone, came)
    return total

"""How many of the package's lines stood when the house was built, and how many later subjects added in whose files."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable
from difflib import SequenceMatcher
from pathlib import Path

BUILT = "926da84"
"""The study had left and rooms were made, and no later subject had been merged: 16,895 lines, all of them the house."""
ALIKE = 0.6


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


def edited(root: Path) -> tuple[int, int]:
    """Of the lines added since those that are an old one edited, and all that stand in the place of an old one.

    Edited: alike by `ALIKE` at least to a line that was taken away at the same place. The second number is the most
    that could be called so: in every place the smaller of the counts taken away and added.
    """
    alike, most, gone, came = 0, 0, [], []
    for line in [*_git(root, "diff", "-U0", "-w", "-M40%", BUILT, "HEAD", "--", "src/cepam"), "@@"]:
        if line.startswith(("@@", "diff ")):
            alike, most = alike + _alike(gone, came), most + min(len(gone), len(came))
            gone, came = [], []
        elif line.startswith(("-", "+")) and not line.startswith(("---", "+++")):
            (gone if line[0] == "-" else came).append(line[1:].strip())
    return alike, most


def _alike(gone: list[str], came: list[str]) -> int:
    """How many of the old lines have a new one that is like them, each new one taken once."""
    left, found = list(came), 0
    for old in filter(None, gone):
        best = max(left, key=lambda new: SequenceMatcher(None, old, new).quick_ratio(), default="")
        if SequenceMatcher(None, old, best).ratio() >= ALIKE:
            left.remove(best)
            found += 1
    return found

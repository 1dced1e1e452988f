"""How many of the package's lines stood when the house was built, and how many later subjects added in whose files."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable
from difflib import SequenceMatcher
from pathlib import Path

BUILT = "926da84"
"""The study had left and rooms were made, and no later subject had been merged: 16,895 lines, all of them the house."""
MOVES = (
    "100dde3", "01fe2db", "6f3475b", "b4d5ef9", "d3c7c2b", "36dab62", "c7e0c8a", "6848c43", "04c26d6", "feac8c2",
    "adc81b6", "4539f5e", "e211cc2", "a94da49", "d4a0480", "f160d6b", "13062b8", "b11dee1", "923f406", "286365b",
    "4e0ecbe", "f016b39", "420ca2d", "7982b37", "deb03c8", "663cbaf",
)  # fmt: skip
"""Commits since that were work on the house itself: one clip, one exchange, one ledger, one writer of pages, one seam
between updates and aggregate, commands without click, names, groups of arguments, files by noun, the seam by which the
compiled networks went to the study."""
ALIKE = 0.6


def _git(root: Path, *words: str) -> list[str]:
    run = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


def lines_then(root: Path) -> int:
    """The package's lines when the house was built."""
    files = [path for path in _git(root, "ls-tree", "-r", "--name-only", BUILT, "src/cepam") if path.endswith(".py")]
    return sum(len(_git(root, "show", f"{BUILT}:{path}")) for path in files)


def standing(root: Path, paths: list[Path], subject_of: Callable[[Path], str]) -> dict[str, Counter[str]]:
    """Lines by the subject of their file: of `then`, also where they moved since; of `moves`; and `later` ones."""
    found: dict[str, Counter[str]] = {"then": Counter(), "moves": Counter(), "later": Counter()}
    for path in paths:
        for line in _git(root, "blame", "-s", "-w", "-M", "-C", "-C", f"{BUILT}..HEAD", "--", str(path)):
            kind = "then" if line.startswith("^") else "moves" if line.startswith(MOVES) else "later"
            found[kind][subject_of(path)] += 1
    return found


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

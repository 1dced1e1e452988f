"""Every command that a page shows is there: commands and options of `cepam`, targets of `make`, scripts and tests."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="commands that train need the extra torch")

import typer

from cepam.cli import COMMANDS
from cepam.cli.command import brought
from cepam.fl import PRESETS
from cepam.fl.config.settings import types

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/README.md")]
STARTS = ("cepam ", "make ", "python bench/", "python tools/", "python hospitals.py", "pytest ")


def lines_of(page: str) -> list[str]:
    """The command lines of a page: those of its blocks and those between backticks, broken lines put together."""
    fenced = re.findall(r"^```\w*\n(.*?)^```$", page, re.M | re.S)
    indented = re.findall(r"^ {4}\S.*(?:\n {4}.*)*", page, re.M)
    blocks = "\n".join([*fenced, *indented]).replace("\\\n", " ")
    inside = [
        " ".join(found.split())
        for found in re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```$", "", page, flags=re.M | re.S))
    ]
    found = [line.strip().partition("  #")[0] for line in blocks.splitlines()] + inside
    return [line for line in found if line.startswith(STARTS)]


def words_of(line: str) -> list[str]:
    """The words of a command line, without what stands for anything (…)."""
    return [word for word in shlex.split(line.replace("…", " "), comments=True) if word]


@cache
def command_of(path: str) -> Any:
    """The command of this name, or None."""
    name, _, inner = path.partition(" ")
    known = {each.name: each for each in [*brought(), *COMMANDS]}
    if name not in known:
        return None
    holder: Any = typer.main.get_command(known[name].load()).commands[name]  # type: ignore[attr-defined]
    return holder.commands.get(inner) if inner else holder


def wrong_in_cepam(words: list[str]) -> str:
    """What is wrong with the words after `cepam`, or nothing."""
    if not words or words[0].startswith("-"):
        return ""
    holder = command_of(words[0])
    inner = getattr(holder, "commands", {})
    if inner and len(words) > 1:
        holder = inner.get(words[1])
    if holder is None:
        return "no such command"
    offered = {name for each in holder.params for name in [*each.opts, *each.secondary_opts]} | {"--help", "-h"}
    missing = [word for word in words if word.startswith("--") and word.partition("=")[0] not in offered]
    if missing and not getattr(holder, "commands", {}):
        return f"no option {', '.join(missing)}"
    given = [words[at + 1].partition("=")[0] for at, word in enumerate(words[:-1]) if word == "--set"]
    if unknown := [name for name in given if name not in types()]:
        return f"no setting {', '.join(unknown)}"
    preset = words[words.index("--preset") + 1] if "--preset" in words[:-1] else "private"
    return "" if preset in PRESETS else f"no preset {preset}"


def wrong_in_script(words: list[str]) -> str:
    """What is wrong with a call of a script or of tests, or nothing: files must be there and know their options."""
    files = [word.partition("::")[0] for word in words if re.fullmatch(r"(bench|tools|tests|studies)/\S+", word)]
    absent = [name for name in files if not list(ROOT.glob(name.rstrip("/")))]
    if absent:
        return f"no file {', '.join(absent)}"
    if words[0] == "pytest":
        return ""
    script = ROOT / (words[1] if "/" in words[1] else f"examples/hospitals/{words[1]}")
    said = script.read_text(encoding="utf-8")
    missing = [word for word in words if word.startswith("--") and word.partition("=")[0] not in said]
    return f"no option {', '.join(missing)}" if missing else ""


def wrong_in(line: str) -> str:
    """What is wrong with a command line, or nothing."""
    words = words_of(line)
    if words[0] == "cepam":
        return wrong_in_cepam(words[1:])
    if words[0] == "make":
        targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
        return "" if len(words) < 2 or words[1] in targets else f"no target {words[1]}"
    return wrong_in_script(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_there(page: Path) -> None:
    wrong = {line: said for line in lines_of(page.read_text(encoding="utf-8")) if (said := wrong_in(line))}
    assert wrong == {}


def test_commands_that_are_not_there_are_seen() -> None:
    lines = (
        "cepam trian --preset private", "cepam train --no-such 1", "cepam privacy epsilon --unti client",
        "cepam train --preset nothing", "cepam train --set training.tau=3", "make nothing",
        "python bench/nothing.py", "python bench/scale.py --no-such",
        "pytest tests/nothing.py",
    )  # fmt: skip
    assert all(wrong_in(line) for line in lines)
    assert lines_of((ROOT / "docs" / "accounting.md").read_text(encoding="utf-8"))


@cache
def known_tests() -> tuple[frozenset[str], frozenset[str]]:
    """The names of all test functions, and of all files with tests."""
    files = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("studies/*/*_tests/**/*.py"), *ROOT.glob("tools/test_*.py")]
    found = {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text(encoding="utf-8"))}
    return frozenset(found), frozenset(file.name for file in files)


def unwritten_tests(text: str) -> set[str]:
    """Tests that a text names between backticks or by file and that nobody wrote; one that ends in … is a beginning."""
    names, files = known_tests()
    named = set(re.findall(r"`(test_\w+…?)`", text))
    absent = {n for n in named if not any(t.startswith(n[:-1]) if n.endswith("…") else t == n for t in names)}
    return absent | (set(re.findall(r"\btest_\w+\.py\b", text)) - files)


SOURCES = [*ROOT.glob("src/cepam/**/*.py"), *ROOT.glob("studies/*/src/**/*.py")]


def test_tests_named_beside_claims_are_there() -> None:
    """Of pages, and of what docstrings promise: a claim whose test was renamed or deleted has none."""
    wrong = {file.name: absent for file in [*PAGES, *SOURCES] if (absent := unwritten_tests(file.read_text("utf-8")))}
    assert wrong == {}
    assert len(unwritten_tests("`test_nobody_wrote_this`, `test_nobody_at…`, tests/test_nothing_here.py")) == 3

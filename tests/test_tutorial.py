"""docs/tutorial.md runs from top to bottom in one session, and gives what it says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
TUTORIAL = Path(__file__).resolve().parents[1] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
SAID = re.compile(r"  # => (.+)$")
Mismatch = tuple[str, str, str]


def run(text: str) -> tuple[int, list[Mismatch]]:
    """How many expected results a page states, and those that came out otherwise: (line, said, got)."""
    names: dict[str, object] = {"__name__": "tutorial"}
    checked, wrong = 0, []
    for block in BLOCK.findall(text):
        lines = block.splitlines()
        for statement in ast.parse(block).body:
            last = lines[(statement.end_lineno or 0) - 1]
            said = SAID.search(last)
            source = ast.get_source_segment(block, statement) or ""
            if said is None:
                exec(compile(source, "tutorial", "exec"), names)
                continue
            checked += 1
            got = repr(eval(compile(source, "tutorial", "eval"), names))
            if got != said.group(1):
                wrong.append((last, said.group(1), got))
    return checked, wrong


def test_the_tutorial_gives_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checked, wrong = run(TUTORIAL.read_text(encoding="utf-8"))
    assert wrong == []
    assert checked > 20


def test_control_a_page_that_says_otherwise_is_noticed() -> None:
    page = "```python\nx = 1 + 1\nx  # => 2\nx + 1  # => 4\n```\n\n```python\nx * 2  # => 4\n```\n"
    assert run(page) == (3, [("x + 1  # => 4", "4", "3")])


def test_every_page_that_the_tutorial_links_to_exists() -> None:
    links = re.findall(r"\]\(([\w.-]+\.md)\)", TUTORIAL.read_text(encoding="utf-8"))
    assert len(links) > 4
    assert [link for link in links if not (TUTORIAL.parent / link).is_file()] == []

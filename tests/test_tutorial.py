"""The tutorial, which is a page and a notebook, runs from top to bottom in one session, and gives what it says."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
TUTORIAL = Path(__file__).resolve().parents[1] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
SAID = re.compile(r"  # => (.+)$")
Mismatch = tuple[str, str, str]


def cells(notebook: str) -> list[str]:
    """The code of a notebook, cell by cell."""
    held = json.loads(notebook)
    return ["".join(cell["source"]) + "\n" for cell in held["cells"] if cell["cell_type"] == "code"]


def run(blocks: list[str]) -> tuple[int, list[Mismatch]]:
    """How many expected results a page states, and those that came out otherwise: (line, said, got)."""
    names: dict[str, object] = {"__name__": "tutorial"}
    checked, wrong = 0, []
    for block in blocks:
        lines = block.splitlines()
        for statement in ast.parse(block).body:
            last = lines[(statement.end_lineno or 0) - 1]
            said = SAID.search(last)
            if said is None:
                exec(compile(ast.Module([statement], []), "tutorial", "exec"), names)
                continue
            checked += 1
            assert isinstance(statement, ast.Expr)
            got = repr(eval(compile(ast.Expression(statement.value), "tutorial", "eval"), names))
            if got != said.group(1):
                wrong.append((last, said.group(1), got))
    return checked, wrong


def test_the_tutorial_gives_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr")
    from matplotlib import pyplot

    from tests.flower.fakes import run_in_process

    pyplot.switch_backend("svg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("flwr.simulation.run_simulation", run_in_process)
    checked, wrong = run(cells(TUTORIAL.with_suffix(".ipynb").read_text(encoding="utf-8")))
    assert wrong == []
    assert checked > 10
    assert pyplot.get_backend() == "svg"  # a run draws its own pictures and leaves the session's backend alone
    pyplot.close("all")


def test_the_notebook_is_that_of_the_page() -> None:
    """`python tools/make_notebook.py` writes it anew."""
    page, notebook = (TUTORIAL.with_suffix(kind).read_text(encoding="utf-8") for kind in (".md", ".ipynb"))
    assert cells(notebook) == BLOCK.findall(page)
    words = ["".join(cell["source"]) for cell in json.loads(notebook)["cells"] if cell["cell_type"] == "markdown"]
    assert words == [piece.strip("\n") for piece in BLOCK.split(page)[::2] if piece.strip("\n")]


def test_the_notebook_has_its_outputs() -> None:
    """Every code cell was run, in order and without an error, and the plots are stored."""
    held = json.loads(TUTORIAL.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in held if cell["cell_type"] == "code"]
    outputs = [each for cell in code for each in cell["outputs"]]
    plots = sum("pyplot.show()" in "".join(cell["source"]) for cell in code)
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert not [each for each in outputs if each["output_type"] == "error"]
    assert sum("image/png" in each.get("data", {}) for each in outputs) == plots > 0


def test_control_a_page_that_says_otherwise_is_noticed() -> None:
    page = "```python\nx = 1 + 1\nx  # => 2\nx + 1  # => 4\n```\n\n```python\nx * 2  # => 4\n```\n"
    assert run(BLOCK.findall(page)) == (3, [("x + 1  # => 4", "4", "3")])


def test_every_page_that_the_tutorial_links_to_exists() -> None:
    links = re.findall(r"\]\(([\w.-]+\.md)\)", TUTORIAL.read_text(encoding="utf-8"))
    assert len(links) > 4
    assert [link for link in links if not (TUTORIAL.parent / link).is_file()] == []

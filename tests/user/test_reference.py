"""Every public name in the reference stands in an example, and the examples run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.user.test_site import DOCS, ROOT, public_names

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
NEEDS: dict[str, tuple[str, ...]] = {
    "cepam": (), "torch": ("torch",), "privacy": ("matplotlib", "dp_accounting"), "fl": ("torch", "matplotlib"),
    "verify": (), "flower": ("flwr",), "flare": ("nvflare",), "policy": (), "secure_aggregation": (),
}  # fmt: skip


def example_of(page: str) -> Path:
    """The program that uses every name of a page."""
    return ROOT / "examples" / "reference" / f"uses_{page}.py"


def text_of(page: str) -> str:
    return (DOCS / "reference" / f"{page}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", NEEDS)
def test_every_name_has_an_example(page: str) -> None:
    code = "\n".join(example_of(page).read_text(encoding="utf-8").splitlines()[1:])  # less the docstring
    assert public_names("cepam" if page == "cepam" else f"cepam.{page}") - set(re.findall(r"\w+", code)) == set()
    assert f"`{example_of(page).relative_to(ROOT)}`" in text_of(page)


@pytest.mark.parametrize("page", NEEDS)
def test_the_examples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in NEEDS[page]:
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    program = example_of(page).read_text(encoding="utf-8")
    exec(compile(program, str(example_of(page)), "exec"), {"__name__": page})


@pytest.mark.parametrize("page", NEEDS)
def test_the_examples_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in NEEDS[page]:
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    names: dict[str, object] = {"__name__": page}
    blocks = BLOCK.findall(text_of(page))
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), names)

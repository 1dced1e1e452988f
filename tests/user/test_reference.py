"""Every public name in the reference stands in an example, and the examples run as they stand."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

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


def documented(asked: Callable[..., Any], text: str, described: set[str], made: bool = False) -> set[str]:
    """The sections and the arguments that a docstring lacks; `described` arguments have their text elsewhere."""
    signature = inspect.signature(asked)
    named = {name for name in signature.parameters if name not in ("self", "cls") and not name.startswith("_")}
    sections = set(re.findall(r"^ *(Args|Returns|Yields):$", text, re.M))
    lacking = {name for name in named - described if not re.search(rf"^ +(?:\w+, )*{name}\b.*:", text, re.M)}
    if named - described and "Args" not in sections:
        lacking.add("Args")
    if not made and signature.return_annotation not in ("None", None, "NoReturn", inspect.Signature.empty):
        lacking |= set() if sections & {"Returns", "Yields"} else {"Returns"}
    return lacking


def callables(offered: object) -> Iterator[tuple[str, set[str]]]:
    """Each function, constructor and method of a public name, with what its docstring lacks."""
    if not inspect.isclass(offered):
        if inspect.isfunction(unwrapped := inspect.unwrap(offered)):
            yield offered.__name__, documented(unwrapped, inspect.getdoc(offered) or "", set())
        return
    ours = [base for base in offered.__mro__ if base.__module__.startswith("cepam")]
    stored = fields(offered) if is_dataclass(offered) else ()
    constructor = vars(offered).get("__init__")
    if getattr(constructor, "__module__", "").startswith("cepam") and not issubclass(offered, BaseException):
        helped = {each.name for each in stored if "help" in each.metadata}
        text = "\n".join(inspect.cleandoc(base.__doc__ or "") for base in ours)
        yield offered.__name__, documented(offered.__init__, text, helped, made=True)
    methods = {name for base in ours for name in vars(base) if not name.startswith("_")}
    for name in methods - {each.name for each in stored}:
        method = inspect.getattr_static(offered, name)
        method = getattr(method, "__func__", method)
        if inspect.isfunction(method):
            text = inspect.getdoc(getattr(offered, name)) or ""
            yield f"{offered.__name__}.{name}", documented(method, text, set())


@pytest.mark.parametrize("page", NEEDS)
def test_every_public_name_has_its_sections(page: str) -> None:
    """`Args:` names each argument, and `Returns:` is there where something comes back."""
    for package in NEEDS[page]:
        pytest.importorskip(package)
    module = importlib.import_module("cepam" if page == "cepam" else f"cepam.{page}")
    found = [each for name in public_names(module.__name__) for each in callables(getattr(module, name))]
    assert found
    assert {name: lacking for name, lacking in found if lacking} == {}


def test_a_missing_section_is_seen() -> None:
    def half(first: int, second: int) -> int:
        """Add.

        Args:
            first: A number.
        """
        return first + second

    assert documented(half, inspect.getdoc(half) or "", set()) == {"second", "Returns"}
    assert documented(half, inspect.getdoc(half) or "", {"second"}, made=True) == set()


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

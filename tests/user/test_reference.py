"""Every public name in the reference stands in an example, and the examples run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.user.test_site import DOCS, public_names

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
NEEDS: dict[str, tuple[str, ...]] = {
    "cepam": (), "torch": ("torch",), "privacy": ("matplotlib", "dp_accounting"), "fl": ("torch", "matplotlib"),
    "verify": (), "flower": ("flwr",), "flare": ("nvflare",), "policy": (), "secure_aggregation": (),
}  # fmt: skip


def blocks_of(page: str) -> list[str]:
    return BLOCK.findall((DOCS / "reference" / f"{page}.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", NEEDS)
def test_every_name_has_an_example(page: str) -> None:
    used = set(re.findall(r"\w+", "\n".join(blocks_of(page))))
    assert public_names("cepam" if page == "cepam" else f"cepam.{page}") - used == set()


@pytest.mark.parametrize("page", NEEDS)
def test_the_examples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in NEEDS[page]:
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    names: dict[str, object] = {"__name__": page}
    for block in blocks_of(page):
        exec(compile(block, page, "exec"), names)

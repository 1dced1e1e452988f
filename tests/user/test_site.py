"""Where people look: every public name stands in the reference, every page in the site's contents."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from contextlib import suppress
from importlib import metadata
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
GENERATED = {"reference/cli.md", "reference/settings.md"}  # pages that the site writes from source
PACKAGES = ["", ".torch", ".privacy", ".fl", ".flower", ".flare", ".policy", ".secure_aggregation", ".verify"]


def public_names(module: str) -> set[str]:
    """What a module offers: its `__all__`, or its functions and classes without an underscore."""
    path = ROOT / "src" / module.replace(".", "/")
    body = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text("utf-8")).body
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
            return set(ast.literal_eval(node.value))
    made = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return {name for name in made if not name.startswith("_")}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_in_the_reference(package: str) -> None:
    page = (DOCS / "reference" / f"{package.removeprefix('.') or 'cepam'}.md").read_text(encoding="utf-8")
    shown = set(re.findall(rf"^::: cepam{re.escape(package)}\.(\w+)$", page, re.M))
    assert shown == public_names(f"cepam{package}")


def test_every_page_is_in_the_contents() -> None:
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M))
    assert listed == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} | GENERATED


def test_the_site_writes_settings_and_commands_from_source(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="settings name models, commands train")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from cepam.cli import COMMANDS
    from cepam.fl.config.settings import types
    from site_hooks import generated

    pages = generated()
    assert set(pages) == GENERATED
    assert all(f"## cepam {each.name}\n" in pages["reference/cli.md"] for each in COMMANDS)
    assert all(f"| `{name}` |" in pages["reference/settings.md"] for name in types() if not name.startswith("clients"))


def test_the_benchmark_pages_are_current(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every figure comes from the stored results: another result is another page."""
    pytest.importorskip("torch", reason="the study of sums trains")
    pytest.importorskip("cepam_peers")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import make_benchmarks

    pages = make_benchmarks.pages()
    shown = {page.name: page.read_text(encoding="utf-8") for page in make_benchmarks.PAGES.glob("*.md")}
    assert shown == pages, "run python tools/make_benchmarks.py"
    for kept in make_benchmarks.RESULTS.glob("*.json"):
        (tmp_path / kept.name).write_text(kept.read_text(encoding="utf-8"), encoding="utf-8")
    speed = json.loads((tmp_path / "speed.json").read_text(encoding="utf-8"))
    speed["speed"][0]["nanoseconds"] *= 2.0
    (tmp_path / "speed.json").write_text(json.dumps(speed), encoding="utf-8")
    monkeypatch.setattr(make_benchmarks, "RESULTS", tmp_path)
    changed = make_benchmarks.pages()
    assert [name for name in pages if changed[name] != pages[name]] == ["speed.md"]


def test_workflows_call_targets_that_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    for place in [*(ROOT / ".github" / "workflows").glob("*.yml"), ROOT / ".ci" / "run"]:
        called = set(re.findall(r"\bmake ([\w-]+)$", place.read_text(encoding="utf-8"), re.M))
        assert called
        assert called <= targets


def test_every_wish_has_a_test_that_is_there() -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", (ROOT / "tests" / "user" / "README.md").read_text(encoding="utf-8"))
    assert named
    for file, test in named:
        place = ROOT / (file if "/" in file else f"tests/user/{file}")
        assert f"\ndef {test}(" in place.read_text(encoding="utf-8"), (file, test)


def test_the_lock_names_all_that_is_installed() -> None:
    """Every package that cepam and its extras bring, and what those bring, at one version: that of constraints.txt."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    locked = {canonicalize_name(line.partition("==")[0]) for line in lines if "==" in line}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    texts = [*project["dependencies"], *(text for each in project["optional-dependencies"].values() for text in each)]
    left, seen = [(Requirement(text), "") for text in texts], set[tuple[str, frozenset[str]]]()
    while left:
        need, extra = left.pop()
        name, key = canonicalize_name(need.name), (canonicalize_name(need.name), frozenset(need.extras))
        if key in seen or name == "cepam" or (need.marker and not need.marker.evaluate({"extra": extra})):
            continue
        seen.add(key)
        with suppress(PackageNotFoundError):
            brought = [Requirement(text) for text in metadata.requires(name) or ()]
            left += [(each, wanted) for each in brought for wanted in ("", *need.extras)]
    assert {name for name, _ in seen if _installed(name)} - locked == set()


def _installed(name: str) -> bool:
    with suppress(PackageNotFoundError):
        return bool(metadata.version(name))
    return False


YAML = ["CITATION.cff", "docker/compose.yaml", *(str(each.relative_to(ROOT)) for each in ROOT.glob(".github/*/*.yml"))]


@pytest.mark.parametrize("name", YAML)
def test_yaml_files_parse(name: str) -> None:
    assert pytest.importorskip("yaml").safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_the_citation_names_the_version() -> None:
    made = pytest.importorskip("yaml").safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert made["version"] == project["version"]


def test_formulas_are_set_without_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from site_hooks import on_page_markdown

    page = (DOCS / "paper" / "reproduction.md").read_text(encoding="utf-8")
    made = on_page_markdown(page)
    assert "$" in page
    assert "$" not in made
    assert [line.count("|") for line in made.splitlines()] == [line.count("|") for line in page.splitlines()]
    assert on_page_markdown("`$HOME$` and\n```\n$a$ $b$\n```\n") == "`$HOME$` and\n```\n$a$ $b$\n```\n"


def test_the_readme_has_the_figures_of_the_tasks_and_of_the_search_coder() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    tasks = (DOCS / "tasks.md").read_text(encoding="utf-8").partition("## Results")[2]
    shown = re.findall(r"^\| `([\w-]+)`, (?:AUC|%) \| (.*) \|$", readme, re.M)
    assert len(shown) == 3
    for task, cells in shown:
        row = re.search(rf"^\| `{task}` \(\w+\) \|[^|]*\| (.*) \|$", tasks, re.M)
        assert row is not None
        *scores, sizes, plain, _ = (cell.split(" /")[0] for cell in row[1].split(" | "))
        assert cells.split(" | ") == [score.split()[0] for score in scores] + [sizes, plain]
    (said,) = re.findall(r"sends ([\d,]+) weights in about (\d+) bytes at (-\d+) dB", readme)
    timed = json.loads((ROOT / "bench" / "results" / "search.json").read_text(encoding="utf-8"))["time"]
    (held,) = [row for row in timed if (f"{row['size']:,.0f}", f"{row['snr_db']:.0f}") == (said[0], said[2])]
    assert round(held["bytes"], -1) == int(said[1])

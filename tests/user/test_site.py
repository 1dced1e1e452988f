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
BENCHMARKS = {"training", "tasks", "peers", "rate", "speed", "accounting", "secure-aggregation", "downlink", "scale"}
GENERATED = {
    "reference/cli.md", "reference/settings.md", "notebook.md", "contributing.md", "changelog.md",
    *(f"benchmarks/{name}.md" for name in BENCHMARKS),
}  # fmt: skip
"""Pages that the site writes from source."""
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


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts of tools/ as modules, where all that their pages read is installed."""
    pytest.importorskip("torch", reason="settings name models, commands train, the study of sums trains")
    pytest.importorskip("cepam_peers")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))


@pytest.mark.usefixtures("tools")
def test_the_site_writes_pages_from_source() -> None:
    from cepam.cli import COMMANDS
    from cepam.fl.config.settings import types
    from site_hooks import generated

    pages = generated()
    assert set(pages) == GENERATED
    assert all(f"## cepam {each.name}\n" in pages["reference/cli.md"] for each in COMMANDS)
    assert all(f"| `{name}` |" in pages["reference/settings.md"] for name in types() if not name.startswith("clients"))
    held = json.loads((DOCS / "tutorial.ipynb").read_text(encoding="utf-8"))
    plots = [each for cell in held["cells"] for each in cell.get("outputs", []) if "image/png" in each.get("data", {})]
    assert pages["notebook.md"].count("](data:image/png;base64,") == len(plots) > 0


@pytest.mark.usefixtures("tools")
def test_pages_of_the_root_link_only_into_the_site() -> None:
    from site_hooks import generated, root_page

    pages = generated()
    for name in ("contributing.md", "changelog.md"):
        places = re.findall(r"\]\((?!https?:|#)([^)#]+)", re.sub(r"`[^`\n]+`", "", pages[name]))
        assert places
        assert all((DOCS / place).exists() or place in GENERATED for place in places), places
    assert root_page("[a](docs/b.md#c), [d](SECURITY.md), [e](https://f.org), `[g](h)`") == (
        "[a](b.md#c), d, [e](https://f.org), `[g](h)`"
    )


@pytest.mark.usefixtures("tools")
def test_benchmark_pages_follow_the_stored_results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every figure comes from the stored results: another result is another page, and no other page changes."""
    import make_benchmarks

    pages = make_benchmarks.pages()
    assert {name.removesuffix(".md") for name in pages} == BENCHMARKS
    assert all(text.startswith("# ") and "\n| --- |" in text and "`python " in text for text in pages.values())
    for kept in make_benchmarks.RESULTS.glob("*.json"):
        (tmp_path / kept.name).write_text(kept.read_text(encoding="utf-8"), encoding="utf-8")
    speed = json.loads((tmp_path / "speed.json").read_text(encoding="utf-8"))
    speed["speed"][0]["nanoseconds"] *= 2.0
    (tmp_path / "speed.json").write_text(json.dumps(speed), encoding="utf-8")
    tasks = json.loads((tmp_path / "tasks.json").read_text(encoding="utf-8"))
    tasks["cifar10 cepam"]["score"] = 0.5
    (tmp_path / "tasks.json").write_text(json.dumps(tasks), encoding="utf-8")
    before = make_benchmarks.results_table()
    monkeypatch.setattr(make_benchmarks, "RESULTS", tmp_path)
    changed = make_benchmarks.pages()
    assert {name for name in pages if changed[name] != pages[name]} == {"speed.md", "tasks.md"}
    after = make_benchmarks.results_table()
    different = [line for line, new in zip(before.splitlines(), after.splitlines(), strict=True) if line != new]
    assert [line.split("`")[1] for line in different] == ["cifar10"]


@pytest.mark.usefixtures("tools")
def test_stored_tables_are_current() -> None:
    """`python tools/make_benchmarks.py` writes them: README's results, the technical note's, the overview."""
    import make_benchmarks

    readme = make_benchmarks.README.read_text(encoding="utf-8")
    assert readme == make_benchmarks.with_results(readme)
    note = make_benchmarks.NOTE.read_text(encoding="utf-8")
    assert note == make_benchmarks.with_results(note, make_benchmarks.search_figures)
    shown = (make_benchmarks.PAGES / "index.md").read_text(encoding="utf-8")
    assert shown == make_benchmarks.tidy(make_benchmarks.overview())
    with pytest.raises(ValueError, match="must have the lines"):
        make_benchmarks.with_results("no marks")


@pytest.mark.usefixtures("tools")
def test_words_of_stored_pages_are_counted(tmp_path: Path) -> None:
    from site_words import words

    (tmp_path / "paper").mkdir()
    for name, text in {"a.md": "one two  = | 3 three\n", "paper/reproduction.md": "many", "b.txt": "no"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert words(tmp_path) == {"a.md": 6}


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


@pytest.mark.usefixtures("tools")
def test_pages_say_what_was_measured() -> None:
    """Figures that a user page repeats stand on the benchmark page that it links."""
    import make_benchmarks

    said = (DOCS / "tasks.md").read_text(encoding="utf-8").partition("## Results")[2]
    figures = set(re.findall(r"\d+\.\d(?:\d\d)?(?: ± \d+\.\d)?", said)) - {"69.3"}  # that of Tramèr and Boneh
    shown = make_benchmarks.pages()["tasks.md"]
    assert len(figures) > 5
    assert [each for each in figures if each not in shown] == []
    ours, plain = make_benchmarks.runs_of(make_benchmarks.PRIVATE), make_benchmarks.float_runs()
    total = [sum(make_benchmarks.average(runs, way) for way in ("bytes_up", "bytes_down")) for runs in (plain, ours)]
    assert f"{total[0] / total[1]:,.0f} times fewer bytes" in (DOCS / "index.md").read_text(encoding="utf-8")


def test_the_readme_says_of_the_papers_presets_what_their_help_says() -> None:
    pytest.importorskip("torch", reason="the command trains")
    from cepam.cli.settings import Preset

    (option,) = Preset.__metadata__  # type: ignore[attr-defined]
    told = option.help.partition("algorithm1:")[2]
    readme = (ROOT / "README.md").read_text(encoding="utf-8").partition("Preset `algorithm1`")[2]
    assert re.findall(r"about (\d+) %", readme) == re.findall(r"about (\d+) %", told) != []


def test_paths_and_names_of_the_architecture_are_there() -> None:
    """Each path is in the package or at the root; a file that follows a name in parentheses has the name."""
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    page = re.sub(r"```.*?```", "", page, flags=re.S)

    def place(path: str) -> Path:
        found = [base / path for base in (ROOT / "src/cepam", ROOT) if (base / path).exists()]
        assert found, path
        return found[0]

    paths = set(re.findall(r"`([\w-]+(?:/[\w.-]+)+)`", page))
    assert len(paths) > 20
    assert all(place(path) for path in paths)
    pairs = re.findall(r"`([\w.]+)`\s+\(`([\w-]+(?:/[\w-]+)*\.py)`\)", page)
    assert len(pairs) > 10
    for name, path in pairs:
        text = place(path).read_text(encoding="utf-8")
        assert all(re.search(rf"\b{part}\b", text) for part in name.removeprefix("cepam.").split(".")), (name, path)

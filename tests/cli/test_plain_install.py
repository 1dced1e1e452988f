"""What a plain install needs of the command line and of `pyproject.toml`; `make test-install` tries the installs."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.testing import CliRunner

import cepam
from cepam.cli import COMMANDS, app

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIREMENTS = [
    Requirement(text)
    for texts in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    for text in texts
    if not text.startswith("cepam[")
]


def _paths() -> list[str]:
    """Every command as it is called, groups' commands included."""
    found = []
    for command in COMMANDS:
        own = typer.main.get_command(command.load()).commands[command.name]  # type: ignore[attr-defined]
        found += [f"{command.name} {name}" for name in own.commands] if hasattr(own, "commands") else [command.name]
    return found


def test_every_command_is_tried_by_make_test_install() -> None:
    spec = importlib.util.spec_from_file_location("install_trial", ROOT / "tools" / "test_install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    tried = [command.words for command in module.COMMANDS]
    assert [path for path in _paths() if not any(f"{words} ".startswith(f"{path} ") for words in tried)] == []
    lowest = next(each for each in module.ENVIRONMENTS if each.lowest is True)
    extras = [text for extra in lowest.extras for text in PROJECT["optional-dependencies"][extra]]
    named = {Requirement(text).name for text in [*PROJECT["dependencies"], *extras]}
    assert {Requirement(text).name for text in lowest.constraints()} == named


def test_nothing_imports_click() -> None:
    """Typer brings it only up to 0.25."""
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] == "click"], path


@pytest.mark.parametrize("path", ["", *_paths()])
def test_a_wrong_option_is_one_line_and_exit_code_2(path: str) -> None:
    result = CliRunner().invoke(app, [*path.split(), "--no-such-option"])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith(f"cepam {path}".rstrip() + ": No such option")


def test_errors_all_begin_with_the_command(tmp_path: Path) -> None:
    for words in (
        ["frob"],
        ["encode", "none.npy"],
        ["encode", "none.npy", "m", "--key", "none.key", "--round", "1", "--noise-scale", "1"],
        ["privacy", "epsilon"],
        ["privacy", "frob"],
        ["train", "--clients", "0"],
        ["compare", "--clients", "few"],
        ["data", "fetch", "cifar"],
        ["reproduce", "everything", "--out", str(tmp_path)],
    ):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 2
        assert re.fullmatch(r"cepam( [a-z]+){0,2}: .+\n", result.stderr), result.stderr


@pytest.mark.parametrize(("module", "extra"), [("torch", "torch"), ("matplotlib", "plots")])
def test_a_missing_extra_is_one_line_that_names_it(module: str, extra: str, tmp_path: Path) -> None:
    words = {
        "torch": ["train", "--data", "synthetic"],
        "matplotlib": ["verify", "--noise-scale", "1", "--plot", str(tmp_path / "a.png")],
    }[module]
    script = f"import sys\nsys.modules[{module!r}] = None\nfrom cepam.cli import app\napp({words!r})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert f"pip install 'cepam[{extra}]'" in done.stderr


def test_python_m_cepam() -> None:
    done = subprocess.run([sys.executable, "-m", "cepam", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"cepam {cepam.__version__}\n"
    done = subprocess.run([sys.executable, "-m", "cepam", "frob"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr[:22]) == (2, "cepam: No such command")


@pytest.mark.parametrize("words", [[], ["privacy"], ["data"]])
def test_a_group_alone_shows_its_help_and_no_completion(words: list[str]) -> None:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0
    assert "Usage" in result.stdout
    assert "completion" not in result.stdout
    refused = CliRunner().invoke(app, [*words, "--install-completion"])
    assert (refused.exit_code, len(refused.stderr.splitlines())) == (2, 1)


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=str)
def test_every_dependency_has_a_lower_and_an_upper_bound(requirement: Requirement) -> None:
    assert sorted(each.operator for each in requirement.specifier) == ["<", ">="]


def test_the_pinned_versions_lie_within_the_bounds() -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    pins = {canonicalize_name(name): version for name, version in pins.items()}
    for requirement in REQUIREMENTS:
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement


@pytest.mark.parametrize(
    "words",
    [
        "plan --clients 3 --records 500,4000,900 --rounds 20 --coordinates 1000 --epsilon 2",
        "privacy epsilon --clients 3 --local-steps 5 --records 500 --rounds 2 --noise-scale 0.5",
    ],
)
def test_what_a_plain_install_offers_needs_no_pytorch(words: str) -> None:
    """As in an environment without extras: an import of PyTorch fails."""
    code = "import sys; sys.modules['torch'] = None; from cepam.cli import app; app(sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", code, *words.split()], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

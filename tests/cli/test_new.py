"""`cepam new flower-app`: the files are whole, parse, and name commands and settings that exist."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cepam.cli import app
from cepam.fl.data.catalog import NAMES


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["new", "flower-app", "heart-study"])
    assert result.exit_code == 0, result.output
    assert 'flwr run . local --stream --federation-config "num-supernodes=4"' in result.output
    return tmp_path / "heart-study"


def config_of(made: Path) -> dict:
    return tomllib.loads((made / "pyproject.toml").read_text())["tool"]["flwr"]["app"]


def test_the_files_parse_and_carry_the_name(made: Path) -> None:
    files = {str(path.relative_to(made)): path.read_text() for path in made.rglob("*") if path.is_file()}
    package = {f"heart_study/{name}.py" for name in ("__init__", "task", "client_app", "server_app")}
    assert set(files) == {"pyproject.toml", "README.md", *package}
    for name, text in files.items():
        assert not re.search("flower[_-]app", text), name
        if name.endswith(".py"):
            compile(text, name, "exec")
    components = config_of(made)["components"]
    for kind, place in components.items():
        module, _, attribute = place.partition(":")
        source = ast.parse(files[f"{module.replace('.', '/')}.py"])
        names = {target.id for each in source.body if isinstance(each, ast.Assign) for target in each.targets}
        assert attribute in names, kind


def test_every_setting_is_read_and_every_setting_read_is_there(made: Path) -> None:
    settings = set(config_of(made)["config"])
    sources = "".join(path.read_text() for path in (made / "heart_study").glob("*.py"))
    assert set(re.findall(r'config\["([\w-]+)"\]', sources)) == settings
    readme = (made / "README.md").read_text()
    for overrides in re.findall(r'-c "([^"]+)"', readme):
        assert set(re.findall(r"([\w-]+)=", overrides)) <= settings
    assert {config_of(made)["config"]["dataset"], "synthetic"} <= set(NAMES)


def test_privacy_is_at_most_ten_statements(made: Path) -> None:
    """What the app has beside an ordinary Flower app: the statements that name cepam, and the two that use them."""
    added = []
    for name in ("client_app", "server_app"):
        for node in ast.walk(ast.parse((made / "heart_study" / f"{name}.py").read_text())):
            simple = isinstance(node, ast.Import | ast.ImportFrom | ast.Assign)
            if simple and re.search(r"\bcepam\b|private\.", ast.unparse(node)):
                added.append(ast.unparse(node))
    assert 5 < len(added) <= 10


def test_the_commands_of_the_readme_exist(made: Path) -> None:
    typer = pytest.importorskip("typer")
    flwr = pytest.importorskip("flwr.cli.app")
    readme = (made / "README.md").read_text()
    lines = [line.strip() for line in readme.splitlines() if line.startswith("    ")]
    runs = [line for line in lines if line.startswith("flwr run")]
    assert len(runs) == 3
    known = {
        option for param in typer.main.get_command(flwr.app).commands["run"].params for option in param.opts
    }  # fmt: skip
    for line in runs:
        assert set(re.findall(r"(?<= )--?[a-z][\w-]*", re.sub(r'"[^"]*"', "", line))) <= known


@pytest.mark.parametrize("name", ["1st", "a b", "../up", "", "torch", "json"])
def test_names_that_cannot_be_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["new", "flower-app", name])
    assert result.exit_code == 2
    assert "NAME" in result.output
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_there_is_left_alone(made: Path) -> None:
    (made / "README.md").write_text("mine")
    result = CliRunner().invoke(app, ["new", "flower-app", "heart-study"])
    assert result.exit_code == 2
    assert "is there already" in result.output
    assert (made / "README.md").read_text() == "mine"

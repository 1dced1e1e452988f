"""Commands are imported when they are called; other packages bring theirs; a broken one breaks nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from cepam import cli
from cepam.cli.command import Command, OneLineErrors, brought, mount

HEAVY = ("matplotlib", "torch", "numba", "dp_accounting", "scipy.stats")
PLUG_INS = """
import typer
app = typer.Typer(no_args_is_help=True)
def hello(name: str, loud: bool = False):
    '''Greet.'''
    if name == "nobody":
        raise ValueError("nobody is there")
    print(name.upper() if loud else name)
@app.command()
def one():
    raise typer.Exit(1)
@app.command()
def two():
    print("two")
number = 3
"""
ENTRIES = {
    "hello": "brought_modules:hello",
    "both": "brought_modules:app",
    "number": "brought_modules:number",
    "nothing": "brought_modules:nothing",
    "absent": "a_package_that_does_not_exist:command",
    "keygen": "brought_modules:hello",
}


def test_help_does_not_import_what_it_does_not_need() -> None:
    """The help must come fast: no figures, no torch, no compiler, no accountant."""
    script = (
        "import sys\nfrom typer.testing import CliRunner\nfrom cepam.cli import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_garbage_is_collected_once_the_commands_module_is_there() -> None:
    """`cepam.__main__` puts that off until then; what was imported is not looked at again."""
    script = (
        "import gc, sys\nfrom cepam import __main__\nfrom cepam.cli import command\n"
        "command.Command.run = lambda self, words: print(gc.isenabled(), self.load() is None, gc.isenabled(),"
        " gc.get_freeze_count() > 1000)\n"
        "sys.argv = ['cepam', 'keygen']\n__main__.main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "True", "True"]


@pytest.mark.parametrize("command", cli.COMMANDS, ids=lambda each: each.name)
def test_the_line_of_help_is_the_first_of_the_commands_own(command: Command) -> None:
    """The line stands in the table so that help needs no import; it must not say anything else."""
    group = typer.main.get_command(command.load())
    own: Any = group.commands[command.name]  # type: ignore[attr-defined]
    assert own.help.split("\n\n")[0].replace("\n", " ") == command.about


def test_a_module_of_ours_that_cannot_be_imported_keeps_its_traceback() -> None:
    app = typer.Typer(cls=OneLineErrors)
    mount(app, [Command("one", "a_package_that_does_not_exist:one", ""), Command("two", "json:dumps", "")])
    assert isinstance(CliRunner().invoke(app, ["one"]).exception, ModuleNotFoundError)


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    """The commands where another distribution is installed that brings some, good and broken ones."""
    (tmp_path / "brought_modules.py").write_text(PLUG_INS)
    facts = tmp_path / "cepam_extra-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: cepam-extra\nVersion: 1.0\nSummary: What it brings.\n"
    )
    lines = "\n".join(f"{name} = {value}" for name, value in ENTRIES.items())
    (facts / "entry_points.txt").write_text(f"[cepam.commands]\n{lines}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "brought_modules", raising=False)
    made = typer.Typer(cls=OneLineErrors, add_completion=False)
    mount(made, [*cli.COMMANDS, *brought()])
    return made


def test_commands_of_other_packages_are_found_without_importing_them(app: typer.Typer) -> None:
    assert {point.name for point in entry_points(group="cepam.commands")} >= set(ENTRIES)
    text = CliRunner().invoke(app, ["--help"]).stdout
    assert all(name in text for name in ENTRIES)
    assert "What it brings." in text
    assert "brought_modules" not in sys.modules


def test_commands_of_other_packages_run(app: typer.Typer) -> None:
    run = CliRunner().invoke
    assert run(app, ["hello", "anna", "--loud"]).stdout == "ANNA\n"
    assert run(app, ["both", "two"]).stdout == "two\n"
    assert run(app, ["both", "one"]).exit_code == 1
    assert "Greet." in run(app, ["hello", "--help"]).stdout
    alone = run(app, ["both"])
    assert "two" in alone.stdout + alone.stderr
    assert "Traceback" not in alone.stderr


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["hello", "nobody"], "cepam hello: nobody is there"),
        (["hello", "anna", "--frob"], "cepam hello: No such option"),
        (["both", "frob"], "cepam both: No such command"),
        (["number"], "cepam number: the command of cepam-extra cannot be loaded: TypeError: "),
        (["nothing"], "cepam nothing: the command of cepam-extra cannot be loaded: AttributeError: "),
        (["absent", "--help"], "cepam absent: the command of cepam-extra cannot be loaded: ModuleNotFoundError: "),
    ],
)
def test_a_broken_command_is_one_line(app: typer.Typer, words: list[str], line: str) -> None:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith(line)


def test_a_command_of_ours_is_not_replaced(app: typer.Typer, tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["keygen", str(tmp_path / "a.key")]).exit_code == 0
    assert (tmp_path / "a.key").exists()


def test_every_command_says_its_defaults_in_one_style() -> None:
    """Typer's own style and sentences of ours would be two: every default that is shown is in the help text."""

    def options(command: Any) -> Iterator[Any]:
        for inner in getattr(command, "commands", {}).values():
            yield from options(inner)
        yield from command.params

    seen = [each for command in cli.COMMANDS for each in options(command.built())]
    optional = [each for each in seen if not each.required and getattr(each, "show_default", None)]
    assert {each.name for each in optional if str(each.default) not in ("None", "False", "")} == set()
    assert any("Default: 0." in (each.help or "") for each in seen if each.name == "colluders")
    assert any("Default: remember." in (each.help or "") for each in seen if each.name == "remember")

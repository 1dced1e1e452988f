"""Groups that other modules bring are mounted when they exist, and a broken one is not hidden."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from cepam import cli

HEAVY = ("matplotlib", "torch", "numba", "dp_accounting", "scipy.stats")


def test_help_does_not_import_what_it_does_not_need() -> None:
    """The help must come fast: no figures, no torch, no compiler, no accountant."""
    script = (
        "import sys\nfrom typer.testing import CliRunner\nfrom cepam.cli import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture
def extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose modules look as if they were in cepam.cli, under names that no real module has."""
    monkeypatch.setattr(cli, "__path__", [*cli.__path__, str(tmp_path)])
    monkeypatch.setattr(cli, "_COMMANDS", ("test_only_command",))
    monkeypatch.setattr(cli, "_GROUPS", ("test_only_group",))
    for name in ("test_only_command", "test_only_group"):
        monkeypatch.delitem(sys.modules, f"cepam.cli.{name}", raising=False)
    return tmp_path


def test_modules_that_exist_are_mounted(extra: Path) -> None:
    command = "def hello():\n    print('hello')\ndef register(app):\n    app.command()(hello)\n"
    (extra / "test_only_command.py").write_text(command)
    group = "import typer\napp = typer.Typer()\n@app.command()\ndef a():\n    print('a')\n"
    (extra / "test_only_group.py").write_text(group)
    app = typer.Typer()
    cli.mount(app)
    assert CliRunner().invoke(app, ["hello"]).stdout == "hello\n"
    assert CliRunner().invoke(app, ["test_only_group", "a"]).stdout == "a\n"


def test_a_module_that_cannot_be_imported_raises(extra: Path) -> None:
    (extra / "test_only_command.py").write_text("import a_package_that_does_not_exist\n")
    with pytest.raises(ModuleNotFoundError, match="a_package_that_does_not_exist"):
        cli.mount(typer.Typer())


def test_modules_that_do_not_exist_are_skipped(extra: Path) -> None:
    cli.mount(typer.Typer())

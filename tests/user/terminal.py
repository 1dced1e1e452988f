"""What a user types, answered in this process: a new one takes seconds to import PyTorch.

Processes of their own have `test_shell.py`, `tests/cli/test_plain_install.py` and `make test-install`, every command.
"""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path

from typer.testing import CliRunner, Result

from cepam.cli import app


def answered(*words: str, folder: Path = Path(), columns: int = 80) -> Result:
    """What the command prints, and its exit code, in a terminal of so many columns."""
    with chdir(folder):
        return CliRunner().invoke(app, words, env={"COLUMNS": str(columns)})


def cepam(*words: str, folder: Path = Path(), columns: int = 80) -> str:
    """What a command that succeeds prints."""
    done = answered(*words, folder=folder, columns=columns)
    assert done.exit_code == 0, done.output
    return done.stdout

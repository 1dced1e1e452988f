"""Errors at the command line: one line that begins with the command, and exit code 2; no traceback for bad input."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from cepam.errors import CepamError

# What Typer raises for a wrong command line. It shows the class only as the parent of its BadParameter: click's, which
# came along, up to 0.25; its own from 0.26 on, where click is not there.
_WrongWords: Any = typer.BadParameter.__base__

_EXTRAS = {"torch": "torch", "matplotlib": "plots", "flwr": "flower", "nvflare": "flare", "triton": "gpu"}
_INTERRUPTED = 130
_TWICE = re.compile(r"(Did you mean [^?]*\?) \1")  # Typer's suggestion after click's own


@contextmanager
def one_line(place: str) -> Iterator[None]:
    """Nothing; what the block refuses becomes one line on stderr that begins with `place`, and exit code 2.

    Caught: wrong options, `ValueError` (how this package refuses arguments), its message errors, files that cannot be
    read or written, and optional packages that are not installed. Anything else is a bug and keeps its traceback.
    """
    try:
        yield
    except _WrongWords as wrong:
        _leave_wrong_words(place, wrong)
    except (ValueError, CepamError) as refused:
        leave(place, f"{refused}{_notes(refused)}")
    except BrokenPipeError:  # whoever read the output has seen enough
        raise
    except OSError as failed:
        about = f"{failed.filename}: " if failed.filename else ""
        leave(place, f"{about}{failed.strerror or failed}{_notes(failed)}")
    except ModuleNotFoundError as missing:
        if not is_optional(missing):
            raise
        package = _package(missing)
        leave(place, f"this needs {package}, which is not installed: pip install 'cepam[{_EXTRAS[package]}]'")


def _notes(problem: Exception) -> str:
    """What was noted on the way: whose function it was that raised."""
    return "".join(f" ({note})" for note in getattr(problem, "__notes__", ()))


def is_optional(missing: ModuleNotFoundError) -> bool:
    """Whether what is missing is a package that an extra of this one installs."""
    return _package(missing) in _EXTRAS


def _package(missing: ModuleNotFoundError) -> str:
    return (missing.name or "").partition(".")[0]


def leave(place: str, reason: str) -> NoReturn:
    """Never; the reason goes to stderr as one line, and the command ends with exit code 2."""
    typer.echo(f"{place}: {' '.join(reason.split())}", err=True)
    raise typer.Exit(2)


def _leave_wrong_words(place: str, wrong: Any) -> NoReturn:
    reason = _TWICE.sub(r"\1", wrong.format_message())
    if not reason.strip():  # a group that was called without a command has shown its help
        raise typer.Exit(2)
    place = wrong.ctx.command_path if wrong.ctx is not None else place
    leave(place, f"{reason} (see {place} --help)")


def help_alone(ctx: typer.Context) -> None:  # no docstring: Typer would show it as the group's help
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit


class OneLineErrors(TyperGroup):
    """The group of all commands: however it is called, what it refuses is one line."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """The exit code, with which the process ends unless `standalone_mode` is off."""
        try:
            with one_line("cepam"):
                code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except typer.Exit as left:
            code = left.exit_code
        except typer.Abort:
            code = _INTERRUPTED
        if standalone_mode:
            sys.exit(code)
        return code

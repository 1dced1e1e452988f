"""Errors at the command line: one clear line and exit code 2, never a traceback for bad input."""

from __future__ import annotations

from typing import Any, NoReturn

import click
import typer
from typer.core import TyperGroup

from cepam.errors import CepamError


class OneLineErrors(TyperGroup):
    """A command group that turns refused input into one line on stderr.

    Caught: wrong options, `ValueError` (how this package refuses arguments), its message errors, and files
    that cannot be read or written. Anything else is a bug and keeps its traceback.
    """

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as wrong:
            place = wrong.ctx.command_path if wrong.ctx is not None else ctx.command_path
            _leave(place, f"{wrong.format_message()} (see {place} --help)")
        except (ValueError, CepamError) as refused:
            _leave(_place(ctx), str(refused))
        except OSError as failed:
            about = f"{failed.filename}: " if failed.filename else ""
            _leave(_place(ctx), f"{about}{failed.strerror or failed}")


def _place(ctx: click.Context) -> str:
    return f"{ctx.command_path} {ctx.invoked_subcommand}" if ctx.invoked_subcommand else ctx.command_path


def _leave(place: str, reason: str) -> NoReturn:
    typer.echo(f"{place}: {' '.join(reason.split())}", err=True)
    raise typer.Exit(2)

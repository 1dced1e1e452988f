"""Errors at the command line: one clear line and exit code 2, never a traceback for bad input."""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar, NoReturn

import click
import typer
from typer.core import TyperCommand, TyperGroup

from cepam.errors import CepamError


class OneLineErrors(TyperGroup):
    """A command group that turns refused input into one line on stderr.

    Caught: wrong options, `ValueError` (how this package refuses arguments), its message errors, and files
    that cannot be read or written. Anything else is a bug and keeps its traceback.
    """

    later: ClassVar[dict[str, tuple[str, str]]] = {}
    """Commands whose module is imported only when they are called: their name, module and one line of help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *(self.later if ctx.parent is None else ())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if ctx.parent is None and cmd_name in self.later:
            return TyperCommand(cmd_name, help=self.later[cmd_name][1])
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if ctx.parent is None and args and args[0] in self.later:
            return args[0], _load(args[0], self.later[args[0]][0]), args[1:]
        return super().resolve_command(ctx, args)

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


def _load(name: str, module: str) -> click.Command:
    """The command that a module registers, or one line on what to install."""
    try:
        register = import_module(module).register
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        _leave(f"cepam {name}", "this needs PyTorch: pip install 'cepam[torch,plots]'")
    holder = typer.Typer(
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    holder.callback()(lambda: None)
    register(holder)
    group = typer.main.get_command(holder)
    assert isinstance(group, click.Group)
    return group.commands[name]


def _place(ctx: click.Context) -> str:
    return f"{ctx.command_path} {ctx.invoked_subcommand}" if ctx.invoked_subcommand else ctx.command_path


def _leave(place: str, reason: str) -> NoReturn:
    typer.echo(f"{place}: {' '.join(reason.split())}", err=True)
    raise typer.Exit(2)

"""Commands that are imported only when they are called: this package's own, and those that other packages bring.

Another package brings a command with an entry point, whose value is a function or a `typer.Typer`:

    [project.entry-points."cepam.commands"]
    reproduce = "cepam_paper.command:reproduce"
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer

from cepam.cli.guard import is_optional, leave, one_line

GROUP = "cepam.commands"
_HELP = {"help_option_names": ["-h", "--help"]}


@dataclass(frozen=True)
class Command:
    """The name of a command, where it is (`module:attribute`), its line of help, and the package that brings it."""

    name: str
    target: str
    about: str
    package: str = ""

    def load(self) -> typer.Typer:
        """An application that has this command alone; now its module is imported."""
        found = EntryPoint(self.name, self.target, GROUP).load()
        if not gc.isenabled():  # as `cepam.__main__` leaves it
            gc.freeze()
            gc.enable()
        holder = typer.Typer(
            add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown", context_settings=_HELP
        )
        holder.callback()(lambda: None)  # keeps the command's name in its usage
        if isinstance(found, typer.Typer):
            holder.add_typer(found, name=self.name)
        elif callable(found):
            holder.command(self.name)(found)
        else:
            raise TypeError(f"{self.target} is neither a function nor a typer.Typer")
        return holder

    def run(self, words: list[str]) -> None:
        """Nothing; the command has run with these words, or has said in one line why not."""
        place = f"cepam {self.name}"
        with one_line(place):
            try:
                holder = self.load()
                group = _told(typer.main.get_command(holder))
            except Exception as broken:
                if not self.package or (isinstance(broken, ModuleNotFoundError) and is_optional(broken)):
                    raise
                leave(place, f"the command of {self.package} cannot be loaded: {type(broken).__name__}: {broken}")
        if holder.registered_groups and words and not words[0].startswith("-"):
            place += f" {words[0]}"
        with one_line(place):
            code = group.main([self.name, *words], prog_name="cepam", standalone_mode=False)
        if code:
            raise typer.Exit(code)


def _told(command: Any) -> Any:
    """The command, whose arguments say what they are: click from 8.5 on drops that where Typer is older than 0.26."""
    for inner in getattr(command, "commands", {}).values():
        _told(inner)
    silent = [each for each in command.params if each.param_type_name == "argument" and not getattr(each, "help", None)]
    if silent and command.callback is not None:
        with suppress(ImportError):
            from typer.utils import get_params_from_function

            given = get_params_from_function(command.callback)
            for each in silent:
                each.help = getattr(given[each.name].default, "help", None)
    return command


def brought() -> list[Command]:
    """The commands that other installed packages bring, by name; nothing of theirs is imported."""
    found = []
    for point in entry_points(group=GROUP):
        facts = {} if point.dist is None else point.dist.metadata.json
        package = str(facts.get("name", "another package"))
        found.append(Command(point.name, point.value, str(facts.get("summary", f"From {package}.")), package))
    return sorted(found, key=lambda each: (each.name, each.package))


def mount(app: typer.Typer, commands: Iterable[Command]) -> None:
    """Nothing; the commands are added. Of several with one name the first counts: our own are not replaced."""
    taken: set[str] = set()
    for each in commands:
        if each.name not in taken:
            taken.add(each.name)
            app.command(
                each.name,
                help=each.about,
                add_help_option=False,
                context_settings={
                    "allow_extra_args": True,
                    "ignore_unknown_options": True,
                    "allow_interspersed_args": False,
                    "help_option_names": [],
                },
            )(_handing_on(each))


def _handing_on(command: Command) -> Callable[[typer.Context], None]:
    """A command without options of its own that hands its words on."""

    def call(ctx: typer.Context) -> Any:
        command.run(list(ctx.args))

    return call

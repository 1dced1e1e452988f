"""How commands are registered and imported on demand, and how errors become one line and exit code 2."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from cepam.errors import CepamError

# What Typer raises for a wrong command line. It shows the class only as the parent of its BadParameter: click's, which
# came along, up to 0.25; its own from 0.26 on, where click is not there.
_WrongWords: Any = typer.BadParameter.__base__

_EXTRAS = {
    "torch": "torch", "matplotlib": "plots", "flwr": "flower", "nvflare": "flare", "triton": "gpu",
    "dp_accounting": "dp-accounting",
}  # fmt: skip
_INTERRUPTED = 130
_TWICE = re.compile(r"(Did you mean [^?]*\?) \1")  # Typer's suggestion after click's own


@contextmanager
def one_line(place: str) -> Iterator[None]:
    """Turn what the block refuses into one line on stderr that begins with `place`, and exit code 2.

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

    def built(self) -> Any:
        """The group that Typer builds for this command alone, with its help in one style."""
        return _with_help(typer.main.get_command(self.load()))

    def run(self, words: list[str]) -> None:
        """Run the command with these words, or say in one line why not."""
        place = f"cepam {self.name}"
        with one_line(place):
            try:
                holder = self.load()
                group = _with_help(typer.main.get_command(holder))
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


def _with_help(command: Any) -> Any:
    """The command, whose options say their defaults in one style, and whose arguments say what they are.

    click from 8.5 on drops the latter where Typer is older than 0.26.
    """
    for inner in getattr(command, "commands", {}).values():
        _with_help(inner)
    silent = [each for each in command.params if each.param_type_name == "argument" and not getattr(each, "help", None)]
    if silent and command.callback is not None:
        with suppress(ImportError):
            from typer.utils import get_params_from_function

            given = get_params_from_function(command.callback)
            for each in silent:
                each.help = getattr(given[each.name].default, "help", None)
    for each in command.params:
        if getattr(each, "show_default", None) and not each.required and (said := _default_of(each)):
            each.help = f"{(getattr(each, 'help', None) or '').rstrip()} Default: {said}.".strip()
            each.show_default = False
    return command


def _default_of(option: Any) -> str:
    """The default of an option in words; empty where nothing is the default."""
    if isinstance(option.show_default, str):
        return option.show_default
    value = option.default
    if value is True:
        return str(option.opts[0].lstrip("-"))
    if value is None or value is False or value == "" or callable(value):
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def brought() -> list[Command]:
    """The commands that other installed packages bring, by name; nothing of theirs is imported."""
    found = []
    for point in entry_points(group=GROUP):
        facts = {} if point.dist is None else point.dist.metadata.json
        package = str(facts.get("name", "another package"))
        found.append(Command(point.name, point.value, str(facts.get("summary", f"From {package}.")), package))
    return sorted(found, key=lambda each: (each.name, each.package))


def mount(app: typer.Typer, commands: Iterable[Command]) -> None:
    """Add the commands. Of several with one name the first counts: our own are not replaced."""
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

"""The command line as a page of the site, from the commands themselves; `python tools/make_cli.py` prints it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

from cepam.cli import COMMANDS

HEAD = """# Command line

Every command with its arguments and options. An option without a default is unset unless you give it. A command with
`--help` prints the same text. `cepam train` and `cepam compare` also take every [setting](settings.md) as `--set
table.name=value`. Errors are one line on the standard error output, with exit code 2.
"""


def commands() -> Iterator[tuple[str, Any]]:
    """Every command by its full name; a group comes before its commands."""
    for each in COMMANDS:
        holder = each.built().commands[each.name]
        yield each.name, holder
        for name, inner in getattr(holder, "commands", {}).items():
            yield f"{each.name} {name}", inner


def plain(text: str | None) -> str:
    """Help as one line of Markdown that may stand in a table; options stand in backticks."""
    pieces = " ".join((text or "").split()).replace("|", "\\|").split("`")
    pieces[::2] = [re.sub(r"(?<!\w)(--[a-z][\w-]*)", r"`\1`", piece) for piece in pieces[::2]]
    return "".join(f"`{piece}`" if place % 2 else piece for place, piece in enumerate(pieces))


def wrapped(command: str, width: int = 96) -> list[str]:
    """A command on several lines, broken before options, that a shell reads as one."""
    lines = [""]
    for piece in re.split(r" (?=--)", command):
        if lines[-1] and len(lines[-1]) + len(piece) > width:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {piece}" if lines[-1] else piece
    return lines


def described(help_text: str | None) -> list[str]:
    """The help of a command: its paragraphs; those that begin with `cepam` are commands."""
    lines = []
    for paragraph in inspect.cleandoc(help_text or "").split("\n\n"):
        words = " ".join(paragraph.split())
        if re.fullmatch(r"cepam .*|`cepam [^`]*`", words):
            lines += ["```", *wrapped(words.strip("`")), "```"]
        else:
            lines.append(plain(paragraph))
        lines.append("")
    return lines


def default_of(each: Any) -> str:
    """The default as a user would type it, or nothing."""
    value = each.default() if callable(each.default) else each.default
    if each.required:
        return "required"
    if value is None or value is ... or value == () or value == [] or value == "" or repr(value) == "Sentinel.UNSET":
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def row_of(each: Any) -> str:
    """One argument or option as a row."""
    if each.param_type_name == "argument":
        names = f"`{(each.metavar or each.name).upper()}`"
    else:
        names = ", ".join(f"`{name}`" for name in [*each.opts, *each.secondary_opts])
        if not each.is_flag and not hasattr(each.type, "choices"):
            names += f" {(each.metavar or each.type.name).upper()}"
    told = plain(each.help)
    if choices := getattr(each.type, "choices", ()):
        told += " One of " + ", ".join(f"`{getattr(choice, 'value', choice)}`" for choice in choices) + "."
    return f"| {names} | {default_of(each)} | {told} |"


def section(name: str, command: Any) -> list[str]:
    """A command: its help, then its arguments and options."""
    lines = [f"{'###' if ' ' in name else '##'} cepam {name}", "", *described(command.help)]
    shown = [each for each in command.params if not getattr(each, "hidden", False) and each.name != "help"]
    if shown and not getattr(command, "commands", None):
        lines += ["| argument or option | default | what it does |", "|---|---|---|", *map(row_of, shown), ""]
    return lines


def page() -> str:
    """The page."""
    lines = [HEAD]
    for name, command in commands():
        lines += section(name, command)
    return "\n".join(lines)


if __name__ == "__main__":
    print(page())

"""What an installed cepam offers, as JSON: its commands and its public names, each tried. Runs in the environment.

`python -I tools/installed.py torch,flwr` where torch and flwr are not installed: a command or a name may miss those
packages, and no others.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import typer

from cepam.cli import COMMANDS, app
from cepam.cli.command import brought

ABSENT = set(sys.argv[1].split(",")) if len(sys.argv) > 1 else set()


@contextlib.contextmanager
def absent_packages_may_be_missed() -> Iterator[None]:
    """Forgive an import that fails in the block where it misses a package that is not installed."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in ABSENT:
            raise


def commands() -> dict[str, bool]:
    """Every command as it is called, those of a group each, and whether it loads (a group that does not is itself)."""
    found: dict[str, bool] = {}
    known = {each.name: each for each in [*brought(), *COMMANDS]}
    top: Any = typer.main.get_command(app)
    for name in top.commands:
        found[name] = False
        with absent_packages_may_be_missed():
            holder: Any = typer.main.get_command(known[name].load())
            inside = getattr(holder.commands[name], "commands", {})
            del found[name]
            found |= {f"{name} {each}": True for each in inside} or {name: True}
    return found


def called(*words: str) -> tuple[int, str, str]:
    """The exit code of the command, and what it wrote to the two streams."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = app(list(words), prog_name="cepam", standalone_mode=False)
    return int(code or 0), out.getvalue(), err.getvalue()


def problems(path: str, loads: bool) -> Iterator[str]:
    """What is wrong with the command's help, and with its answer to a wrong option."""
    code, out, err = called(*path.split(), "--help")
    if loads and (code or err or f"cepam {path}" not in out):
        yield f"$ cepam {path} --help\n{out}{err}exit code {code}"
    code, out, err = called(*path.split(), "--no-such-option")
    if code != 2 or out or len(err.splitlines()) != 1 or not err.startswith(f"cepam {path}: "):
        yield f"$ cepam {path} --no-such-option\n{out}{err}exit code {code}; one line and 2 were expected"


def public_names(module: str) -> Iterator[str]:
    """Every public name of a module and of those below it that can be had here."""
    with absent_packages_may_be_missed():
        found = import_module(module)
        for name in getattr(found, "__all__", ()):
            with absent_packages_may_be_missed():
                getattr(found, name)
                yield f"{module}.{name}"
        for below in iter_modules(getattr(found, "__path__", ())):
            if not below.name.startswith("_"):
                yield from public_names(f"{module}.{below.name}")


if __name__ == "__main__":
    offered = commands()
    wrong = [problem for path, loads in offered.items() for problem in problems(path, loads)]
    print(json.dumps({"commands": list(offered), "names": list(public_names("cepam")), "problems": wrong}))

"""Settings as TOML: read a file over a preset, write the full configuration of a run."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from cepam.fl.config.settings import ClientSettings, Settings


def _fit(kind: Any, value: Any, name: str) -> Any:
    """The value as the field wants it: whole numbers pass for floats, lists become tuples."""
    plain = tuple(k for k in get_args(kind) if k is not type(None)) or (kind,)
    if float in plain and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, (list, tuple)):
        return tuple(value)
    wanted = plain[0] if plain[0] in (int, float, str, bool) else None
    if wanted is not None and not isinstance(value, wanted) and not (value is None and kind is not plain[0]):
        raise ValueError(f"{name} must be a {wanted.__name__}, got {value!r}")
    return value


def _fill(kind: type, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    hints = get_type_hints(kind)
    unknown = sorted(set(values) - {each.name for each in fields(kind)})
    if unknown:
        raise ValueError(f"unknown setting{'s' if len(unknown) > 1 else ''} {', '.join(unknown)} in {where}")
    return {name: _fit(hints[name], value, name) for name, value in values.items()}


def _numbers(text: str) -> list[int | str]:
    """The clients of "3", "0-9", "0-4,7", or of names."""
    found: list[int | str] = []
    for piece in text.split(","):
        first, dash, last = piece.strip().partition("-")
        if first.isdigit() and (last.isdigit() or not dash):
            found.extend(range(int(first), int(last if dash else first) + 1))
        elif piece.strip() and not piece.strip()[0].isdigit() and not piece.strip().startswith("-"):
            found.append(piece.strip())
        else:
            raise ValueError(f"clients must be numbers, ranges such as 0-9, or names, got {piece!r}")
    return found


def settings_from(values: Mapping[str, Any], where: str = "the configuration") -> Settings:
    """Settings from plain values; `client` is a list of tables, each with `clients = "0-9"` and what differs."""
    given = dict(values)
    tables = []
    for table in given.pop("client", ()):
        if isinstance(table, ClientSettings):
            tables.append(table)
            continue
        own = dict(table)
        if isinstance(own.get("clients"), (str, int)):
            own["clients"] = _numbers(str(own["clients"]))
        tables.append(ClientSettings(**_fill(ClientSettings, {"clients": [], **own}, f"{where}, [[client]]")))
    return Settings(**_fill(Settings, given, where), client=tuple(tables))


def read(path: Path) -> dict[str, Any]:
    """The plain values of a TOML file; the `[run]` table of a run's own configuration is left out."""
    values = _parsed(path)
    values.pop("run", None)
    return values


def read_run(path: Path) -> dict[str, Any]:
    """What the `[run]` table of a run's configuration holds: nothing in files written by hand."""
    table = _parsed(path).get("run", {})
    return table if isinstance(table, dict) else {}


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"no such configuration file: {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise ValueError(f"{path} is not valid TOML: {problem}") from None


def write(settings: Settings, run: Mapping[str, str] | None = None) -> str:
    """Write the full configuration as TOML, each setting with its line of help.

    Args:
        settings: What to write; a setting that is None is a comment.
        run: What tells this run from others like it, for the table `[run]`.

    Returns:
        The text, in which `read` and `read_run` find the same values.
    """
    import tomli_w

    lines = []
    for each in fields(settings):
        value = getattr(settings, each.name)
        if each.name == "client":
            continue
        text = tomli_w.dumps({each.name: value}).rstrip("\n") if value is not None else f"# {each.name} ="
        lines.append(f"{text}  # {each.metadata['help']}")
    for table in settings.client:
        held = {name: value for name, value in vars(table).items() if value is not None}
        lines += ["", "[[client]]", tomli_w.dumps(held).rstrip("\n")]
    if run is not None:
        lines += ["", "[run]  # what the run was given; resume refuses anything else", tomli_w.dumps(run).rstrip("\n")]
    return "\n".join(lines) + "\n"

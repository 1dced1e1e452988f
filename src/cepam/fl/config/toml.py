"""Settings as TOML: read a file, write the full configuration of a run."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from cepam.fl.config.settings import OVERRIDES, TABLES, Settings

PROVENANCE = "provenance"
"""The table that a run adds to its configuration: what it was given besides the settings."""


def read(path: Path) -> dict[str, Any]:
    """The tables of a TOML file as plain values for `Settings.of`; `[provenance]` of a run's own file is left out."""
    values = _parsed(path)
    values.pop(PROVENANCE, None)
    return values


def read_settings(path: Path) -> Settings:
    """The settings of a run from its `config.toml`.

    Raises:
        ValueError: The file is damaged, or of a run of version 0.1.
    """
    if "nonce" in _parsed(path).get("run", {}):
        raise ValueError(f"{path} is of a run of version 0.1, whose settings had other names: start a new run")
    return Settings.of(read(path), str(path))


def read_provenance(path: Path) -> dict[str, Any]:
    """The table `[provenance]` of a run's configuration; empty in files written by hand."""
    table = _parsed(path).get(PROVENANCE, {})
    return table if isinstance(table, dict) else {}


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"no such configuration file: {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise ValueError(f"{path} is not valid TOML: {problem}") from None


def write(settings: Settings, provenance: Mapping[str, str] | None = None) -> str:
    """Write the full configuration as TOML, each setting with its line of help.

    Args:
        settings: What to write; a setting that is None is a comment.
        provenance: What tells this run from others like it, for the table `[provenance]`.

    Returns:
        The text, in which `read` and `read_provenance` find the same values.
    """
    import tomli_w

    lines: list[str] = []
    for table in TABLES:
        values = getattr(settings, table)
        lines += ["", f"[{table}]"]
        for each in fields(values):
            value = getattr(values, each.name)
            if f"{table}.{each.name}" == OVERRIDES:
                continue
            text = tomli_w.dumps({each.name: value}).rstrip("\n") if value is not None else f"# {each.name} ="
            lines.append(f"{text}  # {each.metadata['help']}")
        if table == "clients":
            for override in settings.clients.overrides:
                held = {name: value for name, value in vars(override).items() if value is not None}
                lines += ["", f"[[{OVERRIDES}]]", tomli_w.dumps(held).rstrip("\n")]
    if provenance is not None:
        note = "what the run was given; resume refuses anything else"
        lines += ["", f"[{PROVENANCE}]  # {note}", tomli_w.dumps(provenance).rstrip("\n")]
    return "\n".join(lines[1:]) + "\n"

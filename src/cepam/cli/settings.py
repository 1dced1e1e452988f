"""Every setting of a run as a flag: the flags, their help and the TOML fields come from one description."""

from __future__ import annotations

import inspect
import itertools
import shlex
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from cepam.fl.config.presets import preset
from cepam.fl.config.settings import Settings
from cepam.fl.config.toml import read, settings_from
from cepam.fl.optim import rate_for_target

Preset = Annotated[
    str | None,
    typer.Option(
        "--preset", "-p", help="algorithm1 (the paper's text), published, private, steady, users, convolutional."
    ),
]
Config = Annotated[Path | None, typer.Option("--config", "-c", help="TOML file over the preset; flags go over both.")]
Name = Annotated[str | None, typer.Option("--name", "-n", help="Folder of the run, under --runs.")]
Runs = Annotated[Path, typer.Option("--runs", help="Where runs are kept.")]


def fresh_folder(runs: Path, name: str, holds: str) -> Path:
    """The first of name, name-2, name-3, … below `runs` that holds no such file."""
    return next(
        folder
        for folder in (runs / (name if n == 1 else f"{name}-{n}") for n in itertools.count(1))
        if not (folder / holds).exists()
    )


def _plain(hint: Any) -> Any:
    inner = [kind for kind in get_args(hint) if kind is not type(None)]
    return inner[0] if inner else hint


def _parameter(each: Any, hint: Any) -> inspect.Parameter:
    choices, flag = each.metadata["choices"], "--" + each.name.replace("_", "-")
    text = each.metadata["help"] + (f" One of: {', '.join(choices)}." if choices else "")
    if each.name in ("byzantine", "client"):
        kind: Any = list[int] | None if each.name == "byzantine" else list[str] | None
        if each.name == "client":
            text = 'What some clients do differently, as "0-9 noise=0.02 lattice=E8"; may be repeated.'
    else:
        kind = _plain(hint) | None
    option = typer.Option(f"{flag}/--no{flag[1:]}" if hint is bool else flag, help=text, rich_help_panel="Settings")
    return inspect.Parameter(
        each.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )


def takes_settings(command: Callable[..., None]) -> Callable[..., None]:
    """The command with one flag for each setting; it gets those given as `**given`."""
    hints = get_type_hints(Settings)
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
    taken = {p.name for p in own}
    added = [_parameter(each, hints[each.name]) for each in fields(Settings) if each.name not in taken]
    keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    command.__signature__ = inspect.Signature([*keyword, *added])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in [*keyword, *added]}
    return command


def _client_table(text: str) -> dict[str, Any]:
    """The table of `0-9 noise=0.02 lattice=E8`."""
    numbers, *pairs = shlex.split(text)
    table: dict[str, Any] = {"clients": numbers}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"--client wants name=value after the client numbers, got {pair!r}")
        table[name] = value if name in ("scheme", "lattice") else _number(name, value)
    return table


def _number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"--client {name} must be a number, got {value!r}") from None


def given_values(name: str | None, config: Path | None, given: dict[str, Any]) -> dict[str, Any]:
    """The values of a preset, overlaid by a file, overlaid by flags; noise and a target epsilon replace each other."""
    flags = {key: value for key, value in given.items() if value is not None and value != []}
    if "client" in flags:
        flags["client"] = [_client_table(text) for text in flags["client"]]
    merged: dict[str, Any] = {}
    for layer in (preset(name) if name else {}, read(config) if config else {}, flags):
        for one, other in (("noise", "epsilon"), ("epsilon", "noise")):
            if one in layer and other not in layer:
                merged.pop(other, None)
        merged.update(layer)
    followed = followed_rate(name, config, given)
    return merged if followed is None else {**merged, "rate": followed}


def followed_rate(name: str | None, config: Path | None, given: dict[str, Any]) -> float | None:
    """The server learning rate that follows a target of the user's own, unless a rate or noise is given too."""
    own = {**(read(config) if config else {}), **{key: value for key, value in given.items() if value is not None}}
    if own.keys() & {"rate", "noise"}:
        return None
    target = own.get("epsilon")
    return rate_for_target(name, target) if isinstance(target, int | float) else None


def chosen_settings(name: str | None, config: Path | None, given: dict[str, Any]) -> Settings:
    """The settings of a command line; a scheme without noise drops the preset's noise, target and grid downlink."""
    merged = given_values(name, config, given)
    scheme = merged.get("scheme", Settings.__dataclass_fields__["scheme"].default)
    if isinstance(scheme, str) and scheme in ("fl", "fl+sdq"):
        for key in ("noise", "epsilon", "downlink"):
            if given.get(key) is None:
                merged.pop(key, None)
    return settings_from(merged)


def differing(stored: Settings, name: str | None, config: Path | None, given: dict[str, Any]) -> list[str]:
    """What a command line says otherwise than the stored settings, in words."""
    wanted = given_values(name, config, given)
    if "client" in wanted:
        wanted["client"] = settings_from({**vars(stored), "client": wanted["client"]}).client
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in wanted.items()}
    held = vars(stored)
    return [
        f"{key} is {held.get(key)!r} there, {value!r} here" for key, value in plain.items() if held.get(key) != value
    ]

"""Settings on the command line: `--set table.name=value`, short flags for the common ones, and `--help-all`."""

from __future__ import annotations

import inspect
import itertools
import shlex
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from cepam.fl.config.presets import preset, preset_values
from cepam.fl.config.settings import (
    OVERRIDES,
    RATE,
    ClientOverride,
    Settings,
    check_names,
    checked,
    described,
    overlaid,
    parsed,
    types,
)
from cepam.fl.config.toml import read
from cepam.privacy.reports.guarantee import FOLLOWED

FLAGS = {
    "data": ("data.name", "Data and model"),
    "model": ("model.name", "Data and model"),
    "clients": ("clients.count", "Data and model"),
    "rounds": ("training.rounds", "Training"),
    "server-learning-rate": ("training.server_learning_rate", "Training"),
    "epsilon": ("privacy.epsilon", "Privacy"),
    "delta": ("privacy.delta", "Privacy"),
    "noise-scale": ("privacy.noise_scale", "Privacy"),
    "clipping-norm": ("privacy.clipping_norm", "Privacy"),
    "scheme": ("compression.scheme", "Compression"),
    "seed": ("run.seed", "Run"),
    "seeds": ("run.seeds", "Run"),
    "simulate": ("run.simulate", "Run"),
    "device": ("run.device", "Run"),
}
"""The settings that have a flag of their own, and the group of `--help` that shows it."""
NOISELESS = ("fl", "fl+sdq")
"""Schemes without noise: a preset's noise, target and quantized downlink are not for them."""


def _help_all(wanted: bool) -> None:
    if wanted:
        typer.echo(all_settings())
        raise typer.Exit


Preset = Annotated[
    str | None,
    typer.Option(
        "--preset", "-p", rich_help_panel="Configuration",
        help="private, dp-ftrl, users, convolutional, hospitals, chitchat-prompts, chitchat-lora, shakespeare, "
        "cifar10, cifar10-users, cifar10-scattering: with a guarantee. algorithm1: the paper's text, about 20 % on "
        "MNIST, no guarantee. published: its program's training, exact quantizer, about 92 %, no guarantee.",
    ),
]  # fmt: skip
Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", rich_help_panel="Configuration", help="TOML file, over the preset."),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="TABLE.NAME=VALUE", rich_help_panel="Configuration",
        help="Any setting by its dotted name, such as privacy.unit=client; may be repeated; goes over preset and file.",
    ),
]  # fmt: skip
HelpAll = Annotated[
    bool,
    typer.Option("--help-all", callback=_help_all, is_eager=True, help="List every setting for --set and TOML."),
]
Name = Annotated[
    str | None, typer.Option("--name", "-n", rich_help_panel="Output", help="Folder of the run, under --runs.")
]
Runs = Annotated[Path, typer.Option("--runs", rich_help_panel="Output", help="Folder that holds the runs.")]


def fresh_folder(runs: Path, name: str, holds: str) -> Path:
    """The first of name, name-2, name-3, … below `runs` that holds no such file."""
    return next(
        folder
        for folder in (runs / (name if n == 1 else f"{name}-{n}") for n in itertools.count(1))
        if not (folder / holds).exists()
    )


def shown(value: Any) -> str:
    """A value as `--set` takes it."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def all_settings() -> str:
    """Every setting with its default, its help and its choices, table by table."""
    lines, last = ["Every setting, with its default, for --set table.name=value and for TOML files."], ""
    for name, table, each in described():
        if table != last:
            lines += ["", f"[{table}]"]
            last = table
        text = each.metadata["help"]
        if each.metadata["choices"]:
            text += f" One of: {', '.join(each.metadata['choices'])}."
        if name == OVERRIDES:
            own = ", ".join(n for n in get_type_hints(ClientOverride) if n != "clients")
            text += f' As --set "{name}=0-9 noise_scale=0.02 lattice=E8", repeatable, with any of {own}.'
        lines.append(f"  {name} = {shown(each.default)}")
        lines += textwrap.wrap(text, 100, initial_indent="      ", subsequent_indent="      ", break_on_hyphens=False)
    return "\n".join(lines)


def _parameters(without: tuple[str, ...], helps: dict[str, str]) -> list[inspect.Parameter]:
    """The short flags, with help, choices and default from the settings."""
    hints, made = types(), []
    about = {name: each for name, _, each in described()}
    for flag, (name, panel) in FLAGS.items():
        if flag in without:
            continue
        each, kind = about[name], hints[name]
        plain = next((k for k in get_args(kind) if k is not type(None)), kind)
        text = helps.get(flag, each.metadata["help"])
        if each.metadata["choices"]:
            text += f" One of: {', '.join(each.metadata['choices'])}."
        text += f" Default: {shown(each.default)}."
        words = f"--{flag}/--no-{flag}" if kind is bool else f"--{flag}"
        option = typer.Option(words, help=text, rich_help_panel=panel, show_default=False)
        kind_of = Annotated[plain | None, option]  # type: ignore[valid-type]
        made.append(
            inspect.Parameter(flag.replace("-", "_"), inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind_of)
        )
    return made


def takes_settings(*without: str, **helps: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the short flags of the settings, but for some; it gets those given as `**flags`.

    Args:
        without: Flags that the command does not have.
        helps: Help texts of flags that mean less or more there.
    """

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
        every = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + _parameters(without, helps)
        command.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in every}
        return command

    return wrap


def _override(text: str) -> dict[str, Any]:
    """The table of `0-9 noise_scale=0.02 lattice=E8`."""
    numbers, *pairs = shlex.split(text) or [""]
    table: dict[str, Any] = {"clients": numbers}
    hints = get_type_hints(ClientOverride)
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"--set {OVERRIDES} wants name=value after the client numbers, got {pair!r}")
        table[name] = parsed(hints[name], value, f"{OVERRIDES}: {name}") if name in hints else value
    return table


def set_values(texts: list[str]) -> dict[str, Any]:
    """The values of `--set`, by dotted name; of a setting that is given twice the last counts, overrides add up."""
    hints = types()
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals:
            raise ValueError(f"--set wants table.name=value, such as privacy.epsilon=2, got {text!r}")
        check_names([name], hints, "--set")
        if name == OVERRIDES:
            found.setdefault(name, []).append(_override(value))
        else:
            found[name] = parsed(hints[name], value.strip(), name)
    return found


def command_values(sets: list[str] | None, flags: dict[str, Any]) -> dict[str, Any]:
    """What the command line sets, by flags and by `--set`, by dotted name.

    Raises:
        ValueError: A setting is given by its flag and by `--set`.
    """
    by_flag = {FLAGS[flag.replace("_", "-")][0]: value for flag, value in flags.items() if value is not None}
    by_set = set_values(sets or [])
    if twice := sorted(by_flag.keys() & by_set.keys()):
        raise ValueError(f"{twice[0]} is given by its flag and by --set: give it once")
    return {**by_flag, **by_set}


def given_values(
    name: str | None, config: Path | None, sets: list[str] | None, flags: dict[str, Any]
) -> dict[str, Any]:
    """The values of a preset, overlaid by a file, overlaid by `--set` and flags, by dotted name.

    Raises:
        ValueError: A setting is given by its flag and by `--set`, or a layer has a name or value that is none.
    """
    merged: dict[str, Any] = {}
    layers = (
        (preset_values(name) if name else {}, f"preset {name}"),
        (read(config) if config else {}, str(config)),
        (command_values(sets, flags), "the command line"),
    )
    for layer, where in layers:
        merged = overlaid(merged, checked(layer, where))
    return merged


def rate_stays(
    name: str | None, config: Path | None, sets: list[str] | None, flags: dict[str, Any], settings: Settings
) -> str:
    """A line that says that a preset's server learning rate is not chosen for a target of the user's own; or empty."""
    own = given_values(None, config, sets, flags)
    if not name or name in FOLLOWED or "privacy.epsilon" not in own or RATE in own:
        return ""
    rate = f"{settings.training.server_learning_rate:.4g}, that of {name}: it does not follow epsilon"
    return f"server learning rate {rate}; --server-learning-rate sets another"


def chosen_settings(name: str | None, config: Path | None, sets: list[str] | None, flags: dict[str, Any]) -> Settings:
    """The settings of a command line; a scheme without noise drops the preset's noise, target and downlink."""
    merged = given_values(name, config, sets, flags)
    if merged.get("compression.scheme") in NOISELESS:
        here = given_values(None, None, sets, flags)
        for key in ("privacy.noise_scale", "privacy.epsilon", "compression.downlink"):
            if key not in here:
                merged.pop(key, None)
    made = Settings.of(merged)
    if name is None:
        return made
    start = preset(name)
    return made.following(name, start.data.name, start.model.name, given_values(None, config, sets, flags))


def differing(
    stored: Settings, name: str | None, config: Path | None, sets: list[str] | None, flags: dict[str, Any]
) -> list[str]:
    """What a command line says otherwise than the stored settings, in words."""
    held = stored.values()
    taken = chosen_settings(name, config, sets, flags).values() if name else {}
    wanted = {key: taken.get(key, value) for key, value in given_values(name, config, sets, flags).items()}
    return [f"{key} is {held[key]!r} there, {value!r} here" for key, value in wanted.items() if held[key] != value]

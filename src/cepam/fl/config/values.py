"""Plain values of settings: nested or dotted names, types, and names of version 0.1 with what they are called now."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any, get_args, get_origin

RENAMED = {
    "data": "data.name", "target": "data.target_column", "client_column": "data.client_column",
    "folder": "data.folder", "pixels": "data.pixels", "validation": "data.validation_records",
    "partition": "data.partition", "alpha": "data.concentration", "labels_each": "data.shards_per_client",
    "model": "model.name", "activation": "model.activation", "personal": "model.personal_layers",
    "clients": "clients.count", "cohort": "clients.sampling", "share": "clients.sampling_rate",
    "cohort_cap": "clients.max_cohort", "participations": "clients.max_participations",
    "dropout": "clients.dropout_rate", "policy": "clients.dropout_handling", "byzantine": "clients.byzantine",
    "client": "clients.overrides", "update": "training.update", "rounds": "training.rounds",
    "tau": "training.local_steps", "batch": "training.batch_size", "epochs": "training.local_epochs",
    "sampling": "training.record_sampling", "expected_batch": "training.expected_batch_size",
    "slices": "training.slices", "rate": "training.server_learning_rate", "server": "training.server_optimizer",
    "momentum": "training.server_momentum", "schedule": "training.schedule",
    "local_rate": "training.local_learning_rate", "local_schedule": "training.local_schedule",
    "local_momentum": "training.local_momentum", "average": "training.weight_averaging",
    "convexity": "training.convexity", "smoothness": "training.smoothness", "epsilon": "privacy.epsilon",
    "delta": "privacy.delta", "noise": "privacy.noise_scale", "unit": "privacy.unit", "adjacency": "privacy.adjacency",
    "clip": "privacy.clipping_norm", "clip_norm": "privacy.norm_type", "clip_scope": "privacy.clip_scope",
    "clip_quantile": "privacy.clip_quantile", "step_noise": "privacy.step_noise_multiplier",
    "noise_shape": "privacy.noise_correlation", "carry": "privacy.decay", "matrix": "privacy.matrix",
    "trust": "privacy.trust", "quorum": "privacy.quorum", "colluders": "privacy.colluders",
    "scheme": "compression.scheme", "lattice": "compression.lattice", "coder": "compression.coder",
    "step": "compression.sdq_step", "downlink": "compression.downlink", "bucket": "compression.padding",
    "bits": "compression.masked_bits", "reach": "compression.quantization_range", "sketch": "compression.sketch",
    "seed": "run.seed", "seeds": "run.seeds", "simulate": "run.simulate", "evaluate_every": "run.evaluate_every",
    "checkpoint_every": "run.checkpoint_every", "keep_messages": "run.keep_messages", "keep_keys": "run.keep_keys",
    "device": "run.device",
    "clients.overrides.noise": "clients.overrides.noise_scale",
    "clients.overrides.clip": "clients.overrides.clipping_norm",
}  # fmt: skip
"""Names of version 0.1, for error messages: none of them is accepted."""
MOST_NAMED = 4


def flattened(values: Mapping[str, Any], tables: Collection[str], where: str) -> dict[str, Any]:
    """The values by dotted name, from nested tables, from dotted names, or from both.

    Raises:
        ValueError: A setting is given twice, or a table has another value than a table.
    """
    flat: dict[str, Any] = {}
    for name, value in values.items():
        inner = {f"{name}.{each}": v for each, v in value.items()} if _is_table(name, value, tables) else {name: value}
        for each, v in inner.items():
            if each in flat:
                raise ValueError(f"{each} is given twice in {where}")
            flat[each] = v
    return flat


def _is_table(name: str, value: Any, tables: Collection[str]) -> bool:
    return name in tables and isinstance(value, Mapping)


def check_names(given: Collection[str], known: Collection[str], where: str) -> None:
    """Refuse names that no setting has; the sentence says what an old name is called now, or which one is near."""
    unknown = sorted(set(given) - set(known))
    if not unknown:
        return
    if renamed := [f"{name} is now {RENAMED[name]}" for name in unknown if name in RENAMED]:
        more = f", and {len(renamed) - MOST_NAMED} more" if len(renamed) > MOST_NAMED else ""
        raise ValueError(f"{where} has names of version 0.1: {', '.join(renamed[:MOST_NAMED])}{more}")
    near = get_close_matches(unknown[0], known, 1)
    hint = f"; did you mean {near[0]}?" if near else "; `cepam train --help-all` lists them all"
    raise ValueError(f"unknown setting{'s' if len(unknown) > 1 else ''} {', '.join(unknown)} in {where}{hint}")


def fitting(kind: Any, value: Any, name: str) -> Any:
    """The value as its setting wants it: whole numbers pass for floats, lists become tuples.

    Raises:
        ValueError: The value is of another type.
    """
    plain = tuple(k for k in get_args(kind) if k is not type(None)) or (kind,)
    if float in plain and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{name} must be a list, got {value!r}")
        return tuple(value)
    wanted = plain[0] if plain[0] in (int, float, str, bool) else None
    if wanted is not None and not isinstance(value, wanted) and not (value is None and kind is not plain[0]):
        raise ValueError(f"{name} must be {WORDS[wanted]}, got {value!r}")
    return value


WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def parsed(kind: Any, text: str, name: str) -> Any:
    """The value that a text of the command line stands for; `none` is None where the setting may be unset.

    Raises:
        ValueError: The text is no value of the setting's type.
    """
    many = get_origin(kind) is tuple
    if text.lower() == "none" and (many or type(None) in get_args(kind)):
        return () if many else None
    wanted = kind if many else next((k for k in get_args(kind) if k is not type(None)), kind)
    try:
        if many:
            return tuple(client_numbers(text))
        if wanted is bool:
            return {"true": True, "false": False}[text.lower()]
        if wanted in (int, float):
            return wanted(text)
    except (ValueError, KeyError):
        raise ValueError(f"{name} must be {WORDS.get(wanted, 'client numbers')}, got {text!r}") from None
    return text


def client_numbers(text: str) -> list[int | str]:
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

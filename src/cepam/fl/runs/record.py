"""What a run was given, kept in its folder: settings, nonce, marks of data and model, engine, for a while its secret.

The fingerprints are keyed by the secret: a plain hash would tell anyone who guesses the data that the guess is right.
Once the secret is erased they tell nothing.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cepam.files import locked_file
from cepam.fl.data.dataset import Dataset
from cepam.fl.engine.randomness import RunSecret
from cepam.fl.engine.settings import OWN, Settings
from cepam.fl.models.engines import engine_of
from cepam.fl.models.model import Model, Network
from cepam.fl.runs import toml
from cepam.fl.runs.files import erase, write_atomically, write_secret

SECRET = "secret.key"


def as_given(settings: Settings, data: Dataset, model: Model | None) -> Settings:
    """The settings with the names of what was really handed over: `own: name` where it is the user's."""
    return replace(
        settings.fitted(data.clients),
        data=_named(settings.data, data.name),
        model=settings.model if model is None else _named(settings.model, model.name),
    )


def _named(told: str, given: str) -> str:
    return told if told in (given, OWN + given) else OWN + given


@dataclass(frozen=True)
class Record:
    """The `[run]` table of config.toml: what sets this run apart from others with the same settings."""

    nonce: str
    data: str
    model: str
    engine: str

    @classmethod
    def of(cls, secret: RunSecret, data: Dataset, model: Model, seed: int, network: Network) -> Record:
        """The record of a run on this data and model, whose gradients this network computes."""
        key, nonce = secret.mark_key(), secret.nonce.hex()
        return cls(nonce, _mark(key, _data_bytes(data)), _mark(key, _model_bytes(model, seed)), engine_of(network))


def _mark(key: bytes, pieces: Iterator[bytes]) -> str:
    made = hmac.new(key, digestmod="sha256")
    for piece in pieces:
        made.update(len(piece).to_bytes(8, "little"))
        made.update(piece)
    return made.hexdigest()[:32]


def _data_bytes(data: Dataset) -> Iterator[Any]:
    yield repr((data.shape, data.classes, data.scale, data.shift)).encode()
    owned = () if data.owners is None else (data.owners,)
    yield from (name.encode() for name in data.clients)
    for array in (data.train_inputs, data.train_labels, data.test_inputs, data.test_labels, *owned):
        yield repr((array.dtype.str, array.shape)).encode()
        yield np.ascontiguousarray(array).data.cast("B")


def _model_bytes(model: Model, seed: int) -> Iterator[bytes]:
    """Architecture, size, and the whole start of a seed, frozen weights too: what `make` draws elsewhere shows here."""
    yield repr((str(model.module), model.size)).encode()
    for name, value in model.state_dict(model.initial(seed)).items():
        yield repr((name, tuple(value.shape), str(value.dtype))).encode()
        yield value.flatten().view(torch.uint8).numpy().tobytes()


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Nothing; no other process trains in the folder meanwhile."""
    with ExitStack() as held:
        try:
            held.enter_context(locked_file(folder / ".lock", wait=False))
        except BlockingIOError:
            raise ValueError(f"another process is training in {folder}") from None
        yield


def start(settings: Settings, folder: Path, secret: RunSecret, record: Record) -> None:
    """Nothing; the folder now holds this run: its secret first, then what makes it a run."""
    config = folder / "config.toml"
    if config.exists():
        raise ValueError(f"{folder} already holds a run: choose another --name, or --resume it")
    if secret.secret is not None:
        write_secret(folder / SECRET, secret.secret.hex().encode() + b"\n")
    write_atomically(config, toml.write(settings, vars(record)).encode())


def stored(settings: Settings, folder: Path) -> RunSecret | None:
    """The secret of the run in the folder, which has these settings; None where the run is over and it was erased."""
    config = folder / "config.toml"
    held = toml.settings_from(toml.read(config), str(config))
    if held != settings:
        differs = [name for name in vars(held) if getattr(held, name) != getattr(settings, name)]
        raise ValueError(
            f"{config} differs from the given settings in {', '.join(differs)}: a run is resumed as it began"
        )
    if settings.simulate:
        return RunSecret.simulated(settings)
    path = folder / SECRET
    if not path.exists():
        if (folder / "summary.json").exists():
            return None
        raise ValueError(f"{path} is missing: without the run's secret it cannot go on; start a new run")
    try:
        return RunSecret(_bytes_of(path.read_text(), 32), _bytes_of(str(toml.read_run(config).get("nonce")), 16))
    except ValueError:
        raise ValueError(f"{path} or the nonce in {config} is damaged: the run cannot go on; start a new one") from None


def _bytes_of(text: str, length: int) -> bytes:
    made = bytes.fromhex(text.strip())
    if len(made) != length:
        raise ValueError(f"{length} bytes were due, got {len(made)}")
    return made


def check(folder: Path, record: Record) -> None:
    """Nothing; raises a ValueError where the run was started with other data, another model or another engine."""
    held = toml.read_run(folder / "config.toml")
    for name, mine in vars(record).items():
        if held.get(name) != mine:
            engine = f"another network engine ({held.get(name, 'not recorded')}, here it is {mine})"
            what = {"data": "other data", "model": "another model", "engine": engine}.get(name, "another nonce")
            raise ValueError(
                f"{folder} was started with {what} than now given: a run is resumed with what it began with"
            )


def forget(folder: Path) -> None:
    """Nothing; the run's secret is erased."""
    erase(folder / SECRET)

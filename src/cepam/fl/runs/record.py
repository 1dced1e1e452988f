"""What a run was given, kept in its folder: settings, nonce, fingerprints, environment, for a while its secret."""

from __future__ import annotations

import hashlib
import hmac
import platform
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
import scipy
import torch

import cepam
from cepam._internal.files import erase, locked_file, write_atomically, write_secret
from cepam.fl.clients.sampling import RunSecret, link_of
from cepam.fl.config import toml
from cepam.fl.config.settings import OWN, Settings
from cepam.fl.data.dataset import Dataset
from cepam.fl.models.interface import engine_of
from cepam.fl.models.model import Model, Network
from cepam.privacy import fingerprint

INSTRUCTIONS = ("sse", "ssse", "avx", "fma", "f16c", "bmi", "amx", "neon", "asimd", "sve")
"""How the names of instructions begin by which libraries choose their arithmetic."""


def environment_of(network: Network) -> str:
    """Versions, operating system, processor and device of this process, in one line."""
    versions = {
        "cepam": cepam.__version__, "Python": platform.python_version(), "numpy": np.__version__,
        "scipy": scipy.__version__, "numba": numba.__version__, "torch": torch.__version__,
    }  # fmt: skip
    device = str(getattr(network, "device", "cpu"))
    if device != "cpu":
        device = f"{torch.cuda.get_device_name()} with CUDA {torch.version.cuda}"
    return ", ".join([
        *(f"{name} {version}" for name, version in versions.items()), f"{platform.system()} {platform.machine()}",
        " ".join(platform.libc_ver()), _processor(), torch.backends.cpu.get_cpu_capability(), device,
    ])  # fmt: skip


def _processor() -> str:
    """The processor's name, family, model and instructions as far as the system tells them."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return platform.processor()
    entries = dict(line.split(":", 1) for line in first.splitlines() if ":" in line)
    known = {name.strip().lower(): value.strip() for name, value in entries.items()}
    names = ("model name", "cpu family", "model", "cpu implementer", "cpu part")
    flags = known.get("flags", known.get("features", "")).split()
    chosen = hashlib.sha256(" ".join(sorted(each for each in flags if each.startswith(INSTRUCTIONS))).encode())
    return " ".join([*(known[name] for name in names if name in known), f"instructions {chosen.hexdigest()[:8]}"])


# A resumed run draws the noise that it drew before. With any other update under it, the two messages would tell the
# difference of the updates without noise. So all that decides an update is fingerprinted before the first round, and
# a resume with anything else is refused.
#
# The fingerprints are keyed by the secret: nobody without it can make one that fits, and a plain hash would tell
# anyone who guesses the data that the guess is right. Once the secret is erased they tell nothing.


SECRET = "secret.key"
PROBED = 4
"""Records whose gradient at the start is in the fingerprint of the model."""


def as_given(settings: Settings, data: Dataset, model: Model | None) -> Settings:
    """The settings with the names of what was really handed over: `own: name` where it is the user's."""
    return settings.fitted(data.clients).updated(
        {
            "data.name": _named(settings.data.name, data.name),
            "model.name": settings.model.name if model is None else _named(settings.model.name, model.name),
        }
    )


def _named(known: str, given: str) -> str:
    return known if known in (given, OWN + given) else OWN + given


@dataclass(frozen=True)
class Record:
    """The `[provenance]` table of config.toml: all that decides the bits of this run, in the order of comparison.

    `engine` and `environment` are plain text; `settings` covers them too. `settings`, `data` and `model` are HMACs.
    """

    engine: str
    environment: str
    settings: str
    data: str
    model: str
    nonce: str

    @classmethod
    def of(cls, secret: RunSecret, settings: Settings, data: Dataset, model: Model, network: Network) -> Record:
        """The record of a run with these settings, on this data and model, whose gradients this network computes."""
        key, engine, environment = secret.mark_key(), engine_of(network), environment_of(network)
        return cls(
            engine,
            environment,
            _mark(key, _settings_bytes(settings, engine, environment)),
            _mark(key, _data_bytes(data)),
            _mark(key, _model_bytes(model, settings.run.seed, network, data.records)),
            secret.nonce.hex(),
        )


def _mark(key: bytes, pieces: Iterator[bytes]) -> str:
    made = hmac.new(key, digestmod="sha256")
    for piece in pieces:
        made.update(len(piece).to_bytes(8, "little"))
        made.update(piece)
    return made.hexdigest()[:32]


def _settings_bytes(settings: Settings, *more: str) -> Iterator[bytes]:
    """Every setting by name, and the matrix that a setting may name by its file."""
    yield from (repr(item).encode() for item in sorted(settings.values().items()))
    yield fingerprint(link_of(settings)).encode()
    yield from (each.encode() for each in more)


def _data_bytes(data: Dataset) -> Iterator[Any]:
    yield repr((data.shape, data.classes, data.scale, data.shift)).encode()
    owned = [each for each in (data.owners, data.removed) if each is not None]
    yield from (name.encode() for name in data.clients)
    for array in (data.train_inputs, data.train_labels, data.test_inputs, data.test_labels, *owned):
        yield repr((array.dtype.str, array.shape)).encode()
        yield np.ascontiguousarray(array).data.cast("B")


def _model_bytes(model: Model, seed: int, network: Network, records: int) -> Iterator[bytes]:
    """Architecture, size, the whole start of a seed, frozen weights too, and a gradient there.

    What `make` draws elsewhere shows in the start; other code of a module or loss, and other arithmetic, in the
    gradient of a few records.
    """
    yield repr((str(model.module), model.size)).encode()
    for name, value in model.state_dict(model.initial(seed)).items():
        yield repr((name, tuple(value.shape), str(value.dtype))).encode()
        yield value.flatten().view(torch.uint8).numpy().tobytes()
    first, zero = np.arange(min(PROBED, records))[None, :], np.zeros(1, dtype=np.int64)
    made = network.summed_gradients(model.initial(seed)[None, :], zero, first, np.array([first.size]), seeds=zero)
    yield from (np.asarray(each).tobytes() for each in made)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock the folder, so that no other process trains in it meanwhile."""
    with ExitStack() as held:
        try:
            held.enter_context(locked_file(folder / ".lock", wait=False))
        except BlockingIOError:
            raise ValueError(f"another process is training in {folder}") from None
        yield


def start(settings: Settings, folder: Path, secret: RunSecret, record: Record) -> None:
    """Write a new run to the folder: its secret first, then what makes it a run."""
    config = folder / "config.toml"
    if config.exists():
        raise ValueError(f"{folder} already holds a run: choose another folder, or go on with resume=True")
    if secret.secret is not None:
        write_secret(folder / SECRET, secret.secret.hex().encode() + b"\n")
    write_atomically(config, toml.write(settings, vars(record)).encode())


def stored(settings: Settings, folder: Path) -> RunSecret | None:
    """The secret of the run in the folder, which has these settings; None where the run is over and it was erased."""
    config = folder / "config.toml"
    held = toml.read_settings(config)
    if held != settings:
        given = settings.values()
        differs = [name for name, value in held.values().items() if value != given[name]]
        raise ValueError(
            f"{config} differs from the given settings in {', '.join(differs)}: a run is resumed as it began"
        )
    if settings.run.simulate:
        return RunSecret.simulated(settings)
    path = folder / SECRET
    if not path.exists():
        if (folder / "summary.json").exists():
            return None
        raise ValueError(f"{path} is missing: without the run's secret it cannot go on; start a new run")
    try:
        return RunSecret(_bytes_of(path.read_text(), 32), _bytes_of(str(toml.read_provenance(config).get("nonce")), 16))
    except ValueError:
        raise ValueError(f"{path} or the nonce in {config} is damaged: the run cannot go on; start a new one") from None


def _bytes_of(text: str, length: int) -> bytes:
    made = bytes.fromhex(text.strip())
    if len(made) != length:
        raise ValueError(f"{length} bytes were due, got {len(made)}")
    return made


def check(folder: Path, record: Record) -> None:
    """Refuse to go on with a run that was started with anything else that decides its bits.

    Raises:
        ValueError: What differs, and that a changed run starts anew under another name.
    """
    held = toml.read_provenance(folder / "config.toml")
    for name, mine in vars(record).items():
        if held.get(name) != mine:
            before = f"({held.get(name, 'not recorded')}; here it is {mine})"
            what = {
                "engine": f"another network engine {before}",
                "environment": f"another version or machine {before}",
                "settings": "other settings, another matrix or another secret",
                "data": "other data",
                "model": "another model (or a loss or machine that gives other gradients)",
                "nonce": "another nonce",
            }[name]
            raise ValueError(
                f"{folder} was started with {what} than now given: its noise was drawn already and must not hide "
                "another update; resume with what it began with, or start anew under another --name, with fresh keys"
            )


def forget(folder: Path) -> None:
    """Erase the run's secret, and a copy that a kill may have left."""
    erase(folder / SECRET)
    erase(folder / f".{SECRET}.tmp")

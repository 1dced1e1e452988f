"""Where a run goes on after a kill: two checkpoints, the newer one first, encrypted under the run's secret.

A checkpoint tells more than the published models do: who was drawn, what each client holds, raw updates of streams. So
it is an npz file under AES-256-GCM, readable by its owner alone, and removed at the end of the run. Nothing is parsed
before its tag is right.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cepam._internal.files import write_atomically
from cepam.fl.simulation import Simulation, State

NAME, PREVIOUS = "checkpoint.npz", "checkpoint.previous.npz"
HEAD = b"cepam checkpoint 1\n"
NONCE, TAG = 12, 16


@dataclass(frozen=True)
class Checkpoint:
    """A sound checkpoint: its file, its round, and how many bytes of the metrics belong to it."""

    path: Path
    round: int
    offset: int
    content: bytes


def save(simulation: Simulation, folder: Path, offset: int) -> None:
    """Write a checkpoint that names the length of the metrics that belong to it, and keep the one before it."""
    state, fetch = simulation.state, simulation.arrays.fetch
    arrays: dict[str, Any] = {f"memory/{name}": fetch(value) for name, value in state.memory.items()}
    arrays |= {name: fetch(getattr(state, name)) for name in ("weights", "exact", "average", "best")}
    arrays |= {"best_score": state.best_score, "bits": state.bits}
    states = {f"{way}/{s}": each.state_dict() for way, row in _kept(simulation).items() for s, each in enumerate(row)}
    arrays |= {f"{of}/{name}": v for of, own in states.items() for name, v in own.items() if isinstance(v, np.ndarray)}
    plain = {of: {name: v for name, v in own.items() if not isinstance(v, np.ndarray)} for of, own in states.items()}
    rest = {"round": state.round, "offset": offset, "states": plain}
    buffer = io.BytesIO()
    np.savez(buffer, rest=np.frombuffer(json.dumps(rest, default=_hex).encode(), dtype=np.uint8), **arrays)
    assert simulation.secret is not None
    sealed = _encrypted(simulation.secret.checkpoint_key(), buffer.getbuffer())
    if (folder / NAME).exists():
        os.replace(folder / NAME, folder / PREVIOUS)
    write_atomically(folder / NAME, sealed, private=True)


def remove(folder: Path) -> None:
    """Remove the checkpoints of a run that is over, and one that a kill tore."""
    for name in (NAME, PREVIOUS):
        (folder / name).unlink(missing_ok=True)
        (folder / f".{name}.tmp").unlink(missing_ok=True)


def _encrypted(key: bytes, content: Any) -> bytes:
    """The content under AES-256-GCM, in pieces: the one-call form of `cryptography` ends at 2 GiB."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    nonce = os.urandom(NONCE)
    cipher = Cipher(algorithms.AES(key), modes.GCM(nonce)).encryptor()
    cipher.authenticate_additional_data(HEAD)
    return b"".join([HEAD, nonce, cipher.update(content), cipher.finalize(), cipher.tag])


def _decrypted(key: bytes, raw: bytes) -> bytes | None:
    """The content, or None where it is damaged or of another run."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    body = len(HEAD) + NONCE
    if len(raw) < body + TAG or not raw.startswith(HEAD):
        return None
    cipher = Cipher(algorithms.AES(key), modes.GCM(raw[len(HEAD) : body], raw[-TAG:])).decryptor()
    cipher.authenticate_additional_data(HEAD)
    content = cipher.update(memoryview(raw)[body:-TAG])
    try:
        cipher.finalize()  # only checks the tag: nothing of the content is left
    except InvalidTag:
        return None
    return content


def _kept(simulation: Simulation) -> dict[str, Sequence[Any]]:
    """What has a state of its own, by name, one a seed."""
    own = () if simulation.own is None else simulation.own.client_state.layers
    return {"downlink": simulation.state.downlinks, "uplink": simulation.aggregators, "personal": own}


def _hex(value: bytes) -> dict[str, str]:
    """Bytes as JSON holds them."""
    return {"hex": value.hex()}


def _bytes(table: dict[str, Any]) -> Any:
    """The bytes that `_hex` wrote, and every other table as it is."""
    return bytes.fromhex(table["hex"]) if table.keys() == {"hex"} else table


def _read(path: Path, key: bytes) -> Checkpoint | None:
    """The checkpoint, or None where it is damaged."""
    content = _decrypted(key, path.read_bytes())
    try:
        return None if content is None else _parsed(path, content)
    except ValueError:  # the tag is right, so it was written so: by another version, or from damaged memory
        return None


def _parsed(path: Path, content: bytes) -> Checkpoint:
    """The checkpoint with this content; ValueError, whatever NumPy and its zip reader raise, for anything else."""
    try:
        with np.load(io.BytesIO(content)) as saved:
            rest = json.loads(bytes(saved["rest"]))
        return Checkpoint(path, int(rest["round"]), int(rest["offset"]), content)
    except Exception as odd:
        raise ValueError(f"{path} does not hold a checkpoint: {odd!r}") from odd


def latest(folder: Path, key: bytes) -> Checkpoint | None:
    """Where the run with this checkpoint key goes on, or None where it had not come to its first checkpoint.

    Damage is refused in one line that names the file and offers the checkpoint before it: remove the file to take that.
    """
    metrics = folder / "metrics.jsonl"
    length = metrics.stat().st_size if metrics.exists() else 0
    sound = {name: _read(folder / name, key) for name in (NAME, PREVIOUS) if (folder / name).exists()}
    if not sound:
        _check_beginning(folder, metrics)
        return None
    found = sound.get(NAME, sound.get(PREVIOUS))
    earlier = sound.get(PREVIOUS)
    if found is None:
        raise ValueError(f"{folder / next(iter(sound))} is damaged (it does not open): {_offer(earlier, length)}")
    if length < found.offset:
        other = earlier if found.path.name == NAME else None
        raise ValueError(
            f"{metrics} is cut: {length} bytes, {found.path.name} stands at {found.offset}: {_offer(other, length)}"
        )
    return found


def _offer(earlier: Checkpoint | None, length: int) -> str:
    if earlier is None or earlier.offset > length:
        return "no sound checkpoint is left, start a new run"
    return f"remove {earlier.path.with_name(NAME)} and resume to go on from round {earlier.round} ({earlier.path.name})"


def _check_beginning(folder: Path, metrics: Path) -> None:
    """Raise ValueError where metrics beyond the first checkpoint show that a checkpoint was lost."""
    from cepam.fl.config import toml

    every = toml.read_settings(folder / "config.toml").run.checkpoint_every
    rounds = [_round_of(line) for line in (metrics.read_bytes().splitlines() if metrics.exists() else [])]
    if max(rounds, default=0) > every:
        raise ValueError(
            f"{folder / NAME} is missing, though {metrics.name} holds round {max(rounds)}: the run cannot go on from "
            "there; put the file back, or start a new run"
        )


def _round_of(line: bytes) -> int:
    try:
        return int(json.loads(line)["round"])
    except (ValueError, KeyError, TypeError):
        return 0


def restore(simulation: Simulation, checkpoint: Checkpoint) -> None:
    """Restore the simulation from the checkpoint."""
    with np.load(io.BytesIO(checkpoint.content)) as saved:
        rest = json.loads(bytes(saved["rest"]), object_hook=_bytes)
        put, remembered = simulation.arrays.put, [name for name in saved.files if name.startswith("memory/")]
        memory = {name.removeprefix("memory/"): put(saved[name]) for name in remembered}
        if saved["weights"].shape != (len(simulation.settings.run_seeds), simulation.size):
            raise ValueError(f"{checkpoint.path} is of another model: {saved['weights'].shape[1]} weights")
        for way, row in _kept(simulation).items():
            for s, each in enumerate(row):
                own = f"{way}/{s}"
                arrays = {n.removeprefix(f"{own}/"): saved[n] for n in saved.files if n.startswith(f"{own}/")}
                each.load_state_dict(rest["states"][own] | arrays)
        simulation.state = State(
            put(saved["weights"]), put(saved["exact"]), memory, put(saved["average"]), put(saved["best"]),
            saved["best_score"], saved["bits"], simulation.state.downlinks, int(rest["round"]),
        )  # fmt: skip

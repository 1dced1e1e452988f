from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from cepam.fl import Dataset, Settings, read_metrics, train
from cepam.fl.config.toml import write

FORKS = """
import json, os, sys, traceback
from pathlib import Path
import matplotlib.pyplot
import cepam.codec.codec, cepam.kernels.numba.backend
from cepam.fl import Settings, synthetic, train
from cepam.fl.config.toml import read
for line in sys.stdin:
    config, folder, resume = json.loads(line)
    child = os.fork()
    if child == 0:
        try:
            train(Settings.of(read(Path(config))), Path(folder), synthetic(records=600, tests=200), resume=resume)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""


class Forks:
    """Processes that train, forked from one that has imported all there is and run nothing."""

    def __init__(self) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
        self.parent: Any = subprocess.Popen([sys.executable, "-c", FORKS], **pipes)

    def start(self, config: Path, folder: Path, resume: bool) -> int:
        """The number of a process that trains in the folder."""
        self.parent.stdin.write(json.dumps([str(config), str(folder), resume]).encode() + b"\n")
        return int(self.parent.stdout.readline())

    def ends_within(self, seconds: float) -> bool:
        return bool(select.select([self.parent.stdout], [], [], seconds)[0])

    def wait(self) -> int:
        """The status that the process ends with."""
        return int(self.parent.stdout.readline())


@pytest.fixture(scope="module")
def forks() -> Iterator[tuple[Forks, Forks]]:
    """Two, whose children share neither the order of sets nor a generator's state that an import left."""
    made = Forks(), Forks()
    yield made
    for each in made:
        each.parent.stdin.close()
        assert each.parent.wait(60) == 0


def outcome(folder: Path) -> tuple[str, bytes, list[bytes]]:
    weights = torch.load(folder / "final.pt")
    flat = b"".join(t.numpy().tobytes() for held in weights.values() for t in held.values())
    summary = json.loads((folder / "summary.json").read_text())
    kept = sorted(p for p in (folder / "messages").rglob("*.bin"))
    return (
        (folder / "metrics.jsonl").read_text(),
        flat,
        [p.read_bytes() for p in kept] + [repr(summary["epsilon"]).encode()],
    )


def test_a_run_leaves_everything_on_disk(tmp_path: Path, small: Dataset, quick: Settings) -> None:
    settings = quick.updated(
        {
            "run.keep_messages": True,
            "training.server_optimizer": "adam",
            "training.server_learning_rate": 0.01,
            "run.seeds": 2,
            "privacy.noise_scale": 0.5,
        }
    )
    summary = train(settings, tmp_path / "run", small)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"config.toml", "metrics.jsonl", "final.pt", "best.pt", "curve.png", "summary.json"} <= names
    assert any("tfevents" in name for name in names) == (find_spec("tensorboard") is not None)
    lines = read_metrics(tmp_path / "run")
    assert len(lines) == 3 * 2
    for name in ("accuracy", "loss", "snr_db", "bits", "epsilon", "train_loss"):
        assert lines[-1][name] is not None
    assert lines[-1]["warnings"] == []
    kept = sum(path.stat().st_size for path in (tmp_path / "run" / "messages").rglob("*.bin"))
    assert kept == summary["uplink_bytes"] == sum(line["bits"] for line in lines) // 8
    with pytest.raises(ValueError, match="already holds a run: choose another folder, or go on with resume=True"):
        train(settings, tmp_path / "run", small)


def test_resume_of_another_configuration_is_refused(tmp_path: Path, small: Dataset, quick: Settings) -> None:
    train(quick, tmp_path / "run", small)
    with pytest.raises(ValueError, match="differs"):
        train(quick.updated({"training.server_learning_rate": 0.2}), tmp_path / "run", small, resume=True)


@pytest.mark.parametrize(
    ("simulate", "changes"),
    [
        (True, {"training.weight_averaging": 0.5}),
        (False, {"training.weight_averaging": 0.5}),
        (
            False,
            {
                "compression.downlink": "quantized",
                "clients.sampling_rate": 0.75,
                "training.schedule": "linear",
                "training.server_learning_rate": 0.02,
            },
        ),
        (
            True,
            {
                "compression.downlink": "quantized",
                "compression.downlink_hysteresis": 0.75,
                "clients.sampling_rate": 0.75,
                "run.seeds": 2,
                "training.schedule": "linear",
                "training.server_learning_rate": 0.02,
            },
        ),
        pytest.param(
            False,
            {
                "training.record_sampling": "cyclic",
                "training.slices": 4,
                "privacy.noise_correlation": "matrix",
                "compression.downlink": "quantized",
                "training.server_learning_rate": 0.02,
            },
            marks=pytest.mark.slow,
        ),
        pytest.param(
            True,
            {
                "training.record_sampling": "cyclic",
                "training.slices": 4,
                "privacy.noise_correlation": "matrix",
                "run.seeds": 2,
                "compression.downlink": "quantized",
                "training.server_learning_rate": 0.02,
            },
            marks=pytest.mark.slow,
        ),
    ],
)
def test_killed_and_resumed_is_bit_identical(
    tmp_path: Path, quick: Settings, forks: tuple[Forks, Forks], simulate: bool, changes: dict[str, Any]
) -> None:
    """Kills twice with SIGKILL at arbitrary moments, once between checkpoints, and compares every bit.

    The run that is not killed starts from the secret of the other: it is handed the folder as it was at the first kill,
    less all that training had made.
    """
    settings = quick.updated(
        {
            "training.rounds": 12,
            "privacy.noise_scale": 2.0,
            "run.checkpoint_every": 5,
            "training.server_optimizer": "momentum",
            "clients.dropout_rate": 0.2,
            "run.keep_messages": True,
            "run.simulate": simulate,
            **changes,
        }
    )
    config, killed, whole = tmp_path / "config.toml", tmp_path / "killed", tmp_path / "whole"
    config.write_text(write(settings))
    for after, own in zip((2 * settings.run.seeds, 8 * settings.run.seeds), forks):
        resuming = killed.exists()
        process = own.start(config, killed, resuming)
        metrics, deadline = killed / "metrics.jsonl", time.monotonic() + 120
        while time.monotonic() < deadline and not own.ends_within(0.002):
            if metrics.exists() and metrics.read_bytes().count(b"\n") >= after:
                break
        if not own.ends_within(0):  # else its number may be another's by now
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        own.wait()
        with metrics.open("ab") as torn:
            torn.write(b'{"round": 99, "torn')
        if not resuming:
            whole.mkdir()
            for name in ("config.toml", *([] if simulate else ["secret.key"])):
                shutil.copy2(killed / name, whole / name)
    for folder, own in zip((killed, whole), forks):
        own.start(config, folder, True)
        assert own.wait() == 0
        assert not (folder / "secret.key").exists()
    assert outcome(killed) == outcome(whole)

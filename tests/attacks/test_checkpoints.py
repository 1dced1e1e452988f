"""Who was drawn, read from what a run keeps on disk: while it runs, and after its end."""

from __future__ import annotations

import io
import stat
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cepam import fl
from cepam.fl.runs import training

VALUES: dict[str, Any] = {
    "data.name": "synthetic",
    "model.name": "linear",
    "clients.count": 40,
    "training.rounds": 4,
    "training.local_steps": 1,
    "privacy.unit": "client",
    "clients.sampling_rate": 0.2,
    "training.update": "difference",
    "training.record_sampling": "all",
    "privacy.noise_scale": 1.0,
    "compression.downlink": "quantized",
    "run.checkpoint_every": 1,
    "clients.max_participations": 3,
    "run.device": "cpu-torch",
    "training.server_learning_rate": 0.02,
}


def readable(folder: Path) -> dict[str, Any]:
    """Every array in every file of the folder that is, or begins with, an npz archive."""
    found: dict[str, Any] = {}
    for path in folder.rglob("*"):
        if path.is_file():
            try:
                with np.load(io.BytesIO(path.read_bytes())) as saved:
                    found |= {name: saved[name] for name in saved.files if f"{name}.npy" in saved.zip.namelist()}
            except (ValueError, OSError, EOFError, zipfile.BadZipFile, TypeError, AttributeError):
                continue
    return found


@pytest.mark.parametrize("cohort", ["fixed", "poisson"])
def test_nothing_on_disk_tells_who_was_drawn(tmp_path: Path, cohort: str) -> None:
    """The draw is what buys the figure: for who sees it, epsilon is that of a client asked in the open."""
    folder, drawn, during = tmp_path / "run", [], []
    data, settings = fl.synthetic(200, 40, side=8), fl.Settings.of({**VALUES, "clients.sampling": cohort})

    def watch(progress: training.Progress) -> None:
        during.append(readable(folder))
        for path in folder.glob("checkpoint*"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            drawn.append(path.name)

    fl.train(settings, folder, data, watch=watch)
    assert "checkpoint.npz" in drawn  # the attack had something to read
    assert not any(each.keys() & {"uplink/0/taken", "downlink/0/held", "bits", "best_score"} for each in during)
    assert not list(folder.glob("*checkpoint*"))
    assert not readable(folder)
    assert not (folder / "secret.key").exists()


def test_a_checkpoint_that_a_kill_tore_is_removed_too(tmp_path: Path) -> None:
    folder, data = tmp_path / "run", fl.synthetic(200, 40, side=8)

    def watch(progress: training.Progress) -> None:
        (folder / ".checkpoint.npz.tmp").write_bytes(b"torn")

    fl.train(fl.Settings.of(VALUES), folder, data, watch=watch)
    assert not list(folder.glob("*checkpoint*"))
    assert not list(folder.glob(".checkpoint*"))

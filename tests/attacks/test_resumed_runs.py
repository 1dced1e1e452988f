"""Two updates under one noise: a run that is stopped, changed and resumed would tell their difference."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from cepam import fl
from cepam.fl.config import toml
from cepam.fl.runs import record
from tests.fl.runs.test_resume import stopped

VALUES: dict[str, Any] = {
    "data.name": "own: small",
    "model.name": "own: mine",
    "clients.count": 3,
    "training.rounds": 4,
    "training.local_steps": 1,
    "training.batch_size": 4,
    "privacy.noise_scale": 0.5,
    "run.checkpoint_every": 4,
    "run.device": "cpu-torch",
    "run.keep_messages": True,
}


class Head(nn.Module):
    """A linear layer with a factor that no description of the module shows."""

    factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs.flatten(1)) * self.factor  # type: ignore[no-any-return]


def small() -> fl.Dataset:
    draw = np.random.default_rng(1)
    made = [(draw.normal(size=(count, 64)).astype(np.float32), draw.integers(0, 3, count)) for count in (60, 20)]
    return fl.from_arrays(*made, name="small", classes=3)


def settings(**changes: Any) -> fl.Settings:
    return fl.Settings.of({**VALUES, **changes})


def begun(folder: Path, **changes: Any) -> None:
    """Leave a run in the folder that was killed before its first checkpoint."""
    stopped(settings(**changes), folder, small(), 2, fl.Model(Head, "mine"))
    assert not list(folder.glob("checkpoint*"))


def resumed(folder: Path) -> dict[str, Any]:
    """The summary of the run, gone on with as the command does: with the settings that the folder holds."""
    held = fl.Settings.of(toml.read(folder / "config.toml"))
    return fl.train(held, folder, small(), fl.Model(Head, "mine"), resume=True)


def edit(folder: Path, name: str, value: str) -> None:
    path = folder / "config.toml"
    text, many = re.subn(rf"(?m)^{name} = [^#\n]*", f"{name} = {value} ", path.read_text())
    assert many == 1
    path.write_text(text)


def messages(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.bin")}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("training.server_learning_rate", "5.0"), ("training.batch_size", "2"), ("privacy.clipping_norm", "0.5"),
        ("run.seed", "2"), ("training.rounds", "9"), ("privacy.noise_scale", "0.25"),
    ],
)  # fmt: skip
def test_edited_settings_send_nothing_under_noise_that_was_used(tmp_path: Path, name: str, value: str) -> None:
    """The same keys and rounds, other updates: the difference of two messages would have no noise in it."""
    begun(tmp_path / "run")
    before = messages(tmp_path / "run")
    key = name.partition(".")[2]
    edit(tmp_path / "run", key, value)
    with pytest.raises(ValueError, match=r"was started with other settings.*another --name"):
        resumed(tmp_path / "run")
    assert messages(tmp_path / "run") == before
    edit(tmp_path / "run", key, str(settings().values()[name]))
    assert resumed(tmp_path / "run")["rounds"] == 4


def test_fingerprints_of_another_run_do_not_fit(tmp_path: Path) -> None:
    """Settings edited together with their fingerprint: without the secret nobody makes one that fits."""
    begun(tmp_path / "run")
    begun(tmp_path / "other", **{"training.server_learning_rate": 5.0})
    theirs = toml.read_provenance(tmp_path / "other" / "config.toml")
    edit(tmp_path / "run", "server_learning_rate", "5.0")
    edit(tmp_path / "run", "settings", f'"{theirs["settings"]}"')
    with pytest.raises(ValueError, match="other settings"):
        resumed(tmp_path / "run")
    edit(tmp_path / "run", "nonce", f'"{theirs["nonce"]}"')
    with pytest.raises(ValueError, match="other settings"):
        resumed(tmp_path / "run")


def test_a_configuration_without_fingerprints_is_refused(tmp_path: Path) -> None:
    begun(tmp_path / "run")
    path = tmp_path / "run" / "config.toml"
    nonce = toml.read_provenance(path)["nonce"]
    path.write_text(toml.write(settings(), {"nonce": nonce}))
    with pytest.raises(ValueError, match="not recorded"):
        resumed(tmp_path / "run")


def test_other_code_of_an_own_module_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(tmp_path / "run")
    monkeypatch.setattr(Head, "factor", 2.0)
    with pytest.raises(ValueError, match="other gradients"):
        resumed(tmp_path / "run")
    monkeypatch.undo()
    assert resumed(tmp_path / "run")["rounds"] == 4


def test_another_matrix_under_the_same_name_is_refused(tmp_path: Path) -> None:
    shape = {
        "privacy.matrix": str(tmp_path / "own.npy"),
        "privacy.noise_correlation": "matrix",
        "training.record_sampling": "cyclic",
        "training.slices": 2,
    }
    np.save(tmp_path / "own.npy", np.array([1.0, 0.5]))
    begun(tmp_path / "run", **{"training.update": "examples"}, **shape)
    np.save(tmp_path / "own.npy", np.array([1.0, 0.25]))
    fl.clients.sampling.link_of.cache_clear()  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="other settings"):
        resumed(tmp_path / "run")


@pytest.mark.parametrize(
    ("where", "what", "other"),
    [("torch", "__version__", "1.0"), ("cepam", "__version__", "0.0"), ("platform", "machine", lambda: "riscv64")],
)
def test_another_version_or_machine_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, what: str, other: Any
) -> None:
    begun(tmp_path / "run")
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(getattr(record, where), what, other)
        with pytest.raises(ValueError, match=r"another version or machine.*another --name"):
            resumed(tmp_path / "run")
        here = record.environment_of(fl.Simulation(settings(), small(), fl.Model(Head, "mine")).network)
        edit(tmp_path / "run", "environment", f'"{here}"')
        with pytest.raises(ValueError, match="other settings"):
            resumed(tmp_path / "run")


def test_without_its_secret_a_run_does_not_go_on(tmp_path: Path) -> None:
    begun(tmp_path / "run")
    (tmp_path / "run" / "secret.key").unlink()
    with pytest.raises(ValueError, match=r"secret\.key is missing"):
        resumed(tmp_path / "run")
    (tmp_path / "run" / "secret.key").write_text(os.urandom(32).hex())
    with pytest.raises(ValueError, match="another secret"):
        resumed(tmp_path / "run")


def test_two_copies_of_a_run_send_the_same_bytes(tmp_path: Path) -> None:
    """Whoever copies a folder and resumes both has two copies of one run, not two runs under one noise."""
    begun(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    for name in ("run", "copy"):
        resumed(tmp_path / name)
    assert messages(tmp_path / "run") == messages(tmp_path / "copy")


def test_a_run_without_a_record_starts_over_with_fresh_keys(tmp_path: Path) -> None:
    """Killed between its secret and its configuration a run has sent nothing; its secret is not used again."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "secret.key").write_text("ab" * 32)
    stopped(settings(), tmp_path / "run", small(), 2, fl.Model(Head, "mine"))
    assert (tmp_path / "run" / "secret.key").read_text().strip() != "ab" * 32

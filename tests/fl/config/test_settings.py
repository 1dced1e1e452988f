"""Settings as objects, as nested or dotted values, and as TOML; what is refused, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cepam import fl
from cepam.fl import PRESETS, ClientOverride, Settings, preset
from cepam.fl.config.settings import OVERRIDES, RENAMED, described, types
from cepam.fl.config.toml import read, read_provenance, read_settings, write

NOISY = {"privacy.noise_scale": 0.1}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_toml(tmp_path: Path, name: str) -> None:
    settings = preset(name)
    if settings.privacy.unit == "record":
        settings = settings.updated({OVERRIDES: [ClientOverride((0, 1), noise_scale=0.5, lattice="E8")]})
    (tmp_path / "config.toml").write_text(write(settings))
    assert read_settings(tmp_path / "config.toml") == settings
    assert Settings.of(read(tmp_path / "config.toml")) == settings


def test_any_text_and_every_help_line_survives_toml(tmp_path: Path) -> None:
    names = 'rue "Ω" \\ 😀 \x7f\n'
    override = ClientOverride((names, "b"), noise_scale=1e-9, lattice="E8")
    values = {"privacy.noise_scale": 1, "data.name": f"{names}.csv", "clients.byzantine": [0, 1]}
    settings = Settings.of({**values, OVERRIDES: [override]})
    text = write(settings, {"nonce": names})
    (tmp_path / "config.toml").write_bytes(text.encode())
    assert read_settings(tmp_path / "config.toml") == settings
    assert read_provenance(tmp_path / "config.toml") == {"nonce": names}
    assert all(f"  # {each.metadata['help']}\n" in text for name, _, each in described() if name != OVERRIDES)


def test_tables_of_clients(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(
        '[privacy]\nnoise_scale = 1\n[[clients.overrides]]\nclients = "0-2,5"\nnoise_scale = 2\nlattice = "A2"\n'
    )
    settings = Settings.of(read(tmp_path / "c.toml"))
    assert settings.clients.overrides == (ClientOverride((0, 1, 2, 5), noise_scale=2.0, lattice="A2"),)


def test_objects_dots_and_tables_say_the_same() -> None:
    made = Settings(training=fl.TrainingSettings(rounds=5), privacy=fl.PrivacySettings(noise_scale=0.1))
    assert made == Settings.of({"training.rounds": 5, **NOISY})
    assert made == Settings.of({"training": {"rounds": 5}, "privacy": {"noise_scale": 0.1}})
    assert made == Settings.of({"training": {"rounds": 5}, **NOISY})
    assert Settings.of(made.values()) == made
    assert made.updated({"training": {"rounds": 6}}).training.rounds == 6
    with pytest.raises(ValueError, match=r"training\.rounds is given twice"):
        Settings.of({"training": {"rounds": 5}, "training.rounds": 5, **NOISY})


def test_a_noise_scale_and_a_target_replace_each_other() -> None:
    private = preset("private")
    stated = private.updated({"privacy.noise_scale": 0.2})
    assert (stated.privacy.epsilon, stated.privacy.noise_scale) == (None, 0.2)
    assert stated.updated({"privacy.epsilon": 1.99}) == private
    with pytest.raises(ValueError, match="not both"):
        private.updated({"privacy.epsilon": 2.0, "privacy.noise_scale": 0.2})
    local = {"training.update": "dp-sgd", "training.record_sampling": "poisson", "privacy.epsilon": 2.0, **NOISY}
    both = Settings.of(local).updated({"privacy.epsilon": 3.0})
    assert (both.privacy.epsilon, both.privacy.noise_scale) == (3.0, 0.1)


def test_every_setting_has_one_line_of_help_and_one_home() -> None:
    names = [name for name, _, _ in described()]
    assert len(set(names)) == len(names) == len(types())
    for _, _, each in described():
        text = each.metadata["help"]
        assert text[0].isupper() or text.startswith("delta")
        assert text.endswith(".")
        assert "\n" not in text


def test_old_names_are_refused_with_the_new_ones(tmp_path: Path) -> None:
    known = {*types(), "clients.overrides.noise_scale", "clients.overrides.clipping_norm"}
    assert set(RENAMED.values()) <= known
    for old, new in RENAMED.items():
        if "." not in old:
            with pytest.raises(ValueError, match=f"names of version 0.1: {old} is now {new}$"):
                Settings.of({old: 1})
    with pytest.raises(ValueError, match=r"clients\.overrides\.noise is now clients\.overrides\.noise_scale"):
        Settings.of({**NOISY, OVERRIDES: [{"clients": "0", "noise": 1.0}]})
    with pytest.raises(ValueError, match="steady is now dp-ftrl"):
        preset("steady")
    (tmp_path / "old.toml").write_text('tau = 3\nnoise = 0.1\n[run]\nnonce = "00"\n')
    with pytest.raises(ValueError, match=r"old\.toml is of a run of version 0\.1"):
        read_settings(tmp_path / "old.toml")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"clients.count": 0}, "clients.count must be a whole number of at least 1, got 0"),
        ({"training.local_steps": 0}, "training.local_steps must be"),
        ({"training.rounds": 2.5}, "training.rounds must be a whole number, got 2.5"),
        ({"run.simulate": "yes"}, "run.simulate must be true or false, got 'yes'"),
        ({"compression.scheme": "magic"}, "compression.scheme must be one of"),
        ({"compression.scheme": "fl", "privacy.epsilon": 1.0}, "impossible"),
        ({**NOISY, "privacy.epsilon": 1.0}, "not both"),
        ({"privacy.epsilon": -1.0}, "privacy.epsilon must be a positive number"),
        ({"privacy.epsilon": 1.0, "privacy.norm_type": "none"}, "needs clipping"),
        ({"compression.scheme": "fl+gaussian"}, "needs privacy.noise_scale"),
        ({**NOISY, "training.update": "examples"}, "go together"),
        ({**NOISY, "training.server_momentum": 1.0}, r"training.server_momentum must lie in \[0, 1\)"),
        ({**NOISY, "clients.sampling_rate": 0.0}, r"clients.sampling_rate must lie in \(0, 1\]"),
        ({**NOISY, "privacy.delta": 1.5}, r"privacy.delta must lie in \(0, 1\)"),
        ({**NOISY, "clients.byzantine": [40]}, "client numbers must lie in"),
        ({**NOISY, "clients.byzantine": 4}, "clients.byzantine must be a list, got 4"),
        ({**NOISY, "run.seed": -1}, "run.seed must be a whole number of at least 0, got -1"),
        ({**NOISY, "colour": "red"}, "unknown setting colour"),
        ({**NOISY, "training.round": 3}, "did you mean training.rounds?"),
        ({**NOISY, OVERRIDES: [{"clients": "3-b"}]}, "numbers, ranges such as"),
        ({**NOISY, OVERRIDES: {"clients": "3"}}, "must be a list of tables"),
        ({**NOISY, OVERRIDES: [{"clients": "3", "colour": 1}]}, "unknown setting clients.overrides.colour"),
        ({**NOISY, "training.schedule": "theorem"}, "training.convexity"),
    ],
)
def test_nonsense_is_refused_in_one_line(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        Settings.of(values)
    assert "\n" not in str(refused.value)


def test_files_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such configuration file"):
        read(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(ValueError, match="not valid TOML"):
        read(tmp_path / "bad.toml")
    with pytest.raises(ValueError, match="preset must be one of"):
        preset("secret")

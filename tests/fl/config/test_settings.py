from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from cepam.fl import PRESETS, ClientSettings, Settings, preset, settings_from
from cepam.fl.config.toml import read, read_run, write


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_toml(tmp_path: Path, name: str) -> None:
    alike = preset(name).get("unit") == "client"
    client = [] if alike else [ClientSettings((0, 1), noise=0.5, lattice="E8")]
    settings = settings_from({**preset(name), "client": client})
    (tmp_path / "config.toml").write_text(write(settings))
    assert settings_from(read(tmp_path / "config.toml")) == settings


def test_any_text_and_every_help_line_survives_toml(tmp_path: Path) -> None:
    names = 'rue "Ω" \\ 😀 \x7f\n'
    client = ClientSettings((names, "b"), noise=1e-9, lattice="E8")
    settings = settings_from({"noise": 1, "data": f"{names}.csv", "byzantine": [0, 1], "client": [client]})
    text = write(settings, {"nonce": names})
    (tmp_path / "config.toml").write_bytes(text.encode())
    assert settings_from(read(tmp_path / "config.toml")) == settings
    assert read_run(tmp_path / "config.toml") == {"nonce": names}
    assert all(f"  # {each.metadata['help']}\n" in text for each in fields(Settings) if each.name != "client")


def test_client_tables(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('noise = 1\n[[client]]\nclients = "0-2,5"\nnoise = 2\nlattice = "A2"\n')
    settings = settings_from(read(tmp_path / "c.toml"))
    assert settings.client == (ClientSettings((0, 1, 2, 5), noise=2.0, lattice="A2"),)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"clients": 0}, "clients must be a whole number of at least 1"),
        ({"tau": 0}, "tau must be"),
        ({"rounds": 2.5}, "rounds must be a int"),
        ({"scheme": "magic"}, "scheme must be one of"),
        ({"scheme": "fl", "epsilon": 1.0}, "impossible"),
        ({"noise": 0.1, "epsilon": 1.0}, "not both"),
        ({"epsilon": -1.0}, "epsilon must be a positive number"),
        ({"epsilon": 1.0, "clip_norm": "none"}, "needs clipping"),
        ({"scheme": "fl+gaussian"}, "needs noise"),
        ({"noise": 0.1, "update": "examples"}, "go together"),
        ({"noise": 0.1, "momentum": 1.0}, "momentum must lie in"),
        ({"noise": 0.1, "share": 0.0}, "share must lie in"),
        ({"noise": 0.1, "delta": 1.5}, "delta must lie in"),
        ({"noise": 0.1, "byzantine": [40]}, "client numbers must lie in"),
        ({"noise": 0.1, "colour": "red"}, "unknown setting colour"),
        ({"noise": 0.1, "client": [{"clients": "3-b"}]}, "numbers, ranges such as"),
        ({"noise": 0.1, "schedule": "theorem"}, "convexity"),
    ],
)
def test_nonsense_is_refused_in_one_line(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        settings_from(values)
    assert "\n" not in str(refused.value)


def test_files_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such configuration file"):
        read(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(ValueError, match="not valid TOML"):
        read(tmp_path / "bad.toml")
    with pytest.raises(ValueError, match="preset must be one of"):
        preset("secret")

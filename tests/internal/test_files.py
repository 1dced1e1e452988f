from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from cepam._internal.files import cache_folder, locked_file, write_atomically


def test_environment_says_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CEPAM_CACHE", "/somewhere")
    assert cache_folder() == Path("/somewhere")
    monkeypatch.delenv("CEPAM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_folder() == Path("/elsewhere/cepam")


def test_a_file_is_replaced_whole_and_a_private_one_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_atomically(path, b"old")
    write_atomically(path, b"new", private=True)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["state"]


def test_what_cannot_be_written_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_atomically(path, b"old")
    with pytest.raises(TypeError):
        write_atomically(path, "text")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"


def test_two_writers_never_share_a_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, replaced = tmp_path / "state", os.replace

    def meanwhile(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "replace", replaced)
        write_atomically(path, b"other")
        replaced(source, target)

    monkeypatch.setattr(os, "replace", meanwhile)
    write_atomically(path, b"mine")
    assert path.read_bytes() == b"mine"
    assert [each.name for each in tmp_path.iterdir()] == ["state"]


def test_a_locked_file_is_one_process_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked_file(path) as held:
        held.write(b"mine")
        with pytest.raises(BlockingIOError), locked_file(path, wait=False):
            pass
    with locked_file(path, wait=False) as again:
        assert again.read() == b"mine"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

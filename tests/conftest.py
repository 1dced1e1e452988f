"""Compiled kernels are cached beside their sources, by file; a change in one file must also drop what inlined it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

import cepam.kernels


def pytest_configure() -> None:
    folder = Path(cepam.kernels.__file__).parent
    sources = sorted([*folder.rglob("*.py"), *(folder.parent / "noise").glob("*.py")])
    found = hashlib.sha256(b"".join(file.read_bytes() for file in sources)).hexdigest()
    stamp = folder / "__pycache__" / "sources.sha256"
    if stamp.exists() and stamp.read_text() == found:
        return
    stamp.parent.mkdir(exist_ok=True)
    for pattern in ("*.nbi", "*.nbc"):
        for file in folder.rglob(pattern):
            file.unlink(missing_ok=True)
    stamp.write_text(found)


@pytest.fixture
def fixed_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every key that is made is the same one: what a test draws does not change from run to run."""
    import cepam

    monkeypatch.setattr(cepam.Key, "generate", classmethod(lambda cls: cls(bytes(range(32)))))

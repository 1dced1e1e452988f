"""What tests of several rooms share."""

from __future__ import annotations

import os

import pytest

import cepam

# Before Triton is imported, by whomever: its own functions are interpreted or not from then on.
os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture
def fixed_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every key that is made is the same one: what a test draws does not change from run to run."""
    monkeypatch.setattr(cepam.Key, "generate", classmethod(lambda cls: cls(bytes(range(32)))))

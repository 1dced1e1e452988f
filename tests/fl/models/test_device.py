"""Which device a run takes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from cepam.fl.models.model import WORTH_A_GPU, resolved  # noqa: E402


def test_auto_weighs_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty small models with fifteen steps one after another stay on the CPU; what is asked for is done."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolved("auto", 30 * 6422 // 15) == "cpu"
    assert (
        resolved("auto", 30 * 11_386) == resolved("auto", 1000 * 6422 // 15) == resolved("auto", WORTH_A_GPU) == "cuda"
    )
    assert resolved("auto") == resolved("cuda", 1) == "cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolved("auto", 10**9) == "cpu"

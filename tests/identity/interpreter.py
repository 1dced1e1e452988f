"""What makes Triton's interpreter bearable."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter renews its hold on Triton's language in every call of a function: once a module is enough."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    seen: set[int] = set()

    def call(self: Any, *args: Any, **options: Any) -> Any:
        if id(self.fn.__globals__) not in seen:
            seen.add(id(self.fn.__globals__))
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*args, **options)

    monkeypatch.setattr(interpreter.InterpretedFunction, "__call__", call)
    # It runs programs one after another: as few as possible.
    monkeypatch.setattr("cepam.kernels.triton.batch.FEW_LANES", 32)

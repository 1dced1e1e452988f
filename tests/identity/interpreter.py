"""What makes Triton's interpreter bearable."""

from __future__ import annotations

import math
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
    _remember_types(interpreter, monkeypatch)
    # It runs programs one after another: as few as possible.
    monkeypatch.setattr("cepam.kernels.triton.batch.FEW_LANES", 32)
    monkeypatch.setattr("cepam.kernels.triton.search_encode.PLACES", 1024)


def _remember_types(interpreter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what every operation finds out about types and shapes, half of its time."""
    from triton.language import core, semantic

    spread, dtype_of = semantic.TritonSemantic.broadcast_impl_value, interpreter._get_np_dtype
    dtypes: dict[str, Any] = {}
    types: dict[tuple[str, ...], Any] = {}
    shapes: dict[tuple[int, ...], Any] = {}

    def find_dtype(of: Any) -> Any:
        if of.scalar.name not in dtypes:
            dtypes[of.scalar.name] = dtype_of(of)
        return dtypes[of.scalar.name]

    def with_element(self: Any, scalar: Any) -> Any:
        if (scalar.name, *self.shape) not in types:
            types[scalar.name, *self.shape] = core.block_type(scalar, self.shape)
        return types[scalar.name, *self.shape]

    def make(self: Any, handle: Any, of: Any) -> None:
        sizes = tuple(of.shape) if of.is_block() else ()
        if sizes not in shapes:
            shapes[sizes] = core.constexpr(math.prod(sizes)), core.tuple([core.constexpr(size) for size in sizes])
        self.handle, self.type, self.dtype = handle, of, of.scalar
        self.numel, self.shape = shapes[sizes]

    def spread_unlike(self: Any, left: Any, right: Any) -> Any:
        of, to = left.type, right.type
        alike = of.is_block() and to.is_block() and of.shape.values == to.shape.values
        return (left, right) if alike else spread(self, left, right)

    monkeypatch.setattr(interpreter, "_get_np_dtype", find_dtype)
    monkeypatch.setattr(core.block_type, "with_element_ty", with_element)
    monkeypatch.setattr(core.tensor, "__init__", make)
    monkeypatch.setattr(semantic.TritonSemantic, "broadcast_impl_value", spread_unlike)

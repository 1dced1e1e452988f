"""Pinned messages: a change of these bytes is a change of the wire format (see CONTRIBUTING.md)."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from tests.golden.cases import AT, Case, cases, measure, pinned

CASES = {case.name: case for case in cases()}


def test_every_case_is_pinned() -> None:
    assert list(pinned()) == list(CASES)


@pytest.mark.parametrize("backend", ["numba", "numpy"])
@pytest.mark.parametrize("name", CASES)
def test_messages_are_the_pinned_ones(name: str, backend: str) -> None:
    case = CASES[name]
    found = measure(Case(name, replace(case.codec, backend=backend), case.update))  # type: ignore[type-var]
    assert found == pinned()[name]


@pytest.mark.parametrize("backend", ["numba", "numpy"])
@pytest.mark.parametrize("name", CASES)
def test_pinned_messages_decode(name: str, backend: str) -> None:
    """Apart from the encoder: what was sent once can be read for good."""
    entry = pinned()[name]
    codec = replace(CASES[name].codec, backend=backend)  # type: ignore[type-var]
    vector = codec.decode(bytes.fromhex(entry["message"]), AT)
    assert str(vector.dtype) == entry["dtype"]
    assert hashlib.sha256(vector.astype(vector.dtype.newbyteorder("<")).tobytes()).hexdigest() == entry["vector"]
    assert [float(v).hex() for v in vector[:2]] == entry["first"]

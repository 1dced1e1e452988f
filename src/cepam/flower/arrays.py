"""Flower's array records as NumPy arrays and back, and the record that carries a sealed message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord

from cepam.exchange.vectors import Arrays

STYPE = "cepam.v1"


def numpy_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays of a record, in its order."""
    return {name: array.numpy() for name, array in record.items()}


def record_of(arrays: Arrays) -> ArrayRecord:
    """The record of these arrays."""
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def carry(message: bytes) -> ArrayRecord:
    """The record that carries a message: no header of ours or NumPy's, sent in chunks by Flower."""
    return ArrayRecord({"update": Array("uint8", (len(message),), STYPE, message)})


def carried(record: ArrayRecord) -> bytes:
    """The message in such a record; ValueError if it is something else."""
    if list(record) != ["update"] or record["update"].stype != STYPE:
        raise ValueError("the reply carries plain arrays, not a sealed message")
    return bytes(record["update"].data)

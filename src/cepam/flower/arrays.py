"""Flower's array records as NumPy arrays and back, and the record that carries a sealed message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord

from cepam.protocol.vectors import Arrays

STYPE = "cepam.v1"
BROADCAST = "cepam.broadcast"
SECURE_AGGREGATION = "cepam-secure-aggregation"  # the record of a message of a sum


def numpy_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays of a record, in its order."""
    return {name: array.numpy() for name, array in record.items()}


def record_of(arrays: Arrays) -> ArrayRecord:
    """The record of these arrays."""
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def same_or_new(record: ArrayRecord, given: Arrays, made: Arrays) -> ArrayRecord:
    """The record itself where nothing was changed: writing a large model anew takes time."""
    return record if all(made[name] is given[name] for name in given) else record_of(made)


def carry(message: bytes) -> ArrayRecord:
    """The record that carries a message: no header of ours or NumPy's, sent in chunks by Flower."""
    return ArrayRecord({"update": Array("uint8", (len(message),), STYPE, message)})


def carried(record: ArrayRecord) -> bytes:
    """The message in such a record; ValueError if it is something else."""
    if list(record) != ["update"] or record["update"].stype != STYPE:
        raise ValueError("the reply carries plain arrays, not a sealed message")
    return bytes(record["update"].data)


def pack(message: bytes, beside: Mapping[str, Any]) -> ArrayRecord:
    """The record that carries a broadcast, and beside it the arrays that are not on the grid."""
    return ArrayRecord({BROADCAST: Array("uint8", (len(message),), STYPE, message), **beside})


def unpacked(record: ArrayRecord) -> tuple[bytes, dict[str, Any]]:
    """The broadcast in such a record, and the arrays beside it; ValueError if it is something else."""
    if BROADCAST not in record or record[BROADCAST].stype != STYPE:
        raise ValueError("the message carries plain arrays, not a broadcast")
    beside = {name: array for name, array in record.items() if name != BROADCAST}
    return bytes(record[BROADCAST].data), numpy_of(beside)

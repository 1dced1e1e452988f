"""The client's copy of the model in `context.state`, updated by each broadcast."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict

from cepam.flower.arrays import record_of, unpacked
from cepam.protocol.broadcast_message import DOWNLINK, BroadcastMessage, ClientModel, unpack
from cepam.protocol.client import Declined

STEPS = f"{DOWNLINK}-steps"


def receive(content: RecordDict, context: Context) -> ConfigRecord | None:
    """The report for the reply, once the content holds dense arrays; None where it came with dense arrays.

    `Declined` where the broadcast does not lead on from this node's copy: then the copy is as it was.
    """
    fields = content.get(DOWNLINK)
    if fields is None:
        return None
    records = content.array_records
    if not isinstance(fields, ConfigRecord) or len(records) != 1:
        raise Declined("arrays", f"a broadcast needs its fields and exactly one ArrayRecord, got {len(records)}")
    name, record = next(iter(records.items()))
    try:
        message, beside = unpacked(record)
        broadcast = BroadcastMessage.from_fields(fields, message)
    except ValueError as odd:
        raise Declined("arrays", str(odd)) from odd
    arrays, copy = unpack(broadcast, beside, _kept(context))
    _keep(context, copy)
    del content[DOWNLINK]
    content[name] = record_of(arrays)
    return ConfigRecord(copy.report)


def _kept(context: Context) -> ClientModel | None:
    """The copy in this node's state; None where there is none, or it is not one."""
    fields, steps = context.state.get(DOWNLINK), context.state.get(STEPS)
    if not isinstance(fields, ConfigRecord) or not isinstance(steps, ArrayRecord):
        return None
    try:
        state: dict[str, Any] = {key: fields[key] for key in ("version", "shift", "check")}
        state["steps"] = np.frombuffer(steps["steps"].data, dtype="<i4")
        return ClientModel(_of_type(fields["grid"], bytes), _of_type(fields["layout"], str), state)
    except (KeyError, TypeError, ValueError):
        return None


def _of_type(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not {kind.__name__}")
    return value


def _keep(context: Context, copy: ClientModel) -> None:
    fields = {key: copy.state[key] for key in ("version", "shift", "check")}
    context.state[DOWNLINK] = ConfigRecord({**fields, "grid": copy.grid, "layout": copy.layout})
    steps = np.ascontiguousarray(copy.state["steps"], dtype="<i4")
    context.state[STEPS] = ArrayRecord({"steps": Array("int32", steps.shape, "cepam.v1", steps.tobytes())})

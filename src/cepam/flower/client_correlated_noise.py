"""A node's state of correlated noise between messages: in `context.state`, and in a file where it names a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from flwr.app import ConfigRecord, Context, RecordDict

from cepam._internal.files import write_atomically
from cepam.protocol.client import Declined
from cepam.protocol.correlated_noise import ClientCorrelatedNoise, CorrelatedNoiseRefused
from cepam.protocol.messages import Offer
from cepam.protocol.vectors import Arrays, count

STATE = "cepam-correlated-noise"
FOLDER = "cepam-correlated-noise-folder"
SLICE, SLICES = "cepam-slice", "cepam-slices"
CLIP, DIVISOR, RECORD_SAMPLING_RATE = "cepam-clip", "cepam-divisor", "cepam-record-sampling-rate"


def follow(offer: Offer, reference: Arrays, content: RecordDict, context: Context) -> ClientCorrelatedNoise | None:
    """The stream that this offer's update goes to, with its slice in the training configuration; None: no stream."""
    if offer.settings.correlated_noise is None:
        return None
    try:
        stream = ClientCorrelatedNoise.follow(offer, count(reference), _kept(offer, context))
    except CorrelatedNoiseRefused as refused:
        raise Declined("order" if refused.code == "order" else "policy", str(refused)) from refused
    values: dict[str, int | float] = {SLICE: stream.sender.slice, SLICES: stream.config.slices}
    if stream.config.divisor:
        values |= {CLIP: float(offer.settings.clip.bound), DIVISOR: float(stream.config.divisor)}
    add_to_config(content, values)
    return stream


def add_to_config(content: RecordDict, values: Mapping[str, int | float]) -> None:
    """Put the node's own figures into every configuration of a message, in place of any that the server put there."""
    records = {name: dict(record) for name, record in content.config_records.items()} or {"config": {}}
    for name, record in records.items():
        content[name] = ConfigRecord({**record, **values})


def keep(stream: ClientCorrelatedNoise, offer: Offer, context: Context) -> None:
    """Save the state from which the next message goes on, before this one leaves."""
    fields = stream.to_fields(offer.run)
    path = _file(offer, context)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        plain = {name: {"hex": value.hex()} if isinstance(value, bytes) else value for name, value in fields.items()}
        write_atomically(path, json.dumps(plain).encode(), private=True)
    context.state[STATE] = ConfigRecord(fields)


def _file(offer: Offer, context: Context) -> Path | None:
    folder = context.node_config.get(FOLDER)
    return Path(str(folder)).expanduser() / f"run-{offer.run}-node-{offer.node}.json" if folder else None


def _kept(offer: Offer, context: Context) -> Mapping[str, object] | None:
    """What was kept of this run's stream: the file where there is one, which outlives the node, else the state."""
    path = _file(offer, context)
    if path is not None and path.exists():
        try:
            read = json.loads(path.read_text())
            return {n: bytes.fromhex(v["hex"]) if isinstance(v, dict) else v for n, v in read.items()}
        except (ValueError, KeyError, AttributeError) as damaged:
            raise Declined("order", f"{path} cannot be read, and with it what this node has sent") from damaged
    kept = context.state.get(STATE)
    return dict(kept) if isinstance(kept, ConfigRecord) else None

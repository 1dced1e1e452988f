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

STREAM = "cepam-stream"
FOLDER = "cepam-streams"
SLICE, SLICES = "cepam-slice", "cepam-slices"
CLIP, DIVISOR, CHANCE = "cepam-clip", "cepam-divisor", "cepam-chance"


def follow(offer: Offer, reference: Arrays, content: RecordDict, context: Context) -> ClientCorrelatedNoise | None:
    """The stream that this offer's update goes to, with its slice in the training configuration; None: no stream."""
    if offer.settings.stream is None:
        return None
    try:
        stream = ClientCorrelatedNoise.follow(offer, count(reference), _kept(offer, context))
    except CorrelatedNoiseRefused as refused:
        raise Declined("order" if refused.code == "order" else "terms", str(refused)) from refused
    told: dict[str, int | float] = {SLICE: stream.sender.slice, SLICES: stream.terms.slices}
    if stream.terms.divisor:
        told |= {CLIP: float(offer.settings.clip.bound), DIVISOR: float(stream.terms.divisor)}
    tell(content, told)
    return stream


def tell(content: RecordDict, told: Mapping[str, int | float]) -> None:
    """Put the node's own figures into every configuration of a message, in place of any that the server put there."""
    records = {name: dict(record) for name, record in content.config_records.items()} or {"config": {}}
    for name, record in records.items():
        content[name] = ConfigRecord({**record, **told})


def keep(stream: ClientCorrelatedNoise, offer: Offer, context: Context) -> None:
    """Nothing; the stream stands where its next message goes on, before this one leaves."""
    fields = stream.to_fields(offer.run)
    path = _file(offer, context)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        plain = {name: {"hex": value.hex()} if isinstance(value, bytes) else value for name, value in fields.items()}
        write_atomically(path, json.dumps(plain).encode(), private=True)
    context.state[STREAM] = ConfigRecord(fields)


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
    kept = context.state.get(STREAM)
    return dict(kept) if isinstance(kept, ConfigRecord) else None

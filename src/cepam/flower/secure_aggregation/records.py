"""The records that carry the protocol's stages over Flower, and what both ends must see alike."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, RecordDict
from flwr.common.config import get_fused_config_from_dir, get_project_dir

from cepam.flower.arrays import SECURE_AGGREGATION, carried
from cepam.protocol.broadcast_message import DOWNLINK
from cepam.protocol.messages import RECORD

OURS = frozenset({SECURE_AGGREGATION, RECORD, DOWNLINK})


def run_bytes(run: int) -> bytes:
    """A run of Flower as the messages of a sum name it."""
    return f"flower {run}".encode()


def secagg_message(content: RecordDict) -> bytes:
    """The message of a sum in this content; ValueError if there is none."""
    record = content.get(SECURE_AGGREGATION)
    if not isinstance(record, ArrayRecord):
        raise ValueError(
            "there is no message of secure aggregation: does the other end use cepam.flower.SecureAggregation?"
        )
    return carried(record)


def statement(run: int, node: int, request: bytes) -> bytes:
    """What a server signs that signs its requests: to whom, in which run, and every byte."""
    return hashlib.sha256(b"cepam sum request v1" + struct.pack("<QQ", run, node) + request).digest()


def run_config(run: Any) -> Mapping[str, Any]:
    """The configuration of a run of Flower as the contexts of its nodes have it: the app's own, and what replaces it.

    Args:
        run: `grid.run` of the server.
    """
    replaced = dict(getattr(run, "override_config", None) or {})
    if not getattr(run, "fab_id", ""):
        return replaced
    return dict(get_fused_config_from_dir(get_project_dir(run.fab_id, run.fab_version, run.fab_hash), replaced))


def check_value(
    content: RecordDict, update: str, configured: Mapping[str, Any], message_type: str, group_id: str
) -> bytes:
    """32 bytes that bind a round to all that a node is sent to train on.

    The masks of two nodes that were sent different things do not cancel
    (tests/flower/secure_aggregation/test_attacks.py).

    Args:
        content: the message's records: the model, the configuration.
        update: what the node replies with, parameters or a gradient.
        configured: the run's configuration, which a ClientApp reads from its context.
        message_type: the message's type, which chooses the function of the ClientApp that trains.
        group_id: the message's group, which a ClientApp reads from its metadata.
    """
    digest = hashlib.sha256(b"cepam sum model v2")
    _feed(digest, update.encode(), message_type.encode(), group_id.encode(), struct.pack("<Q", len(configured)))
    for key, value in sorted(configured.items()):
        _feed(digest, key.encode(), repr(value).encode())
    for name, record in sorted(content.items()):
        if name in OURS:
            continue
        _feed(digest, name.encode(), type(record).__name__.encode(), struct.pack("<Q", len(record)))
        for key, value in sorted(record.items()):
            _feed(digest, str(key).encode())
            if isinstance(record, ArrayRecord):
                _feed_array(digest, value.numpy())
            else:
                _feed(digest, repr(value).encode())
    return digest.digest()


def _feed_array(digest: Any, values: np.ndarray[Any, Any]) -> None:
    _feed(digest, values.dtype.str.encode(), repr(values.shape).encode())
    _feed(digest, np.ascontiguousarray(values).tobytes())


def _feed(digest: Any, *parts: bytes) -> None:
    for part in parts:
        digest.update(struct.pack("<Q", len(part)))
        digest.update(part)

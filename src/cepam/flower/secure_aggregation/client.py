"""A SuperNode's part in secure aggregation: its policy, journal and key, from its own configuration."""

from __future__ import annotations

import dataclasses
import tomllib
from functools import partial
from pathlib import Path

from flwr.app import ConfigRecord, Context

from cepam.flower.arrays import SUM
from cepam.flower.client_mod import IDENTITY_FILE, TERMS_FILE, read_key_file
from cepam.protocol.agreement import canonical, public_of, sign, verify
from cepam.protocol.client import Declined
from cepam.secure_aggregation.client import SecAggClient
from cepam.secure_aggregation.journal import FileJournal
from cepam.secure_aggregation.policy import ClientPolicy

JOURNAL_FILE = "cepam-state"
COHORT_FILE = "cepam-cohort"


def sum_node(context: Context, policy: ClientPolicy | None = None) -> SecAggClient:
    """The node that this configuration describes, with the secrets that `context.state` holds; `Declined` if none.

    Args:
        context: The node's context; a policy file that its configuration names always decides.
        policy: The ClientApp's policy, for nodes of a simulation, which have no file.
    """
    if policy is not None and TERMS_FILE not in context.node_config:
        from cepam.flower.secure_aggregation.simulated import simulated_node

        return simulated_node(context, policy, _kept_state(context))
    text, key = read_key_file(context, TERMS_FILE), read_key_file(context, IDENTITY_FILE)
    journal = context.node_config.get(JOURNAL_FILE)
    if text is None or key is None or not journal:
        raise Declined(
            "terms",
            f"secure aggregation needs {TERMS_FILE}, {JOURNAL_FILE} and {IDENTITY_FILE} in the node's configuration; "
            "in a simulation, Uplink(policy=ClientPolicy(…)) in the ClientApp",
        )
    try:
        identity, own = public_of(key), read_policy(text, read_key_file(context, COHORT_FILE))
    except (TypeError, ValueError) as unfit:
        raise Declined("terms", f"its terms, cohort or key cannot be read: {unfit}") from unfit
    path = Path(str(journal)).expanduser()
    return SecAggClient(
        context.node_id, identity, partial(sign, key), verify, own, FileJournal(path), _kept_state(context)
    )


def read_policy(text: bytes, cohort: bytes | None = None) -> ClientPolicy:
    """The terms in a TOML file, and the identities of a file of OpenSSH public keys; ValueError for anything else.

    A key of the file that is not one of `ClientPolicy` is an error: a misspelt floor would be none. So is a value of
    another type.
    """
    try:
        fields = tomllib.loads(text.decode())
    except RecursionError as deep:
        raise ValueError("the file is nested too deeply: it holds one value for each name") from deep
    known = {field.name for field in dataclasses.fields(ClientPolicy)}
    if odd := sorted(set(fields) - known):
        raise ValueError(f"{odd[0]!r} is not a field of a client's policy: {', '.join(sorted(known - {'cohort'}))}")
    if missing := [name for name in ("noise", "clip", "rounds") if name not in fields]:
        raise ValueError(f"{missing[0]!r} is missing: a client's policy needs noise, clip and rounds")
    if "cohort" in fields:
        raise ValueError(f"the cohort is a file of public keys that {COHORT_FILE} names")
    for name in ("noise", "clip", "batch", "chance"):
        if type(fields.get(name)) is int and abs(fields[name]) < 2**63:
            fields[name] = float(fields[name])
    return ClientPolicy(**fields, cohort=None if cohort is None else read_cohort(cohort))


def read_cohort(text: bytes) -> frozenset[bytes]:
    """The identities in a file with one OpenSSH public key a line; lines that start with # are left out."""
    lines = (line.strip() for line in text.splitlines())
    found = frozenset(canonical(line) for line in lines if line and not line.startswith(b"#"))
    if not found:
        raise ValueError("the cohort names nobody")
    return found


def keep_state(context: Context, node: SecAggClient) -> None:
    """Keep the node's secrets as it left them, for the next message."""
    context.state[SUM] = ConfigRecord({"state": node.state})
    if not isinstance(node.journal, FileJournal):
        node.journal.keep(context)  # type: ignore[attr-defined]  # a simulated node's


def _kept_state(context: Context) -> bytes:
    kept = context.state.get(SUM)
    state = kept.get("state") if isinstance(kept, ConfigRecord) else None
    return state if isinstance(state, bytes) else b""

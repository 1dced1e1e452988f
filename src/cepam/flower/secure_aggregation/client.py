"""A SuperNode's part in secure aggregation: its policy, account and key, from its own configuration."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from flwr.app import ConfigRecord, Context

from cepam.flower.arrays import SECURE_AGGREGATION
from cepam.flower.client_mod import IDENTITY_FILE, read_key_file
from cepam.flower.client_policy import ACCOUNT_FILE, POLICY_FILE, enforced
from cepam.policy import ClientPolicy, FileAccount
from cepam.protocol.agreement import canonical, public_of, sign, verify
from cepam.protocol.client import Declined
from cepam.secure_aggregation.client import SecAggClient

COHORT_FILE = "cepam-cohort"


def secagg_client(context: Context, policy: ClientPolicy | None = None) -> SecAggClient:
    """The node that this configuration describes, with the secrets that `context.state` holds; `Declined` if none.

    Args:
        context: The node's context; a policy file that its configuration names always decides.
        policy: The ClientApp's policy, for nodes of a simulation, which have no file.
    """
    rules, key = enforced(context), read_key_file(context, IDENTITY_FILE)
    if policy is not None and rules is None:
        from cepam.flower.secure_aggregation.simulated import simulated_node

        return simulated_node(context, policy, _kept_state(context))
    if rules is None or key is None:
        raise Declined(
            "policy",
            f"secure aggregation needs {POLICY_FILE}, {ACCOUNT_FILE} and {IDENTITY_FILE} in the node's configuration; "
            "in a simulation, Uplink(policy=ClientPolicy(…)) in the ClientApp",
        )
    try:
        identity, cohort = public_of(key), read_key_file(context, COHORT_FILE)
        own = rules.policy if cohort is None else replace(rules.policy, cohort=read_cohort(cohort))
    except (TypeError, ValueError) as unfit:
        raise Declined("policy", f"the node's cohort or key cannot be read: {unfit}") from unfit
    return SecAggClient(context.node_id, identity, partial(sign, key), verify, own, rules.account, _kept_state(context))


def read_cohort(text: bytes) -> frozenset[bytes]:
    """The identities in a file with one OpenSSH public key a line; lines that start with # are left out."""
    lines = (line.strip() for line in text.splitlines())
    found = frozenset(canonical(line) for line in lines if line and not line.startswith(b"#"))
    if not found:
        raise ValueError("the cohort names nobody")
    return found


def keep_state(context: Context, node: SecAggClient) -> None:
    """Keep the node's secrets as it left them, for the next message."""
    context.state[SECURE_AGGREGATION] = ConfigRecord({"state": node.state})
    if not isinstance(node.account, FileAccount):
        node.account.keep(context)  # type: ignore[attr-defined]  # a simulated node's


def _kept_state(context: Context) -> bytes:
    kept = context.state.get(SECURE_AGGREGATION)
    state = kept.get("state") if isinstance(kept, ConfigRecord) else None
    return state if isinstance(state, bytes) else b""

"""A SuperNode's policy and account, from its own configuration; what they let leave."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message, MetricRecord, RecordDict

from cepam.policy import ClientPolicy, FileAccount, read_policy
from cepam.protocol.client import Declined
from cepam.protocol.enforcement import EnforcedPolicy

POLICY_FILE = "cepam-policy"
ACCOUNT_FILE = "cepam-account"
RENAMED = {
    "cepam-terms": "cepam-policy",
    "cepam-state": "cepam-account",
    "cepam-epsilon": "epsilon in the file that cepam-policy names",
    "cepam-delta": "delta in the file that cepam-policy names",
    "cepam-batch": "divisor in the file that cepam-policy names",
}


def enforced(context: Context) -> EnforcedPolicy | None:
    """The policy that this node's configuration names, with its account; None where it names none.

    Raises:
        Declined: the configuration has a key of earlier versions, a file that cannot be read, or no account.
    """
    for old, new in RENAMED.items():
        if old in context.node_config:
            raise Declined("policy", f"{old} in this node's configuration is now {new}")
    if POLICY_FILE not in context.node_config:
        return None
    policy, account = read_node_policy(context), context.node_config.get(ACCOUNT_FILE)
    if not account:
        raise Declined("policy", f"a node with {POLICY_FILE} needs {ACCOUNT_FILE}, the file that counts what it spent")
    return EnforcedPolicy(policy, FileAccount(Path(str(account)).expanduser()))


def read_node_policy(context: Context) -> ClientPolicy:
    """The policy in the file that this node's configuration names."""
    from cepam.flower.client_mod import read_key_file

    text = read_key_file(context, POLICY_FILE)
    if text is None:
        raise Declined("policy", f"{POLICY_FILE} names no file")
    try:
        return read_policy(text)
    except ValueError as unfit:
        raise Declined("policy", f"the node's policy cannot be read: {unfit}") from unfit


def only_metrics(content: RecordDict, rules: EnforcedPolicy) -> dict[str, MetricRecord]:
    """The plain numbers of a reply that may leave: all, or none, as the policy says."""
    return {str(name): record for name, record in content.metric_records.items()} if rules.policy.metrics else {}


def evaluated(reply: Message, rules: EnforcedPolicy) -> Message:
    """The reply to an evaluation or a query without anything but metrics."""
    reply.content = RecordDict(dict(only_metrics(reply.content, rules)))
    return reply

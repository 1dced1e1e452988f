"""What a node enforces, in every mode: its operator's policy, and the account of all that it has answered.

- the policy: `ClientPolicy`, `read_policy` (a TOML file), `PolicyRefused`
- the account, in a file of the node's own: `FileAccount`, `NodeAccount`, `AccountUnusable`; `MemoryAccount` simulates
- what it counts: `AnsweredRounds`, `RoundCharge`

docs/proofs/node-policy.md says what the node's figure means in each mode, and who must be trusted for it.
"""

from cepam.policy.account import (
    AccountStore,
    AccountUnusable,
    AnsweredRounds,
    FileAccount,
    MemoryAccount,
    NodeAccount,
    RoundCharge,
    RunPlace,
    Trust,
)
from cepam.policy.policy import ClientPolicy, PolicyRefused, read_policy

__all__ = [
    "AccountStore",
    "AccountUnusable",
    "AnsweredRounds",
    "ClientPolicy",
    "FileAccount",
    "MemoryAccount",
    "NodeAccount",
    "PolicyRefused",
    "RoundCharge",
    "RunPlace",
    "Trust",
    "read_policy",
]

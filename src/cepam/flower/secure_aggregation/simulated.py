"""Nodes of a simulation in secure aggregation: the ClientApp's policy, and a key and a account in the run's state."""

from __future__ import annotations

from functools import partial
from logging import INFO, getLogger

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ConfigRecord, Context

from cepam.flower.client_mod import IDENTITY_FILE, SECURE_AGGREGATION, read_key_file
from cepam.policy import ClientPolicy, MemoryAccount, NodeAccount
from cepam.protocol.agreement import public_of, sign, verify
from cepam.secure_aggregation.client import SecAggClient

log = getLogger("flwr").log  # Flower's own log, which `flwr run --stream` shows

SIMULATED = f"{SECURE_AGGREGATION}-simulated"


class StateAccount(MemoryAccount):
    """The account and the key of a node, which end with the run's state: FOR SIMULATION ONLY."""

    def __init__(self, key: bytes, entry: NodeAccount) -> None:
        super().__init__()
        self.key = key
        self.commit(entry)

    def keep(self, context: Context) -> None:
        """Keep account and key in this state, for the next message."""
        with self.hold() as entry:
            context.state[SIMULATED] = ConfigRecord({"key": self.key, "account": entry.encode()})


def simulated_node(context: Context, policy: ClientPolicy, state: bytes) -> SecAggClient:
    """The node that enforces the ClientApp's policy, with a new key where its configuration names none."""
    kept = context.state.pop(SIMULATED, None)  # user code does not see it
    fields = dict(kept) if isinstance(kept, ConfigRecord) else {}
    key, said = read_key_file(context, IDENTITY_FILE) or fields.get("key"), fields.get("account")
    if not isinstance(key, bytes):
        log(INFO, "cepam: this node has no policy of its own; that of the ClientApp is enforced, as in a simulation")
        key = _new_key()
    account = StateAccount(key, NodeAccount.decode(said) if isinstance(said, bytes) else NodeAccount())
    return SecAggClient(context.node_id, public_of(key), partial(sign, key), verify, policy, account, state)


def _new_key() -> bytes:
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )

"""Nodes of a simulation in secure aggregation: the ClientApp's policy, and a key and a journal in the run's state."""

from __future__ import annotations

from functools import partial
from logging import INFO, getLogger

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ConfigRecord, Context

from cepam.flower.arrays import SUM
from cepam.flower.client_mod import IDENTITY_FILE, read_key_file
from cepam.protocol.agreement import public_of, sign, verify
from cepam.secure_aggregation.client import SecAggClient
from cepam.secure_aggregation.journal import JournalEntry, MemoryJournal
from cepam.secure_aggregation.policy import ClientPolicy

log = getLogger("flwr").log  # Flower's own log, which `flwr run --stream` shows

SIMULATED = f"{SUM}-simulated"


class StateJournal(MemoryJournal):
    """The journal and the key of a node, which end with the run's state: FOR SIMULATION ONLY."""

    def __init__(self, key: bytes, entry: JournalEntry) -> None:
        super().__init__()
        self.key = key
        self.commit(entry)

    def keep(self, context: Context) -> None:
        """Keep journal and key in this state, for the next message."""
        with self.hold() as entry:
            context.state[SIMULATED] = ConfigRecord({"key": self.key, "journal": entry.encode()})


def simulated_node(context: Context, policy: ClientPolicy, state: bytes) -> SecAggClient:
    """The node that enforces the ClientApp's policy, with a new key where its configuration names none."""
    kept = context.state.pop(SIMULATED, None)  # user code does not see it
    fields = dict(kept) if isinstance(kept, ConfigRecord) else {}
    key, said = read_key_file(context, IDENTITY_FILE) or fields.get("key"), fields.get("journal")
    if not isinstance(key, bytes):
        log(INFO, "cepam: this node has no policy of its own; that of the ClientApp is enforced, as in a simulation")
        key = _new_key()
    journal = StateJournal(key, JournalEntry.decode(said) if isinstance(said, bytes) else JournalEntry())
    return SecAggClient(context.node_id, public_of(key), partial(sign, key), verify, policy, journal, state)


def _new_key() -> bytes:
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )

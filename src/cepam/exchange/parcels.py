"""A broadcast as it travels to a node, and the node's copy of the model, which it leads on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cepam.codec.broadcast import Receiver
from cepam.errors import CepamError
from cepam.exchange.client_end import Declined
from cepam.exchange.inventory import Inventory
from cepam.exchange.messages import WIRE
from cepam.exchange.vectors import Array, Arrays

DOWNLINK = "cepam-downlink"
Field = int | str | bytes


@dataclass(frozen=True)
class Parcel:
    """The grid's name, the model's inventory (empty where the node has it), and the broadcast."""

    grid: bytes
    inventory: str
    message: bytes

    def to_fields(self) -> dict[str, Field]:
        """What travels beside the broadcast, as fields."""
        return {"wire": WIRE, "grid": self.grid, "inventory": self.inventory}

    @classmethod
    def from_fields(cls, record: Mapping[str, object], message: bytes) -> Parcel:
        """The parcel of these fields and a broadcast; ValueError if they are something else."""
        grid, inventory = record.get("grid"), record.get("inventory")
        if record.get("wire") != WIRE or not isinstance(grid, bytes) or not isinstance(inventory, str) or not grid:
            raise ValueError("the fields beside the broadcast are not those of this version")
        return cls(grid, inventory, message)


@dataclass(frozen=True)
class Copy:
    """A node's copy of the model, to be kept between messages: the grid, the inventory, the receiver's state."""

    grid: bytes
    inventory: str
    state: dict[str, Any]

    @property
    def report(self) -> dict[str, Field]:
        """What the server is told: the version that is held, and its check value."""
        return {"version": int(self.state["version"]), "check": bytes(self.state["check"])[:16]}


def unpack(parcel: Parcel, beside: Arrays, kept: Copy | None) -> tuple[dict[str, Array], Copy]:
    """The model's arrays and the copy that now holds them; `Declined` where the parcel does not lead on from `kept`.

    Guarantee: the arrays are, bit for bit, the server's public ones, or nothing comes back (tests/exchange/
    test_downlink.py). The code `version` says that a snapshot is needed.
    """
    known = kept if kept is not None and kept.grid == parcel.grid else None
    text = parcel.inventory or (known.inventory if known is not None else "")
    if not text:
        raise Declined("version", "this node holds nothing of the model that the broadcast leads on from")
    try:
        inventory = Inventory.from_text(text)
        if sorted(inventory.beside) != sorted(beside):
            raise ValueError(f"beside the broadcast came {sorted(beside)[:3]}, not {sorted(inventory.beside)[:3]}")
    except ValueError as odd:
        raise Declined("arrays", str(odd)) from odd
    receiver = _receiver(parcel.grid, inventory.size, known if known is not None and known.inventory == text else None)
    try:
        weights = receiver.apply(parcel.message)
    except (CepamError, ValueError) as unfit:
        raise Declined("version", str(unfit)) from unfit
    return inventory.arrays(weights, beside), Copy(parcel.grid, text, receiver.state_dict())


def _receiver(grid: bytes, size: int, known: Copy | None) -> Receiver:
    """A receiver that holds the kept copy, or nothing where there is none or it is damaged."""
    receiver = Receiver(grid, size=size)
    if known is not None:
        try:
            receiver.load_state_dict(known.state)
        except (CepamError, ValueError, TypeError):
            return Receiver(grid, size=size)
    return receiver

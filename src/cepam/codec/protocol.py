"""What the rooms above ask of anything that encodes: a codec, a baseline, a stand-in, or an object of your own."""

from __future__ import annotations

from typing import Any, Protocol

from cepam.keys import Address


class UpdateCodec(Protocol):
    """Turns an update into the message of an address, and the message back into a vector."""

    def encode(self, update: Any, at: Address) -> bytes: ...

    def decode(self, message: bytes, at: Address) -> Any: ...

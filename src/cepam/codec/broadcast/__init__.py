"""Small messages from the server to everybody: public weights on one public grid (docs/downlink.md)."""

from cepam.codec.broadcast.receiver import Receiver
from cepam.codec.broadcast.server import Broadcast

__all__ = ["Broadcast", "Receiver"]

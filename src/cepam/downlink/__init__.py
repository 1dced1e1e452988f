"""Quantized model broadcast: public weights on one public grid (docs/downlink.md)."""

from cepam.downlink.broadcast import Broadcast, Receiver

__all__ = ["Broadcast", "Receiver"]

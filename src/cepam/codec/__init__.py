"""The codec: updates to sealed bytes and back, one or many at a time; the wire format; the paper's quantizers."""

from __future__ import annotations

from cepam.codec.batch import decode_many, encode_many
from cepam.codec.codec import Codec, DitheredCodec
from cepam.codec.quantizers import LRSUQ, RSUQ, SDQ

__all__ = ["LRSUQ", "RSUQ", "SDQ", "Codec", "DitheredCodec", "decode_many", "encode_many"]

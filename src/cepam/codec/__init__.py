"""The codec: updates and whole models to sealed bytes and back; the wire format; the paper's quantizers."""

from cepam.codec.batch import decode_many, encode_many
from cepam.codec.codec import Codec, DitheredCodec
from cepam.codec.quantizers import LRSUQ, RSUQ, SDQ
from cepam.codec.tree import decode_tree, encode_tree, structure_of

__all__ = [
    "LRSUQ",
    "RSUQ",
    "SDQ",
    "Codec",
    "DitheredCodec",
    "decode_many",
    "decode_tree",
    "encode_many",
    "encode_tree",
    "structure_of",
]

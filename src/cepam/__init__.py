"""Client updates that are private and small: exact-noise lattice quantization for federated learning."""

from cepam import errors
from cepam.clip import L1, L2, Clip
from cepam.codec.batch import decode_many, encode_many
from cepam.codec.codec import Codec, DitheredCodec
from cepam.codec.quantizers import LRSUQ, RSUQ, SDQ
from cepam.codec.tree import decode_tree, encode_tree, structure_of
from cepam.distributions.laws import Gaussian, Laplace, Law, UniformBall
from cepam.downlink import Broadcast, Receiver
from cepam.keys import Address, Key, KeyChain, UsedAddresses
from cepam.lattices.lattice import A2, D4, E8, Integer, Lattice

__version__ = "0.2.0"

__all__ = [
    "A2",
    "D4",
    "E8",
    "L1",
    "L2",
    "LRSUQ",
    "RSUQ",
    "SDQ",
    "Address",
    "Broadcast",
    "Clip",
    "Codec",
    "DitheredCodec",
    "Gaussian",
    "Integer",
    "Key",
    "KeyChain",
    "Laplace",
    "Lattice",
    "Law",
    "Receiver",
    "UniformBall",
    "UsedAddresses",
    "decode_many",
    "decode_tree",
    "encode_many",
    "encode_tree",
    "errors",
    "structure_of",
]

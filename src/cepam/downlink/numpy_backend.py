"""The downlink's arithmetic in NumPy: the reference for the compiled kernels."""

from __future__ import annotations

from cepam.kernels.format.plan import Ints
from cepam.kernels.numpy import broadcast_coder as reference


class ReferenceLoop:
    """The same in NumPy, slow and plain."""

    def __init__(self, key: bytes) -> None:
        self.key = key

    def dithers(self, first: int, count: int) -> Ints:
        return reference.dithers_of(self.key, first, count)

    places_of_values = staticmethod(reference.places_of_values)
    places_of_points = staticmethod(reference.places_of_points)
    nearest_points = staticmethod(reference.nearest_points)
    values_of_places = staticmethod(reference.values_of_places)
    encode = staticmethod(reference.encode_blocks)
    decode = staticmethod(reference.decode_blocks)

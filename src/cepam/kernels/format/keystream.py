"""What the keystream is made of: ChaCha's constants, its rounds, and which stream holds what."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Half = npt.NDArray[np.uint32]

ROUNDS = 12
CONSTANTS = np.frombuffer(b"expand 32-byte k", dtype="<u4").astype(np.uint32)
LATENT_STREAM = 0


def dither_stream(trial: int) -> int:
    """The number of the stream that holds the dithers of a trial, counted from 0."""
    return trial + 1


def key_words(key: bytes) -> Half:
    """A 32-byte key as eight little-endian words; several keys one after the other as so many more."""
    return np.frombuffer(key, dtype="<u4").astype(np.uint32)

"""Client updates that are private and small: exact-noise lattice quantization for federated learning."""

from __future__ import annotations

from cepam import errors
from cepam.clip import L1, L2, Clip
from cepam.law import Gaussian, Laplace, Law, UniformBall

__version__ = "0.1.0"

__all__ = ["L1", "L2", "Clip", "Gaussian", "Laplace", "Law", "UniformBall", "errors"]

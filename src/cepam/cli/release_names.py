"""The words that options of a release may take."""

from __future__ import annotations

from enum import StrEnum


class AccountedLaw(StrEnum):
    GAUSSIAN = "gaussian"
    LAPLACE = "laplace"


class NormName(StrEnum):
    L1 = "l1"
    L2 = "l2"


class SamplingName(StrEnum):
    REPLACEMENT = "replacement"
    WITHOUT = "without"
    POISSON = "poisson"
    ALL = "all"


class AdjacencyName(StrEnum):
    REPLACE = "replace"
    ADD_REMOVE = "add-remove"


class NoiseName(StrEnum):
    INDEPENDENT = "independent"
    MATRIX = "matrix"


class ScheduleName(StrEnum):
    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


class TrustName(StrEnum):
    SERVER = "server"
    SUM = "sum"


class UnitName(StrEnum):
    RECORD = "record"
    CLIENT = "client"


class ClippedName(StrEnum):
    UPDATE = "update"
    EXAMPLE = "example"

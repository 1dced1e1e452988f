"""The compiled backend gives what the reference gives."""

from __future__ import annotations

from typing import ClassVar

from cepam.kernels.dispatch import BackendName
from tests.identity.suite import BackendIdentity


class TestNumba(BackendIdentity):
    backend: ClassVar[BackendName] = "numba"

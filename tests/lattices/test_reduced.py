"""Whether a basis is reduced, found in one pass: as reducing it would say."""

from __future__ import annotations

import random

import numpy as np

from cepam.lattices.geometry import is_reduced, reduce_basis


def test_one_pass_knows_what_reducing_would_change() -> None:
    draw = random.Random(3)
    for _ in range(300):
        n = draw.randint(2, 4)
        basis = np.array([[draw.randint(-4, 4) for _ in range(n)] for _ in range(n)], dtype=np.int64)
        if round(abs(np.linalg.det(basis))):
            assert is_reduced(basis) == np.array_equal(reduce_basis(basis), basis)
            assert is_reduced(reduce_basis(basis))

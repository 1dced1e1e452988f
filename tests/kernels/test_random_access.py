"""The reference quantizer: random access into the shared randomness, and its integer arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from cepam.errors import MalformedMessage
from cepam.kernels.format.plan import LATENT_STREAM, dither_stream, layered_plan
from cepam.kernels.numpy import quantizer as reference
from tests.corpus import LATTICES, LAWS, SECRET


def test_multiply_high() -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.integers(0, 2**64, size=1000, dtype=np.uint64) for _ in range(2))
    a[:4], b[:4] = [0, 2**64 - 1, 1, 2**32], [5, 2**64 - 1, 2**64 - 1, 2**32]
    assert reference.multiply_high(a, b).tolist() == [int(x) * int(y) >> 64 for x, y in zip(a, b)]


def test_bit_length() -> None:
    values = [0, 1, 2, 3, 4, 255, 256, 2**32 - 1, 2**32, 2**53, 2**63, 2**64 - 1]
    assert reference.bit_length(np.array(values, dtype=np.uint64)).tolist() == [v.bit_length() for v in values]


@pytest.mark.parametrize("trial", [1, 17, 1000, 65536])
@pytest.mark.parametrize("lattice", LATTICES)
def test_decoding_trial_h_reads_the_words_of_trial_h_only(
    lattice: str, trial: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cost of reconstruction does not depend on H."""
    seen: list[tuple[int, int]] = []
    real = reference.stream_words

    def remember(key: bytes, stream: int, index: np.ndarray) -> np.ndarray:
        seen.append((stream, index.size))
        return real(key, stream, index)

    monkeypatch.setattr(reference, "stream_words", remember)
    plan = layered_plan(LAWS["gaussian"], LATTICES[lattice])
    h, m = np.array([trial]), np.zeros((1, plan.n), dtype=np.int64)
    reference.reconstruct(plan, SECRET, h, m, first=5)
    assert seen == [(LATENT_STREAM, 1), (dither_stream(trial - 1), plan.words)]


@pytest.mark.parametrize("lattice", LATTICES)
def test_points_out_of_range_are_refused(lattice: str) -> None:
    plan = layered_plan(LAWS["gaussian"], LATTICES[lattice])
    m = np.full((1, plan.n), 2**46, dtype=np.int64)
    with pytest.raises(MalformedMessage, match="range"):
        reference.reconstruct(plan, SECRET, np.array([1]), m)


@pytest.mark.parametrize("lattice", LATTICES)
def test_rows_stand_by_themselves(lattice: str) -> None:
    """A sub-vector's (H, M) depends on its own number and values only."""
    plan = layered_plan(LAWS["gaussian"], LATTICES[lattice])
    x = np.random.default_rng(3).integers(-(2**42), 2**42, size=(40, plan.n))
    h, m = reference.quantize(plan, SECRET, x, first=100)
    for row in (0, 13, 39):
        alone = reference.quantize(plan, SECRET, x[row : row + 1], first=100 + row)
        assert alone[0][0] == h[row]
        assert np.array_equal(alone[1][0], m[row])


def test_grid_rounds_to_nearest() -> None:
    half = 1 << 27
    units = np.array([0, half - 1, half, -half, -half - 1, 1 << 28, -(1 << 28)], dtype=np.int64)
    assert reference.to_grid(units).tolist() == [0, 0, 1, 0, -1, 1, -1]

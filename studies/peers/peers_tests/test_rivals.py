"""What rivals send opens to the sum, with the noise that they were given, or says that bits are too few."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cepam_peers.rivals import LegacyQuantization, RotatedIntegers, fitted

SIZE, CLIENTS, SCALE, MOVED = 500, 10, 0.01, 0.05


def row() -> Any:
    settings = SimpleNamespace(clients=SimpleNamespace(count=CLIENTS), privacy=SimpleNamespace(clipping_norm=0.1))
    return SimpleNamespace(vectors=SimpleNamespace(size=SIZE), settings=settings)


def updates(round: int) -> list[np.ndarray]:
    rows = np.random.default_rng(round).normal(size=(CLIENTS, SIZE)) * 0.05 / np.sqrt(SIZE)
    return list(rows.astype(np.float32))


@pytest.mark.parametrize("kind", ["ddg", "skellam", "legacy"])
def test_the_sum_has_the_noise_that_was_found_for_it(kind: str) -> None:
    legacy = LegacyQuantization(row(), SCALE)
    made: Any = legacy if kind == "legacy" else RotatedIntegers(kind, 16, row(), SCALE, MOVED)  # type: ignore[arg-type]
    off = []
    for round in range(8):
        total, bits = made.total(updates(round), np.random.default_rng(round))
        off.append(total - np.sum(updates(round), axis=0))
    noise = SCALE if kind == "legacy" else made.words().noise
    # 4,000 errors: the variance within a tenth, the mean within seven deviations.
    assert np.var(off) == pytest.approx(CLIENTS * noise**2, rel=0.15)
    assert abs(np.mean(off)) < 7 * noise * np.sqrt(CLIENTS / 4000)
    assert bits == (65 if kind == "legacy" else 16 * 512 / 500)


def test_rounding_costs_noise_and_few_bits_cost_much_of_it() -> None:
    found = [fitted(SCALE, MOVED, CLIENTS, SIZE, 0.1, bits) for bits in (8, 12, 16)]
    assert found[0].noise > found[1].noise > found[2].noise > SCALE
    assert found[2].noise < 1.01 * SCALE
    for words in found:
        assert words.noise == pytest.approx(SCALE * np.sqrt(1 + words.step * np.sqrt(SIZE) / MOVED), rel=1e-6)
    with pytest.raises(ValueError, match="too few"):
        fitted(SCALE, MOVED / 1000, CLIENTS, SIZE, 0.1, 2)


def test_the_coupled_sensitivity_is_what_is_charged() -> None:
    """Rounding two neighbours with the same uniforms: the mean squared distance is at most moved² + √m moved."""
    rng = np.random.default_rng(4)
    x, shift = rng.normal(size=SIZE), rng.normal(size=SIZE)
    shift *= 3.0 / np.linalg.norm(shift)
    uniform = rng.random((2000, SIZE))
    apart = np.floor(x + shift + uniform) - np.floor(x + uniform)
    mean = (apart**2).sum(1).mean()
    assert 9.0 < mean <= 9.0 + np.sqrt(SIZE) * 3.0

"""Shares of noise: the same total whoever brings them, over a divisor that does not look at the replies."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cepam
from cepam.protocol.server import Shares
from cepam.protocol.settings import UplinkSettings

LIGHT = UplinkSettings(cepam.Gaussian(0.5), cepam.L2(1.0))
HEAVY = UplinkSettings(cepam.Gaussian(0.25), cepam.L2(1.0), weight=3.0)
ASKED = [LIGHT] * 4 + [HEAVY] * 2


@given(light=st.integers(0, 4), heavy=st.integers(0, 2))
def test_the_total_is_the_same_whoever_replies(light: int, heavy: int) -> None:
    came = [LIGHT] * light + [HEAVY] * heavy
    shares = Shares.of(ASKED)
    brought = math.sqrt(sum((one.weight * one.law.scale) ** 2 for one in came))
    total = shares.noise * shares.divisor
    assert total * (1 - 1e-15) <= math.hypot(brought, shares.missing(came)) <= total * (1 + 1e-14)
    assert shares.divisor == 10.0
    assert total == pytest.approx(math.sqrt(4 * 0.5**2 + 2 * 0.75**2))


def test_nothing_is_added_where_all_came_and_the_divisor_is_public() -> None:
    vectors = [np.full(3, float(k)) for k in range(6)]
    made = Shares.of(ASKED).mean(list(zip(ASKED, vectors)), 3)
    np.testing.assert_allclose(made, (0 + 1 + 2 + 3 + 3 * (4 + 5)) / 10.0)
    alone = Shares.of(ASKED).mean([(LIGHT, np.full(3, 1e9))], 3)
    np.testing.assert_allclose(alone, 1e8, rtol=1e-6)


def test_what_was_not_asked_for_is_refused() -> None:
    for asked, came in (([LIGHT], [LIGHT, LIGHT]), ([LIGHT], [HEAVY]), (ASKED, [HEAVY] * 3)):
        with pytest.raises(ValueError, match=r"not requested|at most the cap"):
            Shares.of(asked).mean([(one, np.zeros(3)) for one in came], 3)
    with pytest.raises(ValueError, match="Gaussian"):
        Shares.of([UplinkSettings(cepam.Laplace(1.0), cepam.L1(1.0))])

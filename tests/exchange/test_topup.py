"""Shares of noise: the same total whoever brings them, over a divisor that does not look at the replies."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cepam
from cepam.exchange.topup import Shares, share_of
from cepam.exchange.uplink_settings import UplinkSettings
from cepam.privacy.topup import noise_for

LIGHT = UplinkSettings(cepam.Gaussian(0.5), cepam.L2(1.0))
HEAVY = UplinkSettings(cepam.Gaussian(0.25), cepam.L2(1.0), weight=3.0)
ASKED = [LIGHT] * 4 + [HEAVY] * 2


@settings(max_examples=10, deadline=None)
@given(light=st.integers(0, 4), heavy=st.integers(0, 2))
def test_the_total_is_the_same_whoever_replies(light: int, heavy: int) -> None:
    came = [LIGHT] * light + [HEAVY] * heavy
    shares = Shares.of(ASKED)
    total = shares.noise * shares.divisor
    added = noise_for(dict(shares.counts), map(share_of, came), 4_000)
    assert sorted(weight for weight, _ in added) == [1.0] * (4 - light) + [3.0] * (2 - heavy)
    assert len(added) == len(ASKED) - len(came)
    for weight, noise in added:  # the very law and grid that the missing client had brought
        law = LIGHT.law if weight == 1.0 else HEAVY.law
        assert abs(float(noise.std()) / law.scale - 1.0) < 6.2 / math.sqrt(2 * 4_000)
        assert np.array_equal(noise, np.round(noise / LIGHT.codec.grid * 2) * (LIGHT.codec.grid / 2))
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
        with pytest.raises(ValueError, match="not asked for"):
            Shares.of(asked).mean([(one, np.zeros(3)) for one in came], 3)
    with pytest.raises(ValueError, match="Gaussian"):
        Shares.of([UplinkSettings(cepam.Laplace(1.0), cepam.L1(1.0))])

from __future__ import annotations

import numpy as np
import pytest

from cepam import Address, Gaussian, Key, Laplace, UniformBall
from cepam.errors import CepamError
from cepam.fl.clients.sending import NoisyDithered, PlainFloats, draw_noise

AT = Address(Key(bytes(32)), round=1, client=2)
UPDATE = np.linspace(-1, 1, 20_000, dtype=np.float32)


def test_plain_floats_come_back_whole() -> None:
    codec = PlainFloats()
    message = codec.encode(UPDATE, AT)
    np.testing.assert_array_equal(codec.decode(message, AT), UPDATE)
    assert 0 <= len(message) - 4 * UPDATE.size <= 64


@pytest.mark.parametrize("law", [Gaussian(0.3), Laplace(0.2)])
@pytest.mark.parametrize("step", [None, 0.01])
def test_noise_has_the_laws_spread_and_depends_on_the_address(law, step) -> None:
    codec = PlainFloats(law) if step is None else NoisyDithered(law, step)
    error = codec.decode(codec.encode(UPDATE, AT), AT) - UPDATE
    expected = (law.variance() + (step or 0) ** 2 / 12) ** 0.5
    assert error.std() == pytest.approx(expected, rel=0.04)
    elsewhere = Address(AT.key, round=2, client=2)
    other = codec.decode(codec.encode(UPDATE, elsewhere), elsewhere) - UPDATE
    assert abs(np.corrcoef(error, other)[0, 1]) < 0.04
    again = codec.decode(codec.encode(UPDATE, AT), AT) - UPDATE
    np.testing.assert_array_equal(error, again)


@pytest.mark.parametrize("codec", [PlainFloats(), PlainFloats(Gaussian(0.1)), NoisyDithered(Laplace(0.1), 0.01)])
def test_garbage_raises(codec) -> None:
    message = codec.encode(UPDATE, AT)
    for bad in (b"", message[:-1], message[:50] + b"x" + message[51:], bytes(len(message))):
        with pytest.raises(CepamError):
            codec.decode(bad, AT)
    with pytest.raises(CepamError):
        codec.decode(message, Address(AT.key, round=1, client=3))


def test_bad_updates_and_laws_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        PlainFloats().encode(np.array([np.nan], dtype=np.float32), AT)
    with pytest.raises(ValueError, match="Gaussian or Laplace"):
        draw_noise(UniformBall(1.0), 3, AT)

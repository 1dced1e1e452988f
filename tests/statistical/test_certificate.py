"""The noise of decoded vectors, law by law and lattice by lattice, and controls that must fail.

False-alarm rate: 1e-3 for each certificate (Holm over its 150 to 350 checks); keys are fixed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cepam
from cepam.verify import statistics as goodness
from cepam.verify.certificate import verify

from .student import StudentT

SAMPLES = 10_000
USER_LATTICE = cepam.Lattice([[1.0, 0.3, 0.1], [0.0, 1.0, 0.2], [0.0, 0.0, 1.1]])
LATTICES = {
    "Z1": cepam.Integer(1),
    "Z2": cepam.Integer(2),
    "Z3": cepam.Integer(3),
    "A2": cepam.A2,
    "D4": cepam.D4,
    "E8": cepam.E8,
    "user": USER_LATTICE,
}
LAWS = {"gaussian": cepam.Gaussian(0.01), "laplace": cepam.Laplace(0.3), "ball": cepam.UniformBall(7.0)}
SLOW = {("laplace", "E8")}
PAIRS = [
    pytest.param(LAWS[law], LATTICES[name], id=f"{law}-{name}", marks=[pytest.mark.slow] if (law, name) in SLOW else [])
    for law in LAWS
    for name in LATTICES
]


@pytest.mark.parametrize(("law", "lattice"), PAIRS)
def test_the_error_follows_the_law_and_is_independent_of_everything(
    law: cepam.Law, lattice: cepam.Lattice, key: cepam.Key
) -> None:
    certificate = verify(cepam.Codec(law, lattice=lattice), samples=SAMPLES, key=key)
    assert certificate.passed, certificate.failures


def test_laplace_on_e8_where_one_trial_in_157_is_accepted(key: cepam.Key, rng: np.random.Generator) -> None:
    law, at = LAWS["laplace"], cepam.Address(key, round=0, client=0)
    codec = cepam.Codec(law, lattice=cepam.E8)
    x = rng.normal(0, 1, 8 * 5000)
    errors = (codec.decode(codec.encode(x, at), at) - x).reshape(-1, 8)
    found = [goodness.kolmogorov_smirnov(law.coordinate_cdf(column, 8)) for column in errors.T]
    found.append(goodness.uniformity(goodness.norm_cdf(law, goodness.norms(law, errors), 8)))
    found += [goodness.variances(errors, law.variance(8)), goodness.covariances(errors)]
    assert min(statistic.p_value for statistic in found) * len(found) > 1e-4


@pytest.mark.parametrize("lattice", ["Z1", "A2", "E8"])
def test_a_law_of_ones_own(lattice: str, key: cepam.Key) -> None:
    codec = cepam.Codec(StudentT(0.02), lattice=LATTICES[lattice])
    certificate = verify(codec, samples=SAMPLES, key=key)
    assert certificate.passed, certificate.failures


def test_the_papers_coder_and_the_numpy_backend_carry_the_same_noise(key: cepam.Key) -> None:
    codec = cepam.Codec(cepam.Laplace(0.01), lattice=cepam.Integer(1), coder="paper", bound=1.0, backend="numpy")
    certificate = verify(codec, samples=SAMPLES, key=key)
    assert certificate.passed, certificate.failures


@pytest.mark.parametrize(("lattice", "factor"), [("Z1", 0.98), ("Z1", 1.02), ("A2", 0.98), ("E8", 1.02)])
def test_control_a_sigma_that_is_off_by_two_percent_fails(lattice: str, factor: float, key: cepam.Key) -> None:
    codec = cepam.Codec(cepam.Gaussian(0.01), lattice=LATTICES[lattice])
    certificate = verify(codec, samples=SAMPLES, key=key, against=cepam.Gaussian(0.01 * factor))
    assert not certificate.passed
    assert any(check.statistic == "variance" for check in certificate.failures)


def test_control_laplace_is_not_gaussian(key: cepam.Key) -> None:
    codec = cepam.Codec(cepam.Laplace(0.01), lattice=cepam.Integer(1))
    assert not verify(codec, samples=SAMPLES, key=key, against=cepam.Gaussian(0.01 * 2**0.5)).passed


class RedrawingChannel:
    """The published code's defect: the decoder draws a latent and a dither of its own."""

    bound = 200.0  # redrawn layers can throw a huge update out of the format's range

    def __init__(self, law: cepam.Law, lattice: cepam.Lattice) -> None:
        self.law, self.on = law, lattice
        self.quantizer = cepam.LRSUQ(law, lattice)
        self.grid = self.quantizer.plan.grid

    def encode(self, update: Any, at: cepam.Address) -> bytes:
        h, m = self.quantizer.quantize(update, at)
        return np.column_stack([h, m]).tobytes()

    def decode(self, message: bytes, at: cepam.Address) -> Any:
        table = np.frombuffer(message, dtype=np.int64).reshape(-1, 1 + self.on.dimension)
        elsewhere = replace(at, run=at.run + b"redrawn")
        return self.quantizer.reconstruct(table[:, 0], table[:, 1:], elsewhere)


@pytest.mark.parametrize("lattice", ["Z1", "Z2", "Z3"])
def test_control_a_decoder_that_redraws_its_randomness_fails(lattice: str, key: cepam.Key) -> None:
    channel = RedrawingChannel(cepam.Gaussian(0.01), LATTICES[lattice])
    certificate = verify(channel, samples=SAMPLES, key=key)
    inputs = {check.input for check in certificate.failures}
    assert {"zero", "constant", "heavy-tailed", "1000 scales"} <= inputs


def test_control_one_address_used_twice_is_seen(key: cepam.Key) -> None:
    class Stuck(cepam.Codec):
        def encode(self, update: Any, at: cepam.Address, used: Any = None) -> bytes:
            return super().encode(update, cepam.Address(key, round=0, client=0))

        def decode(self, message: bytes, at: cepam.Address, used: Any = None) -> Any:
            return super().decode(message, cepam.Address(key, round=0, client=0))

    certificate = verify(Stuck(cepam.Gaussian(0.01), lattice=cepam.Integer(1)), samples=SAMPLES, key=key)
    assert {"addresses", "keys and runs"} <= {check.input for check in certificate.failures}


def test_the_certificate_refuses_too_few_samples_and_impossible_rates() -> None:
    codec = cepam.Codec(cepam.Gaussian(0.01), lattice=cepam.Integer(1))
    with pytest.raises(ValueError, match="samples"):
        verify(codec, samples=10)
    with pytest.raises(ValueError, match="false_alarm"):
        verify(codec, false_alarm=0.0)

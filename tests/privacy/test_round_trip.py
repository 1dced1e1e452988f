"""The audit of the real codec: bytes out, bytes in, noise as claimed; with half the noise it must be refuted.

Keys are fixed: an audit of confidence 0.99 on fresh ones would cry wolf in one of a hundred runs.
"""

from __future__ import annotations

import numpy as np
import pytest

import cepam
from cepam import L2, Gaussian, Laplace
from cepam.privacy import Mechanism, RoundTrip, Sampling, audit

pytestmark = pytest.mark.usefixtures("fixed_keys")
ONE = Mechanism.uniform(1, Gaussian(1.0), L2(0.5), Sampling("all"), 1000)
TRIALS = 100_000


def test_the_codec_is_near_its_account_and_under_it() -> None:
    found = audit(RoundTrip.of_mechanism(ONE), ONE, 1e-2, TRIALS)
    assert not found.refuted
    assert found.by_curve > 0.93 * found.claim
    assert found.lower > 0.7 * found.claim


@pytest.mark.parametrize("lattice", [cepam.Integer(1), cepam.Integer(3), cepam.E8], ids=["Z1", "Z3", "E8"])
def test_on_a_lattice(lattice) -> None:
    codec, key = cepam.Codec(Gaussian(1.0), lattice=lattice), cepam.Key.generate()
    through = RoundTrip((codec,), lambda round, client: cepam.Address(key, round=round, client=client))
    found = audit(through, ONE, 1e-2, 20_000)
    assert not found.refuted
    assert found.by_curve > 0.85 * found.claim


def test_half_the_noise_is_refuted() -> None:
    found = audit(RoundTrip.of_mechanism(ONE, noise_factor=0.5), ONE, 1e-2, TRIALS)
    assert found.refuted
    assert found.lower > found.claim


def test_laplace_and_unequal_clients() -> None:
    mechanism = Mechanism.uniform(2, Laplace(1.0), cepam.L1(0.5), Sampling("all"), 1000)
    assert not audit(RoundTrip.of_mechanism(mechanism), mechanism, 1e-2, 20_000).refuted
    unequal = Mechanism(
        tuple(cepam.privacy.Client(Gaussian(s), 10, w) for s, w in ((1.0, 0.6), (2.0, 0.2), (2.0, 0.2))),
        L2(1.0),
        Sampling("all"),
    )
    found = audit(RoundTrip.of_mechanism(unequal), unequal, 1e-2, 20_000)
    assert not found.refuted
    assert found.by_curve > 0.85 * found.claim


class Recorder:
    """A codec that keeps what it is given and adds nothing."""

    def __init__(self) -> None:
        self.seen: list[tuple[np.ndarray, object]] = []

    def encode(self, update: np.ndarray, at: object) -> bytes:
        self.seen.append((update, at))
        return update.tobytes()

    def decode(self, message: bytes, at: object) -> np.ndarray:
        assert at == self.seen[-1][1]
        return np.frombuffer(message)


def test_trials_share_no_sub_vector_and_no_address() -> None:
    codec = Recorder()
    through = RoundTrip((codec,), lambda round, client: (round, client), stride=3, longest=12)
    updates = np.arange(1.0, 11.0)
    np.testing.assert_array_equal(through(updates, 0, 0), updates)
    assert [len(update) for update, _ in codec.seen] == [12, 12, 6]
    assert (codec.seen[0][0].reshape(-1, 3)[:, 1:] == 0).all()
    through(updates, 0, 1)
    assert len({at for _, at in codec.seen}) == 6

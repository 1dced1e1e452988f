"""Training runs behind the tables: kept and found again, measured as they say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cepam import fl
from cepam.keys import Address, Key
from cepam_paper import training
from cepam_paper.run_size import Extent
from cepam_paper.training import Meter, Metered, outcome
from cepam_paper.variants import READINGS, run_of


@pytest.fixture
def data() -> fl.Dataset:
    return fl.synthetic(records=1200, tests=200)


def test_a_run_is_done_once_and_again_only_if_it_changed(
    tiny: Extent, data: fl.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of("correct", "cepam-gaussian-1", tiny)
    first = outcome(run, tmp_path, data)
    trained = []
    real = training._trained
    monkeypatch.setattr(training, "_trained", lambda *given: trained.append(1) or real(*given))
    assert outcome(run, tmp_path, data) == first
    assert not trained
    changed = replace(run, settings=replace(run.settings, rate=0.2))
    assert outcome(changed, tmp_path, data) != first
    assert trained


def test_outcomes_hold_a_curve_a_seed_and_real_bits(tiny: Extent, data: fl.Dataset, tmp_path: Path) -> None:
    made = outcome(run_of("text", "cepam-gaussian-2", tiny), tmp_path, data)
    assert made.rounds == (1, 2)
    assert np.shape(made.validation) == (2, 2)
    assert made.bits_per_coordinate is not None
    assert 0.1 < made.bits_per_coordinate < 8.0
    published = outcome(run_of("published", "cepam-gaussian-2", tiny), tmp_path, data)
    assert published.bits_per_coordinate is None


def test_pairs_need_the_same_seeds(tiny: Extent, data: fl.Dataset, tmp_path: Path) -> None:
    one = outcome(run_of("correct", "fl", tiny), tmp_path, data)
    assert one.gain_over(one)[0] == 0.0
    with pytest.raises(ValueError, match="other seeds"):
        one.gain_over(replace(one, seeds=(7, 8)))


def test_the_meter_sees_the_average_over_clients() -> None:
    """Two clients whose errors cancel leave no noise in the average; two that agree leave all of it."""

    class Shift:
        def __init__(self, by: float) -> None:
            self.by = by

        def encode(self, update: np.ndarray, at: Address) -> bytes:
            return update.tobytes()

        def decode(self, message: bytes, at: Address) -> np.ndarray:
            return np.frombuffer(message, dtype=np.float32) + np.float32(self.by)

    for shifts, decibels in (((0.1, 0.1), 20.0), ((0.1, -0.05), 32.04)):
        meter = Meter(2)
        for number, by in enumerate(shifts):
            at = Address(Key(bytes([number]) * 32), round=0, client=number)
            meter.seed_of[at.key.secret] = 0
            channel = Metered(Shift(by), meter)
            channel.decode(channel.encode(np.ones(50, dtype=np.float32), at), at)
        meter.close_round()
        assert meter.snr_db() == pytest.approx(decibels, abs=0.01)
    assert Meter(2).snr_db() is None


def test_readings_differ_as_described(tiny: Extent) -> None:
    text, published, correct = (run_of(reading, "fl", tiny).settings for reading in READINGS)
    assert (text.tau, text.rate, text.clip_norm) == (15, 0.1, "none")
    assert (published.tau, published.batch, published.rate, published.clip_norm) == (1, 15, 0.3, "none")
    assert (correct.clip_norm, correct.clip_scope) == ("l2", "tensor")
    assert run_of("published", "cepam-laplace", tiny).published == 1
    assert run_of("published", "cepam-gaussian-3", tiny).published == 3
    assert run_of("correct", "cepam-gaussian-3", tiny).published is None
    assert run_of("published", "fl+sdq", tiny) == run_of("correct", "fl+sdq", tiny)

"""Training runs behind the tables: kept and found again, measured as they say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cepam import fl
from cepam.keys import Address, Key
from cepam_paper import training
from cepam_paper.meter import Meter, Metered, tensor_ratios
from cepam_paper.run_size import RunSize
from cepam_paper.training import outcome
from cepam_paper.variants import VARIANTS, run_of


@pytest.fixture
def data() -> fl.Dataset:
    return fl.synthetic(records=1200, tests=200)


def test_a_run_is_done_once_and_again_only_if_it_changed(
    tiny: RunSize, data: fl.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of("correct", "cepam-gaussian-1", tiny)
    first = outcome(run, tmp_path, data)
    trained = []
    real = training._trained
    monkeypatch.setattr(training, "_trained", lambda *given: trained.append(1) or real(*given))
    assert outcome(run, tmp_path, data) == first
    assert not trained
    changed = replace(run, settings=run.settings.updated({"training.server_learning_rate": 0.2}))
    assert outcome(changed, tmp_path, data) != first
    assert trained


def test_outcomes_hold_a_curve_a_seed_and_real_bits(tiny: RunSize, data: fl.Dataset, tmp_path: Path) -> None:
    made = outcome(run_of("text", "cepam-gaussian-2", tiny), tmp_path, data)
    assert made.rounds == (1, 2)
    assert np.shape(made.validation) == (2, 2)
    assert made.bits_per_coordinate is not None
    assert 0.1 < made.bits_per_coordinate < 8.0
    published = outcome(run_of("published", "cepam-gaussian-2", tiny), tmp_path, data)
    assert published.bits_per_coordinate is None


def test_pairs_need_the_same_seeds(tiny: RunSize, data: fl.Dataset, tmp_path: Path) -> None:
    one = outcome(run_of("correct", "fl", tiny), tmp_path, data)
    assert one.gain_over(one)[0] == 0.0
    with pytest.raises(ValueError, match="other seeds"):
        one.gain_over(replace(one, seeds=(7, 8)))


class Shift:
    """A channel whose decoder adds a constant, or spreads it over the coordinates with alternating signs."""

    def __init__(self, by: float) -> None:
        self.by = by

    def encode(self, update: np.ndarray, at: Address) -> bytes:
        return update.tobytes()

    def decode(self, message: bytes, at: Address) -> np.ndarray:
        return np.frombuffer(message, dtype=np.float32) + np.float32(self.by)


def test_the_meter_sees_the_average_over_clients() -> None:
    """Two clients whose errors cancel leave no noise in the average; two that agree leave all of it."""
    for shifts, decibels in (((0.1, 0.1), 20.0), ((0.1, -0.05), 32.04)):
        meter = Meter(2, (50,))
        for number, by in enumerate(shifts):
            at = Address(Key(bytes([number]) * 32), round=0, client=number)
            meter.owner[at.key.secret] = (0, number)
            channel = Metered(Shift(by), meter)
            channel.decode(channel.encode(np.ones(50, dtype=np.float32), at), at)
        meter.close_round()
        assert meter.snr_db() == pytest.approx(decibels, abs=0.01)
    assert Meter(2, (50,)).snr_db() is None


def test_the_programs_ratio_by_hand() -> None:
    """Two clients, two tensors, two rounds, every ratio known: 20 log10 of their plain mean, clipping as error."""
    raw = np.array([1, -1, 1, -1, 3, -3], dtype=np.float32)
    ratios = {(0, 0): (4.0, 9.0), (0, 1): (16.0, 1.0)}
    meter = Meter(2, (4, 2))
    for _ in range(2):
        for number, row in enumerate(ratios):
            at = Address(Key(bytes([number]) * 32), round=0, client=number)
            meter.owner[at.key.secret], meter.raw[row] = row, raw
            # Shrinking a tensor by 1/sqrt(r) is an error of that power: what clipping alone does.
            kept = np.repeat([1 - one**-0.5 for one in ratios[row]], (4, 2)).astype(np.float32)
            meter.held[at.key.secret] = raw * kept
            meter.see(at.key.secret, raw * kept)
        meter.close_round()
    (found,) = meter.program_snr_db()
    assert found == pytest.approx(20 * np.log10((4 + 9 + 16 + 1) / 4), abs=1e-5)
    # Control: the mean of decibels, and the ratio to what was clipped, are other numbers (infinite here).
    assert found != pytest.approx(20 * np.mean(np.log10([4, 9, 16, 1])), abs=1.0)
    assert meter.snr_db() is None
    assert meter.largest_norm == pytest.approx(3.0, rel=1e-6), "halves of 1 and two thirds of 3"


def test_the_programs_ratio_does_not_see_a_shift_and_names_what_is_whole() -> None:
    raw = np.array([0.0, 2.0, 0.0, 0.0], dtype=np.float32)
    assert tensor_ratios(raw, raw + np.float32(5.0), (2, 2)).tolist() == [np.inf, 0.0]
    assert tensor_ratios(raw, np.zeros(4, dtype=np.float32), (2, 2)).tolist() == [1.0, 0.0]


def test_runs_have_both_ratios_and_the_largest_norm_that_was_sent(
    tiny: RunSize, data: fl.Dataset, tmp_path: Path
) -> None:
    text = outcome(run_of("text", "cepam-gaussian-1", tiny), tmp_path, data)
    assert len(text.program_snr) == 2
    assert text.largest_norm <= 1 + 1e-5
    published = outcome(run_of("published", "cepam-gaussian-1", tiny), tmp_path, data)
    assert published.program_snr[0] != pytest.approx(2 * published.snr, abs=0.1)
    assert published.largest_norm <= 8**0.5 + 1e-5
    free = outcome(run_of("published", "fl", tiny), tmp_path, data)
    assert free.program_snr == (None, None), "nothing is clipped and nothing added: every ratio is infinite"
    assert outcome(run_of("published", "fl", tiny), tmp_path, data) == free


def test_readings_differ_as_described(tiny: RunSize) -> None:
    text, published, correct = (run_of(reading, "fl", tiny).settings for reading in VARIANTS)
    assert (text.training.local_steps, text.training.server_learning_rate, text.privacy.norm_type) == (15, 0.1, "none")
    assert (
        published.training.local_steps,
        published.training.batch_size,
        published.training.server_learning_rate,
        published.privacy.norm_type,
    ) == (1, 15, 0.3, "none")
    assert (correct.privacy.norm_type, correct.privacy.clip_scope) == ("l2", "tensor")
    assert run_of("published", "cepam-laplace", tiny).published == 1
    assert run_of("published", "cepam-gaussian-3", tiny).published == 3
    assert run_of("correct", "cepam-gaussian-3", tiny).published is None
    assert run_of("published", "fl+sdq", tiny) == run_of("correct", "fl+sdq", tiny)

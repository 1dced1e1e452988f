"""The published arithmetic: the program's own outputs, closed forms, and that the exact codec differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import cepam
from cepam.distributions.laws import Gaussian, Laplace
from cepam.errors import MalformedMessage
from cepam_paper.published import ALPHA, PublishedChannel, decoded_of, mean_gain, points_of, strided, unstrided

KEY = cepam.Key(bytes(range(32)))

PROGRAM: dict[str, Any] = json.loads(Path(__file__).with_name("program_outputs.json").read_text())
"""Inputs, draws and outputs of a run of the published program itself."""


def radii_of(case: dict[str, Any], end: str) -> np.ndarray:
    latents = np.array(case[f"{end}_latents"])
    return PROGRAM["b"] * latents if case["law"] == "laplace" else PROGRAM["sigma"] * np.sqrt(latents)


@pytest.mark.parametrize("case", PROGRAM["lrsuq"], ids=lambda case: f"{case['law']}-{case['n']}")
def test_the_programs_own_draws_give_its_own_integers_and_outputs(case: dict[str, Any]) -> None:
    n, values = case["n"], np.array(case["input"])
    values = values / max(1.0, np.linalg.norm(values) / PROGRAM["clip"])
    points = points_of(strided(values, n), radii_of(case, "encoder"), np.array(case["encoder_dithers"]))
    theirs = np.array(case["points"], dtype=np.float64)
    # The program rounds in float32: near the middle of two integers it may take the other one.
    assert np.abs(points - theirs).max() <= 1
    assert (points == theirs).mean() > 0.95
    dither = np.array(case["decoder_dithers"]) if n == 1 else None
    made = unstrided(decoded_of(theirs, radii_of(case, "decoder"), dither), len(values))
    assert made == pytest.approx(np.array(case["output"]), rel=2e-6, abs=1e-9)


@pytest.mark.parametrize("case", PROGRAM["lrsuq"], ids=lambda case: f"{case['law']}-{case['n']}")
def test_control_other_readings_of_the_program_miss_its_outputs(case: dict[str, Any]) -> None:
    """Shared radii; neighbours as sub-vectors; the dither taken off in the other place: none gives its numbers."""
    n, values, dither = case["n"], np.array(case["input"]), np.array(case["encoder_dithers"])
    theirs, radii = np.array(case["points"], dtype=np.float64), radii_of(case, "encoder")
    shared = unstrided(decoded_of(theirs, radii, np.array(case["decoder_dithers"]) if n == 1 else None), len(values))
    assert (np.abs(shared - case["output"]) > 1e-3 * np.abs(shared)).mean() > 0.5
    scaled = strided(values, n) / radii[:, None]
    swapped = np.floor((scaled / ALPHA - dither if n == 1 else (scaled - dither) / ALPHA) + 0.5)
    assert (swapped != theirs).mean() > 0.8
    if n > 1:
        rows = np.pad(values, (0, -len(values) % n)).reshape(-1, n)
        assert (points_of(rows, radii, dither) != theirs).mean() > 0.5


def test_the_program_accepts_its_first_trial_and_decodes_it_without_a_dither() -> None:
    for case in PROGRAM["lrsuq"]:
        assert set(case["returned_trial"]) == ({1} if case["n"] == 1 else {0})
        assert bool(case["decoder_dithers"]) == (case["n"] == 1)


def test_the_programs_noise_baseline_is_rounded_to_alpha() -> None:
    steps = np.array(PROGRAM["fl+gaussian"]["output"]) / ALPHA
    assert np.abs(steps - np.round(steps)).max() < 1e-4
    assert np.array(PROGRAM["fl+gaussian"]["output"]).std() > 0.01
    assert PROGRAM["clip_norms"]["before"] > 1.0
    assert PROGRAM["clip_norms"]["after"] == pytest.approx(1.0, rel=1e-6)


def test_a_decoder_dither_in_two_dimensions_is_refused() -> None:
    with pytest.raises(ValueError, match="n = 2 and 3"):
        decoded_of(np.zeros((2, 2)), np.ones(2), np.zeros((2, 2)))


def decoded(law: Gaussian | Laplace, n: int, value: float, count: int = 60_000) -> np.ndarray:
    channel = PublishedChannel(law, n, (count,))
    at = cepam.Address(KEY, round=1, client=0)
    return channel.decode(channel.encode(np.full(count, value, dtype=np.float32), at), at).astype(np.float64)


@pytest.mark.parametrize(("n", "gain"), [(1, 4 / np.pi), (2, 3 * np.pi / 8), (3, 32 / (9 * np.pi))])
def test_mean_gain_is_that_of_two_independent_radii(n: int, gain: float) -> None:
    assert mean_gain(Gaussian(0.01), n) == pytest.approx(gain, rel=1e-12)
    chi = stats.chi(n + 2)
    assert chi.mean() * chi.expect(lambda r: 1 / r) == pytest.approx(gain, rel=1e-6)


def test_laplace_gain_is_two() -> None:
    assert mean_gain(Laplace(0.3)) == 2.0
    gamma = stats.gamma(2)
    assert gamma.mean() * gamma.expect(lambda r: 1 / r) == pytest.approx(2.0, rel=1e-6)


@pytest.mark.parametrize(("n", "ratio"), [(1, 0.5), (2, 0.0), (3, 0.0)])
def test_at_zero_the_noise_is_half_of_sigma_or_nothing(n: int, ratio: float) -> None:
    assert decoded(Gaussian(0.01), n, 0.0).std() / 0.01 == pytest.approx(ratio, abs=0.01)


LAWS = {"gaussian": (Gaussian(0.01), stats.chi(3)), "laplace": (Laplace(0.01), stats.gamma(2))}
# The value in units of the scale and, in one dimension, the share of signs that come through: E[min(1, 1/2 + x/r)].
SIGNS = [("gaussian", 0.0, 0.5), ("gaussian", 0.5, 0.841), ("gaussian", 5.0, 1.0), ("laplace", 0.5, 0.816)]


@pytest.mark.parametrize(("law", "x", "share"), SIGNS)
def test_signs_come_through_as_the_dither_lets_them(law: str, x: float, share: float) -> None:
    chosen, radius = LAWS[law]
    assert radius.expect(lambda r: np.minimum(1.0, 0.5 + x / r)) == pytest.approx(share, abs=5e-4)
    # 60,000 signs: six standard errors are at most 0.0123.
    assert (decoded(chosen, 1, 0.01 * x) > 0).mean() == pytest.approx(share, abs=0.0123)


@pytest.mark.parametrize(("x", "deviation"), [(0.0, 0.5), (0.1, 0.514), (0.5, 0.771), (5.0, 5.892)])
def test_the_deviation_in_one_dimension_grows_with_the_update(x: float, deviation: float) -> None:
    """Var = E[r'^2] E[(x/r - v)^2] - (gain x)^2 = 3 (x^2 + 1/12) - (4 x/pi)^2, in units of sigma."""
    assert np.sqrt(3 * (x**2 + 1 / 12) - (4 * x / np.pi) ** 2) == pytest.approx(deviation, abs=5e-4)
    # 1/r^2 has no variance, so that a sample's deviation comes near slowly (one port measured 0.76 at x = 0.5).
    assert decoded(Gaussian(0.01), 1, 0.01 * x, 600_000).std() / 0.01 == pytest.approx(deviation, rel=0.02)


def test_control_a_cell_of_r_is_another_arithmetic() -> None:
    """What an earlier port computed: the cell r in one dimension. It agrees at zero and in mean gain only."""
    draw = np.random.default_rng(7)
    r, theirs = 0.01 * np.sqrt(draw.chisquare(3, (2, 600_000)))
    v, other = draw.uniform(-0.5, 0.5, (2, 600_000))
    values = theirs * (np.floor(0.005 / r - v + 0.5) + other)
    assert values.std() / 0.01 == pytest.approx(1.09, abs=0.03)
    assert (values > 0).mean() == pytest.approx(0.69, abs=0.01)
    assert values.mean() / 0.005 == pytest.approx(4 / np.pi, abs=0.01)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("value", [0.0, 1e-6, 0.005, -0.05, 1.0])
def test_every_number_is_the_formula_written_out(n: int, value: float) -> None:
    """The two formulas of the program, coordinate by coordinate, from the channel's own draws."""
    channel, at = PublishedChannel(Gaussian(0.01), n, (6,)), cepam.Address(KEY, round=3, client=1)
    r, theirs = channel._radii(at, b"encoder"), channel._radii(at, b"decoder")
    v, other = channel._dither(at, b"encoder"), channel._dither(at, b"decoder")
    update = np.full(6, value, dtype=np.float32)
    found = channel.decode(channel.encode(update, at), at)
    for place, x in enumerate(update.astype(np.float64)):
        column, row = divmod(place, 6 // n)
        if n == 1:
            point = np.floor((x / r[row] - v[row, column]) / ALPHA + 0.5) + other[row, column]
        else:
            point = np.floor(x / (r[row] * ALPHA) - v[row, column] + 0.5)
        assert found[place] == np.float32(theirs[row] * ALPHA * point)


def test_one_dimension_is_about_a_gain_less_a_dither() -> None:
    """r' (x/r - v) up to r' alpha: the rounding is a thousandth of the radius."""
    channel, at = PublishedChannel(Laplace(0.01), 1, (1000,)), cepam.Address(KEY, round=0, client=0)
    update = np.random.default_rng(2).normal(scale=0.01, size=1000).astype(np.float32)
    r, theirs = channel._radii(at, b"encoder"), channel._radii(at, b"decoder")
    about = theirs * (update / r - channel._dither(at, b"encoder")[:, 0])
    assert (np.abs(channel.decode(channel.encode(update, at), at) - about) <= theirs * ALPHA * (1 + 1e-3) + 1e-7).all()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_shared_randomness_alone_does_not_mend_it(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one radius and one dither for both ends the cell r alpha is still not 2r: half of sigma, or nothing."""
    own_radii, own_dither = PublishedChannel._radii, PublishedChannel._dither
    monkeypatch.setattr(PublishedChannel, "_radii", lambda self, at, whose: own_radii(self, at, b"encoder"))
    monkeypatch.setattr(PublishedChannel, "_dither", lambda self, at, whose: own_dither(self, at, b"encoder"))
    deviation = decoded(Gaussian(0.01), n, 0.005).std() / 0.01
    assert deviation == pytest.approx(0.5 if n == 1 else 0.0, abs=0.01)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_constant_comes_out_multiplied_by_the_gain(n: int) -> None:
    values = decoded(Gaussian(0.01), n, 0.05, 240_000)
    error = values.std() / values.size**0.5 * n**0.5
    assert abs(values.mean() / 0.05 - mean_gain(Gaussian(0.01), n)) < 6 * error / 0.05
    assert abs(values.mean() / 0.05 - 1.0) > 12 * error / 0.05


@pytest.mark.parametrize("n", [2, 3])
def test_in_two_and_three_dimensions_directions_come_through(n: int) -> None:
    """No privacy at all: the sign of every coordinate that is not tiny is the update's own."""
    update = np.random.default_rng(4).normal(scale=0.02, size=999).astype(np.float32)
    channel, at = PublishedChannel(Gaussian(0.01), n, (999,)), cepam.Address(KEY, round=0, client=0)
    values = channel.decode(channel.encode(update, at), at)
    large = np.abs(update) > 0.005
    assert (np.sign(values[large]) == np.sign(update[large])).all()
    exact = cepam.Codec(Gaussian(0.01), cepam.Integer(n), coder="layered")
    assert (np.sign(exact.decode(exact.encode(update, at), at)[large]) != np.sign(update[large])).any()


def test_dithers_start_anew_at_every_tensor_and_round_and_radii_do_not() -> None:
    channel = PublishedChannel(Gaussian(1.0), 1, (5, 5))
    first, later = cepam.Address(KEY, round=0, client=0), cepam.Address(KEY, round=1, client=0)
    dither = channel._dither(first, b"encoder")
    assert (dither[:5] == dither[5:]).all()
    assert (dither == channel._dither(later, b"encoder")).all()
    assert (dither != channel._dither(first, b"decoder")).any()
    assert (channel._radii(first, b"encoder") != channel._radii(later, b"encoder")).all()


def test_tensors_are_padded_one_by_one_and_come_back_whole() -> None:
    channel, at = PublishedChannel(Gaussian(1e-6), 3, (4, 2, 7)), cepam.Address(KEY, round=0, client=0)
    update = np.arange(13, dtype=np.float32)
    values = channel.decode(channel.encode(update, at), at)
    assert values.shape == (13,)
    assert values[0] == pytest.approx(0.0, abs=1e-6)


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="n = 1, 2, 3"):
        PublishedChannel(Laplace(0.1), 2, (4,))
    with pytest.raises(ValueError, match="sizes"):
        PublishedChannel(Gaussian(0.1), 1, ())
    channel, at = PublishedChannel(Gaussian(0.1), 1, (4,)), cepam.Address(KEY, round=0, client=0)
    with pytest.raises(ValueError, match="4 coordinates"):
        channel.encode(np.zeros(5, dtype=np.float32), at)
    with pytest.raises(MalformedMessage):
        channel.decode(b"123", at)

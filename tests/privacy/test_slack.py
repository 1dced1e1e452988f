"""The mechanism's own slack: the inequality on perturbed laws, the constants, the refusal."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import special, stats

from cepam import A2, D4, E8, L1, L2, Gaussian, Integer, Laplace, Lattice, UniformBall
from cepam.distributions.radius import OCTAVES
from cepam.kernels.format import search
from cepam.kernels.numpy.search_coder import transform
from cepam.privacy import (
    NOT_COVERED,
    Accountant,
    Client,
    Cohort,
    CohortMechanism,
    Mechanism,
    Sampling,
    calibrate,
    delta,
    epsilon,
    slack,
)
from cepam.privacy.composition.accountant import affordable
from cepam.privacy.mechanisms import mechanism as mechanisms
from cepam.privacy.mechanisms.dominating_pairs import GaussianShift
from cepam.privacy.numerics.slack import _LEAST_ANSWER, TABLE, blurred_error, score_roundings, word_miss


def preset(coordinates: int | None = 6422, rounds: int = 600) -> Mechanism:
    return Mechanism.uniform(
        30,
        Gaussian(1.1 * 30**0.5 / 960),
        L2(1.0),
        Sampling("poisson", 32),
        2000,
        rounds=rounds,
        adjacency="add-remove",
        clipped="example",
        coordinates=coordinates,
    )


def test_the_private_preset_is_charged_and_passes() -> None:
    mechanism, ideal = preset(), preset(coordinates=None)
    found, at = slack(mechanism), epsilon(mechanism, 1e-5)
    assert found.coordinates == 600 * 30 * 6422
    assert 0 < found.at(at) < 1e-7
    assert 0 < found.epsilon < 1e-4
    assert epsilon(ideal, 1e-5) < at < epsilon(ideal, 1e-5) * (1 + 1e-4)
    assert at >= epsilon(ideal, 1e-5 - found.at(at)) + found.epsilon
    assert delta(mechanism, at) <= 1e-5
    assert delta(mechanism, 2.0) > delta(ideal, 2.0)


def test_a_run_too_long_for_the_arithmetic_has_no_figure() -> None:
    """100 clients, 100 rounds, 1e8 weights: once reported, and refused by another rule."""
    long = Mechanism.uniform(100, Gaussian(10.0), L2(1.0), Sampling("all"), 100, rounds=100, coordinates=10**8)
    assert epsilon(replace(long, coordinates=None), 1e-5) < 10
    assert math.isinf(epsilon(long, 1e-5))
    reason, remedy = slack(long).excess(1.0, 1e-5)
    assert "1e+12 noisy coordinates" in reason
    assert "larger" not in reason + remedy
    assert "delta over 1e-05" in remedy
    with pytest.raises(ValueError, match="cannot be met at delta 1e-05: the roundings"):
        calibrate(long, 1.0, 1e-5)
    with pytest.raises(ValueError, match="coordinates"):
        slack(preset(coordinates=None))


def test_noise_too_small_for_the_words_has_no_figure() -> None:
    """Two vectors 36 standard deviations apart: words of 64 bits never draw so far, so the true delta is nearly one."""
    tiny = Mechanism.uniform(1, Gaussian(0.055), L2(1.0), Sampling("all"), 100, coordinates=10)
    assert epsilon(replace(tiny, coordinates=None), 1e-5) == pytest.approx(815, abs=2)
    assert math.isinf(epsilon(tiny, 1e-5))
    reason, remedy = slack(tiny).excess(math.inf, 1e-5)
    assert "64-bit" in reason
    assert "Add noise" in remedy
    assert 2 * Gaussian(1.0).radius_above(np.array([2.0**-65]), 1)[0] < 2.0 / 0.055  # the two supports do not meet


def test_slack_grows_with_rounds_clients_and_coordinates() -> None:
    here = slack(preset().layered())
    assert slack(preset(2 * 6422).layered()).epsilon == pytest.approx(2 * here.epsilon, rel=0.02)
    assert slack(preset(rounds=1200).layered()).missed == pytest.approx(2 * here.missed, rel=1e-6)
    accountant = Accountant((preset(rounds=300), preset(rounds=300).without([0, 1, 2])))
    assert slack(accountant).coordinates == 300 * 6422 * (30 + 27)
    laplace = Mechanism.uniform(3, Laplace(1.0), L2(1.0), Sampling("all"), 10, coordinates=100)
    assert 0 < slack(laplace).epsilon < 1e-9


@pytest.mark.parametrize("law", [Gaussian(1.0), Laplace(1.0)], ids=["gaussian", "laplace"])
def test_a_named_lattice_costs_no_more_than_an_unknown_one(law) -> None:
    def with_lattice(lattice: Lattice | None) -> Mechanism:
        return Mechanism((Client(law, 10, lattice=lattice),), L1(1.0), Sampling("all"), coordinates=4096)

    unknown = slack(with_lattice(None))
    each = [slack(with_lattice(lattice)) for lattice in (Integer(1), A2, D4, E8)]
    assert max(one.epsilon for one in each) <= unknown.epsilon <= 1.02 * max(one.epsilon for one in each)
    assert max(one.missed for one in each) <= unknown.missed
    assert len({one.epsilon for one in each}) == 4


def test_the_inequality_on_a_perturbed_pair() -> None:
    """Chances changed by e^(±eta) cell by cell, worst signs: delta grows by no more than the slack's formula."""
    mu, eta, y = 1.0, 1e-3, np.linspace(-12, 13, 250_001)
    q, p = np.exp(-(y**2) / 2), np.exp(-((y - mu) ** 2) / 2)
    q, p = q / q.sum(), p / p.sum()
    for at in (0.2, 1.0, 3.0):
        event = p > math.exp(at) * q
        signs = np.where(event, 1.0, -1.0)
        worse_p, worse_q = p * np.exp(eta * signs), q * np.exp(-eta * signs)
        grown = np.maximum(0.0, worse_p - math.exp(at) * worse_q).sum()
        exact = GaussianShift(mu).profile(at)
        over = special.ndtr(mu / 2 - (at - 2 * eta) / mu)  # P(loss > epsilon - 2 eta)
        assert exact < grown <= exact + (math.expm1(eta) + 2 * eta * math.exp(eta)) * over + 1e-9


@pytest.mark.parametrize("scale", [1 + 1e-3, 1 - 1e-3])
def test_a_wrong_radius_changes_the_density_as_charged(scale: float) -> None:
    """Noise scaled by s: the log density moves by at most (n + z^2) |s - 1| to first order."""
    z = np.linspace(-5, 5, 1001)
    moved = -(z**2) / (2 * scale**2) - math.log(scale) + z**2 / 2
    assert (np.abs(moved) <= (1 + z**2) * abs(scale - 1) * 1.01).all()


def test_multiply_high_hits_every_interval_within_one_preimage() -> None:
    """A toy of the dither: words of 16 bits times N; the count of any interval is off by less than one."""
    words, n = 1 << 16, 1000
    values = (np.arange(words) * n) >> 16
    counts = np.bincount(values, minlength=n)
    running = np.concatenate(([0], np.cumsum(counts)))
    exact = np.arange(n + 1) * words / n
    assert (running - exact >= 0).all()
    assert (running - exact < 1).all()


def test_constants_follow_the_codec() -> None:
    assert word_miss(Laplace(1.0), 1) >= 2.0**-61
    assert word_miss(Gaussian(1.0), 8) < 2.0**-60
    assert word_miss(Gaussian(1.0), 1) >= 2.0**-OCTAVES
    assert TABLE == 2.0**-50
    for said in ("server", "lengths", "time that encoding takes", "padding"):
        assert any(said in line for line in NOT_COVERED)


def test_the_page_of_threat_models_has_a_point_for_each_line() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "threat-models.md").read_text(encoding="utf-8")
    points = re.findall(r"^- \*\*(.+?)\*\*", page.partition("## What can go wrong")[2], re.M)
    words = ("holds a key", "logs", "lengths", "coder", "time", "parameters", "replies", "ounding", "keystream")
    assert len(points) == len(words) == len(NOT_COVERED)
    assert all(word in point for word, point in zip(words, points, strict=True))
    said = ("holds a key", "loss", "lengths", "coder", "time", "parameters", "replies", "rounding", "keystream")
    assert all(word in line for word, line in zip(said, NOT_COVERED, strict=True))


def test_what_rounded_noises_miss_moves_with_their_share_of_the_shift() -> None:
    """Two noises on a grid, added up: what the sum of the other world says of one noise's tail, enumerated.

    Control: with a shift of all of mu, as of a noise that nothing else hides, the same miss is larger.
    """
    cells, sigma, tail = np.arange(-400, 401), (16.0, 12.0), 3.5
    first, second = (np.diff(special.ndtr((np.append(cells, 401) - 0.5) / one)) for one in sigma)
    total, shift = math.hypot(*sigma), 37.4
    moved = np.diff(special.ndtr((np.append(cells, 401) - 0.5 - shift) / sigma[0]))  # the first client's update moves
    missed = first * (cells > tail * sigma[0])
    ours, theirs = np.convolve(first, second), np.convolve(moved, second)
    posterior = np.convolve(missed, second) / np.maximum(ours, 1e-300)
    found, kappa, mu = float(theirs @ posterior), float(missed.sum()), shift / total
    exact = float(special.ndtr(special.ndtri(kappa) + sigma[0] / total * mu))
    assert found == pytest.approx(exact, rel=0.01)
    steep = math.exp(-(special.ndtri(kappa) ** 2) / 2) / math.sqrt(2 * math.pi) / kappa
    assert found <= kappa * math.exp(steep * sigma[0] / total * mu)
    assert float(special.ndtr(special.ndtri(kappa) + mu)) > 2.0 * found


def test_more_rounds_never_have_less_slack() -> None:
    """For the same noise; a target met over more rounds has more noise in each, and may have less slack."""
    users = CohortMechanism.of(Cohort(10_000, 500.0), L2(1.0), 0.6, adjacency="add-remove", coordinates=39_700)
    steady = Mechanism.uniform(3, Gaussian(2.0), L2(1.0), Sampling("all"), 10, coordinates=1000)
    for mechanism in (users, steady, preset(), replace(users, stateful=True)):
        made = [slack(mechanism.over(rounds)) for rounds in (1, 2, 7, 50, 51, 400)]
        for less, more in itertools.pairwise(made):
            assert less.epsilon < more.epsilon
            assert all(less.at(at) < more.at(at) for at in (0.1, 1.0, 4.0, 8.0, 20.0))


def test_loud_sums_of_users_have_a_figure_and_lone_or_remembering_ones_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many noises, a shift of 1.7 in all: words end far beyond what the sum can tell of any of them."""
    monkeypatch.setattr("cepam.privacy.numerics.slack.LARGE_SUM", 10**9)  # without what a large sum blurs
    blurred_error.cache_clear()
    users = CohortMechanism.of(
        Cohort(10_000, 500.0), L2(1.0), 0.6, rounds=100, adjacency="add-remove", coordinates=39_700
    ).layered()
    assert slack(users).at(8.0) < 1e-7
    assert slack(users).excess(8.0, 1e-5) is None
    for refused in (
        replace(users, stateful=True),
        replace(users, adjacency="replace"),
        replace(users, cohort=replace(users.cohort, participations=60)),
        CohortMechanism.of(Cohort(10_000, 500.0), L2(1.0), 0.3, rounds=100, adjacency="add-remove", coordinates=39_700),
    ):
        assert slack(refused).excess(8.0, 1e-5) is not None
    monkeypatch.undo()
    blurred_error.cache_clear()
    assert slack(replace(users, stateful=True)).excess(8.0, 1e-5) is None  # blurred: what is missed is next to nothing


def test_a_million_weights_of_two_million_phones_have_a_figure() -> None:
    """What the words of 1,372 shares miss is blurred by the others: delta 1e-7 used to be refused."""
    cohort = Cohort(2_000_000, 1000)
    users = CohortMechanism.of(
        cohort, L2(1.0), 1.0, rounds=1000, adjacency="add-remove", coordinates=1_000_000
    ).layered()  # fmt: skip
    ideal = epsilon(replace(users, coordinates=None), 1e-7)
    found = epsilon(users, 1e-7)
    assert ideal < found < ideal + 0.05
    assert slack(users).at(found) < 1e-9
    assert math.isinf(epsilon(replace(users, colluders=cohort.cap - 100), 1e-7))  # few shares: not blurred


def test_a_large_sum_of_shares_with_cut_tails_is_near_the_exact_one() -> None:
    """Shares whose tails are cut at a chance of 2e-4 and put on the cut, convolved: within e^(k g kappa) on the reach.

    With one share instead of 400 the same comparison fails: beyond the cut there is nothing.
    """
    step, cut, shares = 1 / 16, 3.7, 400
    grid = np.arange(-4096, 4096) * step

    def law(scale: float, tails: bool) -> np.ndarray:
        edges = np.concatenate((grid - step / 2, [grid[-1] + step / 2])) / scale
        exact = np.diff(special.ndtr(edges))
        if tails:
            return exact
        inside = np.abs(grid) <= cut * scale
        made = np.where(inside, exact, 0.0)
        made[np.flatnonzero(inside)[[0, -1]]] += (1.0 - made.sum()) / 2
        return made

    def summed(one: np.ndarray, many: int) -> np.ndarray:
        spectrum = np.fft.fft(np.fft.ifftshift(one)) ** many
        return np.real(np.fft.fftshift(np.fft.ifft(spectrum)))

    kappa, scale = 2.0 * special.ndtr(-cut), 1.0
    for many, holds in ((shares, True), (1, False)):
        exact, real = summed(law(scale, True), many), summed(law(scale, False), many)
        near = np.abs(grid) <= 4.0 * math.sqrt(many) * scale
        with np.errstate(divide="ignore"):
            ratio = np.abs(np.log(np.maximum(real[near], 1e-300) / exact[near]))
        growth = math.exp(16 / 15 * 12.0 * 4.0 / math.sqrt(shares)) * math.sqrt(16 / 15)
        assert (ratio.max() <= shares * kappa * growth) == holds


def test_the_search_coder_is_charged_more_and_large_sums_of_it_are_not_blurred() -> None:
    def made(searched: bool) -> Mechanism:
        clients = (Client(Gaussian(1.0), 100, lattice=Integer(1), searched=searched),) * 10
        return Mechanism(clients, L2(1.0), Sampling("all"), 50, coordinates=40_000)

    plain, searched = slack(made(False)), slack(made(True))
    assert 10.0 * plain.epsilon < searched.epsilon < 40.0 * plain.epsilon
    assert 3.5 * plain.missed < searched.missed < 6.0 * plain.missed
    cohort = CohortMechanism(
        (Client(Gaussian(1.0), 1, 1e-3, lattice=Integer(1), searched=False),), L2(1.0), rounds=10, coordinates=40_000,
        cohort=Cohort(100_000, 1000.0, "poisson", 1400),
    )  # fmt: skip
    blurred = slack(cohort)
    plainly = slack(replace(cohort, clients=(replace(cohort.clients[0], searched=True),)))
    assert plainly.missed > 100.0 * blurred.missed


@pytest.mark.parametrize("stages", [5, 9, 13])
def test_a_score_is_as_right_as_is_charged(stages: int) -> None:
    """The coder's own steps in float32, whose roundings float64 shows; the last difference alone takes one of them."""
    draw, size, unit, last, worst = np.random.default_rng(4), 1 << stages, 2.0**-24, 0.0, 0.0
    for _ in range(40):
        x, g = draw.normal(size=size), draw.normal(size=size)
        x *= 2.0 / np.linalg.norm(x)
        half = x @ x / 2
        exact = transform(transform(x[None]) * transform(g[None]))[0] / size - half
        a, b = (transform(one.astype(np.float32)[None]) for one in (x, g))
        product = transform(a * b)[0] * np.float32(1.0 / size)
        found = product - np.float32(half)
        assert found.dtype == np.float32
        length = 2.0 * np.linalg.norm(g)
        charged = unit * (score_roundings(stages) * length + half)
        worst = max(worst, float(np.abs(found - exact).max()) / charged)
        last = max(last, float((np.abs(found - (product.astype(float) - np.float32(half))) / np.abs(found)).max()))
    assert 1e-3 < worst <= 1.0
    assert 0.5 * unit < last <= unit  # a rounding of its own, which must be counted


def test_the_bound_on_an_answer_is_that_of_the_hottest_part() -> None:
    norm = math.sqrt(float(search.HOTTEST.max()))
    for cap in (search.CAP, search.HALF_CAP):
        low = stats.norm.cdf(math.log(cap) / norm - norm / 2) + cap * stats.norm.cdf(-math.log(cap) / norm - norm / 2)
        assert low >= _LEAST_ANSWER
        assert search.MOST_VECTORS * low / cap > 180.0 * math.log(2.0)
    assert search.MOST_PROPOSALS / 2.0**search.LARGEST > 120.0


def test_a_saved_account_keeps_what_was_searched() -> None:
    client = Client(Gaussian(1.0), 100, lattice=Integer(1), searched=True)
    accountant = Accountant().add(Mechanism((client,), L2(1.0), Sampling("all"), 5, coordinates=1000))
    accountant = accountant.add(Mechanism((replace(client, searched=False),), L2(1.0), Sampling("all"), 5))
    read = Accountant().load_state_dict(accountant.state_dict())
    assert [one.clients[0].searched for one in read.mechanisms] == [True, False]


def test_roundings_that_are_too_many_are_refused_before_any_round_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two million clients with a million weights each; a smaller model, a control, is charged."""

    def charged(*_: object) -> None:
        raise AssertionError("charged")

    one = Client(Gaussian(1.0), 1, 1.0)
    made = Mechanism((one,) * 2_000_000, L2(1.0), Sampling("all"), 100, coordinates=1_000_000, unit="client")
    monkeypatch.setattr(Mechanism, "charge", charged)
    assert Accountant((made,)).epsilon(1e-7) == math.inf
    assert affordable(made, 1e-7) is made
    with pytest.raises(ValueError, match="add up to more than delta/100"):
        calibrate(Mechanism((one,) * 10, L2(1.0), Sampling("all"), 1, coordinates=10**13), 1.0, 1e-7)
    with pytest.raises(AssertionError, match="charged"):
        Accountant((Mechanism((one,) * 10, L2(1.0), Sampling("all"), 1, coordinates=9),)).epsilon(1e-7)


def test_the_rounding_of_an_unknown_law_is_refused() -> None:
    assert 0.0 < word_miss(Gaussian(1.0), 1) < word_miss(Laplace(1.0), 1)
    with pytest.raises(ValueError, match="UniformBall"):
        word_miss(UniformBall(1.0), 1)


@pytest.mark.parametrize("clip", [L1(1.0), L2(1.0)])
def test_a_law_that_is_only_listed_has_no_epsilon(clip: L1 | L2, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mechanisms, "PRIVATE_LAWS", {"uniform-ball": UniformBall, "gaussian": Gaussian})
    listed = Mechanism.uniform(3, UniformBall(4.0), clip, Sampling("all"), 10)
    with pytest.raises(ValueError, match="no shift is known"):
        epsilon(listed, 1e-5)
    assert 0.0 < epsilon(Mechanism.uniform(3, Gaussian(4.0), L2(1.0), Sampling("all"), 10), 1e-5) < 10.0

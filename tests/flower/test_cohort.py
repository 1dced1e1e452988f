"""Cohorts in Flower: sampled in secret, compensated up to a public total, charged as the subsampled Gaussian."""

from __future__ import annotations

import logging
import math
import random
from contextlib import nullcontext

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg, FedMedian
from scipy import stats

import cepam
from cepam import privacy
from cepam.errors import NoUsableReplies
from cepam.flower import Accounting, AdaptiveClip, Dropouts, Fixed, NodeSettings, Poisson, Private
from cepam.privacy.composition.accountant import SEES_PARTICIPATION
from cepam.protocol.settings import UplinkSettings
from tests.deployment import flat

from .fakes import FakeGrid, Node, adding, start_arrays, vector_of

DELTA = 1e-5
CLIP = cepam.L2(1.0)
SIZE = 400


def grid_of(nodes: int, size: int = SIZE, norm: float = 0.3, **metrics: float) -> FakeGrid:
    return FakeGrid([Node(10**9 + k, adding(np.full(size, norm / np.sqrt(size)), **metrics)) for k in range(nodes)])


def wrapped(sampling, sigma: float = 2.0, **options) -> Private:
    options = {"clip": CLIP, "delta": DELTA, **options}
    return Private(FedAvg(), noise=cepam.Gaussian(sigma), sampling=sampling, **flat(**options))


def asked(grid: FakeGrid) -> list[int]:
    return [message.metadata.dst_node_id for message in grid.seen]


def charged(cohort: privacy.Cohort, sigma: float, rounds: int, **options) -> privacy.CohortMechanism:
    kind = privacy.Client(cepam.Gaussian(sigma), 1, 1.0 / cohort.size)
    return privacy.CohortMechanism((kind,), CLIP, rounds=rounds, coordinates=SIZE, cohort=cohort, **options)


@pytest.mark.parametrize(
    ("cohort", "same"),
    [
        (Poisson(0.25), privacy.Cohort(20, 5.0)),
        (Fixed(5), privacy.Cohort(20, 5, "without")),
    ],
)
def test_epsilon_is_that_of_the_secret_draw_and_each_observer_has_its_own(cohort, same, tmp_path) -> None:
    spent = []
    for silent in (0.0, 0.3):
        grid = grid_of(20)
        grid.meddle = lambda node, reply, silent=silent: [] if node % 10 < 10 * silent else [reply]
        strategy = wrapped(cohort, folder=tmp_path / str(silent))
        strategy.start(grid, start_arrays(SIZE), num_rounds=4)
        spent.append(strategy.epsilons)
    # Dropouts cost exactly nothing.
    assert spent[0] == spent[1]
    mechanism = charged(same, 2.0, 4)
    assert strategy.epsilon == pytest.approx(privacy.epsilon(mechanism, DELTA), rel=1e-3)
    assert spent[0]["outsider"] == pytest.approx(privacy.epsilon(mechanism, DELTA), rel=1e-6)
    assert spent[0][SEES_PARTICIPATION] > 1.2 * spent[0]["outsider"]
    assert spent[0]["one curious client"] > spent[0]["outsider"]


def test_poisson_draws_are_the_operating_systems_and_of_the_rate() -> None:
    nodes = list(range(20_000))
    random.seed(1)
    first = Poisson(0.3).draw(nodes, len(nodes))
    random.seed(1)
    second = Poisson(0.3).draw(nodes, len(nodes))
    assert first != second
    for drawn in (first, second):
        assert stats.binomtest(len(drawn), len(nodes), 0.3).pvalue > 1e-9
        assert stats.binomtest(len(drawn), len(nodes), 0.35).pvalue < 1e-9
    # Two rounds are independent: the chance to be in both is the product.
    assert stats.binomtest(len(set(first) & set(second)), len(nodes), 0.09).pvalue > 1e-9
    assert Poisson(1.0).draw(nodes, len(nodes)) == nodes
    random.seed(1)
    fixed = Fixed(40).draw(nodes, 40)
    random.seed(1)
    assert fixed != Fixed(40).draw(nodes, 40)
    assert len(set(fixed)) == 40


def test_who_is_drawn_beyond_the_cap_is_not_asked() -> None:
    grid = grid_of(12)
    strategy = wrapped(Poisson(1.0, max_cohort=3))
    strategy.start(grid, start_arrays(SIZE), num_rounds=5)
    counts = [len(asked(grid)[k : k + 3]) for k in range(0, len(grid.seen), 3)]
    assert counts == [3] * 5
    assert len(set(asked(grid))) > 3  # not the same three of twelve each time, but for a chance of 5e-10
    # Everybody is drawn and most are not asked: no figure can be given, and none is.
    assert strategy.epsilon == math.inf


@pytest.mark.parametrize(("rate", "silent"), [(1.0, 0), (1.0, 3), (1.0, 10), (1e-12, 0)])
def test_the_noise_of_the_aggregate_has_one_law_whoever_replies(rate: float, silent: int) -> None:
    # Fresh keys. False alarms 1e-9; the control, the noise of the replies alone, must fail. Nobody drawn: noise alone.
    size, nodes, sigma = 50_000, 10, 0.1
    grid = grid_of(nodes, size)
    grid.meddle = lambda node, reply: [] if node % 10 < silent else [reply]
    # A cap of ten in any case, so that a rate of next to nothing has a noise that can be compared.
    strategy = wrapped(Poisson(rate, max_cohort=10), sigma=sigma)
    published: list[ArrayRecord] = []
    with pytest.raises(NoUsableReplies) if silent == nodes else nullcontext():  # published, and yet no result
        strategy.start(grid, start_arrays(size), 1, evaluate_fn=lambda _, arrays: published.append(arrays))
    arrays = published[-1]
    came, expected = (nodes - silent if rate == 1.0 else 0), rate * nodes
    noise = vector_of(arrays).astype(np.float64) - came * 0.3 / np.sqrt(size) / expected
    total = sigma * np.sqrt(10) / expected
    assert stats.kstest(noise, stats.norm(scale=total).cdf).pvalue > 1e-9
    if came < nodes:
        bare = sigma * np.sqrt(max(came, 1)) / expected
        assert stats.kstest(noise, stats.norm(scale=bare).cdf).pvalue < 1e-9


def test_the_sum_is_divided_by_the_expected_cohort_whatever_replies_claim() -> None:
    grid = FakeGrid([Node(k, adding(np.full(SIZE, 0.04), examples=10**12)) for k in range(1, 5)])
    grid.meddle = lambda node, reply: [reply] if node == 1 else []
    arrays = wrapped(Poisson(1.0), sigma=1e-4).start(grid, start_arrays(SIZE), num_rounds=1).arrays
    assert vector_of(arrays).mean() == pytest.approx(0.01, abs=1e-4)


def test_neither_the_log_nor_the_metrics_tell_who_was_asked_or_how_many(caplog, tmp_path) -> None:
    grid = grid_of(20, train_loss=0.5)
    grid.meddle = lambda node, reply: [] if node % 3 == 0 else [reply]
    with caplog.at_level(logging.INFO, logger="flwr"):
        result = wrapped(Poisson(0.5)).start(grid, start_arrays(SIZE), num_rounds=2)
    for metrics in result.train_metrics_clientapp.values():
        assert {key for key in metrics if key.startswith("cepam")} == {
            "cepam-epsilon",
            "cepam-delta",
            "cepam-epsilon-sees-participation",
        }
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]
    assert not [text for text in said for node in grid.nodes if str(node) in text]
    assert not [text for text in said if "replies" in text and "epsilon" not in text and "noise" not in text]
    # All nodes are what the strategy asks; how many of them are is logged for those who look for it.
    assert "configure_train: Sampled 20 nodes (out of 20)" in said
    # Control: without a cohort the log has it.
    with caplog.at_level(logging.INFO, logger="flwr"):
        wrapped(None, folder=tmp_path).start(grid, start_arrays(SIZE), num_rounds=1)
    assert any("of 20 replies" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("cohort", "same", "before"),
    [
        (Fixed(3, max_participations=2), privacy.Cohort(6, 3, "without", participations=2), 2),
        (Poisson(1.0, max_participations=2), privacy.Cohort(6, 6.0, participations=2), 1),
    ],
)
def test_a_limit_on_participations_is_enforced_and_survives_a_restart(cohort, same, before: int) -> None:
    account = Accounting(delta=DELTA, stable_nodes=True)
    first = grid_of(6)
    model = wrapped(cohort, accounting=account).start(first, start_arrays(SIZE), num_rounds=before).arrays
    again = grid_of(6)
    strategy = wrapped(cohort, accounting=account)
    strategy.start(again, model, num_rounds=4)
    counts = {node: (asked(first) + asked(again)).count(node) for node in first.nodes}
    assert set(counts.values()) == {2}
    # All are exhausted: nobody is asked, the rounds are noise, and cost a client nothing more than its two rounds.
    assert strategy.epsilon == pytest.approx(privacy.epsilon(charged(same, 2.0, before + 4), DELTA), rel=1e-3)
    with pytest.raises(ValueError, match="stable_nodes"):
        wrapped(Fixed(3, max_participations=2))


def test_a_budget_ends_the_training_before_anybody_is_asked_and_holds_across_a_restart() -> None:
    budget = privacy.epsilon(charged(privacy.Cohort(8, 4.0), 2.0, 2), DELTA) * 1.001
    grid = grid_of(8)
    strategy = wrapped(Poisson(0.5), budget=budget)
    model = strategy.start(grid, start_arrays(SIZE), num_rounds=2).arrays
    spent = strategy.epsilon
    seen = len(grid.seen)
    result = wrapped(Poisson(0.5), budget=budget).start(grid, model, num_rounds=2)
    assert len(grid.seen) == seen
    np.testing.assert_array_equal(vector_of(result.arrays), vector_of(model))
    assert 0.0 < spent <= budget


def test_epsilon_finds_the_noise_of_a_cohort() -> None:
    grid = grid_of(20)
    strategy = Private(FedAvg(), clip=CLIP, sampling=Poisson(0.25), epsilon=3.0, accounting=Accounting(delta=DELTA))
    strategy.start(grid, start_arrays(SIZE), num_rounds=5)
    assert 2.99 < strategy.epsilon <= 3.0
    assert strategy.accounting.unit == "client"


def test_nodes_that_leave_are_dropouts_and_nodes_that_come_are_more_noise() -> None:
    strategy = wrapped(Poisson(0.5))
    model = strategy.start(grid_of(12), start_arrays(SIZE), num_rounds=1).arrays
    model = strategy.start(grid_of(8), model, num_rounds=1).arrays
    assert strategy.epsilon == pytest.approx(privacy.epsilon(charged(privacy.Cohort(12, 6.0), 2.0, 2), DELTA), rel=1e-3)
    strategy.start(grid_of(16), model, num_rounds=1)
    accountant = privacy.Accountant(
        (charged(privacy.Cohort(12, 6.0), 2.0, 2), charged(privacy.Cohort(16, 8.0), 2.0, 1))
    )
    assert strategy.epsilon == pytest.approx(accountant.epsilon(DELTA), rel=1e-3)


def test_cohorts_travel_on_a_grid_too() -> None:
    grid = grid_of(10)
    result = wrapped(Fixed(4), sigma=0.01, downlink="quantized").start(grid, start_arrays(SIZE), num_rounds=3)
    assert vector_of(result.arrays).mean() == pytest.approx(3 * 0.3 / np.sqrt(SIZE), abs=0.02)


def test_what_does_not_go_with_a_cohort_is_refused() -> None:
    for options, reason in (
        ({"clipped": "example"}, "do not hide a client"),
        ({"dropouts": Dropouts("charge")}, "compensate"),
        ({"nodes": {1: NodeSettings()}}, "one setting"),
        ({"dropouts": Dropouts(least_replies=2)}, "least_replies"),
        ({"released": "vectors"}, "average"),
    ):
        with pytest.raises(ValueError, match=reason):
            wrapped(Poisson(0.5), **options)
    for strategy, law, clip, reason in (
        (FedAvg(fraction_train=0.5), cepam.Gaussian(1.0), CLIP, "fraction_train"),
        (FedMedian(), cepam.Gaussian(1.0), CLIP, "average"),
        (FedAvg(), cepam.Laplace(1.0), cepam.L1(1.0), "Gaussian"),
    ):
        with pytest.raises(ValueError, match=reason):
            Private(strategy, noise=law, clip=clip, sampling=Poisson(0.5))
    with pytest.raises(ValueError, match="rate must"):
        Poisson(0.0)
    with pytest.raises(ValueError, match="size must"):
        Fixed(0)
    with pytest.raises(ValueError, match="goes with sampling"):
        wrapped(None, clip=AdaptiveClip(CLIP))
    with pytest.raises(ValueError, match="starts from"):
        AdaptiveClip(cepam.L1(1.0))


def test_a_clip_follows_the_median_of_the_norms_and_costs_what_the_joint_mechanism_costs() -> None:
    # Norms 0.02 to 0.4, the median 0.21; a clip of 1 comes down to it.
    sizes = np.linspace(0.02, 0.4, 20)
    grid = FakeGrid([Node(k + 1, adding(np.full(SIZE, size / np.sqrt(SIZE)))) for k, size in enumerate(sizes)])
    adaptive = AdaptiveClip(CLIP, quantile=0.5, learning_rate=2.0)
    strategy = wrapped(Poisson(1.0), sigma=0.01, clip=adaptive)
    result = strategy.start(grid, start_arrays(SIZE), num_rounds=10)
    clips = [metrics["cepam-clip"] for metrics in result.train_metrics_clientapp.values()]
    assert clips[0] == pytest.approx(math.exp(-1.0), rel=0.2)  # all norms are within the first clip
    assert all(0.14 < clip < 0.29 for clip in clips[-4:])
    # Noise and bit stay in proportion to the clip, and every message has one coordinate more.
    now = strategy.settings
    assert now.clip.bound == pytest.approx(clips[-1])
    assert now.law.scale / now.clip.bound >= 0.01
    assert now.law.scale / now.clip.bound == pytest.approx(0.01, rel=1e-12)
    assert now.bit == pytest.approx(0.1 * clips[-1])
    # What is charged is one Gaussian mechanism a round.
    z = privacy.joint_multiplier(0.01 * np.sqrt(20), 0.01 * np.sqrt(20) / 0.1)
    accountant = strategy._spending._account.accountant
    assert len(accountant.mechanisms) == 1
    assert accountant.mechanisms[0].mu(0) == pytest.approx(2.0 / z)


def test_a_clip_that_follows_the_norms_goes_on_after_a_restart_and_so_does_the_account() -> None:
    def started(model: ArrayRecord, rounds: int, follows: bool = True) -> Private:
        clip = AdaptiveClip(CLIP, learning_rate=2.0) if follows else CLIP
        nodes = [Node(k + 1, adding(np.full(SIZE, 0.01))) for k in range(6)]
        made = wrapped(Poisson(1.0), sigma=0.01, clip=clip)
        made.result = made.start(FakeGrid(nodes), model, num_rounds=rounds)
        return made

    first = started(start_arrays(SIZE), 3)
    bound = first.settings.clip.bound
    assert bound < 0.5
    again = started(first.result.arrays, 1)
    used = again._aggregator._charged_as
    assert used.clip.bound == bound
    assert used.law.scale / used.clip.bound == pytest.approx(0.01, rel=1e-12)
    assert again.settings.clip.bound < bound
    assert again._spending.accountant.rounds == 4
    # Without a clip that follows, the saved one is nobody's business.
    assert started(start_arrays(SIZE, 2.0), 1, follows=False).settings.clip.bound == 1.0


class Stumbling(FedAvg):
    """A strategy that raises in its second round, once it has what the round publishes."""

    def aggregate_train(self, server_round, replies):
        if server_round == 2:
            raise RuntimeError("out of memory")
        return super().aggregate_train(server_round, replies)


def test_a_clip_never_follows_a_round_that_was_not_charged() -> None:
    def told() -> float:
        return UplinkSettings.from_json(grid.seen[-1].content["cepam"]["settings"]).clip.bound

    grid = grid_of(6, norm=0.01)
    strategy = Private(
        Stumbling(), noise=cepam.Gaussian(0.01), clip=AdaptiveClip(CLIP, learning_rate=2.0), sampling=Poisson(1.0),
        accounting=Accounting(delta=DELTA, released="average"),
    )  # fmt: skip
    model, config = start_arrays(SIZE), ConfigRecord()
    bounds = []
    for number in (1, 2, 3, 4):
        replies = grid.send_and_receive(strategy.configure_train(number, model, config, grid))
        bounds.append(told())
        try:
            made, _ = strategy.aggregate_train(number, replies)
            model = made if made is not None else model
        except RuntimeError:
            assert strategy._spending.accountant.rounds == 1
            assert strategy._aggregator.clip < bounds[-1]  # found, from what nobody was charged for
    assert bounds[0] == 1.0 > bounds[1] == bounds[2] > bounds[3]
    assert strategy._spending.accountant.rounds == 3


@pytest.mark.parametrize("norm", [0.5, 2.0, np.inf])
def test_the_bit_says_whether_the_norm_was_within_the_clip(norm: float) -> None:
    settings = UplinkSettings(cepam.Gaussian(0.01), CLIP, bit=0.1)
    sent = settings.clipped(np.full(4, norm / 2.0, np.float32))
    assert (len(sent), sent.dtype) == (5, np.float32)
    assert sent[-1] == np.float32(0.1 if norm <= 1.0 else -0.1)
    assert np.linalg.norm(sent.astype(np.float64)) <= settings.largest * (1 + 1e-7)
    assert UplinkSettings.from_json(settings.to_json()) == settings
    with pytest.raises(ValueError, match="bit must"):
        UplinkSettings(cepam.Laplace(0.01), cepam.L1(1.0), bit=0.1)

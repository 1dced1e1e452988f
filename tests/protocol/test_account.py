"""What is charged: the noise that was really added, by a stated policy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import cepam
from cepam import privacy
from cepam.protocol.account import Accounting
from cepam.protocol.settings import UplinkSettings

DELTA = 1e-5
LAW, CLIP = cepam.Gaussian(2.0), cepam.L2(1.0)


def same(count: int) -> dict[int, UplinkSettings]:
    return {node: UplinkSettings(LAW, CLIP) for node in range(count)}


def uniform(count: int, rounds: int, **options) -> privacy.Mechanism:
    return privacy.Mechanism.uniform(count, LAW, CLIP, privacy.Sampling("all"), 1, rounds=rounds, **options)


class Book:
    """A ledger to which rounds are added as mappings from nodes, or pairs, to settings."""

    def __init__(self, average: bool, account: Accounting) -> None:
        self.average, self.account = average, account
        self.accountant = privacy.Accountant(identified=account.stable_nodes)

    def publish(self, replies) -> None:
        pairs = replies.items() if isinstance(replies, dict) else replies
        self.accountant = self.accountant.add(self.account.mechanism(pairs, self.average, 1000))

    def epsilon(self) -> float:
        return self.accountant.epsilon(self.account.delta)


def book(average: bool = True, **options) -> Book:
    return Book(average, Accounting(delta=DELTA, **options))


def test_full_rounds_cost_what_the_accountant_says() -> None:
    made = book()
    for _ in range(5):
        made.publish(same(10))
    assert made.epsilon() == pytest.approx(privacy.epsilon(uniform(10, 5), DELTA), rel=1e-3)


def test_fewer_replies_cost_more() -> None:
    full, thin = book(), book()
    full.publish(same(10))
    thin.publish(same(5))
    assert thin.epsilon() > full.epsilon()
    assert thin.epsilon() == pytest.approx(privacy.epsilon(uniform(5, 1), DELTA), rel=1e-3)


def test_every_round_is_charged_as_its_worst_client_paid_it_unless_nodes_are_stable() -> None:
    by_worst, by_node = book(), book(stable_nodes=True)
    for first in (0, 5):
        for made in (by_worst, by_node):
            made.publish({node: UplinkSettings(LAW, CLIP) for node in range(first, first + 5)})
    assert by_node.epsilon() == pytest.approx(privacy.epsilon(uniform(5, 1), DELTA), rel=1e-3)
    assert by_worst.epsilon() == pytest.approx(privacy.epsilon(uniform(5, 2), DELTA), rel=1e-3)


def test_only_the_own_noise_counts_where_more_than_the_average_is_published() -> None:
    made = book(average=False)
    made.publish(same(10))
    assert made.epsilon() == pytest.approx(privacy.epsilon(uniform(1, 1), DELTA), rel=1e-3)


def test_colluders_take_their_noise_away() -> None:
    made = book(colluders=3)
    made.publish(same(10))
    assert made.epsilon() == pytest.approx(privacy.epsilon(uniform(10, 1, colluders=3), DELTA), rel=1e-3)


def test_clients_may_differ_in_noise_and_clip() -> None:
    loud, tight = UplinkSettings(cepam.Gaussian(3.0), CLIP), UplinkSettings(LAW, cepam.L2(0.25))
    made = book()
    made.publish({1: UplinkSettings(LAW, CLIP), 2: loud, 3: tight})
    noise = np.sqrt(2.0**2 + 3.0**2 + 2.0**2)
    charge = privacy.SubsampledMechanism(privacy.GaussianShift(2.0 / noise))
    assert made.epsilon() == pytest.approx(charge.epsilon(DELTA), rel=1e-3)
    own = book(stable_nodes=True)
    own.publish({1: UplinkSettings(LAW, CLIP), 2: loud, 3: tight})
    assert own.epsilon() == pytest.approx(charge.epsilon(DELTA), rel=1e-3)


def test_laplace_noise_is_charged() -> None:
    l1 = book()
    l1.publish(
        {1: UplinkSettings(cepam.Laplace(1.0), cepam.L1(0.5)), 2: UplinkSettings(cepam.Laplace(1.0), cepam.L1(0.5))}
    )
    assert l1.epsilon() == pytest.approx(1.0, abs=1e-3)
    l2 = book()
    l2.publish(
        {1: UplinkSettings(cepam.Laplace(1.0), cepam.L2(0.5)), 2: UplinkSettings(cepam.Laplace(1.0), cepam.L2(0.5))}
    )
    assert l2.epsilon() > 1.0


@pytest.mark.parametrize("average", [True, False])
def test_each_used_reply_is_charged_also_two_of_one_node_in_one_round(average: bool) -> None:
    # Two replies of one node move the sum by twice as much, against the noise of all three replies.
    made = book(average)
    settings = UplinkSettings(LAW, CLIP)
    made.publish([(1, settings), (1, settings), (2, settings)])
    noise = 2.0 * np.sqrt(3) if average else 2.0 * np.sqrt(2)
    charge = privacy.SubsampledMechanism(privacy.GaussianShift(2 * 2.0 / noise))
    assert made.epsilon() == pytest.approx(charge.epsilon(DELTA), rel=1e-3)
    once = book(average)
    once.publish([(1, settings), (2, settings)])
    assert made.epsilon() > once.epsilon()


def test_two_replies_of_one_node_are_charged_for_laplace_noise_and_for_sampling() -> None:
    laplace = UplinkSettings(cepam.Laplace(1.0), cepam.L1(0.5))
    made = book()
    made.publish([(1, laplace), (1, laplace)])
    assert made.epsilon() == pytest.approx(2.0, abs=1e-3)
    # With a draw of its own for each reply, two replies of the only node are two rounds of it.
    drawn = UplinkSettings(LAW, CLIP, records=1000)
    for kind, clipped in (("poisson", "update"), ("poisson", "example"), ("replacement", "update")):
        sampling = privacy.Sampling(kind, 10)
        sampled = book(record_sampling=sampling, clipped=clipped)
        sampled.publish([(1, drawn), (1, drawn)])
        two = privacy.Mechanism.uniform(1, LAW, CLIP, sampling, 1000, rounds=2, clipped=clipped)
        assert sampled.epsilon() == pytest.approx(privacy.epsilon(two, DELTA), rel=1e-3)


@pytest.mark.parametrize("clipped", ["update", "example"])
def test_l1_clips_are_charged_by_the_clips_own_sensitivity(clipped: str) -> None:
    # Clipping a sum of l1-clipped examples again can move it twice as far: a shift of 0.2 and not of 0.1 here.
    settings = UplinkSettings(cepam.Laplace(0.1), cepam.L1(0.5), records=1000)
    made = book(record_sampling=privacy.Sampling("poisson", 10), clipped=clipped)
    made.publish([(1, settings)])
    gap = {"update": 1.0, "example": 0.2}[clipped] / 0.1
    charge = privacy.SubsampledMechanism(privacy.LaplaceShift(gap), 0.01)
    assert made.epsilon() == pytest.approx(charge.epsilon(DELTA), rel=1e-3)


def test_the_mechanisms_own_rounding_is_charged() -> None:
    # 100 clients, 100 rounds, a hundred million weights: the rounding alone exceeds delta/100, and no figure is given.
    options = Accounting(delta=1e-12)
    mechanism = options.mechanism(same(100).items(), True, 10**8).over(100)
    assert privacy.Accountant((mechanism,)).epsilon(options.delta) == np.inf
    ideal = dataclasses.replace(mechanism, coordinates=None)
    assert privacy.Accountant((ideal,)).epsilon(options.delta) < np.inf


def test_clients_in_cohorts_that_remember_cost_more() -> None:
    """States tell of old draws: what words miss is charged by e^epsilon, and of a fixed cohort no draw is claimed."""

    def costs(cohort: privacy.Cohort, stateful: bool, law: cepam.Law = LAW) -> privacy.Accountant:
        account = Accounting(delta=DELTA, adjacency="add-remove", unit="client", stateful=stateful)
        mechanism = account.cohort_mechanism(cohort, UplinkSettings(law, CLIP, coder="layered"), 10**6)
        assert (mechanism.stateful, mechanism.remembers) == (stateful, stateful)
        return privacy.Accountant((mechanism.over(50),))

    drawn = privacy.Cohort(1000, 50.0)
    plain, kept = (costs(drawn, stateful, cepam.Gaussian(0.06)) for stateful in (False, True))
    assert kept.slack().at(5.0) > 10.0 * plain.slack().at(5.0)
    assert 5.0 < plain.epsilon(DELTA) < kept.epsilon(DELTA) == np.inf  # over delta/100: no figure
    fixed = privacy.Cohort(1000, 50, "without")
    forgetful, remembering = costs(fixed, False), costs(fixed, True)
    assert remembering.mechanisms[0].sampling_rate(0) == 1.0
    assert remembering.epsilon(DELTA) > 10.0 * forgetful.epsilon(DELTA)


def test_settings_that_cannot_be_accounted_for_together_are_refused() -> None:
    with pytest.raises(ValueError, match="norm"):
        book().publish({1: UplinkSettings(LAW, CLIP), 2: UplinkSettings(LAW, cepam.L1(1.0))})
    with pytest.raises(ValueError, match="family"):
        book().publish({1: UplinkSettings(LAW, CLIP), 2: UplinkSettings(cepam.Laplace(1.0), CLIP)})
    with pytest.raises(ValueError, match="without a reply"):
        book().publish({})

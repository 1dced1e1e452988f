"""Sparse graphs: the degree against another computation, and against drawn graphs."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from cepam.secure_aggregation.mechanism import failure_chances, sparse_graph

from .sums import Roster, cohort


def test_a_thousand_clients() -> None:
    assert sparse_graph(1000, 0.1, 0.1) == (46, 26)
    security, loss = failure_chances(1000, 46, 26, 100, 100)
    seen = 1000 * stats.hypergeom.sf(25, 999, 100, 46)
    assert seen <= security <= seen + 1000 * 0.2**23
    assert security < 2.0**-40
    assert loss == pytest.approx(1000 * stats.hypergeom.sf(21, 999, 100, 46), rel=1e-6)


def test_the_bounds_hold_on_drawn_graphs() -> None:
    """A small graph, often cut: the bound is above the share of drawn orders in which honest survivors fall apart."""
    rng, clients, degree, away, tries = np.random.default_rng(5), 16, 4, 5, 4000
    apart = 0
    for _ in range(tries):
        order = rng.permutation(clients)
        left = [place for place in range(clients) if order[place] >= away]
        known = {left[0]}
        grown = True
        while grown:
            more = {p for p in left for k in known if min((p - k) % clients, (k - p) % clients) <= degree // 2}
            grown, known = bool(more - known), known | more
        apart += len(known) < len(left)
    cut = failure_chances(clients, degree, degree + 1, away, 0)[0]
    assert 0 < apart / tries <= cut


def test_circles_are_mutual_and_the_order_follows_the_keys() -> None:
    roster = cohort(20).roster
    for name in roster.names:
        assert roster.neighbourhood(name, 0) == roster.names
        for peer in roster.neighbourhood(name, 6):
            assert name in roster.neighbourhood(peer, 6)
    other = Roster(roster.run, roster.epoch + 1, roster.peers)
    assert any(other.neighbourhood(name, 6) != roster.neighbourhood(name, 6) for name in roster.names)


def test_doors() -> None:
    for wrong in ((3, 0.1, 0.1), (100, 0.3, 0.3), (100, -0.1, 0.1)):
        with pytest.raises(ValueError, match=r"clients|corrupt"):
            sparse_graph(*wrong)
    with pytest.raises(ValueError, match="complete"):
        sparse_graph(4, 0.2, 0.2)

"""A quorum is a fraction or a number of clients, and one rule for both."""

from __future__ import annotations

import pytest

from cepam._internal.quorum import quorum_count


@pytest.mark.parametrize(
    ("quorum", "clients", "count"),
    [(0.8, 30, 24), (24, 30, 24), (24.0, 30, 24), (0.7, 10, 7), (0.71, 10, 8), (1.0, 5, 5), (1, 5, 5), (0.01, 5, 1)],
)
def test_the_number_of_clients(quorum: float, clients: int, count: int) -> None:
    assert quorum_count(quorum, clients) == count


@pytest.mark.parametrize("quorum", [0.0, -1, 1.5, float("nan"), float("inf"), True, "24"])
def test_anything_else_is_refused(quorum: float) -> None:
    with pytest.raises(ValueError, match="a fraction of the round's clients"):
        quorum_count(quorum, 30)


def test_no_round_has_more_clients_than_it_has() -> None:
    with pytest.raises(ValueError, match="at most the 30 clients"):
        quorum_count(31, 30)

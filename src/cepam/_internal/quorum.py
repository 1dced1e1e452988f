"""The quorum of secure aggregation: one setting, a fraction of a round's clients or a number of them."""

from __future__ import annotations

import math

QUORUM_RULE = "a fraction of the round's clients, in (0, 1], or a number of clients, from 2"
"""What a quorum may be, in the words of every help text and error."""


def check_quorum(quorum: float, name: str = "quorum") -> None:
    """Raise ValueError when a quorum is neither a fraction in (0, 1] nor a whole number from 2."""
    known = isinstance(quorum, int | float) and not isinstance(quorum, bool)
    if not known or not (0.0 < quorum <= 1.0 or (1.0 < quorum < math.inf and quorum == int(quorum))):
        raise ValueError(f"{name} must be {QUORUM_RULE}, got {quorum!r}")


def quorum_count(quorum: float, clients: int, name: str = "quorum") -> int:
    """The fewest clients in a sum of a round with so many clients.

    Args:
        quorum: A fraction in (0, 1], or a number of clients, from 2; 1 is the fraction, all clients.
        clients: Clients of the round.
        name: What an error calls the quorum.

    Returns:
        The number of clients, at least 1; of a fraction rounded up.

    Raises:
        ValueError: The quorum is neither, or more clients than there are.
    """
    check_quorum(quorum, name)
    if quorum <= 1.0:
        return max(1, math.ceil(quorum * clients - 1e-9))
    if quorum > clients:
        raise ValueError(f"{name} must be at most the {clients} clients of a round, got {int(quorum)}")
    return int(quorum)

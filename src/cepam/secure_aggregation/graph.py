"""How many neighbours a sparse graph of masks needs, so that bad luck does not undo it."""

from __future__ import annotations

import math

from scipy import special

SECURITY = 2.0**-40
LOSS = 2.0**-24


def sparse_graph(clients: int, corrupt: float, dropping: float) -> tuple[int, int]:
    """Find the least degree of a sparse graph of masks, and its threshold.

    Args:
        clients: how many clients are in a round.
        corrupt: the largest share of them that colludes.
        dropping: the largest share of them that drops out.

    Returns:
        The degree and the threshold.

    With probability under 2^-40 a node has as many colluding neighbours as the threshold, or the honest survivors fall
    apart; with probability under 2^-24 a self-mask cannot be opened and the round is lost. Paper: Bell et al. 2020,
    Section 3: a random order, so that neighbours are drawn without replacement. Covers a server that tells the truth.
    """
    if type(clients) is not int or clients < 4:
        raise ValueError(f"clients must be an integer of at least 4, got {clients!r}")
    if not (min(corrupt, dropping) >= 0.0 and corrupt + dropping < 0.5):
        raise ValueError(f"corrupt and dropping must be shares with a sum below 1/2, got {corrupt!r} and {dropping!r}")
    bad, gone = math.ceil(corrupt * clients), math.ceil(dropping * clients)
    for degree in range(2, clients - 1, 2):
        for threshold in range(degree // 2 + 1, degree + 2):
            security, loss = failure_chances(clients, degree, threshold, bad, gone)
            if security <= SECURITY and loss <= LOSS:
                return degree, threshold
    raise ValueError(f"no sparse graph on {clients} clients is safe enough: use the complete one")


def failure_chances(clients: int, degree: int, threshold: int, corrupt: int, dropping: int) -> tuple[float, float]:
    """Bounds on the probability that secrets of a round are not safe, and that the round is lost, over all clients."""
    seen = _at_least(threshold, clients - 1, corrupt, degree)
    # On a ring where everybody knows degree / 2 on either side, only that many missing in a row can cut it.
    away, row = corrupt + dropping, degree // 2
    cut = math.prod((away - i) / (clients - i) for i in range(row)) if away >= row else 0.0
    lost = _at_least(degree + 2 - threshold, clients - 1, dropping, degree)
    return clients * (seen + cut), clients * lost


def _at_least(least: int, population: int, marked: int, drawn: int) -> float:
    """The probability of `least` marked ones or more among `drawn` of a population, without replacement."""
    first, last = max(least, drawn - (population - marked), 0), min(marked, drawn)
    return sum(
        math.exp(_log_choose(marked, k) + _log_choose(population - marked, drawn - k) - _log_choose(population, drawn))
        for k in range(first, last + 1)
    )


def _log_choose(n: int, k: int) -> float:
    return float(special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1))

"""Theorem 1, by enumeration: what the messages tell depends on the updates through their sum alone.

Every case counts all masks, so nothing is sampled. The controls break one premise and must be seen to.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from fractions import Fraction

import numpy as np
import pytest

CASES = [(2, 4, 2), (2, 8, 2), (2, 8, 4), (2, 12, 3), (3, 4, 2), (3, 6, 2), (3, 6, 3), (3, 8, 4), (4, 4, 2)]
View = Counter[tuple[int, ...]]
Masks = Iterable[tuple[int, ...]]


def masks_with_sum(clients: int, q: int, total: int) -> list[tuple[int, ...]]:
    free = itertools.product(range(q), repeat=clients - 1)
    return [(*part, (total - sum(part)) % q) for part in free]


def view(y: tuple[int, ...], masks: Masks, q: int, reveal: Callable[[int, int], int]) -> View:
    return Counter(tuple(reveal(i, (a + s) % q) for i, (a, s) in enumerate(zip(y, mask))) for mask in masks)


@pytest.mark.parametrize(("clients", "q", "width"), CASES)
def test_the_messages_are_a_function_of_the_sum_alone(clients: int, q: int, width: int) -> None:
    for total in range(q):
        masks = masks_with_sum(clients, q, total)
        seen: dict[int, View] = {}
        for y in itertools.product(range(q), repeat=clients):
            found = view(y, masks, q, lambda _, t: t // width)
            assert seen.setdefault(sum(y) % q, found) == found


@pytest.mark.parametrize(("clients", "q", "width"), CASES[:8])
def test_the_law_of_the_sum_of_messages_and_of_the_messages_given_it(clients: int, q: int, width: int) -> None:
    uniform = Counter(sum(t) for t in itertools.product(range(width), repeat=clients))
    for y in itertools.product(range(q), repeat=clients):
        found = view(y, masks_with_sum(clients, q, 0), q, lambda _, t: t // width)
        many, cells = q ** (clients - 1), q // width
        for a in range(cells):
            inside = {m: n for m, n in found.items() if sum(m) % cells == a}
            assert len(set(inside.values())) <= 1
            assert len(inside) in (0, cells ** (clients - 1))
            rest = (sum(y) - width * a) % q
            chance = Fraction(sum(n for t, n in uniform.items() if t % q == rest), width**clients)
            assert Fraction(sum(inside.values()), many) == width * chance


@pytest.mark.parametrize(("clients", "width"), [(3, 2), (3, 4), (4, 2), (4, 3)])
def test_the_rounding_is_unbiased_and_its_variance_does_not_depend_on_the_sum(clients: int, width: int) -> None:
    """Given the sum, the dropped parts are uniform over all with its remainder; two clients are too few for this."""
    moments = set()
    for rest in range(width):
        chances = Counter(sum(t) for t in itertools.product(range(width), repeat=clients))
        kept = {t: n for t, n in chances.items() if t % width == rest}
        many = sum(kept.values())
        mean = Fraction(sum(t * n for t, n in kept.items()), many)
        square = Fraction(sum(t * t * n for t, n in kept.items()), many) - mean * mean
        moments.add((mean, square))
    assert moments == {(Fraction(clients * (width - 1), 2), Fraction(clients * (width * width - 1), 12))}


def test_any_function_of_each_message_and_colluders_who_know_their_masks() -> None:
    rng, clients, q = np.random.default_rng(0), 3, 6
    tables = rng.integers(0, 4, (clients, q))
    for known in range(q):
        masks = [mask for mask in masks_with_sum(clients, q, 0) if mask[2] == known]
        seen: dict[int, View] = {}
        for y in itertools.product(range(q), repeat=2):
            found = view((*y, 0), masks, q, lambda i, t: int(tables[i, t]))
            assert seen.setdefault(sum(y) % q, found) == found


@pytest.mark.parametrize("broken", ["masks not uniform", "one client without a mask", "a mask that tells itself"])
def test_a_broken_premise_is_seen(broken: str) -> None:
    clients, q, width = 3, 8, 2
    masks = masks_with_sum(clients, q, 0)
    if broken == "masks not uniform":
        masks = [mask for mask in masks if mask[0] % 2 == 0]
    if broken == "one client without a mask":
        masks = [(*mask[:2], 0) for mask in masks]
    if broken == "a mask that tells itself":
        masks = [(mask[0], -mask[0] % q, 0) for mask in masks]
    seen: dict[int, View] = {}
    leaks = False
    for y in itertools.product(range(q), repeat=clients):
        found = view(y, masks, q, lambda _, t: t // width)
        leaks |= seen.setdefault(sum(y) % q, found) != found
    assert leaks


def test_one_message_and_all_but_one_tell_nothing() -> None:
    clients, q, width = 3, 8, 2
    for hidden in range(clients):
        views = set()
        for y in itertools.product(range(q), repeat=clients):
            found = view(y, masks_with_sum(clients, q, 0), q, lambda _, t: t // width)
            others: View = Counter()
            for message, count in found.items():
                others[tuple(m for i, m in enumerate(message) if i != hidden)] += count
            views.add(tuple(sorted(others.items())))
        assert len(views) == 1

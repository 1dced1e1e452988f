"""The matrix, its sender and its receiver: exact algebra, gaps, restarts, state, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from cepam.privacy import CorrelatedNoise

SIZE, ROUNDS = 5, 24
RANDOM = np.tril(np.random.default_rng(3).random((ROUNDS, ROUNDS))) + np.eye(ROUNDS)
BANDED = np.tril(np.triu(RANDOM, -3))
LINKS = {
    "independent": CorrelatedNoise(),
    "decay": CorrelatedNoise(decay=0.9, slices=4),
    "toeplitz": CorrelatedNoise.from_matrix([1.0, 0.5, 0.375, 0.3125], slices=4),
    "rising": CorrelatedNoise.from_matrix([0.5, 0.0, 2.0], slices=4),
    "full": CorrelatedNoise.from_matrix(RANDOM, slices=4),
    "banded": CorrelatedNoise.from_matrix(BANDED, slices=4),
}
links = pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)


def updates(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(ROUNDS, SIZE))


@links
def test_a_sender_forms_the_rows_of_cx_and_a_receiver_undoes_them(link: CorrelatedNoise) -> None:
    x, sender, receiver = updates(), link.sender(SIZE), link.receiver(SIZE)
    sent = np.array([sender.next(row) for row in x])
    np.testing.assert_allclose(sent, link.matrix(ROUNDS) @ x, rtol=1e-13, atol=1e-13)
    noise = updates(1)
    taken = np.array([receiver.take(v, t) for t, v in enumerate(sent + noise)])
    np.testing.assert_allclose(taken - x, np.linalg.solve(link.matrix(ROUNDS), noise), rtol=1e-9, atol=1e-9)
    assert sent.dtype == taken.dtype == np.float64


@links
def test_lost_messages_arrive_late_by_the_block_of_the_positions_that_came(link: CorrelatedNoise) -> None:
    x, sender, receiver = updates(), link.sender(SIZE), link.receiver(SIZE)
    came = [0, 1, 4, 5, 6, 9, 13, 14, 23]
    sent = [sender.next(row) for row in x]
    taken = np.array([receiver.take(sent[t], t) for t in came])
    matrix = link.matrix(ROUNDS)
    want = np.linalg.solve(matrix[np.ix_(came, came)], matrix[came] @ x)
    np.testing.assert_allclose(taken, want, rtol=1e-9, atol=1e-9)


def test_after_a_gap_a_carry_takes_off_what_is_left_of_the_last_message() -> None:
    receiver = CorrelatedNoise(0.5).receiver(1)
    receiver.take([8.0], 0)
    assert receiver.take([3.0], 3) == 3.0 - 0.5**3 * 8.0


@links
def test_a_stream_goes_on_from_its_state_bit_for_bit(link: CorrelatedNoise) -> None:
    x = updates()
    sender, receiver = link.sender(SIZE), link.receiver(SIZE)
    for t in range(11):
        receiver.take(sender.next(x[t]), t)
    later, other = link.sender(SIZE), link.receiver(SIZE)
    later.load_state_dict(sender.state_dict())
    other.load_state_dict(receiver.state_dict())
    for t in range(11, ROUNDS):
        mine, again = sender.next(x[t]), later.next(x[t])
        assert mine.tobytes() == again.tobytes() == later.again().tobytes()
        assert receiver.take(mine, t).tobytes() == other.take(again, t).tobytes()
    assert (later.position, later.slice) == (ROUNDS, ROUNDS % link.slices)


@links
def test_a_new_stream_knows_nothing_of_the_old_one(link: CorrelatedNoise) -> None:
    x, sender, receiver = updates(), link.sender(SIZE, position=6), link.receiver(SIZE, position=6)
    assert (sender.position, sender.slice) == (6, 6 % link.slices)
    sent = np.array([sender.next(row) for row in x[6:]])
    np.testing.assert_allclose(sent, link.matrix(ROUNDS)[6:, 6:] @ x[6:], rtol=1e-13, atol=1e-13)
    taken = np.array([receiver.take(v, t + 6) for t, v in enumerate(sent)])
    np.testing.assert_allclose(taken, x[6:], rtol=1e-9, atol=1e-9)


def test_a_retry_says_the_same_and_changes_nothing() -> None:
    for link in LINKS.values():
        sender = link.sender(SIZE)
        sender.next(updates()[0])
        last = sender.next(updates()[1])
        np.testing.assert_array_equal(sender.again(), last)
        sender.again()[:] = 7.0
        np.testing.assert_array_equal(sender.again(), last)
        assert sender.position == 2


def test_memory_is_as_long_as_the_matrix_reaches() -> None:
    for name, most in {"independent": 1, "decay": 1, "toeplitz": 4, "rising": 3, "full": ROUNDS, "banded": 4}.items():
        link = LINKS[name]
        sender, receiver = link.sender(SIZE), link.receiver(SIZE)
        for t, x in enumerate(updates()):
            receiver.take(sender.next(x), t)
        assert len(sender.state_dict()["memory"]) == most
        assert len(receiver.state_dict()["memory"]) <= most


def test_what_is_said_of_a_matrix() -> None:
    assert [link.bands for link in LINKS.values()] == [1, None, 4, 3, ROUNDS, 4]
    assert [link.fades for link in LINKS.values()] == [True, True, True, False, False, False]
    assert LINKS["decay"].gain == pytest.approx(10.0)
    for link in LINKS.values():
        assert link.gain >= link.matrix(ROUNDS).sum(axis=1).max() * (1 - 1e-15)
    covariance = LINKS["decay"].noise_covariance(ROUNDS)
    assert covariance[5, 5] == pytest.approx(1 + 0.81)
    assert covariance[5, 6] == pytest.approx(-0.9)
    assert covariance[5, 7] == pytest.approx(0.0, abs=1e-12)
    assert CorrelatedNoise.from_matrix([1.0, 0.5, 0.0]) == CorrelatedNoise.from_matrix([1.0, 0.5])
    assert hash(LINKS["full"]) == hash(CorrelatedNoise.from_matrix(RANDOM, slices=4))


def test_the_rounding_of_a_stream_is_within_its_bound() -> None:
    """Against exact rational arithmetic, for updates at their bound."""
    from fractions import Fraction

    for link in (CorrelatedNoise(0.97), CorrelatedNoise.from_matrix(0.97 ** np.arange(30))):
        sender, exact = link.sender(1), []
        for t in range(200):
            x = float(np.random.default_rng(t).uniform(0.5, 1.0))
            exact.append(Fraction(x))
            if link.decay:
                want = sum((Fraction(link.decay) ** (t - i) * e for i, e in enumerate(exact)), Fraction(0))
            else:
                want = sum((Fraction(c) * e for c, e in zip(link.coefficients, reversed(exact))), Fraction(0))
            assert abs(Fraction(float(sender.next([x])[0])) - want) <= Fraction(link.rounding)


@pytest.mark.parametrize("decay", [-0.1, 1.0, 2.0, float("nan")])
def test_a_decay_lies_under_one(decay: float) -> None:
    with pytest.raises(ValueError, match="decay"):
        CorrelatedNoise(decay)


@pytest.mark.parametrize(
    "matrix",
    [[], [0.0, 1.0], [1.0, -0.1], [1.0, float("inf")], np.ones((2, 3)), np.ones((2, 2)), [[1.0, 0.0], [1.0, 0.0]], 3.0],
)
def test_a_matrix_is_lower_triangular_and_not_negative(matrix) -> None:
    with pytest.raises(ValueError, match=r"matrix"):
        CorrelatedNoise.from_matrix(matrix)


def test_doors() -> None:
    link = LINKS["decay"]
    with pytest.raises(ValueError, match="slices"):
        CorrelatedNoise(0.5, slices=0)
    with pytest.raises(ValueError, match="one of"):
        CorrelatedNoise(0.5, coefficients=(1.0,))
    sender, receiver = link.sender(2), link.receiver(2)
    with pytest.raises(ValueError, match="next first"):
        sender.again()
    with pytest.raises(ValueError, match="finite"):
        sender.next([1.0, float("nan")])
    with pytest.raises(ValueError, match="2 coordinates"):
        sender.next([1.0])
    receiver.take(sender.next([1.0, 2.0]), 0)
    with pytest.raises(ValueError, match="position"):
        receiver.take([1.0, 2.0], 0)  # a replay
    with pytest.raises(ValueError, match="rows"):
        LINKS["full"].sender(1, position=ROUNDS).next([1.0])
    with pytest.raises(ValueError, match="rows"):
        LINKS["full"].receiver(1).take([1.0], ROUNDS)
    with pytest.raises(ValueError, match="Toeplitz"):
        LINKS["full"].column(3)
    assert "1." not in repr(sender)


def test_a_state_of_another_stream_is_refused() -> None:
    link = LINKS["decay"]
    sender, receiver = link.sender(2), link.receiver(2)
    receiver.take(sender.next([1.0, 2.0]), 0)
    for end, state in ((sender, sender.state_dict()), (receiver, receiver.state_dict())):
        for wrong in ({"memory": np.zeros((1, 3))}, {"memory": np.full((1, 2), np.nan)}, {"start": 5}):
            with pytest.raises(ValueError, match="state"):
                end.load_state_dict({**state, **wrong})

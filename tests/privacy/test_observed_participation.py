"""Missing messages: the covariance account against senders and receivers that are really run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cepam import L2, Gaussian
from cepam.privacy import Arrival, Client, CorrelatedNoise, MatrixMechanism, ObservedParticipation, epsilon, report
from cepam.privacy.matrix.participation import precision, spread
from cepam.privacy.numerics.smoothing import MOST_SPREAD, smoothing

ROUNDS, SLICES = 12, 3
LINKS = {
    "decay": CorrelatedNoise(0.8, SLICES),
    "toeplitz": CorrelatedNoise.from_matrix([1.0, 0.5, 0.375, 0.3125], SLICES),
    "rising": CorrelatedNoise.from_matrix([0.5, 0.1, 0.9], SLICES),
    "full": CorrelatedNoise.from_matrix(
        np.tril(np.random.default_rng(5).random((ROUNDS, ROUNDS))) + np.eye(ROUNDS), SLICES
    ),
}
links = pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)
CLIENTS = (Client(Gaussian(1.0), 30, 0.5), Client(Gaussian(2.0), 60, 0.2), Client(Gaussian(0.7), 30, 0.3))
RNG = np.random.default_rng(11)
SENT = RNG.random((3, ROUNDS)) > 0.2
LOST = SENT & (RNG.random((3, ROUNDS)) < 0.25)


def of(link: CorrelatedNoise, **more) -> MatrixMechanism:
    return MatrixMechanism(CLIENTS, L2(1.0), link=link, rounds=ROUNDS, **more)


def played(link: CorrelatedNoise, x: np.ndarray, z: np.ndarray, sent: np.ndarray, lost: np.ndarray) -> np.ndarray:
    """The published sums of a run in which clients stay away and messages are lost; x and z by client and position."""
    ends = [(link.sender(x.shape[2]), link.receiver(x.shape[2])) for _ in CLIENTS]
    made = np.zeros((ROUNDS, x.shape[2]))
    for t in range(ROUNDS):
        for k, (sender, receiver) in enumerate(ends):
            if sent[k, t]:
                position = sender.position
                v = sender.next(x[k, position]) + CLIENTS[k].law.scale * z[k, position]
                if not lost[k, t]:
                    made[t] += CLIENTS[k].weight * receiver.take(v, position)
    return made


@links
def test_the_matrices_are_what_a_run_does(link: CorrelatedNoise) -> None:
    """Each update and each draw of noise put in by itself: the columns of L and M, one by one."""
    came = ObservedParticipation.observed(SENT, LOST)
    for k in range(3):
        many = came.positions(k)
        x, z = np.zeros((3, ROUNDS, ROUNDS)), np.zeros((3, ROUNDS, ROUNDS))
        x[k] = np.eye(ROUNDS)
        moves = played(link, x, z, SENT, LOST)[:, :many] / CLIENTS[k].weight
        np.testing.assert_allclose(came.moves(link, k), moves, atol=1e-12)
        noise = played(link, z, x, SENT, LOST) / CLIENTS[k].weight / CLIENTS[k].law.scale
        arrived = [one.position for one in came.arrivals[k]]
        np.testing.assert_allclose(came.noise(link, k), noise[:, arrived], atol=1e-12)


@links
def test_mu_is_the_worst_shift_in_the_noise_of_what_was_published(link: CorrelatedNoise) -> None:
    """By another way: Sigma from the run itself, every slice, and a search over the record's own vectors."""
    came, rng = ObservedParticipation.observed(SENT, LOST), np.random.default_rng(2)
    eye = np.eye(3 * ROUNDS).reshape(3, ROUNDS, 3 * ROUNDS)
    noise = played(link, np.zeros_like(eye), eye, SENT, LOST)
    seen = np.abs(noise).sum(axis=1) > 0
    white = np.linalg.inv(np.linalg.cholesky((noise @ noise.T)[np.ix_(seen, seen)]))
    updates = played(link, eye, np.zeros_like(eye), SENT, LOST)[seen].reshape(-1, 3, ROUNDS)
    for k in range(3):
        best = 0.0
        for r in range(SLICES):
            ways = white @ updates[:, k, r::SLICES]
            for signs in rng.choice([-1.0, 1.0], size=(400, ways.shape[1])):
                best = max(best, float(np.linalg.norm(ways @ signs)))
        mechanism = of(link, observed_participation=came)
        found = mechanism.mu(k) / mechanism.distance(k)
        assert best <= found * (1 + 1e-9)
        if link is LINKS["decay"]:
            assert best == pytest.approx(found, rel=1e-6)


@links
@pytest.mark.parametrize("colluders", [0, 1, 2])
def test_it_equals_the_closed_form_when_nobody_is_absent(link: CorrelatedNoise, colluders: int) -> None:
    full = ObservedParticipation.observed(np.ones((3, ROUNDS)))
    if (
        spread(link, full, 0) > MOST_SPREAD
    ):  # the server's smoothing does not reach so far: each has its own noise alone
        charged = of(link, colluders=colluders, observed_participation=full)
        assert charged.mu(0) == pytest.approx(of(link, colluders=2).mu(0), rel=1e-9)
        return
    for unit in ("record", "client"):
        plain = of(link, colluders=colluders, unit=unit)
        charged = replace(plain, observed_participation=full)
        for client in range(3):
            assert charged.mu(client) == pytest.approx(plain.mu(client), rel=1e-9)
        assert charged.over(5).mu(0) == pytest.approx(plain.over(5).mu(0), rel=1e-9)


@links
def test_alone_no_absence_costs_more_than_a_whole_run(link: CorrelatedNoise) -> None:
    """A deleted row or a new stream takes entries out of C >= 0: a client's own sensitivity does not grow."""
    whole = replace(of(link), clients=CLIENTS[:1]).mu(0)
    for came in (
        ObservedParticipation.observed(SENT[:1], LOST[:1]),
        ObservedParticipation.observed(SENT[:1]),
        ObservedParticipation(ROUNDS, (tuple(Arrival(t, t, t // 5) for t in range(ROUNDS)),)),
        ObservedParticipation(ROUNDS, (tuple(Arrival(t, t, t // 5) for t in range(ROUNDS) if t % 5 != 4),)),
    ):
        assert replace(of(link), clients=CLIENTS[:1], observed_participation=came).mu(0) <= whole * (1 + 1e-9)


@links
def test_undoing_spreads_messages_no_further_than_said(link: CorrelatedNoise) -> None:
    came = ObservedParticipation.observed(SENT, LOST)
    for k in range(3):
        assert np.linalg.norm(came.noise(link, k), 2) <= spread(link, came, k) * (1 + 1e-12)


def test_a_gap_would_tell_messages_apart_but_for_the_servers_noise() -> None:
    """Of two clients one is away in the second round: y_2 - decay y_1 on a grid of 4,096 steps, published in float32.

    Few pairs give that number, where real numbers would have hidden y_1; with the server's noise all are as good.
    """
    rng, decay, steps = np.random.default_rng(1), 0.9617, 4096
    ones, left = np.arange(-5 * steps, 5 * steps + 1), []
    for _ in range(50):
        first, second = np.rint(rng.normal(0.0, steps, 2))
        published = np.float32(second - decay * first)
        twos = np.rint(published + decay * ones)
        left.append(int((np.float32(twos - decay * ones) == published).sum()))
    assert np.median(left) < 30
    # Every first message has a second one within a twentieth of a deviation of the server's noise.
    assert 0.5 / (smoothing((1.0, 1.0)) * steps) < 0.05


def test_a_new_stream_is_a_new_block() -> None:
    link = LINKS["decay"]
    came = ObservedParticipation(6, (tuple(Arrival(t, t, t // 3) for t in range(6)),))
    noise = came.noise(link, 0)
    assert noise[2, 1] == -0.8
    assert noise[3, 2] == 0.0
    np.testing.assert_allclose(came.moves(link, 0), np.eye(6), atol=1e-12)


def test_a_message_lost_between_two_streams_is_charged_to_the_later() -> None:
    came = ObservedParticipation(6, ((Arrival(0, 0, 0), Arrival(1, 1, 0), Arrival(3, 3, 1)),))
    np.testing.assert_allclose(came.moves(LINKS["decay"], 0)[3], [0.0, 0.0, 0.8, 1.0], atol=1e-12)


def test_clients_that_leave_take_the_others_cover_with_them() -> None:
    """The figures of the design: half of thirty clients gone at half time."""
    clients = (Client(Gaussian(0.0109301), 2000, 1 / 30),) * 30
    mechanism = MatrixMechanism(
        clients, L2(0.1), link=CorrelatedNoise(0.9617, 31), rounds=496, adjacency="add-remove", clipped="example"
    )
    sent = np.ones((30, 496), dtype=bool)
    sent[15:, 248:] = False
    assert epsilon(mechanism, 1e-5) == pytest.approx(2.0, abs=1e-4)
    left = replace(mechanism, observed_participation=ObservedParticipation.observed(sent))
    assert epsilon(left, 1e-5) == pytest.approx(2.3709, abs=1e-4)
    assert epsilon(left, 1e-5, 0) == pytest.approx(2.3709, abs=1e-4)
    assert epsilon(left, 1e-5, 20) < 2.0


def test_equal_clients_with_other_absences_are_not_taken_for_one() -> None:
    clients, sent = (Client(Gaussian(1.0), 30, 1.0),) * 3, np.ones((3, 6), dtype=bool)
    sent[0, 2:] = False
    mechanism = MatrixMechanism(
        clients, L2(0.1), link=LINKS["decay"], rounds=6, observed_participation=ObservedParticipation.observed(sent)
    )
    each = [epsilon(mechanism, 1e-3, j) for j in range(3)]
    assert each[0] < each[1]
    assert epsilon(mechanism, 1e-3) == max(each)
    assert [g.outsider for g in report(mechanism, 1e-3)] == pytest.approx(each)


def test_rounds_that_nobody_answered_and_clients_that_never_came() -> None:
    sent = np.ones((3, ROUNDS), dtype=bool)
    sent[:, 4] = sent[2] = False
    mechanism = of(LINKS["decay"], observed_participation=ObservedParticipation.observed(sent))
    assert mechanism.mu(2) == 0.0
    two = np.ones((2, ROUNDS - 1), dtype=bool)
    alone = MatrixMechanism(
        CLIENTS[:2],
        L2(1.0),
        link=LINKS["decay"],
        rounds=ROUNDS - 1,
        observed_participation=ObservedParticipation.observed(two),
    )
    assert mechanism.mu(0) == pytest.approx(alone.mu(0), rel=1e-9)
    assert not precision(LINKS["decay"], ObservedParticipation.observed(sent), ((0, 1.0),))[4].any()


def test_doors() -> None:
    link = LINKS["decay"]
    with pytest.raises(ValueError, match="lost"):
        ObservedParticipation.observed(np.zeros((2, 3)), np.ones((2, 3)))
    with pytest.raises(ValueError, match="clients by rounds"):
        ObservedParticipation.observed(np.ones(3))
    with pytest.raises(ValueError, match="rise"):
        ObservedParticipation(3, ((Arrival(0, 1), Arrival(1, 0)),))
    with pytest.raises(ValueError, match="rounds 0 to 2"):
        ObservedParticipation(3, ((Arrival(3, 0),),))
    with pytest.raises(ValueError, match="rounds"):
        ObservedParticipation.observed(np.ones((3, ROUNDS))).over(ROUNDS + 1)
    with pytest.raises(ValueError, match="observed_participation"):
        of(link, observed_participation=ObservedParticipation.observed(np.ones((2, ROUNDS))))
    many = (Client(Gaussian(1.0), 30),) * 30
    mechanism = MatrixMechanism(
        many,
        L2(1.0),
        link=link,
        rounds=4,
        colluders=5,
        observed_participation=ObservedParticipation.observed(np.ones((30, 4))),
    )
    with pytest.raises(ValueError, match="coalitions"):
        mechanism.mu(0)

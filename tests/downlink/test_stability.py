"""Long runs: the error never leaves half a step, nothing adds up, and training at public weights arrives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

import cepam

SIZE, MOMENTUM, NOISE, RATE = 2000, 0.9, 1e-3, 0.05
OPTIMUM = np.random.default_rng(5).normal(size=SIZE)
Vector = npt.NDArray[np.float64]


def rate_at(number: int, rounds: int) -> float:
    """The full rate for half of the run, then straight down towards zero."""
    return RATE * min(1.0, 2.0 * (1.0 - number / rounds))


def train(rounds: int, send: Callable[[Vector, float], Vector]) -> Vector:
    """The public weights after noisy gradient descent with momentum on a quadratic, computed at what `send` gives."""
    draw = np.random.default_rng(6)
    exact, velocity, public = np.zeros(SIZE), np.zeros(SIZE), np.zeros(SIZE)
    for number in range(rounds):
        gradient = 0.1 * (public - OPTIMUM) + draw.normal(size=SIZE) * NOISE
        velocity = MOMENTUM * velocity + gradient
        rate = rate_at(number, rounds)
        exact = exact - rate * velocity
        public = send(exact, rate)
    return public


def off(weights: Vector) -> float:
    """The rms distance to the optimum."""
    return float(np.sqrt(np.mean((weights - OPTIMUM) ** 2)))


def on_the_grid(rounds: int, bits: list[int]) -> Vector:
    """Training through messages; every round's error is checked against half a step."""
    server = cepam.Broadcast(b"stability", np.zeros(SIZE))
    receivers = [cepam.Receiver(b"stability", np.zeros(SIZE)) for _ in range(2)]
    draw = np.random.default_rng(7)

    def send(exact: Vector, rate: float) -> Vector:
        step = cepam.Broadcast.step_for(rate, NOISE)
        message = server.publish(exact, step)
        bits.append(8 * len(message))
        assert np.abs(server.weights - exact).max() <= step / 2 + 2.0**-22
        receivers[0].apply(message)
        if draw.random() < 0.05:
            receivers[1].apply(server.message_from(receivers[1].version))
            assert receivers[1].check == server.check
        assert receivers[0].check == server.check
        return receivers[0].weights.astype(np.float64)

    return train(rounds, send)


def forgetting(rounds: int) -> Vector:
    """The control: differences of the exact weights are rounded one by one, and what rounding lost is lost for good."""
    held = {"exact": np.zeros(SIZE), "public": np.zeros(SIZE)}

    def send(exact: Vector, rate: float) -> Vector:
        step = cepam.Broadcast.step_for(rate, NOISE)
        held["public"] = held["public"] + np.rint((exact - held["exact"]) / step) * step
        held["exact"] = exact
        return held["public"]

    return train(rounds, send)


def check_run(rounds: int) -> None:
    """A run ends as near to the optimum as one with float64 weights; the control does not."""
    bits: list[int] = []
    plain, public = off(train(rounds, lambda exact, rate: exact)), off(on_the_grid(rounds, bits))
    assert public < 1.05 * plain + 1e-4
    assert off(forgetting(rounds)) > 10 * public
    late = np.mean(bits[rounds // 4 : rounds // 2]) / SIZE
    assert late < 0.6


def test_a_run_of_400_rounds_is_stable() -> None:
    check_run(400)


@pytest.mark.slow
def test_a_run_of_2000_rounds_is_stable() -> None:
    check_run(2000)


def test_the_step_of_the_rule() -> None:
    assert cepam.Broadcast.step_for(0.5, 0.25) == 8.0
    assert cepam.Broadcast.step_for(0.5, 0.25, 256.0) == 32.0
    assert cepam.Broadcast.step_for(0.5, 0.25, 64.0, 0.5, 2.0) == 16.0
    assert cepam.Broadcast.step_for(0.5, 0.25, 64.0, 0.0, 2.0) == 32.0
    for rate in np.random.default_rng(1).uniform(1e-6, 1.0, 200):  # exponent 1 gives the bits of factor · rate · noise
        assert cepam.Broadcast.step_for(rate, 0.3, 48.0, 1.0, 4.0) == 48.0 * rate * 0.3


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["rate", "noise", "factor", "first_rate"])
def test_a_rule_that_gives_no_step_is_refused(name: str, wrong: float) -> None:
    good = {"rate": 1.0, "noise": 1.0, "factor": 8.0, "first_rate": 2.0}
    with pytest.raises(ValueError, match=f"{name} must be a positive number"):
        cepam.Broadcast.step_for(**(good | {name: wrong}))


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan")])
def test_an_exponent_outside_its_range_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="exponent must lie in"):
        cepam.Broadcast.step_for(1.0, 1.0, 8.0, wrong)

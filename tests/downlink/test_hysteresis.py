"""The point that a server publishes with hysteresis: on the grid, near the weights, with no lag where it matters."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import numpy.typing as npt
import pytest

from cepam import Broadcast, Receiver
from cepam.downlink import grid
from cepam.downlink.grid import DIRECTIONS, MOST_ROWS, Hysteresis, LeadingDirections, farthest

ROWS, COLUMNS, STEP = 10, 320, 2.0**-5
TENSORS = ((ROWS * COLUMNS, ROWS), (ROWS, 0))
SIZE = ROWS * COLUMNS + ROWS
Floats = npt.NDArray[np.float32]


class Walk:
    """Weights that drift along two directions of a matrix under noise, and what is published of them."""

    def __init__(self, zone: float, seed: int = 1, informed: bool = True) -> None:
        self.draw = np.random.default_rng(seed)
        self.server = Broadcast(b"walk", np.zeros(SIZE))
        self.server.publish(np.zeros(SIZE), STEP)
        self.hysteresis = Hysteresis(zone, TENSORS)
        self.exact = np.zeros(SIZE, dtype=np.float32)
        self.drift = self.draw.normal(size=(ROWS, 2)) @ self.draw.normal(size=(2, COLUMNS)) * 0.004
        self.informed, self.sent = informed, 0

    def step(self) -> Floats:
        moved = self.draw.normal(size=SIZE).astype(np.float32) * STEP / 16
        moved[: ROWS * COLUMNS] += self.drift.ravel().astype(np.float32)
        self.exact = self.exact + moved
        told = moved if self.informed else np.zeros_like(moved)
        held = self.server.weights
        near = lambda target: self.server.nearest(target, STEP)  # noqa: E731
        chosen = self.hysteresis.choose(self.exact, held, told, STEP, near)
        self.sent += len(self.server.publish(chosen, STEP))
        np.testing.assert_array_equal(self.server.weights, chosen.astype(np.float32))
        return self.server.weights - self.exact

    def lag(self) -> float:
        """How far the public weights are behind along the drift, in its units; noise is a few hundredths."""
        off = self.step()[: ROWS * COLUMNS]
        return float(off @ self.drift.ravel() / np.square(self.drift).sum())


def walked(zone: float, informed: bool = True) -> Walk:
    walk = Walk(zone, informed=informed)
    for _ in range(40):
        walk.step()
    return walk


def test_what_is_published_lies_on_the_grid_and_within_the_zone() -> None:
    walk = walked(1.0)
    off = np.abs(walk.step())
    assert off[ROWS * COLUMNS :].max() <= STEP / 2 + 1e-6  # no matrix: the nearest point
    assert STEP / 2 < off.max() <= farthest(1.0) * STEP


def worst_lag(zone: float, rounds: int = 30) -> float:
    """The largest error in steps over a walk along one direction, which few columns carry nearly alone.

    What keeps the lag out of that direction then has to come from these columns: their targets go far.
    """
    draw, size, worst = np.random.default_rng(3), ROWS * COLUMNS, 0.0
    server, chooser = Broadcast(b"worst", np.zeros(size)), Hysteresis(zone, ((size, ROWS),))
    direction = np.full(COLUMNS, 0.05)
    direction[:3] = 1.0
    exact = np.zeros(size, dtype=np.float32)
    for _ in range(rounds):
        moved = np.outer(draw.normal(size=ROWS) + 1.0, direction).astype(np.float32).ravel() * np.float32(STEP / 2)
        exact = exact + moved
        near = lambda target: server.nearest(target, STEP)  # noqa: E731
        chosen = chooser.choose(exact, server.weights, moved, STEP, near)
        server.publish(chosen, STEP)
        worst = max(worst, float(np.abs(server.weights - exact.astype(np.float64)).max()) / STEP)
    return worst


@pytest.mark.parametrize("zone", [0.65, 0.75, 2.0])
def test_the_error_is_bounded_in_steps_whatever_the_directions(zone: float) -> None:
    assert 0.5 < worst_lag(zone) <= farthest(zone) + 1e-4


def test_control_with_targets_that_go_anywhere_the_bound_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "MARGIN", 1e9)
    assert worst_lag(0.75) > 0.75 + 0.5


def test_half_a_step_is_the_nearest_point_up_to_the_shift() -> None:
    walk = Walk(0.5, informed=False)
    off = walk.step()
    assert np.abs(off).max() <= STEP / 2 + 1e-6


def test_hysteresis_sends_less_and_does_not_lag() -> None:
    """The control knows no aggregates: its lag is what hysteresis alone costs."""
    plain, ours, control = walked(0.5), walked(0.8), walked(0.8, informed=False)
    assert ours.sent < 0.8 * plain.sent
    behind = [abs(np.mean([walk.lag() for _ in range(8)])) for walk in (ours, control)]
    assert behind[0] < 0.3 * behind[1]
    assert behind[1] > 1.0


def test_receivers_follow() -> None:
    walk = Walk(0.75)
    receiver = Receiver(b"walk", np.zeros(SIZE))
    receiver.apply(walk.server.message_from(0))
    for _ in range(5):
        walk.step()
    receiver.apply(walk.server.message_from(receiver.version))
    np.testing.assert_array_equal(receiver.weights, walk.server.weights)


@pytest.mark.parametrize("rows", [3, 10, 3 * MOST_ROWS + 5])
def test_leading_directions_are_those_of_the_rows(rows: int) -> None:
    draw = np.random.default_rng(2)
    basis = np.linalg.qr(draw.normal(size=(200, 3)))[0].T
    leading = LeadingDirections(200)
    for _ in range(30):
        leading.add(draw.normal(size=(rows, 3)) * [9.0, 5.0, 3.0] @ basis + 0.01 * draw.normal(size=(rows, 200)))
    unit = leading.unit
    assert unit.shape == (DIRECTIONS, 200)
    np.testing.assert_allclose(unit @ unit.T, np.eye(DIRECTIONS), atol=1e-8)
    np.testing.assert_allclose(np.linalg.norm(unit[:3] @ basis.T, axis=0), 1.0, atol=1e-3)


def test_nothing_seen_is_no_direction() -> None:
    leading = LeadingDirections(100)
    leading.add(np.zeros((4, 100)))
    assert leading.unit.shape == (0, 100)


def test_a_restored_state_chooses_the_same() -> None:
    first = walked(0.8)
    second = Walk(0.8)
    second.draw, second.exact = first.draw, first.exact.copy()
    second.server.load_state_dict(first.server.state_dict())
    second.hysteresis.load_state_dict(first.hysteresis.state_dict())
    state = first.draw.bit_generator.state
    ours = first.step()
    second.draw.bit_generator.state = state
    np.testing.assert_array_equal(second.step(), ours)


def test_narrow_tensors_go_to_the_nearest_point() -> None:
    hysteresis = Hysteresis(2.0, ((16, 2), (4, 0)))
    assert not hysteresis.matrices
    assert set(hysteresis.zones) == {0.5}


THREADS = """
import hashlib, numpy as np
from cepam.downlink.grid import LeadingDirections
draw, leading, digest = np.random.default_rng(1), LeadingDirections(1111), hashlib.sha256()
for _ in range(4):
    rows = draw.normal(size=(300, 1111))
    leading.add(rows)
    digest.update(leading.scaled.tobytes())
print(digest.hexdigest())
"""


def test_the_number_of_threads_changes_no_bit() -> None:
    """A run that is resumed on other cores draws the same noise: it must publish the same weights."""
    made = set()
    for threads in ("1", "2", "3"):
        environment = os.environ | {"OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
        done = subprocess.run([sys.executable, "-c", THREADS], env=environment, capture_output=True, check=True)
        made.add(done.stdout)
    assert len(made) == 1

"""The way down in the engine: what clients compute at came to them in bytes, and every byte is counted."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from cepam import Receiver
from cepam.errors import CheckFailed
from cepam.fl import Dataset, Settings, Simulation, preset, train
from cepam.fl.aggregation.downlink import COARSE, SEED_BYTES, GridDownlink, coarse
from cepam.fl.clients.sampling import RunSecret
from cepam.fl.config.toml import read
from cepam.fl.simulation import Sent

NONCE = b"the nonce of run"


@pytest.fixture
def grid(quick: Settings) -> Settings:
    return quick.updated(
        {
            "compression.downlink": "quantized",
            "training.rounds": 8,
            "training.server_optimizer": "momentum",
            "training.server_learning_rate": 0.05,
        }
    )


def simulated(settings: Settings, data: Dataset, watch: list[Sent] | None = None) -> Simulation:
    seen: list[Sent] = [] if watch is None else watch
    return Simulation(settings, data, watch=seen.append, secret=RunSecret(None, NONCE))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"clients.sampling_rate": 0.5},
        {"clients.dropout_rate": 0.4},
        {"clients.sampling_rate": 0.5, "training.schedule": "linear", "compression.downlink_hysteresis": 0.8},
        {"clients.dropout_rate": 0.4, "clients.dropout_handling": "wait"},
        {"clients.sampling_rate": 0.5, "clients.dropout_rate": 0.3, "run.seeds": 2, "training.schedule": "linear"},
    ],
)
def test_clients_that_apply_their_messages_hold_the_weights_of_the_run(
    small: Dataset, grid: Settings, changes: dict
) -> None:
    """Real receivers, one a client, that get only what the run counted: all of them hold the run's public weights."""
    settings = grid.updated(changes)
    seen: list[Sent] = []
    simulation = simulated(settings, small, seen)
    starts = simulation.state.weights.copy()
    copies: dict[tuple[int, int], Receiver] = {}
    for _ in range(settings.training.rounds):
        before = simulation.state.weights.copy()
        lines = simulation.step()
        for s, (line, sent) in enumerate(zip(lines, seen[-settings.run.seeds :])):
            counted = 0
            for envelope in sent.envelopes:
                tries, message = envelope.at.attempt + 1, sent.down.get(envelope.client, b"")
                new = (s, envelope.client) not in copies
                counted += tries * 8 * (len(message) + new * SEED_BYTES)
                if envelope.message is None:
                    continue
                run = NONCE + struct.pack("<Q", sent.seed)
                receiver = copies.setdefault((s, envelope.client), Receiver(run, starts[s]))
                if message:
                    receiver.apply(message)
                assert receiver.weights.tobytes() == before[s].tobytes()
            assert line["downlink_bits"] == counted
            assert line["bits_round_trip"] == line["bits"] + counted
            assert line["bits_per_coordinate_down"] == counted / (len(sent.envelopes) * simulation.size)
    if "share" in changes or (settings.clients.dropout_handling != "wait" and settings.clients.dropout_rate):
        assert any(len(set(map(len, sent.down.values()))) > 1 for sent in seen)


def test_a_client_that_was_forgotten_cannot_follow(small: Dataset, grid: Settings) -> None:
    """The control: with versions that nobody tracks, the message of the last round alone is of no use to the late."""
    seen: list[Sent] = []
    simulation = simulated(grid, small, seen)
    start = simulation.state.weights[0].copy()
    for _ in range(4):
        simulation.step()
    late = Receiver(NONCE + struct.pack("<Q", grid.run.seed), start)
    with pytest.raises(Exception, match="leads from version 2 to 3"):
        late.apply(seen[-1].down[0])


def test_public_weights_are_near_the_exact_ones_and_judged(small: Dataset, grid: Settings) -> None:
    simulation = simulated(grid, small)
    noise = simulation.aggregators[0].noise
    assert noise == pytest.approx(0.02 / np.sqrt(4))
    for _ in range(grid.training.rounds):
        line = simulation.step()[0]
        off = np.abs(simulation.state.weights - simulation.state.exact).max()
        assert 0.0 < off <= 64 * 0.05 * noise / 2 + 1e-6
    assert simulation.reported is simulation.state.weights
    scores = simulation.network.evaluate(simulation.state.weights)
    assert line["accuracy"] == float(scores.accuracy[0])


@pytest.mark.parametrize(("exponent", "halvings"), [(1.0, 3), (0.5, 2), (0.0, 0)])
def test_the_step_follows_a_power_of_the_schedule(
    small: Dataset, grid: Settings, exponent: float, halvings: int
) -> None:
    """A linear schedule over 16 rounds ends at an eighth of its first rate; the first step is a little over 2^-7."""
    changes = {
        "compression.downlink_step_factor": 2.0**-7 / (0.05 * 0.01) * 1.001,
        "compression.downlink_step_exponent": exponent,
        "training.schedule": "linear",
        "training.rounds": 16,
        "training.local_steps": 1,
    }
    seen: list[Sent] = []
    simulation = simulated(grid.updated(changes), small, seen)
    for _ in range(16):
        simulation.step()
    shifts = [next(iter(sent.down.values()))[2] for sent in seen if sent.down]
    shifts.append(simulation.state.downlinks[0].broadcast.message_from(15)[2])  # what a client would be sent next
    assert simulation.aggregators[0].noise == pytest.approx(0.01)
    assert shifts[0] == 40 - 7
    assert shifts[-1] == 40 - 7 - halvings
    assert shifts == sorted(shifts, reverse=True)


def test_a_cohort_has_more_noise(small: Dataset, grid: Settings) -> None:
    whole, half = (simulated(grid.updated({"clients.sampling_rate": share}), small) for share in (1.0, 0.5))
    assert half.aggregators[0].noise == pytest.approx(np.sqrt(2) * whole.aggregators[0].noise)


def test_float32_is_counted_in_full(small: Dataset, quick: Settings) -> None:
    for share, asked in ((1.0, 4), (0.5, 2)):
        simulation = Simulation(quick.updated({"clients.sampling_rate": share}), small)
        line = simulation.step()[0]
        assert line["downlink_bits"] == 32 * simulation.size * asked
        assert line["bits_per_coordinate_down"] == 32.0
        assert simulation.state.weights is simulation.state.exact


def test_seeds_side_by_side_are_the_single_runs(small: Dataset, grid: Settings) -> None:
    together = simulated(grid.updated({"run.seed": 5, "run.seeds": 2}), small)
    alone = [simulated(grid.updated({"run.seed": seed}), small) for seed in (5, 6)]
    lines = together.step()
    singles = [simulation.step()[0] for simulation in alone]
    assert [line["downlink_bits"] for line in lines] == [line["downlink_bits"] for line in singles]
    for s, simulation in enumerate(alone):
        np.testing.assert_allclose(together.state.weights[s], simulation.state.weights[0], atol=2e-2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"compression.scheme": "fl", "privacy.noise_scale": None},
            "downlink quantized takes its step from the noise, and scheme fl adds none",
        ),
        ({"compression.scheme": "fl+sdq", "privacy.noise_scale": None}, "adds none"),
        ({"training.weight_averaging": 0.5}, "weight_averaging must be 0, got 0.5"),
        ({"compression.downlink_step_factor": 0.0}, "downlink_step_factor must be a positive number, got 0.0"),
        ({"compression.downlink_step_factor": float("nan")}, "downlink_step_factor must be a positive number"),
        ({"compression.downlink_step_exponent": 1.5}, r"downlink_step_exponent must lie in \[0, 1\], got 1.5"),
        ({"compression.downlink_step_exponent": float("nan")}, r"downlink_step_exponent must lie in \[0, 1\]"),
        ({"compression.downlink_hysteresis": 0.4}, r"downlink_hysteresis must lie in \[0.5, 2\], got 0.4"),
        ({"compression.downlink_hysteresis": float("nan")}, r"downlink_hysteresis must lie in \[0.5, 2\]"),
        ({"compression.downlink": "small"}, "compression.downlink must be one of float32, quantized"),
    ],
)
def test_what_the_grid_cannot_do_is_refused_at_the_door(grid: Settings, changes: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        grid.updated(changes)


def test_one_client_without_noise_is_refused(small: Dataset, grid: Settings) -> None:
    own = Settings.of(
        {"clients.overrides": [{"clients": "1", "scheme": "fl"}], "privacy.noise_scale": 0.02}
    ).clients.overrides
    with pytest.raises(ValueError, match="some clients add none"):
        Simulation(grid.updated({"clients.overrides": own}), small)


def test_a_run_that_diverges_says_so(small: Dataset, grid: Settings) -> None:
    simulation = Simulation(grid.updated({"training.server_learning_rate": 1e30, "training.rounds": 9}), small)
    with pytest.raises(ValueError, match=r"within 1048576 of zero|no longer finite after round"):
        list(iter(simulation.step, None))


def test_another_nonce_does_not_take_the_state(small: Dataset, grid: Settings) -> None:
    first, other = simulated(grid, small), Simulation(grid, small, secret=RunSecret(None, b"another nonce"))
    first.step()
    with pytest.raises(CheckFailed, match="of another run or start"):
        other.state.downlinks[0].load_state_dict(first.state.downlinks[0].state_dict())


def test_the_summary_and_the_files_have_both_ways(tmp_path: Path, small: Dataset, grid: Settings) -> None:
    summary = train(grid.updated({"run.seeds": 2}), tmp_path / "run", small)
    assert summary["downlink"] == "quantized"
    assert summary["round_trip_bytes"] == summary["uplink_bytes"] + summary["downlink_bytes"]
    assert 0 < summary["bits_per_coordinate_down"] < 8
    assert read(tmp_path / "run" / "config.toml")["compression"]["downlink"] == "quantized"


def test_the_private_preset_is_small_both_ways(small: Dataset) -> None:
    settings = preset("private").updated({"run.simulate": True, "clients.count": 4, "training.rounds": 3})
    simulation = Simulation(
        settings.updated({"privacy.epsilon": None, "privacy.noise_scale": 1e-3, "training.expected_batch_size": 60.0}),
        small,
    )
    assert simulation.size == 39_700
    assert isinstance(simulation.state.downlinks[0], GridDownlink)
    first, second, _ = (simulation.step()[0] for _ in range(3))
    assert first["downlink_bits"] == 4 * 8 * SEED_BYTES
    assert second["bits_per_coordinate_down"] < 4.0


@pytest.mark.parametrize("factor", [1.0, 4096.0])
def test_a_step_that_is_too_coarse_for_the_rounds_is_said_at_the_end(
    small: Dataset, grid: Settings, factor: float
) -> None:
    simulation = simulated(grid.updated({"compression.downlink_step_factor": factor}), small)
    start = simulation.state.weights.copy()
    while not simulation.done:
        assert not [text for text in simulation.privacy_warnings if text.startswith("coarse-downlink")]
        lines = simulation.step()
    exact, public = simulation.state.exact, simulation.state.weights
    ratio = np.linalg.norm(public - exact) / np.linalg.norm(exact - start)
    said = [text for text in simulation.privacy_warnings if text.startswith("coarse-downlink")]
    assert len(said) == (factor > 1.0) == (ratio > COARSE)
    assert lines[0]["warnings"] == simulation.privacy_warnings
    finer = [float(text.partition(" Try ")[2].partition(",")[0]) for text in said]
    assert all(0.03 < ratio * each / factor < COARSE for each in finer)  # what is advised would not warn


def test_the_worst_seed_is_warned_about_and_float32_never(grid: Settings) -> None:
    start, exact = np.zeros((3, 4), np.float32), np.ones((3, 4), np.float32)
    exact[2] = 0.0  # a seed whose rounds brought nothing
    public = exact.copy()
    assert coarse(grid, start, exact, public) == []
    public[1, 0] += 1.9 * COARSE
    assert coarse(grid, start, exact, public) == []  # the norm is 2
    public[1, 0] += 0.2 * COARSE
    assert len(coarse(grid, start, exact, public)) == 1
    assert coarse(grid.updated({"compression.downlink": "float32"}), start, exact, public) == []

"""Secret draws within slices and noise of as many bands, together; and matrices of one's own.

False alarms: keys are fresh in every run; the covariance's level is 1e-9, the draws' eight deviations.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from cepam.fl import Dataset, Settings, Simulation, train
from cepam.fl.clients.sampling import RunSecret, drawn_slices, link_of
from cepam.privacy import CorrelatedNoise, MatrixMechanism, best_decay
from tests.fl.aggregation.test_correlated import aggregator_for, run
from tests.fl.runs.test_resume import stopped

SLICES, ROUNDS, BATCH, RECORDS = 3, 8, 60.0, 600
CHANCE = BATCH * SLICES / RECORDS


@pytest.fixture
def banded() -> Settings:
    return Settings.of(
        {
            "data.name": "synthetic",
            "clients.count": 4,
            "training.rounds": ROUNDS,
            "training.local_steps": 1,
            "model.name": "linear",
            "training.update": "examples",
            "training.record_sampling": "poisson",
            "training.expected_batch_size": BATCH,
            "training.slices": SLICES,
            "privacy.noise_correlation": "matrix",
            "privacy.clipping_norm": 0.1,
            "training.server_learning_rate": 0.5,
            "privacy.epsilon": 2.0,
            "privacy.delta": 1e-4,
            "training.server_optimizer": "momentum",
            "training.schedule": "linear",
            "privacy.adjacency": "add-remove",
            "run.simulate": True,
        }
    )


def test_draws_are_fresh_secret_and_of_the_rounds_slice(small: Dataset, banded: Settings) -> None:
    held = aggregator_for(Simulation(banded, small)).row.held
    rows = [RunSecret.fresh().row(1) for _ in range(2)]
    taken = np.zeros((2, ROUNDS, held[0]), dtype=bool)
    for i, t in np.ndindex(2, ROUNDS):
        found = drawn_slices(banded, rows[i], t, held, range(4), [t] * 4)
        assert all((places % SLICES == t % SLICES).all() for places in found.places)
        np.testing.assert_allclose(found.expected, BATCH * held / RECORDS)
        taken[i, t, found.places[0]] = True
    turn = np.arange(held[0])[None, :] % SLICES == np.arange(ROUNDS)[:, None] % SLICES
    many = turn.sum()
    for row in taken:
        assert abs(row.sum() / many - CHANCE) < 8 * np.sqrt(CHANCE * (1 - CHANCE) / many)
    together = (taken[0] & taken[1]).sum() / many  # two secrets: draws of their own
    assert abs(together - CHANCE**2) < 8 * np.sqrt(CHANCE**2 / many)
    again = (taken[0][:3] & taken[0][3:6]).sum() / turn[:3].sum()  # a slice's next turn: fresh coins
    assert abs(again - CHANCE**2) < 8 * np.sqrt(CHANCE**2 / turn[:3].sum())


def watched(settings: Settings, data: Dataset) -> tuple[np.ndarray, Simulation]:
    """The noise of every round's aggregate, and the run."""
    noise: list[np.ndarray] = []

    def watch(simulation: Simulation) -> None:
        aggregator = aggregator_for(simulation)
        collect = aggregator.collect

        def watching(number: int, clients: list[int], raw: Any) -> Any:
            found = collect(number, clients, raw)
            noise.append(np.asarray(found.aggregate, np.float64) - np.mean(raw, axis=0, dtype=np.float64))
            return found

        aggregator.collect = watching  # type: ignore[method-assign]

    made = run(settings, data, watch)
    return np.array(noise), made


def correlations(noise: np.ndarray, link: CorrelatedNoise, sigma: float) -> float:
    """The p-value of the whitened noise's products between and within rounds."""
    white = link.matrix(len(noise)) @ noise / sigma
    products = white @ white.T / np.sqrt(noise.shape[1])
    between = (products[np.triu_indices(len(noise), 1)] ** 2).sum()
    within = ((np.diag(products) - np.sqrt(noise.shape[1])) ** 2 / 2).sum()
    return float(stats.chi2.sf(between + within, len(noise) * (len(noise) + 1) // 2))


@pytest.mark.parametrize("own", [None, [0.8, 0.1, 0.6]])
def test_the_noise_of_the_aggregates_has_the_matrix_s_covariance(
    small: Dataset, banded: Settings, own: list[float] | None, tmp_path: Path
) -> None:
    """36 sums over 7,850 coordinates; a column a fifth wrong must be seen, whatever the run drew."""
    if own is not None:
        np.save(tmp_path / "own.npy", own)
        banded = banded.updated({"privacy.matrix": str(tmp_path / "own.npy")})
    noise, simulation = watched(banded, small)
    aggregator = aggregator_for(simulation)
    assert aggregator.link == link_of(banded)
    assert aggregator.link.bands == SLICES
    sigma = aggregator.plans[0].law.scale / 2  # type: ignore[union-attr]
    assert correlations(noise, aggregator.link, sigma) > 1e-9
    column = np.array(aggregator.link.coefficients)
    wrong = CorrelatedNoise.from_matrix(column * [1.0, 0.8, 0.8], SLICES)
    assert correlations(noise, wrong, sigma) < 1e-9
    assert correlations(noise, CorrelatedNoise(), sigma) < 1e-9


def test_the_run_costs_a_subsampled_event_a_pass_and_ends_at_its_target(small: Dataset, banded: Settings) -> None:
    """Against dp-accounting: ceil(8/3) events at chance 0.3 of one column's length over the noise of the sum."""
    dp_event = pytest.importorskip("dp_accounting").dp_event
    pld = pytest.importorskip("dp_accounting.pld.pld_privacy_accountant")
    simulation = run(banded, small)
    aggregator = aggregator_for(simulation)
    mechanism = aggregator.mechanism
    assert isinstance(mechanism, MatrixMechanism)
    assert mechanism.amplified
    assert aggregator.link.coefficients is not None
    length, noise = np.linalg.norm(aggregator.link.coefficients), aggregator.plans[0].law.scale / 2  # type: ignore[union-attr]
    accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
    event = dp_event.PoissonSampledDpEvent(CHANCE, dp_event.GaussianDpEvent(noise * BATCH / (0.1 * length)))
    accountant.compose(event, 3)
    found = simulation.views()
    assert found["outsider"] <= 2.0
    assert found["outsider"] == pytest.approx(accountant.get_epsilon(1e-4), rel=2e-3)
    assert found["outsider"] < found["one curious client"] < found["3 colluders"]
    assert any("draws are secret, within 3 fixed slices in turn" in said for said in simulation.warnings)
    rates = [0.5 * min(1.0, 2.0 * (1.0 - t / ROUNDS)) for t in range(ROUNDS)]
    decay = best_decay(ROUNDS, SLICES, 0.9, rates, SLICES)
    assert aggregator.link.coefficients == pytest.approx((1.0, decay, decay**2))


def test_the_server_undoes_what_the_clients_shape(small: Dataset, banded: Settings) -> None:
    silent = banded.updated({"compression.scheme": "fl", "privacy.epsilon": None})
    plain, carried = (run(silent.updated({"privacy.decay": decay}), small) for decay in (0.0, 0.9))
    np.testing.assert_allclose(carried.state.weights, plain.state.weights, atol=2e-6)


def test_a_message_that_does_not_come_stops_the_run_before_anything_is_published(
    small: Dataset, banded: Settings
) -> None:
    simulation = Simulation(banded, small)
    aggregator = aggregator_for(simulation)
    simulation.step()
    before, spent = simulation.state.weights.copy(), aggregator.accountant
    encode: Callable[..., Any] = simulation.arrays.encode

    def losing(*given: Any) -> Any:
        made = list(encode(*given))
        return [(made[0][0], made[0][1][:-1]), *made[1:]]

    simulation.arrays.encode = losing  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"no message of client 0 .*nothing of this round is published"):
        simulation.step()
    np.testing.assert_array_equal(simulation.state.weights, before)
    assert aggregator.accountant == spent
    waiting = Simulation(banded.updated({"clients.dropout_rate": 0.3, "clients.dropout_handling": "wait"}), small)
    waiting.step()
    assert all(stream.position == 1 for stream in aggregator_for(waiting).streams)


@pytest.mark.parametrize("cyclic", [False, True])
def test_stopped_and_resumed_is_bit_identical_and_no_other_matrix_goes_on(
    tmp_path: Path, small: Dataset, banded: Settings, cyclic: bool
) -> None:
    settings = banded.updated(
        {"run.checkpoint_every": 3, "run.keep_messages": True, "privacy.epsilon": None, "privacy.noise_scale": 0.05}
    )
    if cyclic:  # a square matrix of one's own, and absences
        square = np.tril(np.random.default_rng(1).uniform(0.1, 0.9, (ROUNDS, ROUNDS))) + np.eye(ROUNDS)
        np.save(tmp_path / "own.npy", square)
        settings = settings.updated(
            {
                "training.record_sampling": "cyclic",
                "privacy.matrix": str(tmp_path / "own.npy"),
                "clients.dropout_rate": 0.3,
            }
        )
    stopped(settings, tmp_path / "stopped", small, 5)
    if cyclic:
        np.save(tmp_path / "own.npy", square + 0.1 * np.eye(ROUNDS))
        link_of.cache_clear()
        with pytest.raises(ValueError, match="another matrix"):
            train(settings, tmp_path / "stopped", small, resume=True)
        np.save(tmp_path / "own.npy", square)
        link_of.cache_clear()
    train(settings, tmp_path / "stopped", small, resume=True)
    train(settings, tmp_path / "whole", small)
    files = sorted(path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole").rglob("*.bin"))
    assert len(files) > ROUNDS
    for name in (*files, Path("metrics.jsonl")):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"clients.dropout_rate": 0.1}, "every message arrives: choose clients.dropout_handling wait"),
        ({"clients.dropout_handling": "compensate"}, "not correlated noise"),
        (
            {
                "training.update": "dp-sgd",
                "privacy.epsilon": None,
                "privacy.step_noise_multiplier": 1.0,
                "privacy.noise_scale": 0.1,
            },
            "local steps",
        ),
        ({"compression.scheme": "cepam-laplace"}, "Gaussian"),
        ({"clients.sampling_rate": 0.5}, "sampling_rate must be 1"),
        ({"privacy.trust": "secure-aggregation"}, "sees each client's updates"),
        ({"privacy.decay": 0.5, "privacy.matrix": "own.npy"}, "either privacy.decay or privacy.matrix"),
        (
            {"privacy.noise_correlation": "independent", "privacy.matrix": "own.npy"},
            "privacy.matrix needs privacy.noise_correlation matrix",
        ),
    ],
)
def test_doors(banded: Settings, changes: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        banded.updated(changes)


@pytest.mark.parametrize(
    ("own", "changes", "says"),
    [
        ([1.0, 0.5, 0.5, 0.5], {}, "at most training.slices = 3 bands, got 4"),
        (np.eye(ROUNDS - 1), {}, "7 rows, under the run's 8 rounds"),
        (None, {"training.expected_batch_size": 300.0}, "draws must be at most a slice's 50 records"),
    ],
)
def test_what_the_theorem_does_not_cover_does_not_start(
    small: Dataset, banded: Settings, tmp_path: Path, own: Any, changes: dict, says: str
) -> None:
    if own is not None:
        np.save(tmp_path / "own.npy", own)
        changes = {"privacy.matrix": str(tmp_path / "own.npy")}
    with pytest.raises(ValueError, match=says):
        Simulation(banded.updated(changes), small)

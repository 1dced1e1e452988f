"""Training where the server learns sums only: observers, bytes, dropouts, resumption, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cepam.fl import Dataset, Settings, Simulation, read_metrics, train
from cepam.fl.config.settings import SecAggGraph
from cepam.secure_aggregation import epsilons
from tests.fl.runs.test_resume import stopped


@pytest.fixture
def sums(quick: Settings) -> Settings:
    return quick.updated(
        {"clients.count": 5, "privacy.trust": "secure-aggregation", "model.name": "linear", "training.local_steps": 1}
    )


def test_a_round_is_what_a_trusted_server_would_have_but_for_fresh_noise(small: Dataset, sums: Settings) -> None:
    """Nearly no noise: both ways lead to the same weights."""
    quiet = sums.updated({"privacy.noise_scale": 1e-4, "training.rounds": 2})
    ends = []
    for trust in ("server", "secure-aggregation"):
        run = Simulation(quiet.updated({"privacy.trust": trust}), small)
        lines = [run.step()[0] for _ in range(2)]
        ends.append(run.state.weights[0])
    assert np.abs(ends[0] - ends[1]).max() < 1e-4
    assert lines[-1]["replies"] == 5
    assert (lines[0]["round_trips"], lines[1]["round_trips"]) == (3, 2)
    assert lines[1]["wraps"] == 0
    # Control: with the noise of another run the weights do not agree so well.
    other = Simulation(sums.updated({"privacy.trust": "secure-aggregation"}), small)
    other.step()
    assert np.abs(other.state.weights[0] - ends[0]).max() > 1e-3


def test_every_observer_is_in_the_summary(tmp_path: Path, small: Dataset, sums: Settings) -> None:
    summary = train(
        sums.updated({"privacy.noise_scale": 0.5, "privacy.colluders": 1, "privacy.quorum": 1.0}),
        tmp_path / "run",
        small,
    )
    against = summary["epsilon_against"]
    assert list(against) == [
        "outsider", "one curious client", "4 colluders", "server", "server with 1 colluders", "lying server",
        "lying server with 1 colluders",
    ]  # fmt: skip
    assert against["outsider"] == against["server"] == summary["epsilon"]
    run = Simulation(sums.updated({"privacy.noise_scale": 0.5, "privacy.colluders": 1, "privacy.quorum": 1.0}), small)
    known = epsilons(run.aggregators[0].mechanism.over(3), sums.privacy.delta, 5, 1)
    assert {who: against[who] for who in known} == pytest.approx(known, rel=1e-6)
    assert 'trust = "secure-aggregation"' in (tmp_path / "run" / "config.toml").read_text()


def test_all_bytes_of_the_protocol_are_counted(small: Dataset, sums: Settings) -> None:
    run = Simulation(sums, small)
    for _ in range(3):
        (line,) = run.step()
    vector = 8 * -(-run.size * line["vector_bits"] // 8)
    shares = 8 * (5 * (5 - 1) * 49 + 5 * 5 * 33)
    assert line["bits"] - 5 * vector > shares
    assert line["bits"] - 5 * vector < shares + 8 * 5 * 200
    plain = Simulation(sums.updated({"privacy.trust": "server"}), small)
    plain.step()
    assert line["downlink_bits"] > plain.step()[0]["downlink_bits"] + shares / 2


@pytest.mark.parametrize("downlink", ["float32", "quantized"])
def test_masks_are_bound_to_the_weights_that_clients_hold(small: Dataset, sums: Settings, downlink: str) -> None:
    run = Simulation(sums.updated({"compression.downlink": downlink}), small)
    named = []
    for _ in range(3):
        named.append(run.aggregators[0].row.check())
        run.step()
    assert len({len(name) for name in named}) == 1
    assert len(set(named)) == 3
    other = Simulation(sums.updated({"compression.downlink": downlink, "run.seed": 2}), small)
    assert other.aggregators[0].row.check() not in named


@pytest.mark.parametrize("downlink", ["float32", "quantized"])
def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path: Path, small: Dataset, sums: Settings, downlink: str) -> None:
    settings = sums.updated(
        {
            "training.rounds": 6,
            "run.checkpoint_every": 2,
            "clients.dropout_rate": 0.2,
            "privacy.quorum": 0.6,
            "compression.downlink": downlink,
        }
    )
    train(settings, tmp_path / "whole", small)
    stopped(settings, tmp_path / "cut", small, 5)
    train(settings, tmp_path / "cut", small, resume=True)
    assert read_metrics(tmp_path / "cut") == read_metrics(tmp_path / "whole")
    for name in ("final.pt", "summary.json"):
        one, other = ((tmp_path / run / name).read_bytes() for run in ("cut", "whole"))
        assert name == "summary.json" or one == other
    if downlink == "float32":
        return
    # Not simulated: the secret carries the keys over the stop, and is gone at the end.
    real = settings.updated({"run.simulate": False})
    stopped(real, tmp_path / "real", small, 3)
    train(real, tmp_path / "real", small, resume=True)
    assert not (tmp_path / "real" / "secret.key").exists()


def test_missing_clients_are_repaired_charged_and_below_the_quorum_lost(small: Dataset, sums: Settings) -> None:
    run = Simulation(
        sums.updated(
            {
                "clients.count": 8,
                "clients.dropout_rate": 0.3,
                "privacy.quorum": 0.75,
                "training.rounds": 16,
                "privacy.noise_scale": 0.5,
            }
        ),
        small,
    )
    lines = [run.step()[0] for _ in range(16)]
    lost = [line for line in lines if "lost" in line]
    repaired = [line for line in lines if line["round_trips"] > 2 and "lost" not in line][1:]
    assert lost
    assert repaired
    assert all(6 <= line["replies"] < 8 for line in repaired)
    assert all(line["replies"] == 0 for line in lost)
    aggregator = run.aggregators[0]
    released = [16 - sum(1 for line in lost if "survive" in line["lost"]), 16]
    assert [aggregator.accountant.rounds, aggregator.answered.rounds] == released
    views = aggregator.views()
    assert views["server"] < views["lying server"]


def test_a_target_counts_on_the_quorum_where_clients_go_missing(small: Dataset, sums: Settings) -> None:
    aimed = sums.updated(
        {
            "privacy.noise_scale": None,
            "privacy.epsilon": 4.0,
            "clients.count": 6,
            "training.rounds": 4,
            "privacy.quorum": 0.7,
        }
    )
    whole, some = Simulation(aimed, small), Simulation(aimed.updated({"clients.dropout_rate": 0.2}), small)
    scales = [each.aggregators[0].plans[0].law.scale for each in (whole, some)]
    assert scales[1] > scales[0] * 1.05
    while not some.done:
        some.step()
    assert some.aggregators[0].spent() <= 4.0 + 1e-6
    with pytest.raises(ValueError, match="cannot meet a target"):
        Simulation(
            aimed.updated(
                {"clients.dropout_rate": 0.2, "privacy.trust": "server", "clients.dropout_handling": "charge"}
            ),
            small,
        )


def test_unequal_clients_count_alike_and_have_one_law(small: Dataset, sums: Settings) -> None:
    run = Simulation(
        sums.updated({"data.partition": "unequal", "privacy.noise_scale": None, "privacy.epsilon": 4.0}), small
    )
    plans = run.aggregators[0].plans
    assert len({plan.records for plan in plans}) > 1
    assert len({(plan.law, plan.weight) for plan in plans}) == 1


def test_cohorts_and_graphs(small: Dataset, sums: Settings) -> None:
    asked = sums.updated({"clients.count": 10, "clients.sampling_rate": 0.5, "training.rounds": 3})
    assert SecAggGraph.of(asked) == SecAggGraph(5, 4, 0)
    run = Simulation(asked, small)
    assert [run.step()[0]["replies"] for _ in range(3)] == [5, 5, 5]
    many = SecAggGraph.of(
        Settings.of(
            {
                "clients.count": 1000,
                "privacy.noise_scale": 1.0,
                "privacy.trust": "secure-aggregation",
                "privacy.quorum": 0.9,
            }
        )
    )
    assert (many.degree, many.threshold, many.quorum) == (46, 26, 900)


@pytest.mark.parametrize("update", ["examples", "difference"])
def test_a_sketch_sends_fewer_numbers_and_restores_the_sum(small: Dataset, sums: Settings, update: str) -> None:
    """Nearly no noise, and a sketch as long as its transform: the same weights as without it."""
    own = {"training.record_sampling": "poisson", "training.expected_batch_size": 60.0} if update == "examples" else {}
    base = sums.updated(
        {
            "training.update": update,
            "run.device": "cpu-torch",
            "privacy.noise_scale": 1e-3,
            "privacy.clipping_norm": 1.0,
            "training.rounds": 2,
            **own,
        }
    )
    wide = 10 * 785 - 10 if update == "examples" else 7000
    ends, bits = {}, {}
    for size in (None, wide, 500):
        run = Simulation(base.updated({"compression.sketch": size}), small)
        lines = [run.step()[0] for _ in range(2)]
        ends[size], bits[size] = run.state.weights[0] - run.vector.initial(1), lines[-1]["bits_per_coordinate"]
    moved = np.linalg.norm(ends[None])
    assert np.linalg.norm(ends[wide] - ends[None]) < 0.75 * moved
    assert ends[500] @ ends[None] > 0.2 * moved**2
    assert bits[500] < 0.5 * bits[None]


def test_examples_are_clipped_after_the_map(small: Dataset, sums: Settings) -> None:
    """Each example's sketched gradient is within the clip; without `measure` some are beyond it."""
    base = sums.updated(
        {
            "training.update": "examples",
            "training.record_sampling": "poisson",
            "training.expected_batch_size": 60.0,
            "run.device": "cpu-torch",
            "privacy.clipping_norm": 0.1,
            "compression.sketch": 100,
        }
    )
    run = Simulation(base, small)
    every, of = np.arange(100)[:, None], np.zeros(100, dtype=np.int64)
    ones, bounds = np.ones(100, dtype=np.int64), np.full(100, 0.1, dtype=np.float32)
    norms: dict[str, list[float]] = {"after": [], "before": []}
    for number in range(12):
        sketch = run.aggregators[0]._sketch(number)
        squares = sketch.squares(run.network.inputs(every[:, 0]))[:, None]
        for name, given in (("after", squares), ("before", None)):
            rows, _ = run.network.summed_gradients(run.state.weights, of, every, ones, bounds, squares=given)
            norms[name] += [float(np.linalg.norm(sketch.apply(row))) for row in rows]
    assert 0.0999 < max(norms["after"]) <= 0.1
    assert max(norms["before"]) > 0.11


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"compression.scheme": "cepam-laplace"}, "cepam-gaussian"),
        ({"compression.scheme": "fl+gaussian"}, "cepam-gaussian"),
        ({"privacy.norm_type": "l1"}, "l2"),
        (
            {
                "training.update": "dp-sgd",
                "privacy.step_noise_multiplier": 1.0,
                "privacy.noise_scale": None,
                "training.record_sampling": "poisson",
            },
            "dp-sgd",
        ),
        ({"privacy.clip_scope": "tensor"}, "whole update"),
        ({"compression.lattice": "E8"}, "Z1"),
        ({"compression.coder": "paper"}, "coder"),
        ({"compression.padding": 64}, "constant length"),
        ({"clients.dropout_handling": "wait"}, "dropout_handling must be charge"),
        ({"clients.dropout_handling": "compensate"}, "compensate needs a trusted server"),
        (
            {"privacy.unit": "client", "clients.sampling_rate": 0.8, "clients.sampling": "poisson"},
            "where the server is trusted, got privacy.trust secure-aggregation",
        ),
        (
            {"privacy.unit": "client", "privacy.clip_quantile": 0.5, "compression.downlink": "float32"},
            "where the server is trusted, got privacy.trust secure-aggregation",
        ),
        ({"training.record_sampling": "cyclic"}, "trust must be server"),
        ({"clients.byzantine": (1,)}, "spoil every sum"),
        ({"run.keep_messages": True}, "no messages"),
        ({"clients.count": 2}, "three clients"),
        ({"clients.count": 400, "clients.sampling_rate": 0.5}, "sparse graph"),
        ({"privacy.quorum": 0.4}, "hides nobody"),
        ({"privacy.colluders": 3}, "hides nobody"),
        ({"privacy.quorum": 1.5}, "quorum must be a fraction"),
        ({"privacy.quorum": 31}, "quorum must be at most"),
        ({"compression.masked_bits": 40}, "bits"),
        ({"privacy.trust": "server", "compression.masked_bits": 7}, "trust secure-aggregation, got server"),
        ({"privacy.trust": "nobody"}, "trust must be one of"),
    ],
)
def test_what_is_refused(sums: Settings, changes: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        sums.updated(changes)
    assert "\n" not in str(refused.value)


def test_a_share_of_the_clients_is_a_cohort_of_their_roster(small: Dataset, sums: Settings) -> None:
    run = Simulation(sums.updated({"clients.sampling_rate": 0.8, "training.rounds": 3}), small)
    lines = [run.step()[0] for _ in range(3)]
    assert [line["replies"] for line in lines] == [4, 4, 4]
    assert run.aggregators[0].views()["server"] == run.aggregators[0].views()["outsider"]


def test_sketches_that_are_refused(small: Dataset, sums: Settings) -> None:
    examples = {
        "training.update": "examples",
        "training.record_sampling": "poisson",
        "training.expected_batch_size": 60.0,
    }
    for changes, says in (
        ({"compression.sketch": 8000}, "multiple of 1 below"),
        ({"compression.sketch": 0}, "multiple of 1 below"),
        ({"compression.sketch": 505, "run.device": "cpu-torch", **examples}, "multiple of 10"),
        ({"compression.sketch": 500, "model.name": "mlp", **examples}, "one linear layer"),
    ):
        with pytest.raises(ValueError, match=says):
            Simulation(sums.updated(changes), small)


def test_own_codecs_are_refused(small: Dataset, sums: Settings) -> None:
    with pytest.raises(ValueError, match="your own codecs need"):
        Simulation(sums, small, codecs=lambda k: None)

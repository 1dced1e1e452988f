"""Training where the server learns sums only: observers, bytes, drop-outs, resumption, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cepam.fl import Dataset, Settings, Simulation, read_metrics, settings_from, train
from cepam.fl.config.secure_graph import SecAggGraph
from cepam.secure_aggregation import epsilons
from tests.fl.runs.test_resume import stopped


@pytest.fixture
def sums(quick: Settings) -> Settings:
    return replace(quick, clients=5, trust="sum", model="linear", tau=1)


def test_a_round_is_what_a_trusted_server_would_have_but_for_fresh_noise(small: Dataset, sums: Settings) -> None:
    """Nearly no noise: both ways lead to the same weights."""
    quiet = replace(sums, noise=1e-4, rounds=2)
    ends = []
    for trust in ("server", "sum"):
        run = Simulation(replace(quiet, trust=trust), small)
        lines = [run.step()[0] for _ in range(2)]
        ends.append(run.state.weights[0])
    assert np.abs(ends[0] - ends[1]).max() < 1e-4
    assert lines[-1]["replies"] == 5
    assert (lines[0]["trips"], lines[1]["trips"]) == (3, 2)
    assert lines[1]["wraps"] == 0
    # Control: with the noise of another run the weights do not agree so well.
    other = Simulation(replace(sums, trust="sum"), small)
    other.step()
    assert np.abs(other.state.weights[0] - ends[0]).max() > 1e-3


def test_every_observer_is_in_the_summary(tmp_path: Path, small: Dataset, sums: Settings) -> None:
    summary = train(replace(sums, noise=0.5, colluders=1, quorum=1.0), tmp_path / "run", small)
    against = summary["epsilon_against"]
    assert list(against) == [
        "outsider", "one curious client", "4 colluders", "server", "server with 1 colluders", "lying server",
        "lying server with 1 colluders",
    ]  # fmt: skip
    assert against["outsider"] == against["server"] == summary["epsilon"]
    run = Simulation(replace(sums, noise=0.5, colluders=1, quorum=1.0), small)
    known = epsilons(run.aggregators[0].mechanism.over(3), sums.delta, 5, 1)
    assert {who: against[who] for who in known} == pytest.approx(known, rel=1e-6)
    assert 'trust = "sum"' in (tmp_path / "run" / "config.toml").read_text()


def test_all_bytes_of_the_protocol_are_counted(small: Dataset, sums: Settings) -> None:
    run = Simulation(sums, small)
    for _ in range(3):
        (line,) = run.step()
    vector = 8 * -(-run.size * line["vector_bits"] // 8)
    shares = 8 * (5 * (5 - 1) * 49 + 5 * 5 * 33)
    assert line["bits"] - 5 * vector > shares
    assert line["bits"] - 5 * vector < shares + 8 * 5 * 200
    plain = Simulation(replace(sums, trust="server"), small)
    plain.step()
    assert line["downlink_bits"] > plain.step()[0]["downlink_bits"] + shares / 2


@pytest.mark.parametrize("downlink", ["float32", "grid"])
def test_masks_are_bound_to_the_weights_that_clients_hold(small: Dataset, sums: Settings, downlink: str) -> None:
    run = Simulation(replace(sums, downlink=downlink), small)
    named = []
    for _ in range(3):
        named.append(run.aggregators[0].row.check())
        run.step()
    assert len({len(name) for name in named}) == 1
    assert len(set(named)) == 3
    other = Simulation(replace(sums, downlink=downlink, seed=2), small)
    assert other.aggregators[0].row.check() not in named


@pytest.mark.parametrize("downlink", ["float32", "grid"])
def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path: Path, small: Dataset, sums: Settings, downlink: str) -> None:
    settings = replace(sums, rounds=6, checkpoint_every=2, dropout=0.2, quorum=0.6, downlink=downlink)
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
    real = replace(settings, simulate=False)
    stopped(real, tmp_path / "real", small, 3)
    train(real, tmp_path / "real", small, resume=True)
    assert not (tmp_path / "real" / "secret.key").exists()


def test_missing_clients_are_repaired_charged_and_below_the_quorum_lost(small: Dataset, sums: Settings) -> None:
    run = Simulation(replace(sums, clients=8, dropout=0.3, quorum=0.75, rounds=16, noise=0.5), small)
    lines = [run.step()[0] for _ in range(16)]
    lost = [line for line in lines if "lost" in line]
    repaired = [line for line in lines if line["trips"] > 2 and "lost" not in line][1:]
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
    aimed = replace(sums, noise=None, epsilon=4.0, clients=6, rounds=4, quorum=0.7)
    whole, some = Simulation(aimed, small), Simulation(replace(aimed, dropout=0.2), small)
    scales = [each.aggregators[0].plans[0].law.scale for each in (whole, some)]
    assert scales[1] > scales[0] * 1.05
    while not some.done:
        some.step()
    assert some.aggregators[0].spent() <= 4.0 + 1e-6
    with pytest.raises(ValueError, match="cannot meet a target"):
        Simulation(replace(aimed, dropout=0.2, trust="server", policy="charge"), small)


def test_unequal_clients_count_alike_and_have_one_law(small: Dataset, sums: Settings) -> None:
    run = Simulation(replace(sums, partition="unequal", noise=None, epsilon=4.0), small)
    plans = run.aggregators[0].plans
    assert len({plan.records for plan in plans}) > 1
    assert len({(plan.law, plan.weight) for plan in plans}) == 1


def test_cohorts_and_graphs(small: Dataset, sums: Settings) -> None:
    asked = replace(sums, clients=10, share=0.5, rounds=3)
    assert SecAggGraph.of(asked) == SecAggGraph(5, 4, 0)
    run = Simulation(asked, small)
    assert [run.step()[0]["replies"] for _ in range(3)] == [5, 5, 5]
    many = SecAggGraph.of(settings_from({"clients": 1000, "noise": 1.0, "trust": "sum", "quorum": 0.9}))
    assert (many.degree, many.threshold, many.quorum) == (46, 26, 900)


@pytest.mark.parametrize("update", ["examples", "difference"])
def test_a_sketch_sends_fewer_numbers_and_restores_the_sum(small: Dataset, sums: Settings, update: str) -> None:
    """Nearly no noise, and a sketch as long as its transform: the same weights as without it."""
    own = {"sampling": "poisson", "expected_batch": 60.0} if update == "examples" else {}
    base = replace(sums, update=update, device="cpu-torch", noise=1e-3, clip=1.0, rounds=2, **own)
    wide = 10 * 785 - 10 if update == "examples" else 7000
    ends, bits = {}, {}
    for size in (None, wide, 500):
        run = Simulation(replace(base, sketch=size), small)
        lines = [run.step()[0] for _ in range(2)]
        ends[size], bits[size] = run.state.weights[0] - run.vector.initial(1), lines[-1]["bits_per_coordinate"]
    moved = np.linalg.norm(ends[None])
    assert np.linalg.norm(ends[wide] - ends[None]) < 0.75 * moved
    assert ends[500] @ ends[None] > 0.2 * moved**2
    assert bits[500] < 0.5 * bits[None]


def test_examples_are_clipped_after_the_map(small: Dataset, sums: Settings) -> None:
    """Each example's sketched gradient is within the clip; without `measure` some are beyond it."""
    base = replace(
        sums, update="examples", sampling="poisson", expected_batch=60.0, device="cpu-torch", clip=0.1, sketch=100
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
        ({"scheme": "cepam-laplace"}, "cepam-gaussian"),
        ({"scheme": "fl+gaussian"}, "cepam-gaussian"),
        ({"clip_norm": "l1"}, "l2"),
        ({"update": "dp-sgd", "step_noise": 1.0, "noise": None, "sampling": "poisson"}, "dp-sgd"),
        ({"clip_scope": "tensor"}, "whole update"),
        ({"lattice": "E8"}, "Z1"),
        ({"coder": "paper"}, "coder"),
        ({"bucket": 64}, "constant length"),
        ({"policy": "wait"}, "policy must be charge"),
        ({"policy": "top-up"}, "top-up needs a trusted server"),
        ({"unit": "client", "share": 0.8, "cohort": "poisson"}, "where the server is trusted, got trust sum"),
        ({"unit": "client", "clip_quantile": 0.5, "downlink": "float32"}, "where the server is trusted, got trust sum"),
        ({"sampling": "cyclic"}, "trust must be server"),
        ({"byzantine": (1,)}, "ruin"),
        ({"keep_messages": True}, "no messages"),
        ({"clients": 2}, "three clients"),
        ({"clients": 400, "share": 0.5}, "sparse graph"),
        ({"quorum": 0.4}, "hides nobody"),
        ({"colluders": 3}, "hides nobody"),
        ({"quorum": 1.5}, "quorum"),
        ({"bits": 40}, "bits"),
        ({"trust": "server", "bits": 7}, "only trust sum"),
        ({"trust": "nobody"}, "trust must be one of"),
    ],
)
def test_what_is_refused(sums: Settings, changes: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        replace(sums, **changes)
    assert "\n" not in str(refused.value)


def test_a_share_of_the_clients_is_a_cohort_of_their_roster(small: Dataset, sums: Settings) -> None:
    run = Simulation(replace(sums, share=0.8, rounds=3), small)
    lines = [run.step()[0] for _ in range(3)]
    assert [line["replies"] for line in lines] == [4, 4, 4]
    assert run.aggregators[0].views()["server"] == run.aggregators[0].views()["outsider"]


def test_sketches_that_are_refused(small: Dataset, sums: Settings) -> None:
    examples = {"update": "examples", "sampling": "poisson", "expected_batch": 60.0}
    for changes, says in (
        ({"sketch": 8000}, "multiple of 1 below"),
        ({"sketch": 0}, "multiple of 1 below"),
        ({"sketch": 505, "device": "cpu-torch", **examples}, "multiple of 10"),
        ({"sketch": 500, "model": "mlp", **examples}, "one linear layer"),
    ):
        with pytest.raises(ValueError, match=says):
            Simulation(replace(sums, **changes), small)


def test_own_codecs_are_refused(small: Dataset, sums: Settings) -> None:
    with pytest.raises(ValueError, match="codecs of your own"):
        Simulation(sums, small, codecs=lambda k: None)

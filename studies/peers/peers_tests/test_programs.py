"""The peers' own programs on a small problem: they learn, hide what they say, and stop where we say that they do."""

from __future__ import annotations

import importlib.util
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from cepam import fl
from cepam_peers.picture import SHOWN, draw
from cepam_peers.tasks import TASKS, Problem, epsilon_of, noise_for
from cepam_peers.updates import RESULTS, by_engine, by_program, keep, score_of, table

ROOT = Path(__file__).parents[3]
CLIENTS, ROUNDS = 12, 4


def small(zeros: bool = False) -> Problem:
    """Two classes that a line tells apart, dealt to a few users."""
    draw = np.random.default_rng(5)
    labels = draw.integers(0, 2, 240)
    inputs = (draw.normal(size=(240, 3)) + 2.0 * labels[:, None]).astype(np.float32)
    if zeros:
        inputs[:10], labels[:10] = 0.0, np.arange(10) % 2  # the first user's gradient is zero at zero weights
    data = fl.from_arrays((inputs[:120], labels[:120]), (inputs[120:], labels[120:]), "small")
    users = tuple(f"user {k}" for k in range(CLIENTS))
    owned = fl.Dataset(**{**vars(data), "clients": users, "owners": np.repeat(np.arange(CLIENTS), 10)})
    settings = TASKS["chitchat-prompts"].settings.updated(
        {"training.rounds": ROUNDS, "run.evaluate_every": ROUNDS, "privacy.epsilon": 8.0, "privacy.delta": 1e-2}
    )
    return Problem(settings, owned)


def test_noise_and_epsilon_are_inverse() -> None:
    noise = noise_for(CLIENTS, ROUNDS, 8.0, 1e-2)
    assert epsilon_of(CLIENTS, ROUNDS, noise, 1e-2) == pytest.approx(8.0, rel=1e-3)
    assert epsilon_of(CLIENTS, ROUNDS, noise / 1.2, 1e-2) > 9.0


def test_gradients_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    problem, draw = small(), np.random.default_rng(2)
    weights = {name: draw.normal(size=value.shape).astype(np.float32) for name, value in problem.start().items()}
    held = {name: torch.tensor(value, requires_grad=True) for name, value in weights.items()}
    mine = problem.parts[3]
    logits = torch.from_numpy(problem.inputs[mine]) @ held["weight"].T + held["bias"]
    torch.nn.functional.cross_entropy(logits, torch.from_numpy(problem.data.train_labels[mine])).backward()
    for name, slope in problem.gradient(weights, 3).items():
        np.testing.assert_allclose(slope, held[name].grad, atol=1e-5)


def test_held_out_clients_are_not_trained_on() -> None:
    whole = small()
    part = whole.holding_out(1)
    assert part.clients == CLIENTS - CLIENTS // 5
    assert len(part.data.train_labels) + len(part.data.test_labels) == 120
    mine = {tuple(row) for row in part.data.train_inputs}
    assert mine.isdisjoint({tuple(row) for row in part.data.test_inputs})
    assert mine == {tuple(row) for k in part.data.clients for row in whole.inputs[whole.parts[int(k.split()[1])]]}


@pytest.mark.parametrize("name", ["qsgd-8", "sign", "ddg-16"])
def test_rivals_of_users_run_in_the_engine(name: str) -> None:
    row = by_engine(name, small(), 1)
    assert row["scores"][0] > 0.6
    assert row["unit"] == "client"
    assert (row["proved_epsilon"] is None) == (name != "ddg-16")


@pytest.mark.parametrize("side", ["server", "client"])
def test_flower_fixed_clipping(side: str) -> None:
    pytest.importorskip("flwr")
    row = by_program(f"flower-{side}-fixed", "chitchat-prompts", small(), 1)
    assert row["scores"][0] > 0.6
    assert row["proved_epsilon"] == pytest.approx(8.0, rel=1e-3)
    assert row["reported_epsilon"] > row["proved_epsilon"]  # Renyi orders, no amplification
    assert row["bytes_up"] > 4 * 8


def test_flower_adaptive_clipping_moves_away_from_the_quantile() -> None:
    """Where all updates are clipped the norm should grow, and where none are it should shrink; as shipped not."""
    pytest.importorskip("flwr")
    from flwr.serverapp.strategy import FedAvg

    from cepam_peers.flower_rows import server_adaptive, train

    for clipped in (0.0, 1.0):
        strategy, _ = server_adaptive(FedAvg(), 1.0, 2.0, 100, 1e-2)
        strategy._geometric_update(clipped)
        assert (strategy.clipping_norm > 2.0) == (clipped == 0.0)
    assert train(small(), "flower-server-adaptive", 1.0, 1)[1]["proved"] > 8.0  # noise of the next round's norm


def test_an_update_of_zeros_stops_flower() -> None:
    pytest.importorskip("flwr")
    row = by_program("flower-server-fixed", "chitchat-prompts", small(zeros=True), 1)
    assert not row["scores"]
    assert "ZeroDivisionError" in row["stopped"][0]
    assert score_of({**row, "score": None, "half_width": None}).startswith("every run stops")


def test_secure_aggregation_of_flower_sums_what_clients_send() -> None:
    pytest.importorskip("flwr")
    from cepam_peers.secagg_row import train

    problem = small()
    weights, told = train(problem, 20.0, 1)
    assert problem.score(weights) > 0.6
    assert told["up"] / told["messages"] > 1000  # keys, shares, masked vectors


@pytest.mark.parametrize("name", ["flare-svt", "flare-percentile"])
def test_flare_filters(name: str) -> None:
    pytest.importorskip("nvflare")
    row = by_program(name, "chitchat-prompts", small(), 1)
    assert row["proved_epsilon"] is None
    assert (row["reported_epsilon"] is None) == (name == "flare-percentile")
    assert row["bytes_up"] == 4 * 8


@pytest.mark.skipif(importlib.util.find_spec("opacus") is None, reason="needs studies/peers[opacus]")
def test_opacus_hides_users_as_samples() -> None:
    row = by_program("opacus", "chitchat-prompts", small(), 1)
    assert row["scores"][0] > 0.6
    assert row["unit"] == "client"
    assert row["reported_epsilon"] == pytest.approx(row["proved_epsilon"], rel=0.05)


def test_rows_become_a_table_and_a_picture(tmp_path: Path) -> None:
    base = {"task": "chitchat-prompts", "judge": "accuracy", "score": 0.3, "half_width": 0.01, "scores": [0.3, 0.3],
            "unit": "client", "proved_epsilon": 8.0, "reported_epsilon": None, "bytes_down": 9.0, "lines": 1,
            "processor_seconds": 1.0, "target_epsilon": 8.0}  # fmt: skip
    rows = [{**base, "row": name, "what": name, "bytes_up": 10.0**k} for k, name in enumerate(SHOWN)]
    rows[2]["proved_epsilon"] = None
    lines = table(rows, "chitchat-prompts").splitlines()
    assert len(lines) == len(SHOWN) + 2
    assert len({line.count("|") for line in lines}) == 1
    assert sum("unproven" in line for line in lines) == 1
    found = ElementTree.fromstring(draw(rows))
    circles = [each.get("class", "") for each in found.iter("{http://www.w3.org/2000/svg}circle")]
    assert sum("own" in each or "rival" in each for each in circles) == len(SHOWN)
    assert sum("hollow" in each for each in circles) == 1
    keep(rows, tmp_path / "rows.json")
    assert list(tmp_path.iterdir()) == [tmp_path / "rows.json"]


def test_the_picture_shows_what_is_kept() -> None:
    """`python -m cepam_peers.updates --report docs` writes it."""
    rows = json.loads((ROOT / RESULTS).read_text(encoding="utf-8"))
    assert (ROOT / "docs" / "img" / "peers.svg").read_text(encoding="utf-8") == draw(rows)

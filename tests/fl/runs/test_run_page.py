"""The page of a run: there at every end, the same after a resume, and silent about what epsilon does not cover."""

from __future__ import annotations

import html
import re
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from cepam import fl
from cepam.fl import Dataset, Progress, Settings, Simulation, read_metrics, train
from cepam.fl.runs.comparison import SAME, judged
from cepam.fl.runs.run_page import nearest_preset, run_page, times_fewer, traffic
from cepam.fl.simulation import OBSERVED

UNCOVERED = {
    "train_loss": 123.4, "replies": 77, "snr_db": -55.5, "bits": 10**7, "bits_per_coordinate": 31.9,
    "bits_total": 10**8, "validation_accuracy": 0.123, "validation_loss": 9.87, "clip": 0.31,
}  # fmt: skip
"""Figures of a line that look at raw data or draws, changed beyond recognition."""


USERS: dict[str, Any] = {
    "privacy.unit": "client", "clients.sampling": "poisson", "clients.sampling_rate": 0.5, "clients.count": 20,
    "training.update": "difference", "training.record_sampling": "all", "training.batch_size": 1,
    "privacy.adjacency": "add-remove",
}  # fmt: skip
"""Whole clients, sampled in secret."""


@pytest.fixture
def secret(quick: Settings) -> Settings:
    return quick.updated({"run.simulate": False, "privacy.noise_scale": 0.5})


def done(settings: Settings, data: Dataset, **given: Any) -> tuple[Simulation, list[dict[str, Any]]]:
    simulation, lines = Simulation(settings, data, **given), []
    while not simulation.done:
        lines += simulation.step()
    return simulation, lines


def words(page: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", " ", page.partition("</style>")[2]))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"compression.downlink": "quantized"},
        {"clients.dropout_rate": 0.3},
        {"clients.sampling_rate": 0.5},
        USERS,
        {"privacy.trust": "secure-aggregation"},
    ],
)  # fmt: skip
def test_a_secret_page_shows_nothing_that_epsilon_does_not_cover(
    small: Dataset, secret: Settings, changes: dict[str, Any]
) -> None:
    simulation, lines = done(secret.updated(changes), small)
    assert simulation.views()
    kept = {"bits", "bits_per_coordinate", "bits_total"} if "privacy.trust" in changes else set()  # one length for all
    hidden = {key: value for key, value in UNCOVERED.items() if key not in kept}
    if simulation.settings.clients.sampling_rate < 1.0 or simulation.settings.clients.dropout_rate:
        hidden |= {"downlink_bits": 10**7, "bits_round_trip": 10**8}  # would tell who took part
    other = [{**line, **hidden} for line in lines]
    assert run_page("one", simulation, other) == run_page("one", simulation, lines)


def test_a_simulation_shows_what_it_measured_and_says_so(small: Dataset, quick: Settings) -> None:
    simulation, lines = done(quick.updated({"privacy.noise_scale": 0.5}), small)
    made = run_page("one", simulation, lines)
    assert run_page("one", simulation, [{**line, **UNCOVERED} for line in lines]) != made  # the control
    said = words(made)
    for value in simulation.views().values():
        assert value is None or f"{value:.4g} (simulated)" in said
    assert len(re.findall(r"<figure", made)) == 4
    assert traffic(simulation, lines, 3).up == sum(line["bits"] for line in lines) / 8.0


def test_a_secret_run_is_no_simulation(small: Dataset, secret: Settings) -> None:
    simulation, lines = done(secret, small)
    said = words(run_page("one", simulation, lines))
    assert "simulated" not in said
    assert "Other participants: " in said  # one curious client knows its own noise
    assert "In a deployment raw data stay where they are" in said
    sent = traffic(simulation, lines, 3)
    assert not sent.measured
    # An example at the clipping norm: about the longest message, which a draw exceeds by a byte or two.
    assert sent.up >= 0.9 * sum(line["bits"] for line in lines) / 8.0
    assert sent.down == sent.float32


def test_scores_of_layers_that_stay_on_clients_are_left_out_of_a_secret_page(small: Dataset, secret: Settings) -> None:
    def layers() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.ReLU(), nn.Linear(8, 10))

    settings = secret.updated({**USERS, "model.personal_layers": "last"})
    for simulate in (False, True):
        simulation, lines = done(settings.updated({"run.simulate": simulate}), small, model=fl.Model(layers))
        other = [{**line, "accuracy": 0.987654, "loss": 0.1} for line in lines]
        same = run_page("one", simulation, other) == run_page("one", simulation, lines)
        assert same != simulate


def test_the_page_outlives_a_stop_and_a_resume(tmp_path: Path, small: Dataset, quick: Settings) -> None:
    settings = quick.updated({"run.checkpoint_every": 1, "privacy.noise_scale": 0.5})
    whole, torn = tmp_path / "a" / "run", tmp_path / "b" / "run"
    train(settings, whole, small)

    def stop(progress: Progress) -> None:
        if progress.lines[0]["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(settings, torn, small, watch=stop)
    page = torn / "index.html"
    unfinished = page.read_text()
    assert "2 of 3" in words(unfinished)
    mode = stat.S_IMODE((torn / "metrics.jsonl").stat().st_mode)
    assert stat.S_IMODE(page.stat().st_mode) == mode
    train(settings, torn, small, resume=True)
    assert page.read_text() == (whole / "index.html").read_text() != unfinished
    assert stat.S_IMODE(page.stat().st_mode) == mode
    assert not list(torn.glob(".*.tmp"))


def test_a_run_that_is_stopped_by_a_full_disk_says_that(
    tmp_path: Path, small: Dataset, quick: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> str:
        raise OSError(28, "No space left on device", "index.html")

    def stop(progress: Progress) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cepam.fl.runs.training.run_page", full)
    with pytest.raises(OSError, match="No space"):  # while the run is under way
        train(quick, tmp_path / "run", small)
    monkeypatch.setattr("cepam.fl.runs.training.SHARE", -1.0)  # no page but the last
    with pytest.raises(KeyboardInterrupt):  # what stopped the run, not the page that could not be written
        train(quick, tmp_path / "other", small, watch=stop)


def test_epsilon_by_observer_is_computed_at_a_few_rounds(tmp_path: Path, small: Dataset, quick: Settings) -> None:
    settings = quick.updated({"training.rounds": 30, "run.evaluate_every": 10, "privacy.noise_scale": 0.5})
    summary = train(settings, tmp_path / "run", small)
    seen = [line["epsilon_against"] for line in read_metrics(tmp_path / "run") if "epsilon_against" in line]
    assert 8 <= len(seen) <= OBSERVED
    assert seen[-1] == summary["epsilon_against"]
    for who in seen[-1]:
        values = [np.inf if each[who] is None else each[who] for each in seen]
        assert values == sorted(values)
    plain, lines = done(quick.updated({"compression.scheme": "fl", "privacy.noise_scale": None}), small)
    assert not any("epsilon_against" in line for line in lines)
    assert len(re.findall(r"<figure", run_page("one", plain, lines))) == 3


def test_clients_of_their_own_budgets_have_a_line(small: Dataset, secret: Settings) -> None:
    sites = secret.updated({"privacy.noise_scale": None, "privacy.epsilon": 8.0}).updated(
        {"clients.overrides": [{"clients": "0-1", "epsilon": 4.0}]}
    )
    simulation, lines = done(sites, small)
    found = run_page("one", simulation, lines)
    rows = re.findall(r"<tr><td data-head=\"client\">.*?</tr>", found)
    assert len(rows) == 2
    for row, aimed in zip(rows, ("4", "8")):
        assert f">{aimed}<" in row


def test_settings_are_shown_against_the_nearest_preset() -> None:
    for name in ("private", "users", "algorithm1"):
        found, differing = nearest_preset(fl.preset(name).updated({"training.rounds": 7}))
        assert found == name
        assert {key: here for key, (here, _) in differing.items()} == {"training.rounds": 7}
    name, differing = nearest_preset(Settings.of({"privacy.noise_scale": 0.3}))
    assert name == ""
    assert set(differing) == {"privacy.noise_scale"}


@pytest.mark.parametrize(
    ("gain", "half", "found"),
    [
        (0.02, 0.019, "higher"),
        (-0.02, 0.019, "lower"),
        (0.0, SAME, "same"),
        (0.004, 0.005, "same"),
        (0.006, 0.0061, "inconclusive"),
        (-0.03, 0.05, "inconclusive"),
        (0.5, None, "inconclusive"),
    ],
)
def test_an_interval_that_cannot_tell_is_inconclusive(gain: float, half: float | None, found: str) -> None:
    assert judged(gain, half) == found


def test_ratios_of_bytes() -> None:
    assert times_fewer(1820.0, 10.0).startswith("182 ")
    assert times_fewer(10.0, 25.0).startswith("2.5 ")
    assert not re.search(r"\d", times_fewer(100.0, 101.0))


def test_two_classes_show_the_area_and_many_named_clients_are_folded(quick: Settings) -> None:
    draw = np.random.default_rng(0)

    def records(count: int) -> tuple[Any, Any]:
        x = draw.normal(size=(count, 3)).astype(np.float32)
        return x, (x[:, 0] > 0).astype(np.int64)

    chosen = quick.updated({"privacy.noise_scale": 0.5, "model.name": "linear", "training.batch_size": 2})
    for count in (4, 12):
        data = fl.from_clients({f"site {k}": records(20 + k) for k in range(count)}, test=records(30))
        made = run_page("one", *done(chosen, data))
        assert "test AUC" in words(made)
        _, _, clients = made.partition("<h2>Clients</h2>")
        assert clients.lstrip().startswith("<details>") == (count > 10)

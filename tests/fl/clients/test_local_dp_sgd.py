"""Local DP-SGD: the noise that steps have, what is charged for them, and one figure for every observer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from torch import nn

from cepam import L2, fl, privacy
from cepam.fl.clients import local_dp_sgd as private_steps

HOSPITALS = {"A": 40, "B": 100, "C": 260}
LOCAL: dict[str, Any] = {
    "training.update": "dp-sgd",
    "training.record_sampling": "poisson",
    "training.batch_size": 20,
    "training.local_epochs": 2,
    "training.rounds": 2,
    "privacy.clipping_norm": 1.0,
    "training.server_learning_rate": 1.0,
    "training.local_learning_rate": 0.5,
    "compression.scheme": "fl+sdq",
    "privacy.epsilon": 3.0,
    "privacy.delta": 1e-6,
    "privacy.adjacency": "add-remove",
    "model.name": "linear",
}


def hospitals(features: int = 6) -> fl.Dataset:
    draw = np.random.default_rng(0)

    def records(count: int) -> tuple[Any, Any]:
        x = draw.normal(size=(count, features)).astype(np.float32)
        return x, (x[:, 0] > 0).astype(int)

    return fl.from_clients({name: records(count) for name, count in HOSPITALS.items()}, test=records(40))


def test_each_site_has_its_target_and_the_server_no_more_than_anyone(tmp_path: Path) -> None:
    own = [{"clients": ["C"], "epsilon": 1.0, "delta": 1e-7}]
    summary = fl.train(fl.Settings.of({**LOCAL, "clients.overrides": own}), tmp_path / "run", hospitals())
    against = summary["epsilon_against"]
    assert list(against) == ["outsider", "server", "server with all other clients"]
    assert len(set(against.values())) == 1
    rows = {row["name"]: row for row in summary["clients"]}
    assert {name: (row["target_epsilon"], row["delta"]) for name, row in rows.items()} == {
        "A": (3.0, 1e-6), "B": (3.0, 1e-6), "C": (1.0, 1e-7),
    }  # fmt: skip
    assert all(0.99 * row["target_epsilon"] < row["epsilon"] <= row["target_epsilon"] for row in rows.values())
    assert rows["A"]["noise_multiplier"] > rows["B"]["noise_multiplier"]
    assert summary["bits_per_coordinate"] < 32


def test_what_is_charged_is_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps by site, and how often each record is drawn: 2 rounds of 2 epochs, 4 in expectation."""
    simulation = fl.Simulation(fl.Settings.of({**LOCAL, "run.simulate": True}), hospitals())
    seen: list[tuple[int, int, int]] = []
    drawn = np.zeros(sum(HOSPITALS.values()), dtype=int)
    addresses = set()
    real_noised, real_drawn = private_steps.Site.noised, private_steps.Site.drawn

    def noised(site: private_steps.Site, mean: Any, round: int, step: int) -> Any:
        made = real_noised(site, mean, round, step)
        seen.append((site.client, round, step))
        addresses.add(made.tobytes())
        assert np.linalg.norm(mean) <= site.plan.clip.bound * len(real_drawn(site, round, step)) / 20 + 1e-6
        return made

    def watched(site: private_steps.Site, round: int, step: int) -> Any:
        found = real_drawn(site, round, step)
        drawn[found] += 1
        return found

    monkeypatch.setattr(private_steps.Site, "noised", noised)
    monkeypatch.setattr(private_steps.Site, "drawn", watched)
    while not simulation.done:
        simulation.step()
    mechanism = simulation.aggregators[0].mechanism
    assert isinstance(mechanism, privacy.LocalMechanism)
    assert mechanism.steps == tuple(2 * -(-many // 20) for many in HOSPITALS.values())
    for k, steps in enumerate(mechanism.steps):
        assert sum(1 for client, _, _ in seen if client == k) == 2 * steps
    assert len(addresses) == len(seen) == len(set(seen))  # no noise twice
    assert drawn.mean() == pytest.approx(4.0, abs=0.5)
    assert simulation.aggregators[0].accountant.rounds == 2


def test_a_step_s_noise_has_the_charged_law() -> None:
    """Inputs that are zero have no gradient: what the weights move by is the noise alone.

    False alarm 1e-9 with fixed keys; the control, a scale wrong by 20 %, must fail.
    """
    x = np.zeros((20, 4000), dtype=np.float32)
    data = fl.from_clients({"A": (x, np.arange(20) % 2)}, test=(x, np.arange(20) % 2))
    model = fl.Model(lambda: nn.Linear(4000, 2, bias=False))
    settings = fl.Settings.of(
        {
            **LOCAL,
            "privacy.epsilon": None,
            "privacy.step_noise_multiplier": 2.0,
            "training.local_epochs": 1,
            "compression.scheme": "fl",
            "run.simulate": True,
            "training.rounds": 1,
        }
    )
    simulation = fl.Simulation(settings, data, model)
    before = simulation.state.weights.copy()
    simulation.step()
    noise = (before - simulation.state.weights)[0] / 0.5
    assert stats.kstest(noise, stats.norm(scale=2.0 / 20).cdf).pvalue > 1e-9
    assert stats.kstest(noise, stats.norm(scale=1.2 * 2.0 / 20).cdf).pvalue < 1e-9


def test_the_attack_on_a_step_fails_and_on_half_the_noise_succeeds() -> None:
    mechanism = privacy.LocalMechanism.of([20], L2(1.0), 1.0, batch=20, epochs=1)
    for actual, refuted in ((1.0, False), (0.4, True)):
        attacked = privacy.RoundTrip.of_mechanism(mechanism, actual)
        assert privacy.audit(attacked, mechanism, 1e-2, 20_000, 1 - 1e-9, seed=1).refuted is refuted


def test_noise_on_the_way_up_comes_on_top_and_is_not_counted() -> None:
    plain, more = (
        fl.Simulation(fl.Settings.of({**LOCAL, **changes}), hospitals())
        for changes in ({}, {"compression.scheme": "cepam-gaussian", "privacy.noise_scale": 0.01})
    )
    assert plain.aggregators[0].mechanism == more.aggregators[0].mechanism
    assert more.aggregators[0].plans[0].law is not None
    assert plain.aggregators[0].plans[0].law is None


def test_a_resumed_run_repeats_itself(tmp_path: Path) -> None:
    settings = fl.Settings.of({**LOCAL, "run.checkpoint_every": 1, "run.simulate": True})
    whole = fl.train(settings, tmp_path / "whole", hospitals())

    class Stop(Exception):
        pass

    def stop(progress: fl.Progress) -> None:
        raise Stop

    with pytest.raises(Stop):
        fl.train(settings, tmp_path / "cut", hospitals(), watch=stop)
    again = fl.train(settings, tmp_path / "cut", hospitals(), resume=True)
    assert timeless(again) == timeless(whole)
    assert (tmp_path / "cut" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


def timeless(summary: dict[str, Any]) -> dict[str, Any]:
    return {**summary, "seconds": 0}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"training.record_sampling": "replacement"}, "go together"),
        ({"privacy.step_noise_multiplier": 1.0}, "not both"),
        ({"privacy.epsilon": None}, "needs privacy.step_noise_multiplier"),
        ({"compression.scheme": "cepam-gaussian"}, "needs privacy.noise_scale"),
        ({"privacy.noise_scale": 0.1}, "takes no privacy.noise_scale"),
        ({"privacy.norm_type": "l1"}, "clips each example in l2"),
        ({"training.update": "examples", "privacy.step_noise_multiplier": 1.0}, "needs training.update dp-sgd"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fl.Settings.of({**LOCAL, **changes})


def test_a_site_with_fewer_records_than_a_batch_is_refused() -> None:
    settings = fl.Settings.of({**LOCAL, "training.batch_size": 64})
    with pytest.raises(ValueError, match="64"):
        fl.Simulation(settings, hospitals())

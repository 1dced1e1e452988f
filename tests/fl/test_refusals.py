"""What could break a run's promise is met, refused, or said before the run starts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from cepam import privacy
from cepam.fl import ClientOverride, Dataset, Model, Settings, Simulation, from_arrays
from cepam.fl.simulation import Sent

PRIVATE = Settings.of(
    {
        "data.name": "synthetic",
        "model.name": "linear",
        "clients.count": 6,
        "training.rounds": 6,
        "training.update": "examples",
        "training.record_sampling": "poisson",
        "training.expected_batch_size": 60.0,
        "training.local_steps": 1,
        "privacy.clipping_norm": 0.5,
        "privacy.epsilon": 2.0,
        "privacy.adjacency": "add-remove",
        "run.simulate": True,
    }
)


def finished(simulation: Simulation) -> dict:
    while not simulation.done:
        lines = simulation.step()
    return lines[0]


@pytest.mark.parametrize("share", [1.0, 0.5, 1 / 6])
def test_a_target_epsilon_holds_whatever_share_of_the_clients_is_asked(small: Dataset, share: float) -> None:
    simulation = Simulation(PRIVATE.updated({"clients.sampling_rate": share}), small)
    line = finished(simulation)
    assert line["epsilon"] <= 2.0
    assert line["epsilon"] > 0.5
    assert line["epsilon"] == simulation.views()["outsider"]
    # As calibrated before for all clients at once, the same cohorts would spend far more: the test can fail.
    mechanism = simulation.aggregators[0].mechanism
    assert mechanism is not None
    everyone = Simulation(PRIVATE, small).aggregators[0].mechanism
    assert everyone is not None
    if share < 1.0:
        alone = everyone.without(range(1, 6)).over(6)
        assert privacy.epsilon(alone, PRIVATE.privacy.delta, 0) > 3.0


def test_a_target_holds_for_clients_that_differ_and_some_that_send_garbage(small: Dataset) -> None:
    own = (ClientOverride((0,), epsilon=1.0), ClientOverride((1,), weight=0.6), ClientOverride((2,), noise_scale=0.001))
    simulation = Simulation(
        PRIVATE.updated(
            {"clients.sampling_rate": 0.67, "clients.overrides": own, "clients.byzantine": (3,), "training.rounds": 12}
        ),
        small,
    )
    plans, mechanism = simulation.aggregators[0].plans, simulation.aggregators[0].mechanism
    assert mechanism is not None
    finished(simulation)
    spent = [simulation.aggregators[0].accountant.epsilon(PRIVATE.privacy.delta, k) for k in (0, 1, 4, 5)]
    assert spent[0] <= 1.0
    assert max(spent[1:]) <= 2.0
    assert plans[2].law.scale == 0.001


def test_dropout_with_a_target_is_refused_with_its_cost_and_the_remedy(small: Dataset) -> None:
    with pytest.raises(ValueError, match=r"epsilon [0-9.]+ with 4 of 6 replies.*at worst.*or wait") as refused:
        Simulation(PRIVATE.updated({"clients.dropout_rate": 0.3, "clients.dropout_handling": "charge"}), small)
    assert "\n" not in str(refused.value)
    waiting = Simulation(PRIVATE.updated({"clients.dropout_rate": 0.3, "clients.dropout_handling": "wait"}), small)
    assert finished(waiting)["epsilon"] <= 2.0


def test_what_missing_replies_cost_is_said_before_the_start(small: Dataset) -> None:
    noisy = PRIVATE.updated(
        {
            "privacy.epsilon": None,
            "privacy.noise_scale": 0.05,
            "clients.dropout_rate": 0.3,
            "clients.dropout_handling": "charge",
        }
    )
    (told,) = [text for text in Simulation(noisy, small).warnings if "dropout" in text]
    assert "with 4 of 6 replies per round" in told
    assert "at worst (one reply)" in told
    sampled = Simulation(PRIVATE.updated({"clients.sampling_rate": 0.5}), small)
    (told,) = [text for text in sampled.warnings if "sampling_rate" in text]
    assert "3 clients per round, epsilon at most 2" in told


def test_waiting_for_ever_ends_with_the_reason(small: Dataset) -> None:
    with pytest.raises(ValueError, match="did not reply in 101 attempts"):
        finished(
            Simulation(PRIVATE.updated({"clients.dropout_rate": 0.999, "clients.dropout_handling": "wait"}), small)
        )


def with_a_nan(data: Dataset) -> Dataset:
    inputs = data.train_inputs.astype(np.float32) / 255.0
    inputs[3, 5] = np.nan
    with pytest.warns(UserWarning, match="1 of 600"):
        return replace(data, train_inputs=inputs, test_inputs=data.test_inputs.astype(np.float32) / 255.0, scale=1.0)


@pytest.mark.filterwarnings("ignore:1 of 600")
@pytest.mark.parametrize("device", ["cpu", "cpu-torch"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"training.update": "difference"},
        {"privacy.norm_type": "none", "compression.scheme": "fl", "privacy.noise_scale": None},
    ],
)
def test_a_nan_in_a_record_shows_in_nothing_that_is_sent(
    small: Dataset, quick: Settings, changes: dict, device: str
) -> None:
    """Every client replies in every round, with a message, and no line has a word about it."""
    settings = quick.updated(
        {
            "run.device": device,
            "training.batch_size": 150,
            "training.record_sampling": "without",
            "training.local_steps": 1,
            "model.name": "linear",
            **changes,
        }
    )
    sent: list[Sent] = []
    simulation = Simulation(settings, with_a_nan(small), watch=sent.append)
    lines = [simulation.step()[0] for _ in range(3)]
    assert [line["replies"] for line in lines] == [4, 4, 4]
    assert not any("dropped" in line for line in lines)
    assert all(each.message is not None for round in sent for each in round.envelopes)
    assert np.isfinite(simulation.state.weights).all()
    assert set(lines[-1]) == set(finished(Simulation(settings, small)))


def test_a_reply_that_does_not_open_says_nothing_about_its_content(small: Dataset, quick: Settings) -> None:
    simulation = Simulation(quick.updated({"clients.byzantine": (1, 2)}), small)
    said = [simulation.step()[0]["dropped"] for _ in range(3)]
    assert {tuple(reasons) for reasons in said} == {("1", "2")}
    assert len({text for reasons in said for text in reasons.values()}) == 1
    assert not any(digit in said[0]["1"] for digit in "0123456789")


def test_weights_that_overflow_end_the_run_with_the_reason(small: Dataset, quick: Settings) -> None:
    with pytest.raises(ValueError, match=r"no longer finite after round .*lower training.server_learning_rate"):
        finished(
            Simulation(
                quick.updated(
                    {"training.server_learning_rate": 1e38, "training.rounds": 40, "privacy.noise_scale": 10.0}
                ),
                small,
            )
        )


def test_messages_of_a_bucketed_run_tell_less_by_their_length(small: Dataset, quick: Settings) -> None:
    lengths: dict[int | None, set[int]] = {}
    for padding in (None, 512):
        sent: list[Sent] = []
        Simulation(quick.updated({"compression.padding": padding}), small, watch=sent.append).step()
        lengths[padding] = {len(each.message or b"") for each in sent[0].envelopes}
    assert all(length % 512 == 0 for length in lengths[512])
    assert any(length % 512 for length in lengths[None])
    with pytest.raises(ValueError, match="padding must be"):
        Simulation(quick.updated({"compression.padding": 0}), small)


@pytest.mark.parametrize("device", ["cpu", "cpu-torch"])
def test_frozen_parameters_stay_frozen_and_are_neither_sent_nor_counted(quick: Settings, device: str) -> None:
    draw = np.random.default_rng(2)
    data = from_arrays(*((draw.normal(size=(n, 6)), draw.integers(0, 3, n)) for n in (80, 20)))

    def make() -> nn.Module:
        module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        module[0].weight.requires_grad_(False)
        return module

    model = Model(make)
    assert model.size == 5 + 15 + 3
    simulation = Simulation(quick.updated({"run.device": device, "training.server_learning_rate": 0.5}), data, model)
    finished(simulation)
    before, after = model.state_dict(model.initial(1)), model.state_dict(simulation.state.weights[0])
    assert list(after) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert after["0.weight"].equal(before["0.weight"])
    for name in ("0.bias", "2.weight", "2.bias"):
        assert not after[name].equal(before[name])
    with pytest.raises(ValueError, match="at least one weight that is trained"):
        Model(lambda: nn.Linear(2, 2).requires_grad_(False))


def test_grey_images_without_a_channel_are_accepted(small: Dataset, quick: Settings) -> None:
    images = [part.reshape(-1, 28, 28) for part in (small.train_inputs, small.test_inputs)]
    flat = from_arrays((images[0], small.train_labels), (images[1], small.test_labels))
    assert flat.shape == (28, 28)
    line, same = (Simulation(quick.updated({"model.name": "cnn"}), data).step()[0] for data in (flat, small))
    assert line["accuracy"] == same["accuracy"]

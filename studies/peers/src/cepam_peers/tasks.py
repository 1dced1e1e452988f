"""The tasks of the neutral benchmark: data, settings and the epsilon that every row is held to.

Linear heads on fixed features, so that every program trains the same model: `hospitals` as it stands, the user-level
`chitchat-prompts` with words hashed to 256 numbers in place of 2,048, and `private` with every fourth scattering
feature and 100 rounds. The reductions let all rows run on two shared cores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam import L2, fl, privacy
from cepam.fl.data.texts import chitchat
from cepam.fl.models.network import areas
from cepam.fl.optim import schedule

Floats = npt.NDArray[np.float32]
WORDS, EVERY = 256, 4


def every_fourth_feature() -> fl.Dataset:
    """MNIST as every fourth of its scattering features."""
    settings = fl.preset("private")
    data = fl.prepared(settings)
    features = fl.build(settings.model.name, data).features
    assert features is not None
    made = features.of(data)
    train, test = (np.asarray(rows[:, ::EVERY], dtype=np.float32) for rows in (made.train_inputs, made.test_inputs))
    return replace(made, shape=(train.shape[1],), train_inputs=train, test_inputs=test)


@dataclass(frozen=True)
class Task:
    """A preset, what differs from it, its data, how many seeds, and what a table says about the differences."""

    preset: str
    load: Callable[[], fl.Dataset]
    changes: dict[str, Any] = field(default_factory=dict)
    seeds: int = 5
    about: str = ""

    @property
    def settings(self) -> fl.Settings:
        """The settings of one run, as a simulation that is evaluated at its end."""
        chosen = fl.preset(self.preset).updated({**self.changes, "run.simulate": True})
        return chosen.updated({"run.evaluate_every": chosen.training.rounds})


TASKS = {
    "hospitals": Task("hospitals", lambda: fl.prepared(fl.preset("hospitals")), seeds=10, about="the preset"),
    "chitchat-prompts": Task(
        "chitchat-prompts", lambda: chitchat().answered(WORDS), seeds=3, about="words hashed to 256 numbers, not 2,048"
    ),
    "private": Task(
        "private", every_fourth_feature, {"model.name": "linear", "training.rounds": 100}, seeds=3,
        about="every fourth scattering feature, 100 rounds",
    ),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Problem:
    """A task as plain arrays, for programs that bring their own training loop."""

    settings: fl.Settings
    data: fl.Dataset

    @cached_property
    def inputs(self) -> Floats:
        """Training inputs as a network reads them."""
        return np.asarray(self.data.train_inputs, dtype=np.float32) * np.float32(self.data.scale)

    @cached_property
    def parts(self) -> tuple[npt.NDArray[np.int64], ...]:
        """Each client's records: by owner, or dealt out evenly where the data has no owners."""
        if self.data.owners is None:
            return tuple(np.arange(self.data.records)[k :: self.clients] for k in range(self.clients))
        return tuple(np.flatnonzero(self.data.owners == k) for k in range(self.clients))

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.data.clients) or self.settings.clients.count

    @property
    def columns(self) -> int:
        """Features per record."""
        return int(self.data.train_inputs.shape[1])

    def start(self) -> dict[str, Floats]:
        """The weights before the first round."""
        classes = self.data.classes
        return {"weight": np.zeros((classes, self.columns), np.float32), "bias": np.zeros(classes, np.float32)}

    def gradient(self, weights: dict[str, Floats], client: int) -> dict[str, Floats]:
        """The gradient of the mean loss over a client's records."""
        mine = self.parts[client]
        x, y = self.inputs[mine], self.data.train_labels[mine]
        slope = softmax(x @ weights["weight"].T + weights["bias"])
        slope[np.arange(len(y)), y] -= 1.0
        slope /= np.float32(len(y))
        return {"weight": slope.T @ x, "bias": slope.sum(0)}

    def score(self, weights: dict[str, Floats]) -> float:
        """Accuracy on test data, or the area under the curve where there are two classes."""
        x, y = np.asarray(self.data.test_inputs, dtype=np.float32) * np.float32(self.data.scale), self.data.test_labels
        logits = x @ weights["weight"].T + weights["bias"]
        if self.judge == "auc":
            return float(areas((logits[:, 1] - logits[:, 0]).astype(np.float64)[None], y)[0])
        return float((logits.argmax(1) == y).mean())

    @property
    def judge(self) -> str:
        """What a run is judged by."""
        return "auc" if self.data.classes == 2 else "accuracy"

    def rates(self) -> list[float]:
        """The server's learning rate by round, as the engine has it."""
        told = self.settings.training
        made = schedule(told.schedule, told.server_learning_rate, told.rounds, 1, told.convexity, told.smoothness)
        return [float(made.at(number)) for number in range(told.rounds)]

    def holding_out(self, seed: int) -> Problem:
        """The problem without a fifth of its clients, or records where nobody owns them; those are its test data."""
        draw, data = np.random.default_rng([seed, 11]), self.data
        if data.owners is None:
            out = np.isin(np.arange(data.records), draw.permutation(data.records)[: data.records // 5])
            return replace(self, data=_without(data, out, None, ()))
        names = np.sort(draw.permutation(self.clients)[self.clients // 5 :])
        out = ~np.isin(data.owners, names)
        owners = np.searchsorted(names, data.owners[~out])
        return replace(self, data=_without(data, out, owners, tuple(data.clients[k] for k in names)))


def _without(
    data: fl.Dataset, out: npt.NDArray[np.bool_], owners: npt.NDArray[np.int64] | None, clients: tuple[str, ...]
) -> fl.Dataset:
    """The other training records; these become the test data."""
    return replace(
        data, train_inputs=data.train_inputs[~out], train_labels=data.train_labels[~out], owners=owners,
        clients=clients, test_inputs=data.train_inputs[out], test_labels=data.train_labels[out],
    )  # fmt: skip


def pooled(data: fl.Dataset) -> fl.Dataset:
    """The same records, held by one party."""
    return replace(data, clients=("all",), owners=np.zeros(data.records, dtype=np.int64))


def softmax(logits: Floats) -> Floats:
    """Probabilities by row."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    made: Floats = powers / powers.sum(axis=1, keepdims=True)
    return made


def of_clients(clients: int, rounds: int, noise_multiplier: float) -> privacy.CohortMechanism:
    """All clients in every round, the noise of the sum in units of the clip; one client's data is what is hidden."""
    return privacy.CohortMechanism.of(
        privacy.Cohort(clients, float(clients), "without"), L2(1.0), noise_multiplier, rounds=rounds,
        adjacency="add-remove",
    )  # fmt: skip


def noise_for(clients: int, rounds: int, epsilon: float, delta: float) -> float:
    """The noise multiplier with which all clients have this epsilon over the whole run."""
    made = privacy.calibrate(of_clients(clients, rounds, 1.0), epsilon, delta)
    assert isinstance(made, privacy.CohortMechanism)
    return made.compensation.total


def epsilon_of(clients: int, rounds: int, noise_multiplier: float, delta: float) -> float:
    """Epsilon of one client over the whole run, by our accountant."""
    return privacy.Accountant().add(of_clients(clients, rounds, noise_multiplier)).observers(delta)["outsider"]

"""A record that is removed moves no other: only its own slice changes, and by no more than was charged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cepam import fl, privacy
from cepam.fl.simulation import Simulation

RECORDS, CLIENTS, SLICES = 80, 4, 5
STREAMS: dict[str, Any] = {
    "data.name": "synthetic",
    "model.name": "linear",
    "clients.count": CLIENTS,
    "training.rounds": 10,
    "training.local_steps": 1,
    "training.update": "examples",
    "training.record_sampling": "cyclic",
    "training.slices": SLICES,
    "privacy.noise_correlation": "matrix",
    "privacy.clipping_norm": 0.1,
    "privacy.noise_scale": 0.5,
    "training.server_learning_rate": 0.5,
    "privacy.adjacency": "add-remove",
    "run.simulate": True,
    "run.device": "cpu-torch",
}
BANDS = {**STREAMS, "training.record_sampling": "poisson", "training.expected_batch_size": 8.0}
SECRET = {**BANDS, "privacy.noise_correlation": "independent"}
LOCAL = {
    **SECRET,
    "training.update": "dp-sgd",
    "compression.scheme": "fl",
    "privacy.noise_scale": None,
    "privacy.step_noise_multiplier": 1.0,
    "training.batch_size": 4,
}
WHOLE = {**STREAMS, "training.update": "difference", "training.local_steps": 2, "training.batch_size": 3}
GRADIENT = {
    **SECRET,
    "training.update": "gradient",
    "training.record_sampling": "replacement",
    "training.local_steps": 3,
    "training.batch_size": 2,
}
ALL = {**GRADIENT, "training.record_sampling": "all", "training.batch_size": 1}
EXAMPLES = [STREAMS, BANDS, SECRET]


def data() -> fl.Dataset:
    return fl.synthetic(RECORDS, 20, side=8)


def changed(values: dict[str, Any], one: fl.Dataset, other: fl.Dataset) -> npt.NDArray[np.float64]:
    """How far each client's update of each round moves between the two data sets, at the same weights: [round, client].

    Streams stand at the position of the round, as where every message comes.
    """
    runs = [Simulation(fl.Settings.of(values), each) for each in (one, other)]
    rows = [(0, k) for k in range(CLIENTS)]
    moved = []
    for number in range(values["training.rounds"]):
        made = []
        for run in runs:
            for stream in getattr(run.aggregators[0], "streams", ()):
                stream.position = number
            bounds = run.aggregators[0].bounds(number, range(CLIENTS))
            made.append(np.asarray(run.work.updates(run.state.weights, number, rows, bounds)[0], dtype=np.float64))
        moved.append(np.linalg.norm(made[0] - made[1], axis=1))
    return np.array(moved)


def place_of(record: int, values: dict[str, Any]) -> tuple[int, int]:
    """The client that holds the record, and its place there."""
    parts = Simulation(fl.Settings.of(values), data()).work.parts[0]
    (found,) = [(k, int(np.flatnonzero(part == record)[0])) for k, part in enumerate(parts) if record in part]
    return found


@pytest.mark.parametrize("values", EXAMPLES, ids=["cyclic", "bands", "poisson"])
@pytest.mark.parametrize("record", [0, 17, 79])
def test_only_the_removed_records_own_slice_changes(values: dict[str, Any], record: int) -> None:
    """What is charged: one record, in one slice of one client, by a clip over the public divisor."""
    whole = data()
    moved = changed(values, whole, whole.without([record]))
    client, place = place_of(record, values)
    run = Simulation(fl.Settings.of(values), whole)
    mechanism = run.aggregators[0].mechanism
    assert mechanism is not None
    assert moved[:, [k for k in range(CLIENTS) if k != client]].max() == 0.0
    assert moved.max() <= mechanism.distance(client) * (1 + 1e-5)
    if values is not SECRET:
        others = [number for number in range(10) if number % SLICES != place % SLICES]
        assert moved[others].max() == 0.0
    if values is STREAMS:
        assert moved[place % SLICES :: SLICES, client].min() > 0.0  # where the record takes part it does count


def test_a_deleted_row_moves_other_records() -> None:
    """Why removal keeps the place: the same record taken out of its client's array moves all others behind it."""
    named = replace(data(), clients=("a", "b", "c", "d"), owners=np.repeat(np.arange(CLIENTS), RECORDS // CLIENTS))
    kept = np.arange(RECORDS) != 2
    less = replace(
        named, train_inputs=named.train_inputs[kept], train_labels=named.train_labels[kept],
        owners=named.owners[kept],  # type: ignore[index]
    )  # fmt: skip
    touched = changed(STREAMS, named, less)[:, 0] > 1e-3
    assert touched.sum() > 2 * (10 // SLICES)
    assert (changed(STREAMS, named, named.without([2]))[:, 0] > 0).sum() == 10 // SLICES


@pytest.mark.parametrize("values", [*EXAMPLES, LOCAL, WHOLE, GRADIENT, ALL])
def test_nothing_is_computed_from_a_removed_record(values: dict[str, Any]) -> None:
    """Whatever stands at the empty place: the same weights, bit for bit."""
    whole, ends = data(), []
    inputs = whole.train_inputs.copy()
    inputs[[3, 40]] = 255 - inputs[[3, 40]]
    for each in (whole, replace(whole, train_inputs=inputs)):
        run = Simulation(fl.Settings.of({**values, "training.rounds": 3}), each.without([3, 40]))
        while not run.done:
            run.step()
        ends.append(run.state.weights.tobytes())
    assert ends[0] == ends[1]


@pytest.mark.parametrize("values", [STREAMS, WHOLE, GRADIENT, ALL, LOCAL])
def test_a_client_whose_records_are_all_removed_sends_noise(values: dict[str, Any]) -> None:
    run = Simulation(fl.Settings.of({**values, "training.rounds": 1}), data().without(range(RECORDS)))
    assert run.step()[0]["replies"] == CLIENTS
    if values is not LOCAL:
        rows = [(0, k) for k in range(CLIENTS)]
        made, _ = run.work.updates(run.state.weights, 0, rows, run.aggregators[0].bounds(0, range(CLIENTS)))
        assert not np.asarray(made).any()


def test_removal_is_checked_and_adds_up() -> None:
    whole = data()
    twice = whole.without([1]).without([2])
    assert twice.removed is not None
    assert np.flatnonzero(twice.removed).tolist() == [1, 2]
    assert twice.records == RECORDS
    assert 1 not in twice.holding_out(79, 1)[1]
    for record in (-1, RECORDS):
        with pytest.raises(ValueError, match=r"records must lie in \[0, 80\)"):
            whole.without([record])
    with pytest.raises(ValueError, match="removed must mark 80 records"):
        replace(whole, removed=np.zeros(3, dtype=np.bool_))


def test_a_nodes_slices_do_not_move_when_a_record_is_deleted() -> None:
    """The Flower recipe: by identifier no other record moves; by place in the array most of the later ones do."""
    keys = [f"patient-{k}" for k in range(400)]
    before = {key: privacy.slice_of(key, 20) for key in keys}
    left = keys[:100] + keys[101:]
    assert {key: privacy.slice_of(key, 20) for key in left} == {key: before[key] for key in left}
    by_place = [{key: at % 20 for at, key in enumerate(some)} for some in (keys, left)]
    assert sum(by_place[0][key] != by_place[1][key] for key in left) == 299
    sizes = np.bincount(list(before.values()), minlength=20)
    assert len(sizes) == 20
    assert sizes.min() > 0


def test_slices_by_identifier_are_the_same_everywhere() -> None:
    assert [privacy.slice_of(key, 30) for key in ("a", b"a", 7, "7", np.int64(7))] == [29, 29, 22, 22, 22]
    for wrong in (1.5, None, True):
        with pytest.raises(ValueError, match="identifier must be"):
            privacy.slice_of(wrong, 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="slices"):
        privacy.slice_of("a", 0)

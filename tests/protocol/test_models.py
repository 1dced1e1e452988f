"""Named arrays as one vector: what travels, what stays, and what must stay positive."""

from __future__ import annotations

import numpy as np
import pytest

from cepam.protocol.models import Layout, count, digest, from_vector, kept_positive, to_vector, travelling


def model(**more: np.ndarray) -> dict[str, np.ndarray]:
    return {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array([7]), "b": np.ones(2, np.float64), **more}


def test_floats_travel_and_integers_booleans_and_counters_stay() -> None:
    reference = model(mask=np.array([True]), **{"bn.num_batches_tracked": np.array(3.0)})
    assert travelling(reference) == ["w", "b"]
    assert count(reference) == 8
    with pytest.raises(ValueError, match="nothing to send"):
        travelling({"n": np.array([7])})


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float64, np.float32])
def test_a_counter_stays_whatever_type_it_comes_back_as(dtype: type) -> None:
    name = "bn.num_batches_tracked"
    reference = model(**{name: np.array(3, dtype=dtype)})
    reply = {**reference, name: np.array(33.0)}
    np.testing.assert_array_equal(to_vector(reply, reference, difference=True), 0)
    assert from_vector(np.zeros(8, np.float32), reference, 1.0)[name] == 3


def test_there_and_back_again() -> None:
    reference = model()
    reply = {**reference, "w": reference["w"] + 2, "b": reference["b"] - 1, "n": np.array([99])}
    vector = to_vector(reply, reference, difference=True)
    made = from_vector(vector, reference, 1.0)
    np.testing.assert_array_equal(made["w"], reply["w"])
    np.testing.assert_array_equal(made["b"], reply["b"])
    assert made["n"] == 7
    assert {name: value.dtype for name, value in made.items()} == {name: v.dtype for name, v in reference.items()}
    with pytest.raises(ValueError, match="shape"):
        to_vector({**reference, "w": np.zeros(6, np.float32)}, reference, True)
    with pytest.raises(ValueError, match="one side"):
        to_vector({**reference, "x": np.zeros(1)}, reference, True)


def test_averages_of_integers_are_integers_again() -> None:
    first = model(flag=np.array(True), scalar=np.array(5))
    layout = Layout.of(first)
    averaged = {name: np.asarray(value, dtype=np.float64) for name, value in first.items()}
    restored = layout.restored(averaged)
    assert restored["n"].dtype == np.int64
    assert restored["scalar"].dtype == np.int64
    assert restored["scalar"].shape == ()
    assert restored["flag"].dtype == np.bool_
    assert restored["w"].dtype == np.float64


def test_variances_stay_above_a_tenth_of_what_was_broadcast() -> None:
    sent = {"bn.running_var": np.array([1.0, 1e-9, 4.0], np.float32), "w": np.zeros(3, np.float32)}
    noisy = {"bn.running_var": np.array([-3.0, -1.0, 2.0], np.float32), "w": np.full(3, -1.0, np.float32)}
    kept = kept_positive(noisy, sent)
    np.testing.assert_allclose(kept["bn.running_var"], [0.1, 1e-5, 2.0], rtol=1e-6)
    np.testing.assert_array_equal(kept["w"], -1.0)


def test_a_model_is_known_by_its_values_alone() -> None:
    first = model()
    renamed = {"b2": first["b"].astype(np.float32), "w2": first["w"].astype(np.float64), "k": np.array([1, 2, 3])}
    assert digest(renamed) == digest(first)
    first["w"][0, 0] += 1e-3
    assert digest(renamed) != digest(first)

from __future__ import annotations

import numpy as np
import pytest
import torch

from cepam.fl import Dataset, build


def test_papers_cnn_has_6422_weights(small: Dataset) -> None:
    assert build("cnn", small).size == 6422


def test_private_model_is_small(small: Dataset) -> None:
    assert build("cnn-private", small, "tanh").size <= 16_000


def test_start_comes_from_the_seed_alone(small: Dataset) -> None:
    model = build("mlp", small)
    torch.manual_seed(123)
    first = model.initial(7)
    torch.manual_seed(456)
    np.testing.assert_array_equal(first, model.initial(7))
    assert np.abs(first - model.initial(8)).max() > 0


def test_state_dict_holds_the_vector(small: Dataset) -> None:
    model = build("cnn", small)
    weights = np.arange(model.size, dtype=np.float32)
    held = torch.cat([value.flatten() for value in model.state_dict(weights).values()]).numpy()
    np.testing.assert_array_equal(held, weights)


@pytest.mark.parametrize(
    ("name", "activation", "words"), [("resnet", "relu", "model must be one of"), ("cnn", "gelu", "activation must be")]
)
def test_unknown_names_are_refused(small: Dataset, name: str, activation: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build(name, small, activation)


def test_cuda_without_cuda_is_refused(small: Dataset) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(ValueError, match="no CUDA device"):
        build("cnn", small).on(small, "cuda")

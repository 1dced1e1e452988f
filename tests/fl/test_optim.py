from __future__ import annotations

import numpy as np
import pytest
import torch

from cepam.fl.optim import optimizer


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
def test_agrees_with_torch(name: str) -> None:
    draw = np.random.default_rng(0)
    start, slopes = draw.normal(size=(1, 50)).astype(np.float32), draw.normal(size=(6, 1, 50)).astype(np.float32)
    weights = torch.nn.Parameter(torch.from_numpy(start.copy()))
    theirs: torch.optim.Optimizer = {
        "sgd": lambda: torch.optim.SGD([weights], lr=0.1),
        "momentum": lambda: torch.optim.SGD([weights], lr=0.1, momentum=0.9),
        "adam": lambda: torch.optim.Adam([weights], lr=0.1),
    }[name]()
    ours, made = start, optimizer(name, 0.9)
    memory = made.start(ours)
    for slope in slopes:
        weights.grad = torch.from_numpy(slope.copy())
        theirs.step()
        ours, memory = made.step(ours, slope, 0.1, memory)
    np.testing.assert_allclose(ours, weights.detach().numpy(), atol=1e-5)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="server must be one of"):
        optimizer("lamb", 0.9)
    with pytest.raises(ValueError, match="momentum"):
        optimizer("momentum", 1.0)

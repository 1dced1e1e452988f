"""A round of training coded by the GPU's kernels, through Triton's interpreter: the CPU's messages."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

import numpy as np
import pytest

from tests.identity.interpreter import quick  # noqa: F401

torch = pytest.importorskip("torch", reason="the GPU path needs PyTorch")
pytest.importorskip("triton", reason="the GPU path needs Triton")

from cepam import fl  # noqa: E402
from cepam.fl.arrays import Tensors  # noqa: E402
from cepam.kernels import dispatch  # noqa: E402


def test_messages_of_a_round_are_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two codecs, one byzantine client; nothing is clipped, so that both ends start from the same updates."""
    monkeypatch.setattr(dispatch, "on_gpu", torch.is_tensor)
    draw = np.random.default_rng(1)
    data = fl.from_arrays(*((draw.normal(size=(count, 4)), draw.integers(0, 3, count)) for count in (60, 20)))
    model = fl.Model(lambda: torch.nn.Linear(4, 3))
    settings = fl.Settings.of(
        {
            "data.name": "synthetic",
            "clients.count": 5,
            "training.rounds": 1,
            "training.local_steps": 2,
            "privacy.noise_scale": 0.02,
            "privacy.clipping_norm": 100.0,
            "clients.byzantine": [3],
            "run.simulate": True,
            "run.device": "cpu-torch",
            "compression.coder": "layered",
            "clients.overrides": [{"clients": [0], "noise_scale": 0.1}],
        }
    )
    sent: dict[str, list[bytes]] = {}
    ends = {}
    for name, backend in (("host", None), ("device", Tensors("cpu"))):
        run = fl.Simulation(
            settings, data, model, watch=lambda s, name=name: sent.update({name: [e.message for e in s.envelopes]}),
            backend=backend,
        )  # fmt: skip
        line = run.step()[0]
        assert list(line["dropped"]) == ["3"]
        assert not any("on the CPU" in text for text in run.privacy_warnings)
        ends[name] = run.arrays.fetch(run.state.weights)
    assert sent["host"] == sent["device"]
    np.testing.assert_allclose(ends["host"], ends["device"], rtol=1e-6)

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from cepam.clip import L2
from cepam.fl import Dataset, Settings, Simulation
from cepam.fl.arrays import Host, Tensors
from cepam.fl.clients.sampling import LONG_DRAW, Randomness
from cepam.fl.clients.sending import PlainFloats
from cepam.fl.runs import checkpoint
from cepam.keys import Address, Key

AT = [Address(Key.simulated(1), round=0, client=k) for k in range(3)]


def test_rows_that_are_not_finite_are_sent_as_zeros() -> None:
    raw = torch.ones((3, 8))
    raw[0, 1], raw[2, 7] = float("nan"), float("inf")
    for clip in (L2(1.0), None):
        posted = Tensors("cpu").encode(raw, [clip] * 3, None, [PlainFloats()] * 3, AT)
        assert [float(update.abs().sum()) == 0.0 for update, _ in posted] == [True, False, True]
        assert all(isinstance(message, bytes) for _, message in posted)
        host = Host().encode(raw.numpy(), [clip] * 3, None, [PlainFloats()] * 3, AT)
        assert [message for _, message in host] == [message for _, message in posted]
    with pytest.raises(ValueError, match="all clients of a round clip, or none"):
        Tensors("cpu").encode(raw, [L2(1.0), None, None], None, [PlainFloats()] * 3, AT)


@pytest.mark.parametrize(
    "changes",
    [
        {
            "compression.lattice": "E8",
            "compression.coder": "paper",
            "clients.byzantine": (1,),
            "training.server_optimizer": "adam",
            "training.weight_averaging": 0.5,
        },
        {
            "compression.scheme": "fl+gaussian",
            "clients.dropout_rate": 0.4,
            "training.server_optimizer": "momentum",
            "training.local_momentum": 0.5,
        },
        {
            "training.update": "examples",
            "training.record_sampling": "poisson",
            "training.expected_batch_size": 40.0,
            "training.local_steps": 1,
            "compression.lattice": "Z2",
            "compression.coder": "paper",
            "data.validation_records": 50,
        },
        {
            "training.update": "difference",
            "compression.scheme": "fl",
            "privacy.noise_scale": None,
            "privacy.clip_scope": "tensor",
            "privacy.clipping_norm": 0.05,
            "run.seeds": 2,
        },
    ],
)
def test_channels_without_a_gpu_form_go_by_the_cpu(small: Dataset, quick: Settings, changes: dict) -> None:
    """Tensors from gradient to step, messages by the CPU: the run of the host, but for roundings; and it is said."""
    settings = quick.updated({"run.device": "cpu-torch", **changes})
    host, here = Simulation(settings, small), Simulation(settings, small, backend=Tensors("cpu"))
    for _ in range(2):
        ours, theirs = here.step(), host.step()
    assert ours[0]["replies"] == theirs[0]["replies"]
    assert ours[0].get("dropped", {}).keys() == theirs[0].get("dropped", {}).keys()
    assert torch.is_tensor(here.state.weights)
    difference = np.abs(here.arrays.fetch(here.reported) - host.reported)
    assert difference.mean() < 2e-5
    assert ours[0]["snr_db"] == pytest.approx(theirs[0]["snr_db"], abs=0.05)
    assert [text for text in here.privacy_warnings if text not in host.privacy_warnings] == here.privacy_warnings[-1:]
    assert "on the CPU" in here.privacy_warnings[-1]


def test_a_client_that_diverged_sends_zeros(small: Dataset, quick: Settings) -> None:
    simulation = Simulation(
        quick.updated(
            {
                "training.server_learning_rate": 1e30,
                "training.rounds": 9,
                "compression.coder": "paper",
                "run.device": "cpu-torch",
            }
        ),
        small,
        backend=Tensors("cpu"),
    )
    lines = [simulation.step()[0] for _ in range(3)]
    assert [line["replies"] for line in lines] == [4, 4, 4]


def test_a_checkpoint_goes_on_where_it_stood(small: Dataset, quick: Settings, tmp_path: Path) -> None:
    settings = quick.updated(
        {
            "run.device": "cpu-torch",
            "compression.coder": "paper",
            "training.server_optimizer": "adam",
            "training.weight_averaging": 0.9,
        }
    )
    first, second = (Simulation(settings, small, backend=Tensors("cpu")) for _ in range(2))
    first.step()
    (tmp_path / "metrics.jsonl").write_bytes(bytes(17))
    checkpoint.save(first, tmp_path, 17)
    assert first.secret is not None
    found = checkpoint.latest(tmp_path, first.secret.checkpoint_key())
    assert found is not None
    assert (found.round, found.offset) == (1, 17)
    checkpoint.restore(second, found)
    assert first.step() == second.step()
    assert torch.equal(first.state.weights, second.state.weights)
    assert torch.equal(first.reported, second.reported)


def test_draws_made_ahead_are_those_of_their_round() -> None:
    """Whatever was asked before: the bytes of the address, kept for one round, and nothing for short draws."""
    draws, fresh = Randomness(Key.simulated(3)), Randomness(Key.simulated(3))
    draws.prefetch()
    assert not draws.prefetched.ready
    for round, count in ((0, LONG_DRAW), (1, LONG_DRAW), (2, 2 * LONG_DRAW), (3, 2 * LONG_DRAW), (5, 8), (6, 8)):
        assert draws.random_bytes(round, 0, 0, count) == fresh.random_bytes(round, 0, 0, count)
        assert draws.random_bytes(round, 1, 0, 9) == fresh.random_bytes(round, 1, 0, 9)
        draws.prefetch()
        assert list(draws.prefetched.ready) == [(min(round, 3) + 1, 0, 0, LONG_DRAW * (1 if round < 2 else 2))]
    assert len(set(draws.prefetched.ready.values())) == 1
    assert fresh._draw(4, 0, 0, 2 * LONG_DRAW) in draws.prefetched.ready.values()
    assert fresh == draws
    assert "ready" not in repr(draws)

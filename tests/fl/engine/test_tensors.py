from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cepam.clip import L1, L2, Clip
from cepam.fl import Dataset, Settings, Simulation, runs
from cepam.fl.engine.local_work import clipped
from cepam.fl.engine.tensors import Tensors, clip_rows


@pytest.mark.parametrize("kind", [L1, L2])
@pytest.mark.parametrize("cuts", [None, [3, 90, 300]])
def test_clipped_rows_are_the_hosts_and_never_beyond(kind: type[Clip], cuts: list[int] | None) -> None:
    """Bounds of every size, rows just within, at and far beyond them."""
    draw = np.random.default_rng(1)
    clips = [kind(bound) for bound in np.exp(draw.normal(0, 4, 200))]  # type: ignore[call-arg]
    raw = draw.normal(size=(200, 300))
    shares = np.array([kind(1.0).measure(row) for row in raw]) / [clip.bound for clip in clips]  # type: ignore[call-arg]
    raw = (raw / shares[:, None] * draw.choice([0.3, 1 - 1e-9, 1.0, 1 + 1e-9, 7.0], (200, 1))).astype(np.float32)
    made, refused = clip_rows(torch.from_numpy(raw), clips, cuts)
    assert refused == [None] * 200
    for row, mine, clip in zip(raw, made.numpy(), clips):
        assert clip.measure(mine) <= clip.bound
        if cuts is None and clip.measure(row) < 0.999 * clip.bound:
            assert mine.tobytes() == row.tobytes()
        np.testing.assert_allclose(mine, clipped(row, clip, cuts), rtol=1e-6, atol=0)


def test_rows_that_cannot_be_clipped() -> None:
    raw = torch.ones((3, 8))
    raw[0, 1], raw[2, 7] = float("nan"), float("inf")
    made, refused = clip_rows(raw, [L2(1.0)] * 3, [2, 8])
    assert [reason is None for reason in refused] == [False, True, False]
    assert "l2 norm is inf" in str(refused[2])
    assert L2(1.0).measure(made[1].numpy()) <= 1.0
    assert clip_rows(raw, [None] * 3, None)[0] is raw
    with pytest.raises(ValueError, match="one norm"):
        clip_rows(raw, [L2(1.0), L1(1.0), L2(1.0)], None)


@pytest.mark.parametrize(
    "changes",
    [
        {"lattice": "E8", "coder": "paper", "garblers": (1,), "server": "adam", "average": 0.5},
        {"scheme": "fl+gaussian", "dropout": 0.4, "server": "momentum", "local_momentum": 0.5},
        {
            "update": "examples", "sampling": "poisson", "expected_batch": 40.0, "tau": 1, "lattice": "Z2",
            "coder": "paper", "validation": 50,
        },
        {"update": "difference", "scheme": "fl", "noise": None, "clip_scope": "tensor", "clip": 0.05, "seeds": 2},
    ],
)  # fmt: skip
def test_channels_without_a_gpu_form_go_by_the_cpu(small: Dataset, quick: Settings, changes: dict) -> None:
    """Tensors from gradient to step, messages by the CPU: the run of the host, but for roundings; and it is said."""
    settings = replace(quick, device="cpu-torch", **changes)
    host, here = Simulation(settings, small), Simulation(settings, small, place=Tensors("cpu"))
    for _ in range(2):
        ours, theirs = here.step(), host.step()
    assert ours[0]["replies"] == theirs[0]["replies"]
    assert ours[0].get("dropped", {}).keys() == theirs[0].get("dropped", {}).keys()
    assert torch.is_tensor(here.state.weights)
    difference = np.abs(here.home.fetch(here.reported) - host.reported)
    assert difference.mean() < 2e-5
    assert ours[0]["snr_db"] == pytest.approx(theirs[0]["snr_db"], abs=0.05)
    assert [text for text in here.cautions if text not in host.cautions] == here.cautions[-1:]
    assert "on the CPU" in here.cautions[-1]


def test_a_diverged_client_is_dropped(small: Dataset, quick: Settings) -> None:
    simulation = Simulation(replace(quick, rate=1e30, coder="paper", device="cpu-torch"), small, place=Tensors("cpu"))
    lines = [simulation.step()[0] for _ in range(3)]
    assert "could not encode" in " ".join(lines[-1]["dropped"].values())


def test_a_checkpoint_goes_on_where_it_stood(small: Dataset, quick: Settings, tmp_path: Path) -> None:
    settings = replace(quick, device="cpu-torch", coder="paper", server="adam", average=0.9)
    first, second = (Simulation(settings, small, place=Tensors("cpu")) for _ in range(2))
    first.step()
    runs._save(first, tmp_path, 17)
    assert runs._restore(second, tmp_path) == 17
    assert first.step() == second.step()
    assert torch.equal(first.state.weights, second.state.weights)
    assert torch.equal(first.reported, second.reported)

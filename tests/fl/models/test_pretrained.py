"""Features of a pretrained network: its shape, its padding, blocks that outlive an interruption."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from cepam import fl
from cepam.fl import Dataset, Features, from_arrays
from cepam.fl.data.fetch import Report
from cepam.fl.models import pretrained
from cepam.fl.models.features import Joined
from cepam.fl.models.pretrained import EfficientNetLite


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CEPAM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def images() -> Dataset:
    draw = np.random.default_rng(5)
    pixels = draw.integers(0, 256, (18, 3, 32, 32), dtype=np.uint8)
    return from_arrays((pixels[:12], np.arange(12) % 3), (pixels[12:], np.arange(6) % 3), "made", 3)


@pytest.mark.parametrize(("variant", "weights"), [("lite0", 3_371_008), ("lite1", 4_135_680), ("lite2", 4_811_072)])
def test_the_number_of_weights_is_the_published_one(variant: str, weights: int) -> None:
    """Published: 4.65, 5.42 and 6.09 million with the classifier's 1,281,000, which features do without."""
    assert sum(p.numel() for p in EfficientNetLite(variant).parameters()) == weights


@pytest.mark.parametrize(("side", "kernel", "stride"), [(260, 3, 2), (65, 5, 2), (130, 3, 2), (17, 5, 1)])
def test_padding_is_that_of_tensorflow(side: int, kernel: int, stride: int) -> None:
    """Output o sees inputs from o * stride - before on, where `before` is the smaller half of the padding."""
    made = pretrained._Convolution(1, 1, kernel, stride, bias=False)
    nn.init.ones_(made.weight)
    count = -(-side // stride)
    before = max((count - 1) * stride + kernel - side, 0) // 2
    places = torch.arange(side, dtype=torch.float32)
    rows = places.expand(1, 1, side, side)  # the number of the column in every place
    seen = made(rows)[0, 0]
    assert seen.shape == (count, count)
    for at in (0, 1, count // 2, count - 1):
        first, last = max(0, at * stride - before), min(side, at * stride - before + kernel)
        middle = count // 2
        assert seen[middle, at] == kernel * places[first:last].sum()


def test_mirror_images_and_scales_have_the_same_features(images: Dataset) -> None:
    torch.manual_seed(1)
    module = EfficientNetLite("lite0").eval()
    module.side = 64  # quick; the weights fit any side
    pixels = torch.from_numpy(images.train_inputs[:2].reshape(-1, 3, 32, 32).copy()).float()
    with torch.no_grad():
        made = module(pixels)
        assert made.shape == (2, 1280)
        torch.testing.assert_close(module(pixels.flip(3)), made, rtol=1e-4, atol=1e-6)
        module.scale, module.shift = 2.0 / 255.0, -1.0
        assert torch.equal(module(pixels * (2.0 / 255.0) - 1.0), made)


def test_weights_of_a_package_are_loaded(images: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib

    torch.manual_seed(2)
    module = EfficientNetLite("lite0")
    state = {**module.state_dict(), "_fc.weight": torch.zeros(1000, 1280), "_fc.bias": torch.zeros(1000)}
    torch.save(state, tmp_path / "some.pth")
    files = {"some.pth": hashlib.sha256((tmp_path / "some.pth").read_bytes()).hexdigest()}
    monkeypatch.setitem(pretrained.WEIGHTS, "lite0", replace(pretrained.WEIGHTS["lite0"], files=files))
    made = pretrained.efficientnet_lite("lite0", images, tmp_path)
    pixels = (
        torch.from_numpy(images.train_inputs[:1].reshape(-1, 3, 32, 32).copy()).float() * images.scale + images.shift
    )
    module.scale, module.shift = images.scale, images.shift
    with torch.no_grad():  # the package's weights, whose normalisations are folded into convolutions
        torch.testing.assert_close(made.module(pixels), module.eval()(pixels), rtol=1e-3, atol=1e-5)
    assert made.size(images) == 1280
    assert files["some.pth"] in str(made.key)
    with pytest.raises(ValueError, match="variant must be one of lite0"):
        pretrained.efficientnet_lite("lite9", images)
    with pytest.raises(ValueError, match="colour images in bytes"):
        pretrained.efficientnet_lite("lite0", fl.synthetic(20, 10))


class Counting(nn.Module):
    """Sums of the pixels; counts the examples that it saw, and stops after so many."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Flatten()

    seen = 0
    most = 10**9

    def forward(self, examples: torch.Tensor) -> torch.Tensor:
        Counting.seen += len(examples)
        if Counting.seen > Counting.most:
            raise KeyboardInterrupt
        return self.flat(examples)[:, :5]


def test_a_stopped_computation_goes_on_and_reports(images: Dataset, tmp_path: Path) -> None:
    made = Features(Counting(), batch=1, key="counting", outputs=5, block=3)
    Counting.seen, Counting.most = 0, 8 + 7  # eight to check that examples do not meet, then two blocks and one more
    with pytest.raises(KeyboardInterrupt):
        made.of(images)
    [parts] = (tmp_path / "cache" / "features").glob("*.parts")
    assert {"0.npy", "3.npy"} <= {path.name for path in parts.iterdir()}
    Counting.seen, Counting.most = 0, 10**9
    told: list[Report] = []
    found = made.of(images, report=told.append)
    assert Counting.seen <= 6 + 8 + 6  # what was saved was not computed again
    assert [(each.done, each.total) for each in told] == [(3, 12), (6, 12), (9, 12), (12, 12), (3, 6), (6, 6)]
    np.testing.assert_array_equal(found.train_inputs, Features(Counting()).of(images).train_inputs)
    assert not list((tmp_path / "cache" / "features").glob("*.parts"))
    Counting.most = Counting.seen
    np.testing.assert_array_equal(made.of(images).test_inputs, found.test_inputs)


def test_portable_features_serve_every_scale(images: Dataset) -> None:
    Counting.seen, Counting.most = 0, 10**9
    made = Features(Counting(), key="portable", outputs=5, portable=True)
    made.of(images)
    before = Counting.seen
    made.of(replace(images, scale=2.0 / 255.0, shift=-1.0))
    assert Counting.seen == before


def test_several_networks_beside_each_other(images: Dataset) -> None:
    Counting.seen, Counting.most = 0, 10**9
    one, other = Features(Counting()), Features(nn.AvgPool2d(16), key="pooled")
    assert Joined.of_all([one]) is one
    both = Joined.of_all([one, other])
    made = both.of(images)
    assert made.shape == (5 + 12,) == (both.size(images),)
    np.testing.assert_array_equal(made.train_inputs[:, :5], one.of(images).train_inputs)
    np.testing.assert_array_equal(made.test_inputs[:, 5:], other.of(images).test_inputs)
    pixels = torch.from_numpy(images.test_inputs.reshape(-1, 3, 32, 32).copy()).float() * images.scale
    np.testing.assert_allclose(both.module(pixels).numpy(), made.test_inputs, rtol=1e-6)
    assert fl.linear_on(both, images).on(images, "cpu").evaluate(np.zeros((1, 18 * 3), np.float32)).accuracy.shape == (
        1,
    )

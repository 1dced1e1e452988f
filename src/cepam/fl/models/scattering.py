"""Scattering features: moduli of wavelet coefficients, averaged; nothing in them is learned, so nothing is charged.

Order 2, two scales, eight angles: 1 + 16 + 64 maps of a quarter of the image's side (Bruna and Mallat, 2013), then
normalised in groups from the image alone. A linear head on them beats small networks trained privately from end to end
(Tramèr and Boneh, 2021).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

SCALES = 2
ANGLES = 8
MAPS = 1 + SCALES * ANGLES + ANGLES * ANGLES
GROUPS = 27
BORDER = 4
"""Pixels mirrored around the image; with them a border's wrap-around does not reach the features."""
CENTRE = 3.0 * math.pi / 4.0
WIDTH = 0.8


def _gaussian(high: int, wide: int, width: float, angle: float, slant: float, frequency: float) -> Tensor:
    """A wave of this frequency under a Gaussian of this width, wrapped around; it sums to 1 at frequency 0."""
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64)
    shape = turn @ torch.diag(torch.tensor([1.0, slant**2], dtype=torch.float64)) @ turn.T / (2 * width**2)
    total = torch.zeros((high, wide), dtype=torch.complex128)
    for down in range(-2, 3):
        for right in range(-2, 3):
            y, x = torch.meshgrid(
                torch.arange(high, dtype=torch.float64) + down * high,
                torch.arange(wide, dtype=torch.float64) + right * wide, indexing="ij",
            )  # fmt: skip
            fall = shape[0, 0] * x * x + 2 * shape[0, 1] * x * y + shape[1, 1] * y * y
            phase = frequency * (x * math.cos(angle) + y * math.sin(angle))
            total += torch.polar(torch.exp(-fall), phase)
    return total / (2 * math.pi * width**2 / slant)


def wavelet(high: int, wide: int, scale: int, turn: int) -> Tensor:
    """The Morlet wavelet of a scale and a direction of ANGLES in half a circle, centred at the origin; its sum is 0."""
    angle = (ANGLES - ANGLES // 2 - 1 - turn) * math.pi / ANGLES
    width, slant = WIDTH * 2**scale, 4.0 / ANGLES
    wave = _gaussian(high, wide, width, angle, slant, CENTRE / 2**scale)
    plain = _gaussian(high, wide, width, angle, slant, 0.0)
    return wave - plain * (wave.sum() / plain.sum())


def average(side: int) -> Tensor:
    """The matrix that takes one side of a map, mirrored border and all, to its low-pass at every fourth pixel inside.

    Row r weighs the pixels around 4 r of the image; the two-dimensional average is this matrix from both sides.
    """
    width, places = WIDTH * 2.0 ** (SCALES - 1), torch.arange(side + 2 * BORDER, dtype=torch.float64)
    rows = torch.arange(side // 4, dtype=torch.float64)[:, None] * 4 + BORDER
    turns = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)[:, None, None] * len(places)
    weights: Tensor = torch.exp(-((places - rows + turns) ** 2) / (2 * width**2))
    return weights.sum(0) / (math.sqrt(2 * math.pi) * width)


class Scattering(nn.Module):
    """Features of images whose sides are multiples of 4, from 8 pixels on: 81 maps a channel of a quarter the side.

    Takes (n, channels, rows, columns) and gives (n, channels · 81 · rows/4 · columns/4). With `groups` the maps of a
    channel are normalised to mean 0 and variance 1 in so many groups, each image by itself.
    """

    fine: Tensor
    coarse: Tensor
    down: Tensor
    right: Tensor

    def __init__(self, shape: tuple[int, ...], groups: int = GROUPS) -> None:
        super().__init__()
        if len(shape) != 3 or any(side % 4 or side < 8 for side in shape[1:]):
            raise ValueError(f"scattering takes images (channels, rows, columns) of sides 8, 12, 16, …; got {shape}")
        if groups < 0 or (groups and MAPS % groups):
            raise ValueError(f"groups must divide {MAPS}, or be 0 for none; got {groups}")
        self.shape, self.groups = (int(shape[0]), int(shape[1]), int(shape[2])), groups
        high, wide = (side + 2 * BORDER for side in shape[1:])
        bank = [torch.stack([torch.fft.fft2(wavelet(high, wide, j, a)) for a in range(ANGLES)]) for j in range(SCALES)]
        self._keep("fine", bank[0].real)
        self._keep("coarse", bank[1].real)
        self._keep("down", average(shape[1]))
        self._keep("right", average(shape[2]))

    def _keep(self, name: str, value: Tensor) -> None:
        self.register_buffer(name, value.float().contiguous(), persistent=False)

    @property
    def size(self) -> int:
        """How many features an image has."""
        channels, high, wide = self.shape
        return channels * MAPS * (high // 4) * (wide // 4)

    @property
    def words(self) -> str:
        """What fixes the features besides the images: a key of the cache."""
        return f"scattering 1 {self.shape} {self.groups}"

    def _averaged(self, maps: Tensor, step: int) -> Tensor:
        """Maps that keep every `step`-th pixel, averaged to a quarter of the image's side."""
        down, right = self.down[:, ::step] * step, self.right[:, ::step] * step
        return (down @ (maps @ right.T)).flatten(-2)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """The features, one row an image."""
        flat = images.reshape(-1, 1, *self.shape[1:])
        wide = nn.functional.pad(flat, [BORDER] * 4, mode="reflect")[:, 0]
        seen = torch.fft.fft2(wide)
        first = torch.fft.ifft2(seen[:, None] * self.fine).abs()
        coarse = torch.fft.ifft2(_filtered(seen, self.coarse)).abs()
        again = torch.fft.fft2(first)
        second = torch.fft.ifft2(_filtered(again, self.coarse)).abs()
        maps = torch.cat(
            (self._averaged(wide[:, None], 1), self._averaged(first, 1), self._averaged(coarse, 2),
             self._averaged(second, 2).flatten(1, 2)), 1,
        )  # fmt: skip
        if self.groups:
            maps = nn.functional.group_norm(maps, self.groups)
        return maps.reshape(len(images), -1)


def _filtered(spectrum: Tensor, filters: Tensor) -> Tensor:
    """The spectra of filtered maps that keep every second pixel each way, real and imaginary parts by themselves.

    A map that keeps every second pixel has the mean of the spectrum's four quarters.
    """
    high, wide = (side // 2 for side in filters.shape[-2:])
    corners = [(..., slice(i, i + high), slice(j, j + wide)) for i in (0, high) for j in (0, wide)]
    parts = [torch.zeros((*spectrum.shape[:-2], len(filters), high, wide), device=spectrum.device) for _ in range(2)]
    for total, part in zip(parts, (spectrum.real, spectrum.imag)):
        for corner in corners:
            total.addcmul_(part[corner].unsqueeze(-3), filters[corner], value=0.25)
    return torch.complex(*parts)

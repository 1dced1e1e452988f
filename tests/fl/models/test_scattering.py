"""Scattering: against direct convolution by another route, and for what a scattering must do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cepam.fl.models.scattering import ANGLES, BORDER, MAPS, Scattering, average, wavelet


def images(count: int = 4, side: int = 28, seed: int = 0) -> torch.Tensor:
    """Smooth blobs in [0, 1] that stay away from the border."""
    draw = np.random.default_rng(seed)
    y, x = np.mgrid[:side, :side]
    made = np.zeros((count, 1, side, side))
    for one in made[:, 0]:
        for _ in range(4):
            down, right, wide = [*draw.uniform(0.35, 0.65, 2), draw.uniform(0.04, 0.08)]
            one += np.exp(-((y / side - down) ** 2 + (x / side - right) ** 2) / (2 * wide**2))
    return torch.from_numpy(np.clip(made, 0, 1)).float()


def directly(image: np.ndarray) -> np.ndarray:
    """The maps of one image by sums over shifted copies, in float64, every pixel kept until the very end."""
    wide = np.pad(image, BORDER, mode="reflect").astype(np.complex128)
    side = len(wide)

    def around(signal: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        total = np.zeros_like(signal)
        for down in range(side):
            for right in range(side):
                if abs(kernel[down, right]) > 1e-12:
                    total += kernel[down, right] * np.roll(signal, (down, right), (0, 1))
        return total

    banks = [[wavelet(side, side, scale, turn).numpy() for turn in range(ANGLES)] for scale in (0, 1)]
    first = [np.abs(around(wide, kernel)) for kernel in banks[0]]
    coarse = [np.abs(around(wide, kernel)) for kernel in banks[1]]
    second = [np.abs(around(one.astype(np.complex128), kernel)) for one in first for kernel in banks[1]]
    matrix = average(len(image)).numpy()
    half = matrix[:, ::2] * 2
    maps = [matrix @ one @ matrix.T for one in (wide.real, *first)]
    maps += [half @ one[::2, ::2] @ half.T for one in (*coarse, *second)]
    return np.stack(maps)


@pytest.mark.slow
def test_all_maps_are_direct_convolutions() -> None:
    image = images(1)
    mine = Scattering((1, 28, 28), groups=0)(image).reshape(MAPS, 7, 7).double().numpy()
    np.testing.assert_allclose(mine, directly(image[0, 0].double().numpy()), atol=2e-6)


def test_small_images_are_direct_convolutions() -> None:
    image = images(1, side=8)
    mine = Scattering((1, 8, 8), groups=0)(image).reshape(MAPS, 2, 2).double().numpy()
    plain = directly(image[0, 0].double().numpy())
    np.testing.assert_allclose(mine, plain, atol=2e-6)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(mine, np.roll(plain, 1, axis=0), atol=2e-6)


def test_shapes_and_doors() -> None:
    made = Scattering((3, 32, 16))
    assert made.size == 3 * MAPS * 8 * 4
    assert made(torch.rand(2, 3, 32, 16)).shape == (2, made.size)
    assert Scattering((1, 28, 28)).size == 3969
    assert not list(made.parameters())
    assert not made.state_dict()
    for shape in ((1, 27, 28), (28, 28), (1, 4, 4)):
        with pytest.raises(ValueError, match="sides 8, 12, 16"):
            Scattering(shape)
    with pytest.raises(ValueError, match="groups must divide 81"):
        Scattering((1, 28, 28), groups=10)


def test_wavelets_see_no_constant_and_little_is_gained() -> None:
    """Each wavelet sums to 0, so every map but the average is blind to brightness; energy does not grow."""
    raw = Scattering((1, 28, 28), groups=0)
    flat = raw(torch.full((1, 1, 28, 28), 0.7)).reshape(MAPS, 49)
    assert flat[1:].abs().max() < 1e-6
    torch.testing.assert_close(flat[0], torch.full((49,), 0.7), atol=1e-3, rtol=0)
    x = images()
    brighter = raw(x + 0.3) - raw(x)
    assert brighter.reshape(4, MAPS, 49)[:, 1:].abs().max() < 1e-5
    response = raw.fine.square().sum(0) + raw.coarse.square().sum(0)
    assert float(response.max()) < 2.5


def test_maps_scale_with_the_image_and_do_not_see_its_sign() -> None:
    raw, x = Scattering((1, 28, 28), groups=0), images()
    torch.testing.assert_close(raw(3.0 * x), 3.0 * raw(x), atol=1e-5, rtol=1e-5)
    plus, minus = (raw(sign * x).reshape(4, MAPS, 49) for sign in (1.0, -1.0))
    torch.testing.assert_close(plus[:, 1:], minus[:, 1:], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(plus[:, 0], -minus[:, 0], atol=1e-6, rtol=1e-5)


def test_small_shifts_move_features_less_than_pixels() -> None:
    raw, x = Scattering((1, 28, 28), groups=0), torch.rand((8, 1, 28, 28), generator=torch.Generator().manual_seed(1))
    moved = torch.roll(x, (1, 0), (2, 3))
    features = (raw(moved) - raw(x)).norm(dim=1) / raw(x).norm(dim=1)
    pixels = (moved - x).flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)
    assert float((features / pixels).max()) < 0.6
    far = torch.roll(x, (9, 0), (2, 3))
    assert float(((raw(far) - raw(x)).norm(dim=1) / raw(x).norm(dim=1)).min()) > float(features.max())


def test_a_quarter_turn_permutes_the_angles() -> None:
    raw, x = Scattering((1, 28, 28), groups=0), images()
    here, there = (raw(each).reshape(4, MAPS, 49).sum(2) for each in (x, torch.rot90(x, 1, (2, 3))))
    half = ANGLES // 2
    for first in (1, 1 + ANGLES):
        plain, turned = here[:, first : first + ANGLES], there[:, first : first + ANGLES]
        gap = (turned - plain.roll(half, 1)).norm() / plain.norm()
        assert gap < 0.1
        assert gap < 0.5 * (turned - plain).norm() / plain.norm()


def test_groups_are_normalised_image_by_image() -> None:
    made, x = Scattering((1, 28, 28)), images()
    rows = made(x).reshape(4, 27, 147)
    assert rows.mean(2).abs().max() < 1e-4
    assert rows.var(2).max() < 1.01
    torch.testing.assert_close(made(x)[1:2], made(x[1:2]), atol=1e-5, rtol=1e-4)

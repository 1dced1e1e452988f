"""Latent tables: where they are found, that they are kept, and what a law of one's own needs. Accuracy is elsewhere."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import numpy as np
import pytest

import cepam
from cepam.distributions import radius as latent
from cepam.distributions.radius import SHAPE, radius_table

SHIPPED = [(law, n) for law in ("gaussian", "laplace") for n in (1, 2, 3, 4, 8)]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder and an empty memory."""
    monkeypatch.setenv("CEPAM_CACHE", str(tmp_path))
    latent._built_in.cache_clear()
    yield tmp_path / "tables"
    latent._built_in.cache_clear()


@pytest.mark.parametrize(("law", "n"), SHIPPED)
def test_common_tables_are_shipped(law: str, n: int, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latent, "tabulate_exactly", None)
    table = radius_table(cepam.Gaussian(1.0) if law == "gaussian" else cepam.Laplace(1.0), n)
    assert table.shape == SHAPE
    assert table.dtype == np.float64
    assert not table.flags.writeable
    assert np.isfinite(table).all()
    assert (resources.files("cepam.distributions") / "tables" / f"{law}-{n}.npz").is_file()
    assert not cache.exists()


def test_tables_do_not_depend_on_the_scale(cache: Path) -> None:
    assert radius_table(cepam.Gaussian(1.0), 1) is radius_table(cepam.Gaussian(3.0), 1)


def test_other_tables_are_computed_once_and_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def compute(name: str, n: int) -> np.ndarray:
        calls.append((name, n))
        return np.full(SHAPE, float(n))

    monkeypatch.setattr(latent, "tabulate_exactly", compute)
    for _ in range(2):
        assert radius_table(cepam.Gaussian(1.0), 6)[0, 0, 0, 0] == 6.0
    latent._built_in.cache_clear()
    assert radius_table(cepam.Gaussian(2.0), 6)[0, 0, 0, 0] == 6.0
    assert calls == [("gaussian", 6)]
    assert [file.name for file in cache.iterdir()] == ["gaussian-6.npz"]


def test_a_home_that_cannot_be_written_costs_time_only(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.parent.joinpath("tables").write_text("a file where the folder should be")
    monkeypatch.setattr(latent, "tabulate_exactly", lambda name, n: np.ones(SHAPE))
    assert radius_table(cepam.Laplace(1.0), 6).shape == SHAPE


@pytest.mark.parametrize("content", [b"", b"not an archive", None])
def test_a_damaged_cache_is_written_anew(content: bytes | None, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.mkdir(parents=True)
    if content is None:
        np.savez(cache / "gaussian-6.npz", table=np.ones(5))
    else:
        (cache / "gaussian-6.npz").write_bytes(content)
    monkeypatch.setattr(latent, "tabulate_exactly", lambda name, n: np.ones(SHAPE))
    assert radius_table(cepam.Gaussian(1.0), 6).shape == SHAPE


def test_segments_cover_each_tail_once() -> None:
    lower, width = latent.segment_edges()
    upper = lower + width
    assert upper[0, -1] == 0.5
    assert np.array_equal(lower[:, 1:], upper[:, :-1])
    assert np.array_equal(lower[:-1, 0], upper[1:, -1])


class Crooked(cepam.UniformBall):
    """A law whose radius is not a number."""

    def radius_below(self, p: np.ndarray, n: int) -> np.ndarray:
        return np.full_like(p, np.nan)


def test_a_law_without_radii_is_refused() -> None:
    with pytest.raises(ValueError, match="not finite and positive"):
        radius_table(Crooked(1.0), 1)


def test_a_subclass_of_a_built_in_law_is_tabulated_by_its_own_radii() -> None:
    class Wider(cepam.Gaussian):
        def radius_below(self, p: np.ndarray, n: int) -> np.ndarray:
            return 2 * super().radius_below(p, n)

        def radius_above(self, q: np.ndarray, n: int) -> np.ndarray:
            return 2 * super().radius_above(q, n)

    ratio = radius_table(Wider(1.0), 1)[..., 0] / radius_table(cepam.Gaussian(1.0), 1)[..., 0]
    assert np.allclose(ratio, 2.0, rtol=1e-6)

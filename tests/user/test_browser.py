"""The pages that a user opens, in a real browser, on a desk and on a phone: whole, silent, no wider than the screen.

Needs a Chromium on the PATH (Debian: `apt-get install chromium`); skips without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from paper_tests import chromium

import cepam
from cepam import privacy

PROGRAM = chromium.found()
SITE = Path(__file__).resolve().parents[2] / "site"
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on the PATH (see CONTRIBUTING.md)")
pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Chromium]:
    assert PROGRAM is not None
    one = chromium.Chromium(PROGRAM, tmp_path_factory.mktemp("profile"))
    yield one
    one.close()


def records(folder: Path) -> Path:
    drawn = privacy.Sampling("replacement", 64)
    mechanism = privacy.Mechanism.uniform(8, cepam.Gaussian(0.5), cepam.L2(1.0), drawn, records=20_000, rounds=50)
    return privacy.explain(mechanism, 1e-6, folder / "records.html")


def hospitals(folder: Path) -> Path:
    mechanism = privacy.LocalMechanism.of([500, 4000, 20_000], cepam.L2(1.0), 4.0, batch=64, epochs=5, rounds=5)
    page = privacy.explain(mechanism, 1e-6, folder / "hospitals.html")
    words = page.read_text(encoding="utf-8")
    assert "in each local step&#x27;s mean gradient" in words
    assert "nobody else is trusted" in words
    assert "the server and anyone who holds a key" not in words
    return page


def schemes(folder: Path) -> Path:
    pytest.importorskip("torch")
    from cepam import fl
    from cepam.fl.runs.comparison import Row, draw_comparison, page, warnings_of

    names = ("fl+gaussian", "cepam-gaussian", "cepam-gaussian-E8")
    lines = [{"round": t, "seed": 1, "accuracy": 0.1 * t, "bits_round_trip": 10_000 * t} for t in range(1, 5)]
    draw_comparison(folder / "comparison.png", dict.fromkeys(names, lines))
    said = ("large-epsilon: epsilon 12 allows odds to change by a factor of e^12. Add noise.",)
    seen: dict[str, float | None] = {"outsider": 12.0, "one curious client": None}
    rows = [
        Row(name, 0.98, 0.01, 0.0, 0.01, 12.0, True, -12.9, 32.022, 32.0, 10**9, 10**9, 2 * 10**9, 3600.0, said, seen)
        for name in names
    ]
    made = folder / "index.html"
    assert warnings_of(rows) == [f"{', '.join(names)}: {said[0]}"]
    made.write_text(page(fl.Settings.of({"privacy.noise_scale": 0.1}), rows, folder), encoding="utf-8")
    return made


@pytest.mark.parametrize("make", [records, hospitals, schemes])
def test_pages_fit_a_desk_and_a_phone(browser: chromium.Chromium, tmp_path: Path, make: Callable[[Path], Path]) -> None:
    page = make(tmp_path)
    for width in (1280, 420):
        browser.open(page, width=width)
        assert browser.value("document.scrollingElement.scrollWidth") <= width
        assert browser.complaints == []
        assert [url for url in browser.requests if url != page.resolve().as_uri()] == []
        outside = (
            "[...document.querySelectorAll('h1, h2, p, li, figure')].filter(e => e.getBoundingClientRect().right > "
        )
        assert browser.value(f"{outside}{width}).length") == 0


def test_a_page_that_is_too_wide_is_seen(browser: chromium.Chromium, tmp_path: Path) -> None:
    page = records(tmp_path)
    page.write_text(page.read_text(encoding="utf-8").replace("<h1>", "<h1 style='width: 1500px'>"), encoding="utf-8")
    browser.open(page, width=420)
    assert browser.value("document.scrollingElement.scrollWidth") > 420


def test_the_site_fits_a_desk_and_a_phone(browser: chromium.Chromium) -> None:
    pages = sorted(SITE.rglob("*.html"))
    if not pages:
        pytest.skip("no site/ here: `make docs` builds it")
    assert len(pages) > 20
    for page in pages:
        for width in (1280, 420):
            browser.open(page, width=width)
            assert browser.value("document.scrollingElement.scrollWidth") <= width, page

"""The pages that a user opens, in a real browser, on a desk and on a phone: whole, silent, no wider than the screen.

Needs a Chromium on the PATH (Debian: `apt-get install chromium`); skips without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from paper_tests import chromium

import cepam
from cepam import privacy

PROGRAM = chromium.found()
SITE = Path(__file__).resolve().parents[2] / "site"
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on the PATH (see CONTRIBUTING.md)")


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


def users(folder: Path) -> Path:
    cohort = privacy.Cohort(10_000, 100.0)
    mechanism = privacy.CohortMechanism.of(cohort, cepam.L2(1.0), 1.0, rounds=100, adjacency="add-remove")
    return privacy.explain(mechanism, 1e-6, folder / "users.html")


def stream(folder: Path) -> Path:
    link = privacy.CorrelatedNoise(decay=0.9, slices=4)
    clients = (privacy.Client(cepam.Gaussian(9.0), 400, 0.25),) * 4
    mechanism = privacy.MatrixMechanism(clients, cepam.L2(1.0), link=link, rounds=12, coordinates=5000)
    return privacy.explain(mechanism, 1e-6, folder / "stream.html")


TINY = {
    "data.name": "synthetic", "clients.count": 4, "training.rounds": 4, "training.local_steps": 3,
    "privacy.noise_scale": 0.3, "training.batch_size": 2, "compression.downlink": "quantized",
}  # fmt: skip


def run(folder: Path, changes: dict[str, Any]) -> Path:
    pytest.importorskip("torch")
    from cepam import fl

    fl.train(fl.Settings.of({**TINY, **changes}), folder / "a-run-with-a-rather-long-name", fl.synthetic(600, 200))
    return folder / "a-run-with-a-rather-long-name" / "index.html"


def secret(folder: Path) -> Path:
    return run(folder, {"clients.overrides": [{"clients": "0-1", "epsilon": 6.0}]})


def simulated(folder: Path) -> Path:
    return run(folder, {"run.simulate": True, "run.seeds": 2, "privacy.noise_scale": 0.02})


def summed(folder: Path) -> Path:
    return run(folder, {"privacy.trust": "secure-aggregation"})


def plain(folder: Path) -> Path:
    return run(
        folder, {"compression.scheme": "fl", "privacy.noise_scale": None, "compression.downlink": "float32"}
    )  # fmt: skip


def unfinished(folder: Path) -> Path:
    def stop(progress: Any) -> None:
        raise KeyboardInterrupt

    pytest.importorskip("torch")
    from cepam import fl

    with pytest.raises(KeyboardInterrupt):
        fl.train(fl.Settings.of(TINY), folder / "run", fl.synthetic(600, 200), watch=stop)
    return folder / "run" / "index.html"


def schemes(folder: Path) -> Path:
    pytest.importorskip("torch")
    from cepam import fl

    settings = fl.Settings.of({**TINY, "run.seeds": 2, "run.simulate": True})
    fl.compare(settings, ["fl", "fl+gaussian+sdq", "cepam-gaussian-n2", "cepam-gaussian-secure-aggregation"], folder)
    return folder / "index.html"


OUTSIDE = (
    "[...document.querySelectorAll('h1, h2, p, li, figure, dd, td')].filter(e => e.getBoundingClientRect().right > "
)
CUT = "[...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth).length"
OVERLAPS = """(() => {
  let found = [];
  for (const svg of document.querySelectorAll('.chart > svg')) {
    const boxes = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
    const frame = svg.getBoundingClientRect();
    boxes.forEach(([a, p], i) => {
      if (p.left < frame.left - 2 || p.right > frame.right + 2 || p.width === 0) found.push('outside: ' + a);
      for (const [b, q] of boxes.slice(i + 1))
        if (p.left < q.right && q.left < p.right && p.top + 2 < q.bottom && q.top + 2 < p.bottom)
          found.push(a + ' on ' + b);
    });
  }
  return found;
})()"""
UNFOLD = "document.querySelectorAll('details').forEach(d => d.open = true) || 1"


@pytest.mark.parametrize(
    "make", [records, hospitals, users, stream, secret, simulated, summed, plain, unfinished, schemes]
)
def test_pages_fit_a_desk_and_a_phone(browser: chromium.Chromium, tmp_path: Path, make: Callable[[Path], Path]) -> None:
    page = make(tmp_path)
    for width, dark in ((1280, False), (420, True), (420, False)):
        browser.open(page, width=width, dark=dark)
        browser.value(UNFOLD)
        assert browser.value("document.scrollingElement.scrollWidth") <= width
        assert browser.complaints == []
        assert [url for url in browser.requests if url != page.resolve().as_uri()] == []
        assert browser.value(f"{OUTSIDE}{width}).length") == 0
        assert browser.value(CUT) == 0
        assert browser.value(OVERLAPS) == []


def test_texts_that_overlap_and_columns_that_are_cut_are_seen(browser: chromium.Chromium, tmp_path: Path) -> None:
    page = records(tmp_path)
    whole = page.read_text(encoding="utf-8")
    crowded = whole.replace('<text class="middle" x="', '<text class="middle" x="1')
    page.write_text(crowded.replace("<td>", '<td style="min-width: 300px">'), encoding="utf-8")
    browser.open(page, width=420)
    assert browser.value(OVERLAPS) != []
    assert browser.value(CUT) > 0


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

"""The report's page in a real browser. Set CEPAM_REPORT to a report's folder to look at that page as well."""

from __future__ import annotations

import base64
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from cepam_paper import claims, page
from paper_tests import chromium
from paper_tests.made_up import whole

PROGRAM = chromium.found()
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="no Chromium on the PATH (Debian: apt-get install chromium; see CONTRIBUTING.md)"
)
NARROW = 380
PHONE = 420


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Chromium]:
    assert PROGRAM is not None
    one = chromium.Chromium(PROGRAM, tmp_path_factory.mktemp("profile"))
    yield one
    one.close()


@pytest.fixture(scope="module", params=["made up", "CEPAM_REPORT"])
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "CEPAM_REPORT":
        if "CEPAM_REPORT" not in os.environ:
            pytest.skip("CEPAM_REPORT names no report")
        return Path(os.environ["CEPAM_REPORT"]) / "index.html"
    report = tmp_path_factory.mktemp("report")
    parts = whole(report)
    return page.write(report, parts, claims.verdicts(parts), {"command": "cepam reproduce"})


def faults(browser: chromium.Chromium, path: Path) -> list[str]:
    """Whatever is wrong with a page once it is open: complaints, requests, pictures that do not show."""
    broken = browser.value("[...document.images].filter(i => !(i.naturalWidth > 0)).map(i => i.alt)")
    nameless = browser.value("[...document.images].filter(i => !i.alt).length")
    others = [url for url in browser.requests if url != path.resolve().as_uri()]
    return [
        *browser.complaints,
        *(f"request: {url}" for url in others),
        *(f"picture does not show: {alt}" for alt in broken),
        *(["picture without words"] * nameless),
    ]


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_opens_without_a_fault(browser: chromium.Chromium, index: Path, dark: bool) -> None:
    browser.open(index, dark=dark)
    assert faults(browser, index) == []
    assert browser.value("document.images.length") > 0
    assert browser.value("document.querySelectorAll('.label:not(.theirs)').length") == len(claims.CLAIMS)
    shade = [int(x) for x in re.findall(r"\d+", browser.value("getComputedStyle(document.body).backgroundColor"))][:3]
    assert max(shade) < 60 if dark else min(shade) > 200


def test_every_link_of_the_page_has_a_target(browser: chromium.Chromium, index: Path) -> None:
    browser.open(index)
    hrefs = "[...document.querySelectorAll('a')].map(a => a.getAttribute('href'))"
    assert browser.value(f"{hrefs}.filter(h => !h.startsWith('#') || !document.getElementById(h.slice(1)))") == []


def test_tables_scroll_by_themselves_on_a_narrow_screen(browser: chromium.Chromium, index: Path) -> None:
    browser.open(index, width=NARROW)
    assert browser.value("document.scrollingElement.scrollWidth") <= NARROW
    assert browser.value("[...document.querySelectorAll('.wide')].some(s => s.scrollWidth > s.clientWidth)")


def test_evidence_is_reached_on_a_phone_without_scrolling_sideways(browser: chromium.Chromium, index: Path) -> None:
    browser.open(index, width=PHONE)
    cells = "[...document.querySelectorAll('.verdicts tbody tr[id] td')]"
    assert browser.value(f"{cells}.length") == 4 * len(claims.CLAIMS)
    assert browser.value(f"{cells}.filter(c => c.getBoundingClientRect().right > {PHONE}).length") == 0
    assert browser.value(f"{cells}.filter(c => c.scrollWidth > c.clientWidth + 1).map(c => c.innerText)") == []
    assert browser.value("document.scrollingElement.scrollWidth") <= PHONE


def test_formulas_have_a_size(browser: chromium.Chromium, index: Path) -> None:
    browser.open(index)
    flat = "[...document.querySelectorAll('math')].filter(m => !(m.getBoundingClientRect().height > 4)).length"
    assert browser.value("document.querySelectorAll('math').length") > 0
    assert browser.value(flat) == 0


def test_the_page_prints(browser: chromium.Chromium, index: Path) -> None:
    browser.open(index)
    pdf = base64.b64decode(browser.call("Page.printToPDF", preferCSSPageSize=True)["data"])
    assert pdf.startswith(b"%PDF")
    assert pages(pdf) >= browser.value("document.querySelectorAll('section.part').length") > 0


def pages(pdf: bytes) -> int:
    """How many pages a PDF has, by its page objects, also those in compressed streams."""
    streams = re.findall(rb"stream\r?\n(.*?)endstream", pdf, re.S)
    inside = b"".join(_inflated(stream) for stream in streams)
    return len(re.findall(rb"/Type\s*/Page\b(?!s)", pdf + inside))


def _inflated(stream: bytes) -> bytes:
    try:
        return zlib.decompress(stream)
    except zlib.error:
        return b""


@pytest.mark.parametrize(
    ("spoiled", "fault"),
    [
        ('<img alt="gone" src="none.png">', "gone"),
        ('<img alt="far" src="http://127.0.0.1:9/x.png">', "request: http://127.0.0.1:9/x.png"),
        ('<img alt="torn" src="data:image/png;base64,iVBORw0KGgo=">', "torn"),
        ("<script>console.warn('look')</script>", "look"),
        ("<script>nothing.there</script>", "exception"),
        ('<img src="data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA=">', "without words"),
    ],
)
def test_control_a_spoiled_page_is_noticed(
    spoiled: str, fault: str, browser: chromium.Chromium, tmp_path: Path
) -> None:
    path = tmp_path / "index.html"
    path.write_text(f"<!DOCTYPE html><title>x</title><body>{spoiled}</body>")
    browser.open(path)
    assert any(fault in one for one in faults(browser, path))


def test_control_the_policy_stops_what_slipped_in(browser: chromium.Chromium, index: Path, tmp_path: Path) -> None:
    path = tmp_path / "index.html"
    text = index.read_text(encoding="utf-8")
    path.write_text(text.replace("</body>", "<script>document.title = 'ran'</script></body>"), encoding="utf-8")
    browser.open(path)
    assert browser.value("document.title") == page.TITLE
    assert any("Content Security Policy" in one for one in browser.complaints)

"""Pages are complete, ask for nothing, escape what they are given, and fit a narrow screen."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cepam._internal.page import (
    POLICY,
    STYLE,
    bullets,
    heading,
    joined,
    number,
    page,
    paragraph,
    picture,
    table,
    text,
)


class Balance(HTMLParser):
    """Fails on a tag that is not closed, or closed twice."""

    VOID = frozenset({"meta", "link", "img", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def whole(tmp_path: Path) -> str:
    drawn = tmp_path / "curve.png"
    drawn.write_bytes(b"\x89PNG")
    return page(
        "a < b",
        [
            heading("One & two", 1),
            paragraph("call `f(x)`"),
            paragraph("careful", "warning"),
            bullets(["<script>alert(1)</script>"]),
            table(["name", "value"], [["x<y", "1.5"], ["z", "−2 ± 0.3"]], "figures"),
            picture(drawn, 'a "curve"', "below"),
            picture('<?xml version="1.0"?><svg><path d="M0 0"/></svg>', "drawn"),
            "",
        ],
    )


def test_a_page_is_well_formed_and_escaped(tmp_path: Path) -> None:
    made = whole(tmp_path)
    seen = Balance()
    seen.feed(made)
    assert seen.open == []
    assert "<script" not in made
    assert "<script>alert(1)</script>" in seen.words
    assert "<title>a &lt; b</title>" in made
    assert "<code>f(x)</code>" in made
    assert "<?xml" not in made
    assert 'alt="a &quot;curve&quot;"' in made
    assert base64.b64encode(b"\x89PNG").decode() in made


def test_a_page_asks_for_nothing(tmp_path: Path) -> None:
    made = whole(tmp_path)
    assert POLICY in made
    assert not re.findall(r'(?:src|href)="(?!data:)', made)


def test_a_page_fits_a_narrow_screen(tmp_path: Path) -> None:
    made = whole(tmp_path)
    assert "width=device-width" in made
    assert '<div class="wide" tabindex="0"><table>' in made
    assert ".wide { overflow-x: auto }" in STYLE
    assert "max-width: 100%" in STYLE


def test_numbers_stand_to_the_right(tmp_path: Path) -> None:
    made = whole(tmp_path)
    assert '<td class="number">1.5</td>' in made
    assert "<td>x&lt;y</td>" in made
    assert 'class="number"' not in table(["a"], [])


def test_what_cannot_be_shown_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2 cells"):
        table(["a", "b"], [["1"]])
    with pytest.raises(ValueError, match="pictures must be"):
        picture(tmp_path / "curve.exe", "no")
    assert text("a`b") == "a`b"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (20_000, "20,000"),
        (20_000.0, "20,000"),
        (12_345.6, "12,346"),
        (0.25, "0.25"),
        (1e-5, "1e-5"),
        (1.23456e-12, "1.235e-12"),
        (1e10, "1e10"),
        (123456789, "1.235e8"),
        (0, "0"),
        (-3, "-3"),
        (2.05172, "2.052"),
        (float("inf"), "inf"),
    ],
)
def test_numbers_are_for_people(value: float, shown: str) -> None:
    assert number(value) == shown


def test_rows_that_are_alike_become_one() -> None:
    rows = [["0", "x"], ["1", "x"], ["2", "x"], ["3", "y"], ["A", "y"], ["B", "y"], ["9", "y"]]
    shown = [(["0 to 2", "x"], 3), (["3", "y"], 1), (["A", "y"], 1), (["B", "y"], 1), (["9", "y"], 1)]
    assert joined(rows) == shown

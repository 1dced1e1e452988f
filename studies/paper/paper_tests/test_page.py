from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cepam_paper import claims, page
from cepam_paper.section import Figure, Table, load
from cepam_paper.verdict import Label
from paper_tests.made_up import NUMBERS, part, whole

VOID = {"meta", "link", "img", "col", "br"}
NASTY = '<script>alert(1)</script> & "quoted" <img src=x onerror=alert(2)>'
ABOUT = {"command": "cepam reproduce", "numpy": "2.0", "cores": "2"}


class Outline(HTMLParser):
    """What a browser would see: tags in balance, ids, links, pictures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.pictures: list[dict[str, str | None]] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        if given.get("id"):
            self.ids.append(str(given["id"]))
        if tag == "a":
            self.links.append(str(given["href"]))
        if tag == "img":
            self.pictures.append(given)
        assert not [name for name in given if name.startswith("on")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def written(report: Path, parts: tuple) -> tuple[str, Outline]:
    path = page.write(report, parts, claims.verdicts(parts), ABOUT)
    assert path == report / "index.html"
    text = path.read_text(encoding="utf-8")
    return text, Outline(text)


def test_the_page_is_one_complete_file(tmp_path: Path) -> None:
    parts = whole(tmp_path)
    text, seen = written(tmp_path, parts)
    assert "script" not in seen.tags
    assert not re.findall(r"(?:src|href)=\"(?!#|data:)", text)
    assert "url(" not in text
    assert "@import" not in text
    assert len(seen.pictures) == len(parts)
    assert all(str(one["src"]).startswith("data:image/png;base64,") and one["alt"] for one in seen.pictures)
    assert not list(tmp_path.glob("*.draft"))


def test_every_link_leads_somewhere_and_ids_are_unique(tmp_path: Path) -> None:
    _, seen = written(tmp_path, whole(tmp_path))
    assert {link[1:] for link in seen.links} <= set(seen.ids)
    assert len(set(seen.ids)) == len(seen.ids)
    assert {f"part-{name}" for name in NUMBERS} <= {link[1:] for link in seen.links}


def test_every_verdict_stands_at_the_top_with_its_command(tmp_path: Path) -> None:
    parts = whole(tmp_path)
    text, seen = written(tmp_path, parts)
    found = claims.verdicts(parts)
    first = text.index('<section class="part"')
    for one in found:
        assert text.index(f'id="claim-{one.claim.name}"') < first
    for label in Label:
        shown = len(re.findall(rf'class="label {page.CLASSES[label]}"', text))
        assert shown == claims.tally(found)[label]
        assert shown > 0 or label is Label.UNTESTED
        theirs = len(re.findall(rf'class="label theirs {page.CLASSES[label]}"', text))
        assert theirs == sum(one.program is label for one in found)
    assert "92.10 ± 0.20" in seen.words
    assert "cepam reproduce tradeoff" in seen.words


def test_html_in_any_field_is_shown_not_run(tmp_path: Path) -> None:
    nasty = part(
        '"><b>x', {}, title=NASTY, summary=NASTY, notes=(NASTY, "a `<i>` b"),
        tables=(Table(NASTY, NASTY, (NASTY, "n"), ((NASTY, "1.0"),), NASTY),),
        figures=(Figure(NASTY, NASTY, f"figures/{NASTY}.png", NASTY),),
    )  # fmt: skip
    path = page.write(tmp_path, (nasty,), claims.verdicts((nasty,)), {NASTY: NASTY})
    seen = Outline(path.read_text(encoding="utf-8"))
    assert "script" not in seen.tags
    assert "img" not in seen.tags
    assert seen.words.count("<script>alert(1)</script>") >= 9
    assert "<i>" in seen.words


def test_missing_parts_give_a_page_all_the_same(tmp_path: Path) -> None:
    text, seen = written(tmp_path, ())
    assert seen.links == ["#verdicts", "#about"]
    assert text.count('class="label untested"') == len(claims.CLAIMS) - 2


@pytest.mark.parametrize("file", ["figures/none.png", "../outside.png", "/etc/hostname", "parts/privacy.json"])
def test_a_picture_that_is_missing_or_outside_is_said_so(file: str, tmp_path: Path) -> None:
    (tmp_path / "outside.png").write_bytes(b"not for the page")
    report = tmp_path / "report"
    one = part("privacy", figures=(Figure("f", "A figure", file, "c"),))
    one.save(report)
    _, seen = written(report, (one,))
    assert seen.pictures == []
    assert f"The picture {file} is missing." in seen.words


def test_a_quick_run_says_so_at_the_top(tmp_path: Path) -> None:
    assert "Not a full run" not in page.page(tmp_path, (), (), {"mode": "full"})
    assert "Not a full run (quick)" in page.page(tmp_path, (), (), {"mode": "quick"})


def test_formulas_are_set_and_nothing_else_is(tmp_path: Path) -> None:
    parts = whole(tmp_path)
    _, seen = written(tmp_path, parts)
    assert seen.tags.count("math") > 100
    assert "$" not in seen.words
    for rest in ("epsilon~", "p_k^2", "||", "\\alpha", "sigma^2"):
        assert rest not in seen.words


def test_columns_of_numbers_are_set_as_such(tmp_path: Path) -> None:
    table = Table(
        "t",
        "T",
        ("name", "value", "other"),
        (("fl", "93.24 ± 0.31", "−1.5 dB"), ("x", "–", "n/a"), ("y", "2 [1, 3]", "")),
    )
    text = page.page(tmp_path, (part("rate", tables=(table,)),), (), {})
    assert '<th scope="col" class="number">value</th>' in text
    assert '<th scope="col">other</th>' in text


def test_a_part_comes_back_from_disk_as_it_was(tmp_path: Path) -> None:
    one = whole(tmp_path)[3]
    one.save(tmp_path)
    assert load(tmp_path, one.name) == one
    assert load(tmp_path, "none") is None


def test_an_old_page_survives_a_failure(tmp_path: Path) -> None:
    written(tmp_path, ())
    before = (tmp_path / "index.html").read_bytes()
    with pytest.raises(AttributeError):
        page.write(tmp_path, (None,), (), {})  # type: ignore[arg-type]
    assert (tmp_path / "index.html").read_bytes() == before

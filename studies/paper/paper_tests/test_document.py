from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from cepam_paper import claims, document, versions
from cepam_paper.published import ARITHMETIC
from cepam_paper.section import Figure, Part, Table, part_of
from paper_tests.made_up import NUMBERS, part, png, whole

DOCS = Path(__file__).resolve().parents[3] / "docs" / "paper"
Rows = list[list[str]]


def tables(text: str) -> list[tuple[str, Rows]]:
    """Every Markdown table of a document under its heading, cells as they stand there."""
    found: list[tuple[str, Rows]] = [("", [])]
    for line in text.splitlines():
        if line.startswith("### "):
            found.append((line[4:], []))
        elif line.startswith("|"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            if set("".join(cells)) != {"-"}:
                found[-1][1].append(cells)
        elif found[-1][1]:
            found.append(("", []))
    return [(title, rows) for title, rows in found if rows]


def disagreements(text: str, kept: dict) -> list[str]:
    """Tables of the kept numbers that the document does not show, and verdicts that the numbers do not give."""
    shown = tables(text)
    missing = [
        f"{name}: {one['title']}"
        for name, given in kept.items()
        for one in given["tables"]
        if (
            document.escaped(one["title"]),
            [[document.escaped(cell) for cell in row] for row in (one["columns"], *one["rows"])],
        )
        not in shown
    ]
    cells = {tuple(row) for _, rows in shown for row in rows}
    return missing + [
        f"verdict: {one.claim.name}"
        for one in claims.verdicts([part_of(held) for held in kept.values()])
        if not any(
            (f"**{one.label}**", f"{one.program or '–'}") == row[:2] and document.escaped(one.evidence) in row
            for row in cells
        )
    ]


def write(report: Path, parts: tuple, docs: Path, about: dict[str, str] | None = None) -> str:
    docs.mkdir(exist_ok=True)
    text = document.write(report, parts, claims.verdicts(parts), about or {"cores": "2"}, docs)
    assert (docs / "reproduction.md").read_text(encoding="utf-8") == text
    return text


def test_the_document_shows_what_its_numbers_say(tmp_path: Path) -> None:
    text = write(tmp_path / "report", whole(tmp_path / "report"), tmp_path / "docs")
    kept = json.loads((tmp_path / "docs" / "reproduction.json").read_text())
    assert kept.keys() == NUMBERS.keys()
    assert text.startswith("<!-- written by `cepam reproduce document`, do not edit -->\n")
    assert disagreements(text, kept) == []


def test_a_changed_number_or_cell_is_seen(tmp_path: Path) -> None:
    text = write(tmp_path / "report", whole(tmp_path / "report"), tmp_path / "docs")
    kept = json.loads((tmp_path / "docs" / "reproduction.json").read_text())
    assert disagreements(text.replace("| fl | 92.10 ± 0.20 |", "| fl | 92.11 ± 0.20 |", 1), kept)
    kept["privacy"]["numbers"]["quoted"]["epsilon_run"] = 4154.9
    assert "verdict: quoted-run" in disagreements(text, kept)


def test_parts_that_measured_something_else_are_announced_in_one_sentence(tmp_path: Path) -> None:
    parts = whole(tmp_path / "report")
    text = write(tmp_path / "report", parts, tmp_path / "docs")
    [told] = [line for line in text.splitlines() if "The next full run is awaited" in line]
    assert 'exactness, gaussian, laplace, gain, grid (whose figures "as published" are of an earlier port' in told
    assert "tradeoff (whose bits are of an earlier default coder)" in told
    assert "convergence (whose figures are of an earlier set of cases)" in told
    assert document.awaited(parts) == (
        "exactness", "gaussian", "laplace", "gain", "grid", "tradeoff", "convergence"
    )  # fmt: skip
    new = tuple(replace(one, measured=versions.mark_of(one.name)) for one in parts)
    assert "awaited" not in write(tmp_path / "report", new, tmp_path / "docs")
    assert document.parts_of(tmp_path / "docs") == list(new)


def test_a_part_of_an_older_coder_or_set_of_cases_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    new = [part(name, measured=versions.mark_of(name)) for name in NUMBERS]
    assert document.awaited(new) == ()
    monkeypatch.setattr(versions, "_default_coder", lambda: "default coder 12 bytes")
    assert document.awaited(new) == ("tradeoff",)
    monkeypatch.setitem(versions.CASES, "rate", 7)
    assert document.awaited(new) == ("rate", "tradeoff")
    monkeypatch.setattr(versions, "ARITHMETIC", 99)
    assert set(document.awaited(new)) == {"rate", "tradeoff", *versions.PORTED}


def test_parts_without_a_mark_are_judged_by_what_they_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that noted its versions, but no marks, had the coder of that time."""
    monkeypatch.setattr(versions, "_default_coder", lambda: versions.FIRST_CODER)
    noted = [part(name, made_by={"date": "2026-11-19"}) for name in NUMBERS]
    for one in noted:
        one.numbers["arithmetic"] = ARITHMETIC
    assert document.awaited(noted) == ("convergence",)


def test_a_kept_part_comes_back_whole_and_keeps_its_picture(tmp_path: Path) -> None:
    parts = whole(tmp_path / "report")
    before = write(tmp_path / "report", parts, tmp_path / "docs")
    assert document.parts_of(tmp_path / "docs") == list(parts)
    assert write(tmp_path / "nowhere", tuple(document.parts_of(tmp_path / "docs")), tmp_path / "docs") == before
    assert document.parts_of(tmp_path) == []
    (tmp_path / "reproduction.json").write_text('{"rate": {"tables": [{"title": "of another version"}]}}')
    with pytest.raises(ValueError, match="a full report replaces it"):
        document.parts_of(tmp_path)


def test_formulas_stay_tex_whose_bars_end_no_cell() -> None:
    assert document.escaped(r"a_b $p_k\|Z\|^2 |D|$ c*d") == r"a\_b $p_k\Vert Z\Vert ^2 \vert D\vert $ c\*d"
    assert document.escaped(r"$\delta = 1e-05$ 1e-05") == r"$\delta = 1 \times 10^{-5}$ 1e-05"


def test_pictures_keep_their_colours(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "figures").mkdir()
    image.linear_gradient("L").convert("RGB").save(tmp_path / "figures" / "many.png")
    write(tmp_path, (part("rate", figures=(Figure("many", "M", "figures/many.png"),)),), tmp_path / "docs")
    with image.open(tmp_path / "docs" / "img" / "reproduction" / "rate-many.png") as shown:
        assert shown.mode == "RGB"
        assert len(shown.getcolors(1 << 16)) == 256


def test_at_most_eight_pictures_first_ones_first(tmp_path: Path) -> None:
    report, docs = tmp_path / "report", tmp_path / "docs"
    parts = whole(report)
    more = [
        Part(**{**vars(one), "figures": (*one.figures, Figure("second", "S", f"figures/{one.name}.png"))})
        for one in parts
    ]
    text = write(report, tuple(more[:5]), docs)
    copied = sorted(path.name for path in (docs / "img" / "reproduction").iterdir())
    assert len(copied) == document.MOST_FIGURES == text.count("![")
    assert [name for name in copied if name.endswith("-f.png")] == sorted(f"{one.name}-f.png" for one in more[:5])
    write(report, parts, docs)
    everything = {path.name for path in (docs / "img" / "reproduction").iterdir()}
    assert everything == {f"{name}-f.png" for name in document.TELLING[: document.MOST_FIGURES]}
    write(report, tuple(parts[:1]), docs)
    assert [path.name for path in (docs / "img" / "reproduction").iterdir()] == ["exactness-f.png"]


def test_wide_pictures_are_made_smaller(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "wide.png").write_bytes(png(2400, 600, 90))
    write(tmp_path, (part("rate", figures=(Figure("wide", "W", "figures/wide.png"),)),), tmp_path / "docs")
    with image.open(tmp_path / "docs" / "img" / "reproduction" / "rate-wide.png") as shown:
        assert shown.size == (document.WIDEST, 250)


def test_words_cannot_break_a_table_or_the_page(tmp_path: Path) -> None:
    nasty = "a | b <b>c</b> *d*\n# e `x|y` [l](http://h)"
    one = part(
        "rate", {}, title=nasty, tables=(Table("t", nasty, (nasty, "n"), ((nasty, "1"),), nasty),), notes=(nasty,)
    )
    text = write(tmp_path, (one,), tmp_path / "docs")
    rows = next(rows for _, rows in tables(text) if rows[0][1] == "n")
    assert [len(row) for row in rows] == [2, 2]
    assert not re.search(r"(?<!\\)<b>", text)
    assert not re.search(r"(?<!\\)\]\(http", text)
    assert document.escaped("one ` alone") == "one ' alone"


def test_missing_parts_and_odd_numbers(tmp_path: Path) -> None:
    assert "not tested" in write(tmp_path, (), tmp_path / "docs")
    write(tmp_path, (part("rate", {"a": math.inf, "b": [math.nan, 1]}),), tmp_path / "docs")
    kept = json.loads((tmp_path / "docs" / "reproduction.json").read_text())
    assert kept["rate"]["numbers"] == {"a": 1e308, "b": [None, 1]}
    assert "Not a full run (quick)" in write(tmp_path, (), tmp_path / "docs", {"mode": "quick"})


def test_values_of_tables_must_be_among_the_numbers() -> None:
    def one(cell: str) -> Part:
        numbers = {
            "x": 0.9324, "e": {"mean": 93.238, "low": 92.93, "high": 93.55}, "list": [[1.5e-7]], "said": "7.25",
            "m": 5.0, "m_error": 0.1, "none": {"mean": 3.0, "low": None, "high": None},
        }  # fmt: skip
        return part("rate", numbers, tables=(Table("t", "T", ("row", "v"), (("9.99", cell),)),))

    for cell in ("93.24 ± 0.31", "93.2", "0.932", "1.5e-7", "−93.24", "n = 30", "v1.2.3", "[4.80, 5.20]", "34.3"):
        assert document.unbacked((one(cell),)) == (), cell
    for cell in ("93.25", "7.25", "0.94", "1.6e-7"):
        assert len(document.unbacked((one(cell),))) == 1, cell


def test_the_kept_document_agrees_with_its_kept_numbers() -> None:
    text, numbers = DOCS / "reproduction.md", DOCS / "reproduction.json"
    if not (text.is_file() and numbers.is_file()):
        pytest.skip(
            "docs/paper/reproduction.md has not been written yet: cepam reproduce, then cepam reproduce document"
        )
    kept = json.loads(numbers.read_text())
    assert disagreements(text.read_text(encoding="utf-8"), kept) == []
    assert document.unbacked(document.parts_of(DOCS)) == ()
    for link in re.findall(r"!\[.*?\]\((img/[^)]+)\)", text.read_text(encoding="utf-8")):
        assert (DOCS / link).is_file()

"""The reproduction as a whole: parts kept and gone on with, extents kept apart, one clear line for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cepam.cli import app
from cepam_paper import reproduction
from cepam_paper.section import Part, Say, load
from cepam_paper.verdict import Label
from paper_tests.made_up import part


def fake(name: str, calls: list[str], fail: bool = False) -> reproduction.Experiment:
    def run(report: Path, quick: bool, say: Say) -> Part:
        calls.append(name)
        say("half", 1, 2)
        if fail:
            raise KeyboardInterrupt
        return Part(name, name, "", f"cepam reproduce {name}", (1,), 0.0, {"seen": 1})

    return run


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    monkeypatch.setattr(reproduction, "PARTS", {name: fake(name, seen) for name in ("exactness", "privacy")})
    return seen


def silent(name: str, doing: str, done: int, of: int) -> None:
    pass


def test_finished_parts_are_not_done_again(calls: list[str], tmp_path: Path) -> None:
    reproduction.reproduce(["exactness"], tmp_path, False, silent)
    reproduction.reproduce(["exactness", "privacy"], tmp_path, False, silent)
    assert calls == ["exactness", "privacy"]


def test_an_interrupted_part_leaves_nothing_half_done(
    calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(reproduction.PARTS, "privacy", fake("privacy", calls, fail=True))
    with pytest.raises(KeyboardInterrupt):
        reproduction.reproduce(["exactness", "privacy"], tmp_path, False, silent)
    assert load(tmp_path, "exactness") is not None
    assert load(tmp_path, "privacy") is None


def test_quick_and_full_figures_never_mix(calls: list[str], tmp_path: Path) -> None:
    reproduction.reproduce(["exactness"], tmp_path, True, silent)
    with pytest.raises(ValueError, match="quick reproduction"):
        reproduction.reproduce(["privacy"], tmp_path, False, silent)
    kept = load(tmp_path, "exactness")
    assert kept is not None
    assert kept.quick
    assert reproduction.about([kept])["mode"] == "quick"


def test_seconds_add_up_over_interruptions(tmp_path: Path) -> None:
    path = tmp_path / "parts" / "x.seconds"
    path.parent.mkdir()
    path.write_text("100.0")
    assert reproduction._Clock(path, lambda *told: None).total() >= 100.0


def test_the_command_writes_the_page_and_the_document(calls: list[str], tmp_path: Path) -> None:
    report, docs = tmp_path / "report", tmp_path / "docs"
    docs.mkdir()
    done = CliRunner().invoke(app, ["reproduce", "all", "document", "--out", str(report), "--docs", str(docs)])
    assert done.exit_code == 0, done.output
    assert (report / "index.html").read_text().lower().startswith("<!doctype html>")
    assert json.loads((docs / "reproduction.json").read_text())["privacy"]["numbers"] == {"seen": 1}
    lines = json.loads((report / "verdicts.json").read_text())
    assert {line["verdict"] for line in lines} <= {label.value for label in Label}
    assert all(line["program"] is None or line["program"] in {label.value for label in Label} for line in lines)


def test_help_lists_every_part_and_what_it_is() -> None:
    shown = CliRunner().invoke(app, ["reproduce", "--help"], env={"COLUMNS": "160", "TERM": "dumb"}).output
    assert set(reproduction.TOLD) == set(reproduction.PARTS)
    for name, told in reproduction.TOLD.items():
        assert name in shown
        assert told in " ".join(shown.replace("│", " ").split())


def test_rows_that_were_not_run_are_not_shown(
    calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = part("privacy")
    monkeypatch.setitem(reproduction.PARTS, "privacy", lambda report, quick, say: made)
    done = CliRunner().invoke(app, ["reproduce", "privacy", "--out", str(tmp_path)], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert "theorem-1" in done.output
    assert "gaussian-table" not in done.output
    assert "not tested" not in done.output
    assert "parts not done yet: exactness" in done.output


def test_json_is_all_that_is_printed(calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = part("privacy")
    monkeypatch.setitem(reproduction.PARTS, "privacy", lambda report, quick, say: made)
    done = CliRunner().invoke(app, ["reproduce", "privacy", "--json", "--out", str(tmp_path)])
    found = json.loads(done.stdout)
    assert found["parts"] == ["privacy"]
    assert {one["claim"] for one in found["verdicts"]} >= {"theorem-1", "quoted-run"}
    assert sum(found["tally"].values()) == len(found["verdicts"])
    assert Path(found["page"]).is_file()


def test_a_document_keeps_the_parts_that_a_full_report_does_not_have(calls: list[str], tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    reproduction.reproduce(["exactness", "privacy"], tmp_path / "first", False, silent)
    reproduction.write_document(tmp_path / "first", docs)
    reproduction.reproduce(["privacy"], tmp_path / "second", False, silent)
    reproduction.write_document(tmp_path / "second", docs)
    assert set(json.loads((docs / "reproduction.json").read_text())) == {"exactness", "privacy"}
    reproduction.write_document(tmp_path / "none", docs)
    reproduction.reproduce(["privacy"], tmp_path / "quick", True, silent)
    reproduction.write_document(tmp_path / "quick", docs)
    assert set(json.loads((docs / "reproduction.json").read_text())) == {"privacy"}, "quick and full never mix"


@pytest.mark.parametrize("words", [["nonsense"], ["page"]])
def test_bad_calls_give_one_line(words: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["reproduce", *words, "--out", str(tmp_path / "none")])
    assert done.exit_code == 2
    assert "Traceback" not in done.output

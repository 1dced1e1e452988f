"""The reproduction as a whole: parts kept and gone on with, extents kept apart, one clear line for what is wrong."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import date
from functools import partial
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cepam.cli import app
from cepam_paper import claims, reproduction
from cepam_paper.run_size import Extent, run_size
from cepam_paper.section import Part, Say, load
from cepam_paper.verdict import Label
from cepam_paper.versions import mark_of
from paper_tests.made_up import NUMBERS, part


def fake(name: str, calls: list[str], fail: bool = False) -> reproduction.Experiment:
    def run(report: Path, extent: Extent, say: Say) -> Part:
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
    reproduction.reproduce(["exactness"], tmp_path, Extent.FULL, silent)
    reproduction.reproduce(["exactness", "privacy"], tmp_path, Extent.FULL, silent)
    assert calls == ["exactness", "privacy"]


def test_an_interrupted_part_leaves_nothing_half_done(
    calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(reproduction.PARTS, "privacy", fake("privacy", calls, fail=True))
    with pytest.raises(KeyboardInterrupt):
        reproduction.reproduce(["exactness", "privacy"], tmp_path, Extent.FULL, silent)
    assert load(tmp_path, "exactness") is not None
    assert load(tmp_path, "privacy") is None


def test_quick_and_full_figures_never_mix(calls: list[str], tmp_path: Path) -> None:
    reproduction.reproduce(["exactness"], tmp_path, Extent.QUICK, silent)
    with pytest.raises(ValueError, match="quick reproduction"):
        reproduction.reproduce(["privacy"], tmp_path, Extent.FULL, silent)
    kept = load(tmp_path, "exactness")
    assert kept is not None
    assert kept.extent is Extent.QUICK
    assert reproduction.about([kept])["mode"] == "quick"


def test_parts_say_themselves_when_and_by_what_they_were_made(calls: list[str], tmp_path: Path) -> None:
    reproduction.reproduce(["exactness", "privacy"], tmp_path, Extent.FULL, silent)
    parts = [part for part in (load(tmp_path, name) for name in ("exactness", "privacy")) if part is not None]
    assert [part.measured for part in parts] == [mark_of("exactness"), mark_of("privacy")]
    told = reproduction.about(parts)
    assert told["date"] == date.today().isoformat()
    assert told["cepam"] == metadata.version("cepam")
    older = replace(parts[1], made_by=parts[1].made_by | {"cepam": "0.0.1"})
    assert reproduction.about([parts[0], older])["cepam"] == f"{told['cepam']} (exactness); 0.0.1 (privacy)"
    unknown = replace(parts[1], made_by={})
    assert "not recorded (privacy)" in reproduction.about([parts[0], unknown])["date"]


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
    monkeypatch.setitem(reproduction.PARTS, "privacy", lambda report, extent, say: made)
    done = CliRunner().invoke(app, ["reproduce", "privacy", "--out", str(tmp_path)], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert "theorem-7" in done.output
    assert "gaussian-table" not in done.output
    assert "parts not done yet: exactness" in done.output
    assert "quick" not in done.output
    assert _adds_up(done.output)


def _adds_up(shown: str) -> bool:
    """Whether the line of totals counts every claim, "not tested" among them."""
    line = next(line for line in shown.splitlines() if " claims" in line and "not tested" in line)
    total, *counts = map(int, re.findall(r"\d+", line))
    return total == sum(counts) == len(claims.CLAIMS)


def test_a_quick_run_says_so_and_gives_no_verdict_on_accuracy(
    calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NUMBERS:
        monkeypatch.setitem(reproduction.PARTS, name, lambda report, extent, say, name=name: part(name))
    done = CliRunner().invoke(app, ["reproduce", "all", "--quick", "--out", str(tmp_path)], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert "quick: none on accuracy" in done.output
    assert _adds_up(done.output)
    lines = json.loads((tmp_path / "verdicts.json").read_text())
    silent = {line["claim"] for line in lines if line["verdict"] == Label.UNTESTED.value}
    assert silent == {claim.name for claim in claims.CLAIMS if claim.needs_seeds}
    named = re.findall(r"[\w-]+", done.output.partition("Not tested:")[2])
    assert silent <= set(named)
    assert silent >= {
        "gaussian-profile",
        "laplace-table",
        "gaussian-snr",
        "drop",
        "pipeline",
        "fluctuations",
        "settings",
    }
    assert not silent & {"clip", "parameters", "theorem-7", "convergence", "gaussian-budgets", "joint"}
    assert all("no verdict on accuracy" in line["evidence"].lower() for line in lines if line["claim"] in silent)
    assert "Not a full run (quick)" in (tmp_path / "index.html").read_text()


def test_the_papers_experiment_is_one_command_with_one_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, Extent]] = []

    def fake_part(report: Path, extent: Extent, say: Say, name: str) -> Part:
        seen.append((name, extent))
        return part(name)

    for name in reproduction.PARTS:
        monkeypatch.setitem(reproduction.PARTS, name, partial(fake_part, name=name))
    done = CliRunner().invoke(app, ["reproduce", "experiment", "--out", str(tmp_path)], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert seen == [(name, Extent.ONE_SEED) for name in ("gaussian", "laplace", "grid")]
    assert "one seed: none on accuracy" in done.output
    assert run_size(Extent.ONE_SEED).seeds == run_size(Extent.ONE_SEED).grid_seeds == 1
    assert run_size(Extent.ONE_SEED).rounds == run_size(Extent.FULL).rounds
    for words in (["experiment", "--quick"], ["experiment", "rate"]):
        refused = CliRunner().invoke(app, ["reproduce", *words, "--out", str(tmp_path / "other")])
        assert refused.exit_code == 2
        assert "stands alone" in refused.output


def test_json_is_all_that_is_printed(calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = part("privacy")
    monkeypatch.setitem(reproduction.PARTS, "privacy", lambda report, extent, say: made)
    done = CliRunner().invoke(app, ["reproduce", "privacy", "--json", "--out", str(tmp_path)])
    found = json.loads(done.stdout)
    assert found["parts"] == ["privacy"]
    assert {one["claim"] for one in found["verdicts"]} >= {"theorem-7", "quoted-run"}
    assert sum(found["tally"].values()) == found["claims"] == len(claims.CLAIMS)
    assert found["claims"] - found["tally"]["not tested"] == len(found["verdicts"])
    assert found["mode"] == "full"
    assert Path(found["page"]).is_file()


def test_a_document_keeps_the_parts_that_a_full_report_does_not_have(calls: list[str], tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    reproduction.reproduce(["exactness", "privacy"], tmp_path / "first", Extent.FULL, silent)
    reproduction.write_document(tmp_path / "first", docs)
    reproduction.reproduce(["privacy"], tmp_path / "second", Extent.FULL, silent)
    reproduction.write_document(tmp_path / "second", docs)
    assert set(json.loads((docs / "reproduction.json").read_text())) == {"exactness", "privacy"}
    reproduction.write_document(tmp_path / "none", docs)
    reproduction.reproduce(["privacy"], tmp_path / "quick", Extent.QUICK, silent)
    reproduction.write_document(tmp_path / "quick", docs)
    assert set(json.loads((docs / "reproduction.json").read_text())) == {"privacy"}, "quick and full never mix"


@pytest.mark.parametrize("words", [["nonsense"], ["page"]])
def test_bad_calls_give_one_line(words: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["reproduce", *words, "--out", str(tmp_path / "none")])
    assert done.exit_code == 2
    assert "Traceback" not in done.output

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cepam_paper import claims
from cepam_paper.section import Part
from cepam_paper.verdict import Label
from paper_tests.changes import Change, both, put, put_all, verdict, whole
from paper_tests.made_up import NUMBERS, near, part

ROOT = Path(__file__).resolve().parents[3]
HOLDS, REPAIRED, INCONCLUSIVE, FAILS, PROGRAM, UNTESTED = Label
PROVED = {"theta", "source"}
NOT_REDONE: set[str] = set()


def test_every_claim_has_its_own_name_a_part_and_a_command() -> None:
    names = [claim.name for claim in claims.CLAIMS]
    assert len(set(names)) == len(names) > 50
    for claim in claims.CLAIMS:
        assert claim.part in NUMBERS
        assert claim.where
        assert claim.quote
        assert f"cepam reproduce {claim.part}" in claim.command


def test_the_expected_findings_are_judged_without_a_gap() -> None:
    found = claims.verdicts(whole())
    assert {one.claim.name for one in found if one.label is UNTESTED} == NOT_REDONE
    assert claims.tally(found)[FAILS] + claims.tally(found)[PROGRAM] > 12
    assert all(re.search(r"\d", one.evidence) for one in found if one.claim.name not in PROVED | NOT_REDONE)


def test_nothing_computed_is_nothing_tested() -> None:
    found = claims.verdicts([])
    assert {one.claim.name for one in found if one.label is not UNTESTED} == PROVED
    assert all("has not been computed" in one.evidence for one in found if one.claim.name not in PROVED | NOT_REDONE)


@pytest.mark.parametrize("name", list(NUMBERS))
def test_a_missing_part_or_an_empty_one_never_raises(name: str) -> None:
    without = claims.verdicts([one for one in whole() if one.name != name])
    empty = claims.verdicts([one if one.name != name else part(name, {}) for one in whole()])
    mangled = claims.verdicts([one if one.name != name else _mangled(one) for one in whole()])
    for found in (without, empty, mangled):
        # The part `gain` explains verdicts and decides none.
        assert sum(one.label is UNTESTED for one in found) > len(NOT_REDONE) or name == "gain"
        assert all(one.evidence.endswith(".") for one in found)


def test_no_single_missing_number_raises_or_turns_a_verdict() -> None:
    before = {one.claim.name: one.label for one in claims.verdicts(whole())}
    for name in NUMBERS:
        for path in _paths(NUMBERS[name]):
            parts = whole(_without(path), name)
            for one in claims.verdicts(parts):
                kept = before[one.claim.name]
                # Without the program's numbers, what only the program shows is what the scheme does not.
                allowed = (kept, UNTESTED, FAILS) if kept is PROGRAM and one.program is None else (kept, UNTESTED)
                assert one.label in allowed, (name, path, one.claim.name)


def _paths(numbers: dict[str, Any], above: str = "") -> list[str]:
    found = []
    for key, value in numbers.items():
        found.append(above + key)
        if isinstance(value, dict):
            found += _paths(value, f"{above}{key}/")
    return found


def _without(path: str) -> Change:
    def change(numbers: dict[str, Any]) -> None:
        *steps, last = path.split("/")
        for step in steps:
            numbers = numbers[step]
        del numbers[last]

    return change


def _mangled(one: Part) -> Part:
    """The part with every number replaced by words, NaN or nothing."""

    def spoil(value: Any, depth: int = 0) -> Any:
        if isinstance(value, dict):
            return {key: spoil(inner, depth + i) for i, (key, inner) in enumerate(value.items())}
        return ("words", float("nan"), None, [1, "x"])[depth % 4]

    return part(one.name, spoil(one.numbers))


def test_one_seed_is_inconclusive_and_says_so() -> None:
    parts = whole()
    alone = {"mean": 0.2, "low": None, "high": None, "seeds": 1}
    numbers = {one.name: one.numbers for one in parts}
    put_all("difference/correct", dict(alone))(numbers["gaussian"])
    numbers["grid"]["laplace"]["drop"] = dict(alone)
    numbers["tradeoff"]["difference_all"] = dict(alone)
    for name in ("gaussian-improvement", "dimensions", "drop"):
        assert verdict(name, parts).label is INCONCLUSIVE
    assert "one seed, no interval" in verdict("drop", parts).evidence
    assert verdict("pipeline", parts).label is INCONCLUSIVE, "fewer bits are not the accuracy that the claim is about"
    numbers["grid"]["laplace"]["drop"]["seeds"] = 4
    assert verdict("drop", parts).label is UNTESTED, "an interval that is missing for another reason is a gap"


def test_the_budgets_of_one_seed_settle_nothing() -> None:
    parts = whole(both(put("seeds", 1), put("difference_all", near(0.5))), "tradeoff")
    assert verdict("pipeline", parts).label is INCONCLUSIVE
    assert "one seed" in verdict("pipeline", parts).evidence
    assert verdict("pipeline", whole(put("difference_all", near(0.5)), "tradeoff")).label is HOLDS


def test_both_improve_needs_both_laws() -> None:
    parts = whole(put_all("difference/correct", near(0.9)), "gaussian")
    assert verdict("both-improve", parts).label is PROGRAM
    put_all("difference/correct", near(0.9))(next(one for one in parts if one.name == "laplace").numbers)
    assert verdict("both-improve", parts).label is HOLDS
    assert verdict("distortion", parts).label is HOLDS


def test_where_the_gain_does_not_explain_it_the_evidence_says_so() -> None:
    assert "prediction misses" not in verdict("distortion", whole()).evidence
    parts = whole(put("difference/published_over_rate/cepam-laplace", near(-0.76)), "gain")
    assert "prediction misses by -0.76 ± 0.20 for CEPAM-Laplace" in verdict("distortion", parts).evidence


def test_both_readings_of_a_budget_are_given() -> None:
    found = verdict("gaussian-budgets", whole()).evidence
    assert "10 of 10 labels are kept; over the run of 80 rounds 0 are" in found
    assert "0 of 10 labels are kept" in verdict("laplace-budgets", whole()).evidence


def test_the_evidence_points_to_files_that_exist() -> None:
    pointed = {
        path
        for one in claims.verdicts(whole())
        for path in re.findall(r"(?:docs|tests)/[\w/-]+\.(?:md|py)", one.evidence)
    }
    assert pointed >= {
        "docs/proofs/mechanisms-and-sampling.md",
        "docs/proofs/finite-precision.md",
        "docs/paper/theory.md",
    }
    assert not {path for path in pointed if not (ROOT / path).is_file()}


def test_claims_of_no_chapter_come_last() -> None:
    from dataclasses import replace

    found = claims.verdicts(whole())
    odd = replace(found[0], claim=replace(found[0].claim, name="odd"))
    chapters = claims.by_chapter((odd, *found))
    assert [title for title, _ in chapters][-1] == "Others"
    assert sum(len(group) for _, group in chapters) == len(found) + 1


def test_true_budgets_may_repair_what_the_labels_do_not_show() -> None:
    def rising(numbers: dict[str, Any]) -> None:
        for budget, value in zip(("0.5", "1", "2", "4", "8"), (91.7, 95.9, 97.2, 97.8, 98.0), strict=True):
            numbers["accuracy"]["cepam-gaussian"][budget] = near(value)

    parts = whole(rising, "tradeoff")
    for name, path in (("rising", "rise"), ("gaussian-knee", "rise_before")):
        numbers = next(one for one in parts if one.name == "grid").numbers
        numbers["gaussian"][path] = near(0.0)
        assert verdict(name, parts).label is REPAIRED
        without = verdict(name, [one for one in parts if one.name != "tradeoff"]).label
        assert without is INCONCLUSIVE

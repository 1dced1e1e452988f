from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cepam_paper import claims
from cepam_paper.section import Part
from cepam_paper.verdict import Label, Verdict
from paper_tests.made_up import NUMBERS, near, part

ROOT = Path(__file__).resolve().parents[3]
HOLDS, REPAIRED, FAILS, UNTESTED = Label
PROVED = {"theta"}
NOT_REDONE: set[str] = set()


def whole(change: Callable[[dict[str, Any]], None] | None = None, of: str = "") -> list[Part]:
    parts = [part(name) for name in NUMBERS]
    if change is not None:
        change(next(one for one in parts if one.name == of).numbers)
    return parts


def verdict(name: str, parts: list[Part]) -> Verdict:
    return next(one for one in claims.verdicts(parts) if one.claim.name == name)


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
    assert claims.tally(found)[FAILS] > 15
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
                assert one.label in (before[one.claim.name], UNTESTED), (name, path, one.claim.name)


def _paths(numbers: dict[str, Any], above: str = "") -> list[str]:
    found = []
    for key, value in numbers.items():
        found.append(above + key)
        if isinstance(value, dict):
            found += _paths(value, f"{above}{key}/")
    return found


def _without(path: str) -> Callable[[dict[str, Any]], None]:
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


def _set(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(numbers: dict[str, Any]) -> None:
        *steps, last = path.split("/")
        for step in steps:
            numbers = numbers[step]
        numbers[last] = value

    return change


def _all_of(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Replaces every leaf two names below a path."""

    def change(numbers: dict[str, Any]) -> None:
        for step in path.split("/"):
            numbers = numbers[step]
        for row in numbers.values():
            for key in row:
                row[key] = value

    return change


def _all_cases(key: str, value: float) -> Callable[[dict[str, Any]], None]:
    def change(numbers: dict[str, Any]) -> None:
        for case in numbers["cases"].values():
            case[key] = value

    return change


def _passed(path: str) -> Callable[[dict[str, Any]], None]:
    def change(numbers: dict[str, Any]) -> None:
        for one in numbers[path].values():
            one["passed"] = True

    return change


FLIPS = [
    ("error-law", "exactness", _set("ours/gaussian-2/passed", False), HOLDS, FAILS),
    ("scalar-case", "exactness", _set("ours/gaussian-1/passed", False), HOLDS, FAILS),
    ("independent-errors", "exactness", _set("ours/gaussian-E8/passed", False), HOLDS, FAILS),
    ("shared-randomness", "exactness", _set("ours/laplace-1/passed", False), REPAIRED, FAILS),
    ("shared-randomness", "exactness", _passed("published"), REPAIRED, HOLDS),
    ("source", "exactness", _passed("published"), FAILS, HOLDS),
    ("clip", "privacy", _set("clip/published_largest", 1.0), REPAIRED, HOLDS),
    ("clip", "privacy", _set("clip/text_largest", 1.1), REPAIRED, FAILS),
    ("joint", "tradeoff", _set("bits/cepam-gaussian/2", 33.0), REPAIRED, FAILS),
    ("joint", "privacy", _set("quoted/epsilon_run", 1.4), REPAIRED, HOLDS),
    ("pipeline", "tradeoff", _set("difference_all", near(0.5)), FAILS, HOLDS),
    ("tunable", "rate", _set("by_sigma", [[0.01, 0.5], [0.1, 0.6]]), HOLDS, FAILS),
    ("theorem-1", "privacy", _set("theorem_1/printed_delta", 9e-3), REPAIRED, HOLDS),
    ("theorem-1", "privacy", _set("theorem_1/true_delta", 9.1e-3), REPAIRED, FAILS),
    ("theorem-2", "privacy", _set("theorem_2/true_epsilon", 2000.0), REPAIRED, HOLDS),
    ("theorem-2", "privacy", _set("theorem_2/true_epsilon_l1", 3000.0), REPAIRED, FAILS),
    ("cost", "rate", _all_of("formula", 9.0), REPAIRED, HOLDS),
    ("cost", "rate", _set("paper_code/2", 7.5), REPAIRED, FAILS),
    ("moment", "convergence", _set("moment_worst_z", -7.0), REPAIRED, FAILS),
    ("moment", "convergence", _set("moments", {"gaussian on Z1": {"printed": 0.5, "expected": 0.5}}), REPAIRED, HOLDS),
    ("weight-distance", "convergence", _set("weight_distance_printed_violated", False), REPAIRED, HOLDS),
    ("weight-distance", "convergence", _set("weight_distance_repaired_held", False), REPAIRED, FAILS),
    ("psi", "convergence", _set("cases/least squares, K 10/Gamma", -0.1), REPAIRED, FAILS),
    ("psi", "convergence", _all_cases("psi_printed", 0.1), REPAIRED, HOLDS),
    ("convergence", "convergence", _set("repaired_bound_held_everywhere", False), REPAIRED, FAILS),
    ("convergence", "convergence", _set("clipping_counterexample_printed", 9.0), REPAIRED, HOLDS),
    ("convergence", "convergence", _set("clipping_counterexample_T", None), REPAIRED, HOLDS),
    ("unbiased", "convergence", _set("clipping_counterexample_T", None), REPAIRED, HOLDS),
    ("unbiased", "convergence", _set("clipping_counterexample_gap", "?"), REPAIRED, UNTESTED),
    ("between-rounds", "variations", _set("between_rounds_increase", near(0.0)), FAILS, HOLDS),
    ("fluctuations", "variations", _set("change/falling", near(0.0)), HOLDS, FAILS),
    ("precision", "variations", _set("precision/tenth", 2e-3), HOLDS, FAILS),
    ("coincides", "variations", _set("difference_rise_before", near(-3.0)), HOLDS, FAILS),
    ("confirmed", "convergence", _set("repaired_bound_held_everywhere", False), REPAIRED, FAILS),
    ("parameters", "gaussian", _set("parameters", 6423), HOLDS, FAILS),
    ("split", "privacy", _set("quoted/fitting_delta", 8e-3), REPAIRED, HOLDS),
    ("settings", "gaussian", _set("accuracy/text/fl", near(93.0)), FAILS, HOLDS),
    ("gaussian-profile", "gaussian", _all_of("difference/correct", near(0.6)), FAILS, HOLDS),
    ("gaussian-improvement", "gaussian", _all_of("difference/correct", near(0.6)), FAILS, HOLDS),
    ("gaussian-improvement", "gaussian", _all_of("difference/correct", near(3.0)), FAILS, FAILS),
    ("laplace-improvement", "laplace", _all_of("difference/correct", near(0.9)), FAILS, HOLDS),
    ("gaussian-table", "gaussian", _all_of("paper", 92.0), FAILS, HOLDS),
    ("gaussian-snr", "gaussian", _all_of("snr_db", 8.0), FAILS, HOLDS),
    ("laplace-snr", "laplace", _all_of("snr_20log_db", 8.0), FAILS, REPAIRED),
    ("dimensions", "gaussian", _all_of("difference/correct", near(0.8)), HOLDS, FAILS),
    ("variance", "exactness", _set("ours/gaussian-3/passed", False), REPAIRED, FAILS),
    ("vector-rate", "rate", _set("paper_code/1", 9.0), FAILS, HOLDS),
    ("vector-rate", "rate", _set("adaptive/E8", 0.5), FAILS, REPAIRED),
    ("quoted-round", "privacy", _set("quoted/delta_one_round", 0.1), HOLDS, FAILS),
    ("quoted-run", "privacy", _set("quoted/epsilon_run_quoted_delta", 1.4), FAILS, HOLDS),
    ("quoted-laplace", "privacy", _set("theorem_2/true_epsilon", 2000.0), FAILS, HOLDS),
    ("relaxed-laplace", "privacy", _set("relaxed/epsilon", 40.0), HOLDS, FAILS),
    ("sigmas", "grid", _set("gaussian/error_right_order", 1e-5), FAILS, HOLDS),
    ("scales", "grid", _set("laplace/error_fitting", 0.1), REPAIRED, FAILS),
    ("scales", "grid", _set("laplace/error_printed", 1e-5), REPAIRED, HOLDS),
    ("gaussian-budgets", "grid", _set("gaussian/real_epsilon", {"0.5": 0.4, "1": 0.9}), FAILS, HOLDS),
    ("gaussian-grid", "grid", _set("gaussian/difference", near(0.5)), FAILS, HOLDS),
    ("laplace-grid", "grid", _set("laplace/difference", near(0.5)), FAILS, HOLDS),
    ("rising", "grid", _set("gaussian/rise", near(0.1)), HOLDS, FAILS),
    ("gaussian-knee", "grid", _set("gaussian/rise_after", near(1.8)), REPAIRED, FAILS),
    ("laplace-knee", "grid", _set("laplace/real_epsilon/1500", 1400.0), REPAIRED, HOLDS),
    ("drop", "grid", _set("laplace/drop", near(0.5)), FAILS, HOLDS),
]


@pytest.mark.parametrize(("name", "of", "change", "before", "after"), FLIPS, ids=[f"{f[0]}-{f[4]}" for f in FLIPS])
def test_a_verdict_follows_the_numbers(
    name: str, of: str, change: Callable[[dict[str, Any]], None], before: Label, after: Label
) -> None:
    assert verdict(name, whole()).label is before
    assert verdict(name, whole(change, of)).label is after


def test_one_seed_without_an_interval_says_what_it_can() -> None:
    parts = whole()
    numbers = next(one for one in parts if one.name == "tradeoff").numbers
    numbers["rise"] = {"mean": 3.0, "low": None, "high": None, "seeds": 1}
    for estimates in (*numbers["accuracy"].values(), numbers["difference"]):
        for key in estimates:
            estimates[key] = {"mean": 0.2, "low": None, "high": None, "seeds": 1}
    assert verdict("joint", parts).label is REPAIRED
    assert verdict("pipeline", parts).label is FAILS
    assert "it is 0.20" in verdict("rising", parts).evidence
    numbers["difference_all"]["low"] = None
    assert verdict("pipeline", parts).label is UNTESTED


def test_both_improve_needs_both_laws() -> None:
    parts = whole(_all_of("difference/correct", near(0.9)), "gaussian")
    assert verdict("both-improve", parts).label is FAILS
    _all_of("difference/correct", near(0.9))(next(one for one in parts if one.name == "laplace").numbers)
    assert verdict("both-improve", parts).label is HOLDS
    assert verdict("distortion", parts).label is HOLDS


def test_every_claim_that_numbers_decide_has_a_flip() -> None:
    decided = {claim.name for claim in claims.CLAIMS} - PROVED - NOT_REDONE
    covered = {flip[0] for flip in FLIPS} | {"both-improve", "distortion"}
    # These share a rule with one that is covered.
    shared = {"any-law", "noisy-estimate", "gaussian-noise", "laplace-noise", "laplace-profile", "laplace-table"}
    assert decided - covered <= shared | {"laplace-budgets"}


def test_the_evidence_points_to_files_that_exist() -> None:
    pointed = {
        path
        for one in claims.verdicts(whole())
        for path in re.findall(r"(?:docs|tests)/[\w/]+\.(?:md|py)", one.evidence)
    }
    assert pointed >= {"docs/privacy.md", "docs/exactness.md", "docs/theory.md"}
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
        assert verdict(name, [one for one in parts if one.name != "tradeoff"]).label is FAILS

"""Made-up findings, whole or with some numbers changed, and the verdict on one claim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cepam_paper import claims
from cepam_paper.section import Part
from cepam_paper.verdict import Verdict
from paper_tests.made_up import NUMBERS, part

Change = Callable[[dict[str, Any]], None]


def whole(change: Change | None = None, of: str = "") -> list[Part]:
    parts = [part(name) for name in NUMBERS]
    if change is not None:
        change(next(one for one in parts if one.name == of).numbers)
    return parts


def verdict(name: str, parts: list[Part]) -> Verdict:
    return next(one for one in claims.verdicts(parts) if one.claim.name == name)


def put(path: str, value: Any) -> Change:
    def change(numbers: dict[str, Any]) -> None:
        *steps, last = path.split("/")
        for step in steps:
            numbers = numbers[step]
        numbers[last] = value

    return change


def put_all(path: str, value: Any) -> Change:
    """Replaces every leaf two names below a path."""

    def change(numbers: dict[str, Any]) -> None:
        for step in path.split("/"):
            numbers = numbers[step]
        for row in numbers.values():
            for key in row:
                row[key] = value

    return change


def pass_all(path: str) -> Change:
    def change(numbers: dict[str, Any]) -> None:
        for one in numbers[path].values():
            one["passed"] = True

    return change


def both(*changes: Change) -> Change:
    def change(numbers: dict[str, Any]) -> None:
        for one in changes:
            one(numbers)

    return change


def put_rows(path: str, value: Any) -> Change:
    """Replaces every leaf one name below a path."""

    def change(numbers: dict[str, Any]) -> None:
        for step in path.split("/"):
            numbers = numbers[step]
        for key in numbers:
            numbers[key] = value

    return change

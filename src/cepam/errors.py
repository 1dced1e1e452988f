"""The exception tree: what can go wrong between an update and a vector.

Arguments that make no sense raise `ValueError` (or `TypeError`) at once. The errors here are about messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class CepamError(Exception):
    """Anything that this package raises about messages and addresses."""


class MalformedMessage(CepamError):
    """The bytes are not a message of this package: truncated, damaged, over-long, or of another version."""


class WrongSize(MalformedMessage):
    """The message is of another size than its receiver expects."""


class WrongAddress(CepamError):
    """The message does not open here: another key, round, client or description, or an address used before."""


class SealBroken(MalformedMessage, WrongAddress):
    """The seal does not verify: damaged bytes and a wrong key or address look alike, so this is both."""


class WrongVersion(CepamError):
    """The broadcast does not lead on from the version that this receiver holds: ask for `message_from(version)`."""


class CheckFailed(MalformedMessage, WrongVersion):
    """The result does not match the broadcast's mark: damaged bytes or diverged weights, so this is both.

    The receiver still holds what it held; the way out is a snapshot, `message_from(None)`.
    """


class BudgetSpent(CepamError):
    """The privacy budget leaves nothing to train with, and there is no published model to give back."""


class NoUsableReplies(CepamError):
    """No reply of a run could be used, so nothing was trained and there is no model to return.

    Attributes:
        reasons: How often each reason occurred.
        metrics: The metrics of each round so far.
    """

    def __init__(self, text: str, reasons: Mapping[str, int], metrics: Mapping[int, Any]) -> None:
        super().__init__(text)
        self.reasons = reasons
        self.metrics = metrics


LONGEST_TEXT = 300


def one_line(text: str) -> str:
    """Text that another party may have chosen, fit for a log: one line of at most 300 printable characters."""
    return "".join(c if c.isprintable() else "?" for c in text[:LONGEST_TEXT])

"""What each part measures, as a mark that changes with it: a kept part with another mark awaits a new run."""

from __future__ import annotations

from functools import cache

import numpy as np

from cepam.codec.codec import Codec
from cepam.distributions.laws import Gaussian
from cepam.keys import Address, Key
from cepam_paper.published import ARITHMETIC
from cepam_paper.section import Part

PORTED = ("exactness", "gaussian", "laplace", "gain", "grid")
"""Parts that show figures of the published program."""
CASES = {"privacy": 1, "rate": 1, "convergence": 2, "variations": 1}
"""Parts of fixed coders; a number is raised when its part measures other cases or computes a figure otherwise."""
FIRST_CODER = "default coder 78 bytes"
"""The mark of the trade-off in runs that recorded what they were made by, but no marks yet."""


@cache
def _default_coder() -> str:
    """The size of a fixed message of the default coder, whose bits the trade-off shows."""
    update = 0.25 * np.random.default_rng(0).normal(size=4096)
    message = Codec(Gaussian(1.0)).encode(update, Address(Key.simulated(0), round=0, client=0))
    return f"default coder {len(message)} bytes"


def mark_of(name: str) -> str:
    """What the part of this name measures now."""
    if name in PORTED:
        return f"port {ARITHMETIC}"
    return _default_coder() if name == "tradeoff" else f"cases {CASES[name]}"


def measured_by(part: Part) -> str:
    """What a kept part measured; one that has no mark is judged by what it did record."""
    if part.measured:
        return part.measured
    if part.name in PORTED:
        return f"port {part.numbers.get('arithmetic')}"
    if part.name == "tradeoff":
        return FIRST_CODER if part.made_by else "an earlier coder"
    return "cases 1"


def why_awaited(name: str) -> str:
    """What is out of date in a part whose mark is not the present one, as a clause."""
    if name in PORTED:
        return 'figures "as published" are of an earlier port of the published program'
    return "bits are of an earlier default coder" if name == "tradeoff" else "figures are of an earlier set of cases"

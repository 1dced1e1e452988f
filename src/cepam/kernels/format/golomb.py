"""The Golomb code of the paper: which run length suits a chance of acceptance."""

from __future__ import annotations

import math


def golomb_parameter(acceptance: float) -> int:
    """The run length l of the best Golomb code for a geometric law (Gallager, Van Voorhis 1975); 0: H is always 1."""
    if acceptance > 1 - 1e-9:
        return 0
    refusal = 1.0 - acceptance
    return max(1, math.ceil(-math.log1p(refusal) / math.log(refusal)))

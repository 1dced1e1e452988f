"""A server's settings text may not hang a client: what it says of a lattice is checked before any work on it.

Each text runs in a process of its own that is ended after a minute, so that a text that hangs fails and does not stop
the suite.
"""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from cepam import E8, L2, Gaussian, Lattice
from cepam.protocol.settings import UplinkSettings

PLAIN = {"law": ["gaussian", 1.0], "clip": ["l2", 1.0], "coder": "layered", "padding": None, "update": "parameters"}


def square(n: int, diagonal: int = 1) -> list[list[int]]:
    return [[diagonal * (i == j) for j in range(n)] for i in range(n)]


HANGING = {
    "singular": [[1, 1], [1, 1]],
    "zero": [[0, 0], [0, 0]],
    "singular in eight": [[1] * 8] * 8,
    "ten dimensions": square(10),
    "nine dimensions": square(9),
    "oblong": [[1, 0], [0, 2**24]],
    "oblong in eight": [*square(8)[:7], [0] * 7 + [2**24]],
    "not reduced": [[1, 2**23], [0, 1]],
}
SCRIPT = """
import sys
from cepam.protocol.settings import UplinkSettings
try:
    UplinkSettings.from_json(sys.stdin.read())
except ValueError:
    print("refused")
"""


@pytest.mark.parametrize("basis", HANGING.values(), ids=HANGING)
def test_a_basis_that_would_hang_is_refused(basis: list[list[int]]) -> None:
    text = json.dumps({**PLAIN, "lattice": basis})
    done = subprocess.run([sys.executable, "-c", SCRIPT], input=text, text=True, capture_output=True, timeout=60)
    assert done.stdout.strip() == "refused", done.stderr[-300:]


@pytest.mark.parametrize(
    "basis",
    [
        [], {}, 3, None, [[1, 0]], [[1, 0], [0]], [[1.5, 0], [0, 1]], [[True, False], [False, True]],
        [["1", "0"], "01"],
        [[10**30, 0], [0, 1]], [[2**62, 0], [0, 1]], [[[1], 0], [0, 1]], [[None, 0], [0, 1]], square(8, 2**20),
        square(1), [[float("nan"), 0], [0, 1]],
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_basis_is_a_value_error(basis: object) -> None:
    with pytest.raises(ValueError, match="settings cannot be read"):
        UplinkSettings.from_json(json.dumps({**PLAIN, "lattice": basis}))


def test_texts_that_nest_or_overflow_are_value_errors() -> None:
    for text in ("[" * 200_000, json.dumps({**PLAIN, "lattice": "Z1", "law": ["gaussian", 10**400]}), "[]", '"x"'):
        with pytest.raises(ValueError, match="settings cannot be read"):
            UplinkSettings.from_json(text)


def test_lattices_that_were_made_travel_as_they_are() -> None:
    draw = np.random.default_rng(4)
    made = [Lattice(draw.normal(size=(n, n))) for n in (2, 3, 4, 6)]
    made += [Lattice(E8.basis.astype(float)), Lattice([[1.0, 0.3], [0.0, 1.1]]), Lattice(np.diag([1.0, 40.0]))]
    for lattice in made:
        settings = UplinkSettings(Gaussian(1.0), L2(1.0), lattice)
        again = UplinkSettings.from_json(settings.to_json())
        assert again.lattice == lattice
        assert again.codec.fingerprint == settings.codec.fingerprint

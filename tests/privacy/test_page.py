"""The page that explains a release."""

from __future__ import annotations

import math
import re

import pytest

from cepam import L2, Gaussian
from cepam.privacy import NOT_COVERED, Mechanism, Practice, Sampling, explain, report


def test_the_page_says_everything(tmp_path) -> None:
    mechanism = Mechanism.uniform(
        3, Gaussian(1.0), L2(1.0), Sampling("replacement", 5), 500, rounds=20, colluders=1, coordinates=100
    )
    page = explain(mechanism, 1e-5, tmp_path / "page.html", Practice(rounds=40, tensors=8))
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert text.count('<figure class="chart">') == 2
    assert "epsilon = " in text
    assert "not-the-whole-run" in text
    assert "per-tensor-clip" in text
    assert "all others collude" in text
    assert all(line.split(":")[0].split(",")[0] in text for line in NOT_COVERED)
    assert "own rounding is in the figure" in text


def test_a_page_needs_a_delta(tmp_path) -> None:
    mechanism = Mechanism.uniform(3, Gaussian(1.0), L2(1.0), Sampling("replacement", 5), 500)
    with pytest.raises(ValueError, match="delta"):
        explain(mechanism, 0.0, tmp_path / "page.html")


@pytest.mark.parametrize("delta", [1e-9, 1e-12])  # no bound against all others together; against nobody
def test_every_table_says_no_finite_bound_and_none_says_inf(tmp_path, delta: float) -> None:
    mechanism = Mechanism.uniform(
        3, Gaussian(1.0), L2(1.0), Sampling("replacement", 5), 500, rounds=20, coordinates=100
    )
    text = explain(mechanism, delta, tmp_path / "page.html").read_text().partition("</style>")[2]
    assert sum(math.isinf(each.colluding) for each in report(mechanism, delta)) == 3
    assert not re.findall(r">[^<]*\binf\b[^<]*<", text)
    assert "no finite bound" in re.findall(r"<td[^>]*>([^<]*)</td>", text)

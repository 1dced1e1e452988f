"""Charts: ticks are few, round and inside; drawings are well formed, escaped, and hold every point that has a place."""

from __future__ import annotations

import itertools
import math
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cepam._internal.chart import MOST, Axis, Series, byte_unit, far_apart, in_bytes, line_chart, ticks

from .test_page import Balance

PLAIN, LOG = Axis("steps"), Axis("steps", log=True)


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(2, 7))
@example(0.0, 1.9999999998835847, 2)
def test_ticks_are_few_round_and_inside(low: float, width: float, most: int) -> None:
    high = low + width
    found = ticks(low, high, most)
    assert 1 <= len(found) <= most
    assert all(low - 1e-6 * width <= value <= high + 1e-6 * width for value in found)
    steps = [b - a for a, b in itertools.pairwise(found)]
    for step in steps:
        assert step == pytest.approx(steps[0], rel=1e-5)
        lead = f"{step:.3e}"[0]
        assert lead in "125"


@given(st.floats(-9, 6), st.floats(0.5, 12), st.integers(3, 7))
def test_ticks_of_a_logarithmic_axis_are_one_two_or_five(low: float, decades: float, most: int) -> None:
    found = ticks(10.0**low, 10.0 ** (low + decades), most, log=True)
    assert len(found) <= most
    assert found == sorted(found)
    assert all(f"{value:.3e}"[0] in "125" and 10.0**low <= value <= 10.0 ** (low + decades) for value in found)


def drawn(*series: Series, x: Axis = PLAIN, y: Axis = PLAIN) -> str:
    made = line_chart(series, x, y, "a < b")
    seen = Balance()
    seen.VOID = frozenset()
    seen.feed(re.sub(r"<(path|circle)([^>]*)/>", r"<\1\2></\1>", made))
    assert seen.open == []
    return made


def test_a_chart_holds_every_point_and_escapes_names() -> None:
    made = drawn(Series("<b>", [1, 2, 3], [0.1, None, 0.3]), Series("c", [1, 2, 3], [1, 2, 3], [0, 1, 2], [2, 3, 4]))
    assert made.count("<circle") == 5
    assert "<b>" not in made
    line = re.search(r'class="line c0" d="([^"]+)"', made)
    assert line is not None
    assert line[1].count("M") == 2  # the gap
    assert 'class="band c1"' in made


def test_points_without_a_place_are_left_out() -> None:
    logs = drawn(Series("", [0, 1, 10], [1, -1, math.inf]), Series("x", [5], [2.0]), x=LOG, y=LOG)
    assert logs.count("<circle") == 1
    assert "<svg viewBox" not in drawn(Series("none", [1.0], [None]))
    assert "nan" not in drawn(Series("", [3, 3], [0.0, 0.0])).lower()


def test_long_lines_are_thinned_and_keep_their_end() -> None:
    many = 10 * MOST + 7
    made = drawn(Series("", list(range(many)), [float(k == many - 1) for k in range(many)]))
    (path,) = re.findall(r'class="line c0" d="([^"]+)"', made)
    assert 0.5 * MOST < len(re.findall("[ML]", path)) <= MOST
    assert len(set(re.findall(r"[\d.]+ ([\d.]+)", path))) == 2  # the last point alone is up


def test_shares_are_shown_in_percent() -> None:
    made = drawn(Series("", [1, 2], [0.805, 0.99]), y=Axis("accuracy", percent=True))
    shown = re.findall(r'class="end"[^>]*>([^<]+)<', made)
    assert shown[-1] == "100 %"
    assert all(each.endswith(" %") for each in shown)


def test_lines_far_apart_want_a_logarithmic_axis() -> None:
    low, high = Series("", [1], [2.0]), Series("", [1], [40.0])
    assert far_apart([low, high])
    assert not far_apart([low, low, Series("", [1], [None])])


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 bytes"), (999, "999 bytes"), (1280, "1.28 kB"), (75.2e6, "75.2 MB"), (999.7e9, "1,000 GB")],
)
def test_bytes_are_for_people(count: float, shown: str) -> None:
    assert in_bytes(count) == shown
    assert byte_unit(1.0) == (1.0, "bytes")

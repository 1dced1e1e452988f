"""Line charts as inline SVG: no package needed, colors from the page's style, readable on a phone and in the dark."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from cepam._internal.page import number

WIDTH, HEIGHT = 440, 270
"""The units of a drawing: about the pixels of a phone, and of half a desk's window."""
COLORS = 8
LETTER = 7.0
"""The width that a digit of a tick takes at most, in units."""
MARKED = 40
"""Lines of at most so many points mark each point."""
MOST = 300
"""Points of a line that are drawn; of more, every second, third, … up to the last."""
APART = 5.0
"""Lines whose last values differ by more than this factor need a logarithmic axis."""
BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes"))


@dataclass(frozen=True)
class Series:
    """A named line: its points, and where given the lowest and highest value around each; None leaves a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float] = ()
    high: Sequence[float] = ()

    @property
    def known(self) -> list[tuple[float, float]]:
        """The points that have a value."""
        return [(x, y) for x, y in zip(self.x, self.y) if y is not None]


@dataclass(frozen=True)
class Axis:
    """What an axis shows: its label, and whether its values are shares in percent, logarithmic, or whole numbers."""

    label: str
    percent: bool = False
    log: bool = False
    counts: bool = False

    @property
    def title(self) -> str:
        """The label as it is drawn."""
        return f"{self.label} (log scale)" if self.log else self.label

    def shown(self, value: float) -> str:
        """A value as its tick says it."""
        return f"{number(round(100 * value, 6))} %" if self.percent else number(float(f"{value:.6g}"))


def byte_unit(largest: float) -> tuple[float, str]:
    """The unit that suits so many bytes: its size and its name."""
    return next((unit for unit in BYTES if largest >= unit[0]), BYTES[-1])


def in_bytes(count: float) -> str:
    """So many bytes for people: 1.28 MB."""
    size, name = byte_unit(count)
    return f"{count / size:.3g} {name}" if count < 999.5 * size else f"{count / size:,.0f} {name}"


def ticks(low: float, high: float, most: int, log: bool = False, least: float = 0.0) -> list[float]:
    """At most so many round values from low to high: 1, 2 or 5 times a power of ten, or powers of ten alone.

    Values of a linear axis are at least `least` apart.
    """
    if log:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        fine = [m * 10.0**e for e in range(first, last + 1) for m in (1, 2, 5) if low <= m * 10.0**e <= high]
        if len(fine) <= most:
            return fine
        for apart in range(1, last - first + 2):
            found = [10.0**e for e in range(first, last + 1) if e % apart == 0 and low <= 10.0**e <= high]
            if len(found) <= most:
                return found
    power = 10.0 ** math.floor(math.log10(max(high - low, 1e-300) / most))
    for multiple in (1, 2, 5, 10, 20, 50, 100):
        step = max(least, multiple * power)
        ends = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if ends[1] - ends[0] < most:
            break
    return [k * step for k in range(ends[0], ends[1] + 1)]


def _range(values: Sequence[float], axis: Axis, whole: bool) -> tuple[float, float]:
    """The ends of an axis; `whole` widens it to round values, so that no line touches the frame."""
    low, high = min(values), max(values)
    if axis.log and whole:
        return 0.8 * low, 1.25 * high
    if axis.log:
        return (low, high) if high > low else (low / 2.0, 2.0 * high)
    if high == low:
        low, high = low - (abs(low) / 10 or 0.5), high + (abs(high) / 10 or 0.5)
    if not axis.percent and 0.0 <= low <= 0.6 * high:
        low = 0.0
    if not whole:
        return low, high
    marks = ticks(low, high, 5)
    step = marks[1] - marks[0] if len(marks) > 1 else high - low
    bottom, top = step * math.floor(low / step + 1e-9), step * math.ceil(high / step - 1e-9)
    return bottom, (min(top, 1.0) if axis.percent and high <= 1.0 else top)


@dataclass(frozen=True)
class _Frame:
    """Where values of both axes lie in the drawing."""

    x: Axis
    y: Axis
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    left: float
    right: float
    top: float = 26.0
    bottom: float = HEIGHT - 44.0

    def at(self, x: float, y: float) -> tuple[float, float]:
        along = _share(x, *self.x_range, self.x.log)
        up = _share(y, *self.y_range, self.y.log)
        return self.left + along * (self.right - self.left), self.bottom - up * (self.bottom - self.top)


def _share(value: float, low: float, high: float, log: bool) -> float:
    if log:
        return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
    return (value - low) / (high - low)


def far_apart(series: Sequence[Series]) -> bool:
    """Whether the last values of lines differ so much that the lower ones show on a logarithmic axis only."""
    ends = [each.known[-1][1] for each in series if each.known and 0.0 < each.known[-1][1] < math.inf]
    return len(ends) > 1 and max(ends) > APART * min(ends)


def line_chart(series: Sequence[Series], x: Axis, y: Axis, caption: str = "") -> str:
    """A figure with these lines and its legend.

    Args:
        series: The lines, drawn in order; one without a known point is named in the legend alone.
        x: The horizontal axis. On a logarithmic axis points at or under zero are left out.
        y: The vertical axis.
        caption: A sentence under the chart.

    Returns:
        HTML; the style of `cepam._internal.page` colors it. Where no line has a point, a sentence that says so.
    """
    kept = [_drawable(each, x, y) for each in series]
    points = [point for each in kept for point in each.known]
    described = html.escape(f"{y.label} over {x.label}")
    if not points:
        return f'<figure class="chart"><p class="faint">{described}: no value yet.</p></figure>'
    edges = [value for each in kept for value in (*each.low, *each.high)]
    ranges = (
        _range([value for each in kept for value in each.x], x, whole=False),
        _range([*(p[1] for p in points), *edges], y, whole=True),
    )
    y_ticks = ticks(*ranges[1], 6, y.log)
    left = 10.0 + LETTER * max(len(y.shown(value)) for value in y_ticks) if y_ticks else 16.0
    x_ticks = _fitting(ranges[0], x, WIDTH - left - 16)
    right = WIDTH - max([12.0, *(LETTER * len(x.shown(value)) / 2 for value in x_ticks[-1:])])
    frame = _Frame(x, y, *ranges, left, right)
    drawn = [*_grid(frame, x_ticks, y_ticks)]
    drawn += [_band(frame, each, k) for k, each in enumerate(kept) if each.low]
    drawn += [_line(frame, each, k) for k, each in enumerate(kept) if each.known]
    svg = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{described}">'
        f'<text x="0" y="13" class="label">{html.escape(y.title)}</text>{"".join(drawn)}'
        f'<text x="{(left + right) / 2:.1f}" y="{HEIGHT - 5}" class="label middle">{html.escape(x.title)}</text></svg>'
    )
    said = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    return f'<figure class="chart">{svg}{_legend(kept)}{said}</figure>'


def _fitting(ends: tuple[float, float], axis: Axis, room: float) -> list[float]:
    """As many ticks as stand side by side in this room."""
    for most in range(7, 1, -1):
        found = ticks(*ends, most, axis.log, float(axis.counts))
        if sum(LETTER * len(axis.shown(value)) + 14 for value in found) < room:
            return found
    return ticks(*ends, 1, axis.log)


def _drawable(series: Series, x: Axis, y: Axis) -> Series:
    """The line of at most `MOST` points, without those that are not finite, or have no place on a logarithmic axis."""

    def fits(value: float | None, axis: Axis) -> bool:
        return value is not None and math.isfinite(value) and (value > 0.0 or not axis.log)

    apart = -(-len(series.x) // MOST)
    keep = [k for k, value in enumerate(series.x) if fits(value, x) and (len(series.x) - 1 - k) % apart == 0]
    along = [series.x[k] for k in keep]
    up = [series.y[k] if fits(series.y[k], y) else None for k in keep]
    if not series.low:
        return Series(series.name, along, up)
    return Series(series.name, along, up, [series.low[k] for k in keep], [series.high[k] for k in keep])


def _grid(frame: _Frame, x_ticks: Sequence[float], y_ticks: Sequence[float]) -> list[str]:
    made = []
    for value in y_ticks:
        _, up = frame.at(frame.x_range[0], value)
        made.append(f'<path class="grid" d="M{frame.left:.1f} {up:.1f}H{frame.right:.1f}"/>')
        made.append(f'<text class="end" x="{frame.left - 6:.1f}" y="{up + 4.5:.1f}">{frame.y.shown(value)}</text>')
    for value in x_ticks:
        along, _ = frame.at(value, frame.y_range[0])
        made.append(f'<path class="axis" d="M{along:.1f} {frame.bottom:.1f}v5"/>')
        made.append(f'<text class="middle" x="{along:.1f}" y="{frame.bottom + 19:.1f}">{frame.x.shown(value)}</text>')
    made.append(f'<path class="axis" d="M{frame.left:.1f} {frame.bottom:.1f}H{frame.right:.1f}"/>')
    return made


def _band(frame: _Frame, series: Series, place: int) -> str:
    if all(low == high for low, high in zip(series.low, series.high)):
        return ""
    there = [frame.at(x, value) for x, value in zip(series.x, series.high)]
    back = [frame.at(x, value) for x, value in zip(series.x, series.low)][::-1]
    joined = "L".join(f"{a:.1f} {b:.1f}" for a, b in (*there, *back))
    return f'<path class="band c{place % COLORS}" d="M{joined}Z"/>'


def _line(frame: _Frame, series: Series, place: int) -> str:
    path, pen = [], "M"
    for x, y in zip(series.x, series.y):
        if y is None:
            pen = "M"
            continue
        path.append(pen + "{:.1f} {:.1f}".format(*frame.at(x, y)))
        pen = "L"
    made = f'<path class="line c{place % COLORS}" d="{"".join(path)}"/>'
    if len(series.known) > MARKED:
        return made
    for x, y in series.known:
        along, up = frame.at(x, y)
        told = html.escape(f"{series.name + ': ' if series.name else ''}{frame.y.shown(y)} at {frame.x.shown(x)}")
        made += f'<circle class="dot c{place % COLORS}" cx="{along:.1f}" cy="{up:.1f}" r="2.6"><title>{told}</title>'
        made += "</circle>"
    return made


def _legend(series: Sequence[Series]) -> str:
    if len(series) < 2 and not any(each.name for each in series):
        return ""
    items = []
    for k, each in enumerate(series):
        stroke = f'<path class="line c{k % COLORS}" d="M1 5H27"/>'
        key = f'<svg class="key" viewBox="0 0 28 10" aria-hidden="true">{stroke}</svg>'
        missing = "" if each.known else " (no finite bound)" if each.x else " (none)"
        items.append(f"<li>{key if each.known else ''}{html.escape(each.name)}{missing}</li>")
    return f'<ul class="legend">{"".join(items)}</ul>'

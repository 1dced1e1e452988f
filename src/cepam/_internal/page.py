"""Self-contained HTML pages: text, tables and figures in one file that asks for nothing and fits a narrow screen."""

from __future__ import annotations

import base64
import html
import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

KINDS = {".png": "image/png", ".svg": "image/svg+xml", ".jpg": "image/jpeg"}
NUMERIC = re.compile(
    r"[-+±−]?\s*[\d.,]+([eE][-+]?\d+)?(\s*(%|dB|s|bytes|[kMGT]B|±.*|\(.*\)|\[.*\]|×))?|[–-]?|inf|no finite bound"
)
NARROW = 3
"""Columns that a phone shows side by side."""
# Forbids every request: the page is complete, and whatever slipped into it would stay silent.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --faint: #59636e; --ground: #fff; --panel: #f4f6f8; --line: #d5dae0;
  --warn: #b26a00; --accent: #1d5fbf; --c0: #1d5fbf; --c1: #c4510a; --c2: #0e7a55; --c3: #9333b8; --c4: #b01f4b;
  --c5: #5b6470; --c6: #8a6a00; --c7: #0a7c8c }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ec; --faint: #a0aab4; --ground: #14171b; --panel: #1e2329;
  --line: #39424c; --warn: #e0a040; --accent: #6ea8ff; --c0: #6ea8ff; --c1: #ff9a57; --c2: #4fd1a0; --c3: #d08cf0;
  --c4: #ff7d9e; --c5: #a9b3c0; --c6: #e0bd4f; --c7: #55cfe0 } }
* { box-sizing: border-box }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); max-width: 70rem;
  margin: 0 auto; padding: 1.2rem 1rem 3rem; overflow-wrap: anywhere }
h1 { font-size: 1.45rem; line-height: 1.25; margin: .2rem 0 .8rem }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; padding-top: .7rem; border-top: 1px solid var(--line) }
p, ul, .warning { max-width: 50rem } .faint, figcaption, caption { color: var(--faint); font-size: .9rem }
.verdict { font-size: 1.2rem; line-height: 1.4; padding: .7rem 1rem; margin: .4rem 0; background: var(--panel);
  border-left: 4px solid var(--accent) }
.warning { border-left: 4px solid var(--warn); padding: .4rem .9rem; background: var(--panel) }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 10.5rem), 1fr)); gap: .7rem;
  margin: 1rem 0 }
.tiles div { background: var(--panel); padding: .6rem .8rem } .tiles dt { color: var(--faint); font-size: .85rem }
.tiles dd { margin: 0; font-size: 1.2rem; font-variant-numeric: tabular-nums } .tiles small { display: inline-block;
  font-size: .85rem; line-height: 1.3 }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: .5rem 2rem }
.charts h2 { margin-bottom: 0 }
.wide { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .95rem }
caption { text-align: left; caption-side: bottom; padding-top: .3rem }
th, td { padding: .3rem .65rem; text-align: left; border-bottom: 1px solid var(--line); vertical-align: top }
th { font-size: .85rem; color: var(--faint); overflow-wrap: break-word }
th:first-child, td:first-child { padding-left: 0 }
td.number, th.number { text-align: right } td.number { white-space: nowrap }
figure { margin: .8rem 0 } figure img, figure svg { max-width: 100%; height: auto } figure img { background: #fff }
.chart { max-width: 36rem } .chart > svg { display: block; width: 100%; overflow: visible }
.chart text { font-size: 13px; fill: var(--ink); font-variant-numeric: tabular-nums }
.chart .label { fill: var(--faint) }
.middle { text-anchor: middle } .end { text-anchor: end } .grid { stroke: var(--line) } .axis { stroke: var(--faint) }
.line { fill: none; stroke: var(--own); stroke-width: 2; stroke-linejoin: round } .dot { fill: var(--own) }
.band { fill: var(--own); opacity: .16 }
.c0 { --own: var(--c0) } .c1 { --own: var(--c1) } .c2 { --own: var(--c2) } .c3 { --own: var(--c3) }
.c4 { --own: var(--c4) } .c5 { --own: var(--c5) } .c6 { --own: var(--c6) } .c7 { --own: var(--c7) }
.line.c1 { stroke-dasharray: 7 3 } .line.c2 { stroke-dasharray: 2 3 } .line.c3 { stroke-dasharray: 9 3 2 3 }
.line.c5 { stroke-dasharray: 4 2 } .line.c6 { stroke-dasharray: 1 2 } .line.c7 { stroke-dasharray: 10 4 }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; margin: .3rem 0; padding: 0;
  font-size: .9rem }
.legend .key { width: 28px; height: 10px; margin-right: .4rem; vertical-align: middle }
code { font-size: .92em } a { color: var(--accent) } summary { cursor: pointer; margin: .6rem 0; font-weight: 600 }
@media (max-width: 44rem) {
  .stack, .stack caption, .stack tbody, .stack tr, .stack td { display: block } .stack thead { display: none }
  .stack tr { border-bottom: 2px solid var(--line); padding: .5rem 0 }
  .stack td, .stack td.number { border: 0; padding: .1rem 0; text-align: left; white-space: normal }
  .stack td:first-child { font-weight: 600 }
  .stack td:not(:first-child)::before { content: attr(data-head) ": "; color: var(--faint) }
}
@media print { body { max-width: none } figure, tr { break-inside: avoid } }
"""


def text(words: str) -> str:
    """The words, escaped, with code between backticks."""
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", html.escape(words))


def number(value: float) -> str:
    """A number for people: 20,000, 0.25, 1.5e-6; four figures, and whole numbers below a million in full."""
    if math.isfinite(value) and value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    shown = f"{value:,.0f}" if 1e4 <= abs(value) < 1e6 else f"{value:.4g}"
    return re.sub(r"e([-+])0*(\d)", lambda found: f"e{found[1].strip('+')}{found[2]}", shown)


def joined(rows: Iterable[Sequence[str]]) -> list[tuple[list[str], int]]:
    """The rows, each with how many it stands for: numbers that follow one another and are alike become `0 to 29`."""
    made: list[tuple[list[str], int]] = []
    for row in rows:
        ends = made[-1][0][0].split() if made else [""]
        if ends[-1].isdecimal() and row[0] == str(int(ends[-1]) + 1) and made[-1][0][1:] == list(row[1:]):
            made[-1] = [f"{ends[0]} to {row[0]}", *row[1:]], made[-1][1] + 1
        else:
            made.append((list(row), 1))
    return made


def paragraph(words: str, kind: str = "") -> str:
    """A paragraph; kind "warning" makes it stand out."""
    return f'<p class="{html.escape(kind)}">{text(words)}</p>' if kind else f"<p>{text(words)}</p>"


def heading(words: str, level: int = 2) -> str:
    """A heading of level 1 to 6."""
    return f"<h{level}>{text(words)}</h{level}>"


def bullets(items: Iterable[str]) -> str:
    """A list, a line for each item."""
    return f"<ul>{''.join(f'<li>{text(item)}</li>' for item in items)}</ul>"


def table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "", words: Callable[[str], str] = text
) -> str:
    """A table whose columns of numbers stand to the right.

    On a narrow screen a table of more than `NARROW` columns shows a card for each row, and others scroll by themselves.

    `words` makes HTML of a cell: `text`, or what also knows formulas.
    """
    held = [list(row) for row in rows]
    for row in held:
        if len(row) != len(headings):
            raise ValueError(f"rows must have {len(headings)} cells, one for each heading, got {len(row)}")
    kinds = [
        ' class="number"' if held and all(NUMERIC.fullmatch(row[i].strip()) for row in held) else ""
        for i in range(len(headings))
    ]
    stacked = len(headings) > NARROW
    marks = [f' data-head="{html.escape(name)}"' if stacked else "" for name in headings]
    head = "".join(f'<th scope="col"{kind}>{words(name)}</th>' for name, kind in zip(headings, kinds))
    lines = (
        "".join(f"<td{kind}{mark}>{words(cell)}</td>" for cell, kind, mark in zip(row, kinds, marks)) for row in held
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    said = f"<caption>{words(caption)}</caption>" if caption else ""
    opened = '<table class="stack">' if stacked else "<table>"
    inside = f"{said}<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="wide" tabindex="0">{opened}{inside}</table></div>'


def picture(source: Path | str, described: str, caption: str = "", words: Callable[[str], str] = text) -> str:
    """A figure inside the page: an image file, or the text of an SVG; `described` is read out where it is not seen."""
    if isinstance(source, Path):
        if source.suffix.lower() not in KINDS:
            raise ValueError(f"pictures must be one of {', '.join(KINDS)}, got {source.name!r}")
        data = base64.b64encode(source.read_bytes()).decode()
        shown = f'<img alt="{html.escape(described)}" src="data:{KINDS[source.suffix.lower()]};base64,{data}">'
    else:
        start = source.index("<svg")
        shown = f'<div role="img" aria-label="{html.escape(described)}">{source[start:]}</div>'
    return f"<figure>{shown}{f'<figcaption>{words(caption)}</figcaption>' if caption else ''}</figure>"


def links(targets: Iterable[tuple[str, str]]) -> str:
    """A list of links to files beside the page: what each is called, and its path."""
    made = (f'<li><a href="{html.escape(path)}">{text(name)}</a></li>' for name, path in targets)
    return f"<ul>{''.join(made)}</ul>"


def folded(summary: str, body: Iterable[str]) -> str:
    """Parts that a click opens; no script is needed."""
    return f"<details><summary>{text(summary)}</summary>{''.join(body)}</details>"


def tiles(figures: Iterable[tuple[str, str, str]]) -> str:
    """A row of figures: what each is, its value, and a remark in small letters."""
    made = (
        f"<div><dt>{text(name)}</dt><dd>{text(value)}{f' <small>{text(remark)}</small>' if remark else ''}</dd></div>"
        for name, value, remark in figures
    )
    return f'<dl class="tiles">{"".join(made)}</dl>'


def side_by_side(parts: Iterable[str]) -> str:
    """Charts next to one another where the screen is wide enough."""
    return f'<div class="charts">{"".join(f"<div>{part}</div>" for part in parts)}</div>'


def page(title: str, body: Iterable[str], style: str = STYLE) -> str:
    """The whole page: the parts in order under their title's head, in this style."""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{html.escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f'<link rel="icon" href="data:,">\n<style>{style}</style>\n</head>\n<body>\n'
        + "\n".join(piece for piece in body if piece)
        + "\n</body>\n</html>\n"
    )

"""Self-contained HTML pages: text, tables and figures in one file that asks for nothing and fits a narrow screen."""

from __future__ import annotations

import base64
import html
import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

KINDS = {".png": "image/png", ".svg": "image/svg+xml", ".jpg": "image/jpeg"}
NUMERIC = re.compile(r"[-+±−]?\s*[\d.,]+([eE][-+]?\d+)?(\s*(%|dB|s|±.*|\(.*\)|\[.*\]|×))?|[–-]?|inf")
# Forbids every request: the page is complete, and whatever slipped into it would stay silent.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere }
h1 { font-size: 1.5rem; line-height: 1.25 } h2 { font-size: 1.2rem; margin-top: 2rem }
.wide { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .55rem; text-align: left; border-bottom: 1px solid #8884; white-space: nowrap }
td.number, th.number { text-align: right }
figure { margin: 1rem 0 } figure img, figure svg { max-width: 100%; height: auto; background: #fff }
figcaption { font-size: .9rem } pre { overflow-x: auto; padding: .7rem; background: #8882 }
.notice { border-left: 4px solid #c80; padding: .2rem .8rem; background: #c801 }
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
    """A paragraph; kind "notice" makes it stand out."""
    return f'<p class="{html.escape(kind)}">{text(words)}</p>' if kind else f"<p>{text(words)}</p>"


def heading(words: str, level: int = 2) -> str:
    """A heading of level 1 to 6."""
    return f"<h{level}>{text(words)}</h{level}>"


def bullets(items: Iterable[str]) -> str:
    """A list, a line for each item."""
    return f"<ul>{''.join(f'<li>{text(item)}</li>' for item in items)}</ul>"


def verbatim(words: str) -> str:
    """Text that keeps its lines: a configuration, a command."""
    return f"<pre>{html.escape(words)}</pre>"


def table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "", words: Callable[[str], str] = text
) -> str:
    """A table that scrolls by itself where the screen is narrow; columns of numbers stand to the right.

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
    head = "".join(f'<th scope="col"{kind}>{words(name)}</th>' for name, kind in zip(headings, kinds))
    lines = ("".join(f"<td{kind}>{words(cell)}</td>" for cell, kind in zip(row, kinds)) for row in held)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    said = f"<caption>{words(caption)}</caption>" if caption else ""
    return (
        f'<div class="wide" tabindex="0"><table>{said}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


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

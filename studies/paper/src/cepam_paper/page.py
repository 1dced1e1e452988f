"""The report as one self-contained page: verdicts first, then every part with its tables and figures.

Nothing is computed here: parts and verdicts come in, one `index.html` goes out, with the pictures inside it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from cepam._internal import page as writer
from cepam._internal.files import write_atomically
from cepam_paper.claims import by_chapter, tally
from cepam_paper.mathematics import worded
from cepam_paper.run_size import Extent
from cepam_paper.section import Figure, Part, Table
from cepam_paper.style import SHEET
from cepam_paper.verdict import Label, Verdict

TITLE = "The CEPAM paper, redone"
CLASSES = {
    Label.HOLDS: "holds",
    Label.REPAIRED: "repaired",
    Label.INCONCLUSIVE: "open",
    Label.FAILS: "fails",
    Label.PROGRAM: "program",
    Label.UNTESTED: "untested",
}


def write(report: Path, parts: Sequence[Part], verdicts: Sequence[Verdict], about: dict[str, str]) -> Path:
    """The page's path; the page is written whole or not at all."""
    report.mkdir(parents=True, exist_ok=True)
    path = report / "index.html"
    write_atomically(path, page(report, parts, verdicts, about).encode())
    return path


def page(report: Path, parts: Sequence[Part], verdicts: Sequence[Verdict], about: dict[str, str]) -> str:
    """The page as text; `about` is listed at the foot, and a `mode` of "quick" is announced at the top."""
    names = {part.name for part in parts}
    body = [
        f"<header><h1>{TITLE}</h1>",
        "<p>Shiu and Ling, <i>Communication-Efficient and Privacy-Adaptable Mechanism – a Federated Learning Scheme "
        "with Convergence Analysis</i>: every table, figure and bound done again, and what each claim comes to.</p>",
        _quick(about),
        _tally(verdicts),
        "</header>",
        _contents(parts),
        _verdicts(verdicts, names),
        *(_part(report, part) for part in parts),
        _foot(parts, about),
    ]
    return writer.page(TITLE, ['<div class="sheet">', *body, "</div>"], SHEET)


def _text(words: str) -> str:
    """The words, escaped, with `code` between backticks and formulas between dollar signs."""
    pieces = re.split(r"`([^`\n]+)`", words)
    return "".join(f"<code>{html.escape(one)}</code>" if i % 2 else worded(one) for i, one in enumerate(pieces))


def _anchor(part: str) -> str:
    """An id that is safe in an attribute and in a link, whatever a part is called."""
    return "part-" + re.sub(r"[^A-Za-z0-9_-]", "-", part)


def _quick(about: dict[str, str]) -> str:
    mode = about.get("mode", Extent.FULL.value)
    if mode == Extent.FULL:
        return ""
    return (
        f'<p class="notice">Not a full run ({html.escape(mode)}): fewer seeds than a verdict on accuracy needs, so '
        "that none is given.</p>"
    )


def _tally(verdicts: Sequence[Verdict]) -> str:
    counts = tally(verdicts)
    items = "".join(f'<li><b class="{CLASSES[label]}">{counts[label]}</b> {label}</li>' for label in Label)
    return f'<ul class="tally" aria-label="Verdicts">{items}</ul>'


def _contents(parts: Sequence[Part]) -> str:
    items = "".join(f'<li><a href="#{_anchor(part.name)}">{_text(part.title)}</a></li>' for part in parts)
    return (
        '<nav aria-label="Contents"><b>Contents</b><ol>'
        f'<li><a href="#verdicts">Every claim and what became of it</a></li>{items}'
        '<li><a href="#about">How this was made</a></li></ol></nav>'
    )


def _verdicts(verdicts: Sequence[Verdict], names: Iterable[str]) -> str:
    rows = []
    for chapter, group in by_chapter(verdicts):
        rows.append(f'<tr class="group"><th colspan="4" scope="colgroup">{_text(chapter)}</th></tr>')
        rows.extend(_verdict(verdict, names) for verdict in group)
    return (
        '<section id="verdicts"><h2>Every claim and what became of it</h2><p>A verdict follows from the numbers of '
        "its part by a fixed rule; the label leads to them. The first column judges the scheme, done right, the second "
        "what the published program does, where the claim is about that. <i>Does not hold</i> needs an interval that "
        "excludes the claim; one that excludes neither the claim nor its opposite is <i>inconclusive</i>.</p>"
        '<div class="wide" tabindex="0" role="region" aria-label="Verdicts"><table class="verdicts">'
        '<colgroup><col class="l"><col class="l"><col class="c"><col></colgroup><thead><tr>'
        '<th scope="col">The scheme</th><th scope="col">The published program</th>'
        '<th scope="col">The paper says (abridged)</th><th scope="col">Evidence</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def _verdict(verdict: Verdict, names: Iterable[str]) -> str:
    claim = verdict.claim
    shown = _label(verdict.label, claim.part if claim.part in names else "")
    program = '<span class="none">–</span>' if verdict.program is None else _label(verdict.program, kind="label theirs")
    return (
        f'<tr id="claim-{html.escape(claim.name)}"><td data-head="The scheme">{shown}</td>'
        f'<td data-head="The published program">{program}</td>'
        f'<td>{_text(claim.quote)} <span class="where">{_text(claim.where)}</span></td>'
        f'<td>{_text(verdict.evidence)}<span class="redo"><code>{html.escape(verdict.command)}</code></span></td></tr>'
    )


def _label(label: Label, part: str = "", kind: str = "label") -> str:
    """The label, as a link to its part if one is named."""
    kind = f"{kind} {CLASSES[label]}"
    return f'<a class="{kind}" href="#{_anchor(part)}">{label}</a>' if part else f'<span class="{kind}">{label}</span>'


def _part(report: Path, part: Part) -> str:
    paragraphs = "".join(f"<p>{_text(words)}</p>" for words in re.split(r"\n\s*\n", part.summary.strip()) if words)
    notes = "".join(f"<li>{_text(note)}</li>" for note in part.notes)
    return "\n".join(
        (
            f'<section class="part" id="{_anchor(part.name)}"><h2>{_text(part.title)}</h2>',
            paragraphs,
            f'<p class="facts">Redo it: <code>{html.escape(part.command)}</code>. {_facts(part)}</p>',
            *(_table(table) for table in part.tables),
            *(_figure(report, figure) for figure in part.figures),
            f"<h3>Notes</h3><ul>{notes}</ul>" if notes else "",
            "</section>",
        )
    )


def _facts(part: Part) -> str:
    seeds = ", ".join(str(seed) for seed in part.seeds)
    drawn = f"Seed{'s' if len(part.seeds) > 1 else ''} {seeds}; it" if part.seeds else "It"
    return f"{drawn} took {part.seconds:,.0f} s."


def _table(table: Table) -> str:
    return f"<h3>{_text(table.title)}</h3>{writer.table(table.columns, table.rows, table.caption, _text)}"


def _figure(report: Path, figure: Figure) -> str:
    caption, source = f"{figure.title}. {figure.caption}".strip(), picture(report, figure)
    if source is None or source.suffix.lower() not in writer.KINDS:
        missing = f"The picture {figure.file} is missing."
        return f"<figure>{writer.paragraph(missing, 'notice')}<figcaption>{_text(caption)}</figcaption></figure>"
    return writer.picture(source, caption.replace("$", ""), caption, _text)


def picture(report: Path, figure: Figure) -> Path | None:
    """The figure's file if it lies in the report's folder and is there, else None."""
    root, path = report.resolve(), (report / figure.file).resolve()
    return path if path.is_relative_to(root) and path.is_file() else None


def _foot(parts: Sequence[Part], about: dict[str, str]) -> str:
    facts = "".join(
        f'<tr><th scope="row">{_text(name)}</th><td>{_text(value)}</td></tr>' for name, value in about.items()
    )
    rows = "".join(
        f'<tr><th scope="row"><a href="#{_anchor(part.name)}">{_text(part.name)}</a></th>'
        f'<td class="number">{part.seconds:,.0f}</td><td>{", ".join(str(seed) for seed in part.seeds) or "none"}</td>'
        f"<td><code>{html.escape(part.command)}</code></td></tr>"
        for part in parts
    )
    total = f"<p>{sum(part.seconds for part in parts):,.0f} s for {len(parts)} parts in all.</p>"
    return (
        f'<footer id="about"><h2>How this was made</h2><div class="wide"><table><tbody>{facts}</tbody></table></div>'
        '<div class="wide"><table><thead><tr><th scope="col">Part</th><th scope="col" class="number">Seconds</th>'
        f'<th scope="col">Seeds</th><th scope="col">Command</th></tr></thead><tbody>{rows}</tbody></table>'
        f"</div>{total}</footer>"
    )

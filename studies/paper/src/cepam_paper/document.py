"""The report as a Markdown document with its numbers beside it: `reproduction.md` and `.json` in docs/paper.

Both are written from the same parts in one go, so that what the document says is what the numbers say.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cepam._internal.files import write_atomically
from cepam_paper.claims import by_chapter, tally
from cepam_paper.mathematics import FORMULA
from cepam_paper.page import picture
from cepam_paper.run_size import Extent
from cepam_paper.section import Figure, Part, Table, part_of
from cepam_paper.verdict import Label, Verdict
from cepam_paper.versions import mark_of, measured_by, why_awaited

COLUMNS = ("the scheme", "the published program", "the paper says (abridged)", "evidence", "command")
HEADER = "<!-- written by `cepam reproduce document`, do not edit -->"
PICTURES = "img/reproduction"
MOST_FIGURES = 8
TELLING = ("gain", "gaussian", "laplace", "tradeoff", "grid", "exactness", "convergence", "rate", "privacy")
"""Parts by how much their first figure tells; parts not named here come after them."""
WIDEST = 1000
"""Pixels: wider pictures are made smaller, so that the repository stays light."""
NORMAL = 1.959964
"""Standard errors from a mean to the ends of its 95 % interval."""
VALUE = re.compile(r"(?<![\w.])[-+−]?\d+\.\d+(?:[eE][-+]?\d+)?(?![\w.]*\d)")


POWER = re.compile(r"(\d)e\+?(-?)0*(\d+)")


def write(
    report: Path,
    parts: Sequence[Part],
    verdicts: Sequence[Verdict],
    about: dict[str, str],
    docs: Path = Path("docs/paper"),
) -> str:
    """The document's text; it is written to `docs` with its numbers (JSON) and at most eight pictures."""
    folder = docs / PICTURES
    shown = _pictures(report, parts, folder)
    text = document(parts, verdicts, about, {figure: name for figure, name, _ in shown})
    fresh = folder.with_name(folder.name + ".new")
    fresh.mkdir(parents=True)
    for _, name, source in shown:
        _copy(source, fresh / name)
    if folder.is_dir():
        shutil.rmtree(folder)
    fresh.rename(folder)
    write_atomically(docs / "reproduction.json", (json.dumps(kept(parts), indent=1, allow_nan=False) + "\n").encode())
    write_atomically(docs / "reproduction.md", text.encode())
    return text


def kept(parts: Sequence[Part]) -> dict[str, Any]:
    """What the document's numbers file holds: every part as it is, by name, so that a changed rule needs no new run."""
    return {part.name: _strict(asdict(part)) for part in parts}


def parts_of(docs: Path) -> list[Part]:
    """The parts that the document's numbers file holds; none where there is no such file."""
    path = docs / "reproduction.json"
    if not path.is_file():
        return []
    try:
        return [part_of(held) for held in json.loads(path.read_text()).values()]
    except (AttributeError, KeyError, TypeError) as other:
        raise ValueError(f"{path} holds no parts that this version can read; a full report replaces it") from other


def awaited(parts: Sequence[Part]) -> tuple[str, ...]:
    """The parts that measured something else than they would now."""
    return tuple(part.name for part in parts if measured_by(part) != mark_of(part.name))


def document(
    parts: Sequence[Part], verdicts: Sequence[Verdict], about: dict[str, str], pictures: Mapping[Figure, str]
) -> str:
    """The document as Markdown; `pictures` names the copied picture of each figure that is shown."""
    pieces = [
        HEADER,
        "# The paper, redone",
        "Every table, figure and bound of the paper (Shiu and Ling, CEPAM with gradient updates) computed again. The "
        "numbers behind this page are in [reproduction.json](reproduction.json).",
        _quick(about),
        _pending(parts),
        _tally(verdicts),
        *(_chapter(title, group) for title, group in by_chapter(verdicts)),
        *(_part(part, pictures) for part in parts),
        _foot(parts, about),
    ]
    return "\n\n".join(piece for piece in pieces if piece) + "\n"


def unbacked(parts: Sequence[Part]) -> tuple[str, ...]:
    """The values with a decimal point in the parts' tables that no number of the part accounts for.

    A number accounts for a value that it rounds to, as it stands, times 100, or as how often it goes into the 32 bits
    of a float; an interval also for half its width, and a mean with its standard error for the ends of its
    interval. The first column names a row and is left out.
    """
    found: list[str] = []
    for part in parts:
        known = list(_values(part.numbers))
        for table in part.tables:
            for cell in (cell for row in table.rows for cell in row[1:]):
                found += [f"{part.name}: {table.title}: {v}" for v in VALUE.findall(cell) if not _backed(v, known)]
    return tuple(found)


def _strict(value: Any) -> Any:
    """The value as strict JSON can hold it: what is not a number is null, what is infinite the largest power of ten."""
    if isinstance(value, Mapping):
        return {str(key): _strict(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else math.copysign(1e308, value)
    return value


def _backed(value: str, known: Sequence[float]) -> bool:
    plain = value.replace("−", "-").lstrip("+")
    mantissa, _, power = plain.lower().partition("e")
    places = len(mantissa.partition(".")[2])
    half = 0.5 * 10.0 ** (int(power or 0) - places)
    wanted = abs(float(plain))
    return any(abs(abs(number) - wanted) <= half * (1 + 1e-6) for number in known)


def _values(numbers: Any) -> Iterator[float]:
    if isinstance(numbers, Mapping):
        low, high = numbers.get("low"), numbers.get("high")
        if isinstance(low, float) and isinstance(high, float):
            yield (high - low) / 2
        for name, value in numbers.items():
            yield from _values(value)
            if f"{name}_error" in numbers:
                yield from (value + side * NORMAL * numbers[f"{name}_error"] for side in (-1, 1))
    elif isinstance(numbers, Sequence) and not isinstance(numbers, str):
        for value in numbers:
            yield from _values(value)
    elif isinstance(numbers, int | float) and not isinstance(numbers, bool) and math.isfinite(numbers):
        yield from (float(numbers), 100.0 * numbers, 32.0 / numbers if numbers else 0.0)


def _pictures(report: Path, parts: Sequence[Part], folder: Path) -> list[tuple[Figure, str, Path]]:
    """The figures to show, with a name and the file of each: the most telling parts' first ones, then the seconds.

    A picture that the report does not have is the one that the document shows already.
    """
    ranked = sorted(parts, key=lambda part: TELLING.index(part.name) if part.name in TELLING else len(TELLING))
    deepest = max((len(part.figures) for part in parts), default=0)
    order = [(part, part.figures[i]) for i in range(deepest) for part in ranked if i < len(part.figures)]
    found: list[tuple[Figure, str, Path]] = []
    for part, figure in order:
        name = re.sub(r"[^A-Za-z0-9_-]", "-", f"{part.name}-{figure.name}") + Path(figure.file).suffix.lower()
        source = picture(report, figure) or (folder / name)
        if source.is_file() and len(found) < MOST_FIGURES:
            found.append((figure, name, source))
    return found


def _copy(source: Path, target: Path) -> None:
    try:
        from PIL import Image
    except ModuleNotFoundError:
        Image = None  # type: ignore[assignment]
    if Image is None or source.suffix.lower() == ".svg":
        shutil.copyfile(source, target)
        return
    with Image.open(source) as image:
        scale = min(1.0, WIDEST / image.width)
        size = (round(image.width * scale), round(image.height * scale))
        image.convert("RGB").resize(size, Image.Resampling.LANCZOS).save(target, optimize=True)


def escaped(words: str) -> str:
    """The words on one line, so that neither Markdown nor HTML in them means anything; `code` stays code."""
    pieces = " ".join(words.split()).split("`")
    if len(pieces) % 2 == 0:  # a lone backtick is a character
        pieces = ["'".join(pieces)]
    shown = []
    for i, piece in enumerate(pieces):
        escaped = piece.replace("|", r"\|")
        shown.append(f"`{escaped}`" if i % 2 else _plain(piece))
    return "".join(shown)


def _plain(words: str) -> str:
    """Words without code: formulas as TeX whose bars cannot end a table's cell, the rest escaped."""
    shown = []
    for i, piece in enumerate(FORMULA.split(words)):
        tex = POWER.sub(r"\1 \\times 10^{\2\3}", piece.replace(r"\|", r"\Vert ").replace("|", r"\vert "))
        shown.append(f"${tex}$" if i % 2 else re.sub(r"([\\*_\[\]<>~#])", r"\\\1", piece).replace("|", r"\|"))
    return "".join(shown)


def _cells(table: Table) -> list[list[str]]:
    return [[escaped(cell) for cell in row] for row in (table.columns, *table.rows)]


def _grid(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    rule = ["---"] * len(head)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *body))


def _quick(about: dict[str, str]) -> str:
    mode = about.get("mode", Extent.FULL.value)
    if mode == Extent.FULL:
        return ""
    return f"**Not a full run ({mode}): fewer seeds than a verdict on accuracy needs, so that none is given.**"


def _pending(parts: Sequence[Part]) -> str:
    """One sentence on what the kept numbers do not say yet, or nothing."""
    reasons: dict[str, list[str]] = {}
    for name in awaited(parts):
        reasons.setdefault(why_awaited(name), []).append(name)
    if not reasons:
        return ""
    told = "; ".join(f"{', '.join(names)} (whose {reason})" for reason, names in reasons.items())
    return (
        f"**The next full run is awaited for the parts {told}. A claim that needs numbers which are not kept yet, of "
        'these or other parts, says "not tested".**'
    )


def _tally(verdicts: Sequence[Verdict]) -> str:
    counts = tally(verdicts)
    told = ", ".join(f"{label}: {counts[label]}" for label in Label)
    return (
        f"## Verdicts\n\n{told}.\n\nThe first column judges the scheme, done right; the second what the published "
        'program does, where the claim is about that. "Does not hold" needs an interval that excludes the claim; one '
        'that excludes neither the claim nor its opposite is "inconclusive".'
    )


def _chapter(title: str, group: Sequence[Verdict]) -> str:
    rows = [
        [
            f"**{verdict.label}**",
            "–" if verdict.program is None else f"{verdict.program}",
            f"{escaped(verdict.claim.quote)} ({escaped(verdict.claim.where)})",
            escaped(verdict.evidence),
            f"`{verdict.command}`",
        ]
        for verdict in group
    ]
    return f"### {title}\n\n" + _grid([list(COLUMNS), *rows])


def _part(part: Part, pictures: Mapping[Figure, str]) -> str:
    paragraphs = [escaped(words) for words in re.split(r"\n\s*\n", part.summary.strip()) if words]
    pieces = [f"## {escaped(part.title)}", *paragraphs, f"`{part.command}` ({part.seconds:,.0f} s)"]
    for table in part.tables:
        pieces += [f"### {escaped(table.title)}", _grid(_cells(table))]
        pieces += [escaped(table.caption)] if table.caption else []
    for figure in part.figures:
        if figure in pictures:
            words = escaped(f"{figure.title}. {figure.caption}".strip())
            pieces.append(
                f"![{words}]({PICTURES}/{pictures[figure]})\n\n*{escaped(figure.title)}.* {escaped(figure.caption)}"
            )
    pieces += ["\n".join(f"- {escaped(note)}" for note in part.notes)] if part.notes else []
    return "\n\n".join(pieces)


def _foot(parts: Sequence[Part], about: dict[str, str]) -> str:
    facts = [[escaped(name), escaped(value)] for name, value in about.items()]
    rows = [[part.name, f"{part.seconds:,.0f}", ", ".join(map(str, part.seeds)), f"`{part.command}`"] for part in parts]
    times = _grid([["part", "seconds", "seeds", "command"], *rows])
    return "## How this was made\n\n" + (_grid([["what", "value"], *facts]) + "\n\n" if facts else "") + times

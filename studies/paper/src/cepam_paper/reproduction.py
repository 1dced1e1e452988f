"""The whole reproduction: parts in order, each computed once and kept, then the page and the document."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from importlib import metadata
from pathlib import Path

from cepam_paper import (
    bits,
    claims,
    convergence,
    document,
    exactness,
    gain,
    grid,
    guarantees,
    page,
    tables,
    tradeoff,
    variations,
)
from cepam_paper.run_size import Extent
from cepam_paper.section import Part, Say, load
from cepam_paper.verdict import Verdict
from cepam_paper.versions import mark_of

Experiment = Callable[[Path, Extent, Say], Part]
PARTS: dict[str, Experiment] = {
    "exactness": exactness.run,
    "privacy": guarantees.run,
    "rate": bits.run,
    "convergence": convergence.run,
    "gaussian": tables.gaussian,
    "laplace": tables.laplace,
    "gain": gain.run,
    "grid": grid.run,
    "tradeoff": tradeoff.run,
    "variations": variations.run,
}
TOLD = {
    "exactness": "the quantizers' error laws: SDQ, RSUQ, LRSUQ and the published program",
    "privacy": "Theorems 7 and 8 and the quoted guarantees",
    "rate": "bits of real messages and by the paper's formula",
    "convergence": "distortion and convergence: bounds, counterexamples, proofs, mini-batches, non-convex objectives",
    "gaussian": "Table I, its SNR column and convergence figure",
    "laplace": "Table II, its SNR column and convergence figure",
    "gain": "where the published accuracy gain comes from",
    "grid": "the accuracy-privacy figures and what their labels guarantee",
    "tradeoff": "accuracy and bits at budgets that hold for the whole run",
    "variations": "remarks made in passing",
}
"""Every part in a few words."""
EXPERIMENT = ("gaussian", "laplace", "grid")
"""The parts of the paper's own experiment: Tables I and II, Figures 2 to 5."""
COMMANDS = {
    Extent.FULL: "cepam reproduce all",
    Extent.QUICK: "cepam reproduce all --quick",
    Extent.ONE_SEED: "cepam reproduce experiment",
}
PACKAGES = ("cepam", "numpy", "scipy", "numba", "torch", "matplotlib")


def reproduce(names: Sequence[str], report: Path, extent: Extent, say: Callable[[str, str, int, int], None]) -> None:
    """Compute the named parts into the report's folder, those already there untouched.

    `say` hears the part, what it is doing, steps done and steps in all. Stopped at any moment, the next call goes on:
    finished parts and finished training runs are found again.
    """
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise ValueError(f"unknown part {unknown[0]!r}: one of {', '.join(PARTS)}, all, experiment, page, document")
    claim(report, extent)
    for name in names:
        if load(report, name) is None:
            clock = _Clock(report / "parts" / f"{name}.seconds", lambda *told, name=name: say(name, *told))
            made = PARTS[name](report, extent, clock)
            whole = replace(made, seconds=clock.total(), extent=extent, made_by=_surroundings(), measured=mark_of(name))
            whole.save(report)


def claim(report: Path, extent: Extent) -> None:
    """Claim the folder for this extent, so that figures of different extents never mix.

    Raises:
        ValueError: the folder holds a reproduction of another extent.
    """
    path, mode = report / "mode", extent.value
    if path.is_file() and path.read_text().strip() != mode:
        raise ValueError(f"{report} holds a {path.read_text().strip()} reproduction: choose another folder with --out")
    report.mkdir(parents=True, exist_ok=True)
    path.write_text(mode + "\n")


class _Clock:
    """Progress that also adds up the seconds a part took over all its interrupted attempts."""

    def __init__(self, path: Path, say: Say) -> None:
        self.path, self.say = path, say
        self.before = float(path.read_text()) if path.is_file() else 0.0
        self.start = self.noted = time.monotonic()
        path.parent.mkdir(parents=True, exist_ok=True)

    def total(self) -> float:
        """Seconds so far."""
        return round(self.before + time.monotonic() - self.start, 1)

    def __call__(self, doing: str, done: int, of: int) -> None:
        if time.monotonic() - self.noted > 2.0:
            self.noted = time.monotonic()
            self.path.write_text(str(self.total()))
        self.say(doing, done, of)


def found(report: Path) -> tuple[list[Part], tuple[Verdict, ...]]:
    """The parts that the folder holds, in order, and the verdicts that follow from them."""
    parts = [part for part in (load(report, name) for name in PARTS) if part is not None]
    if not parts:
        raise ValueError(f"{report} holds no part yet: run `cepam reproduce all` first")
    return parts, claims.verdicts(parts)


def write_page(report: Path) -> Path:
    """The path of the page, written from the parts that are there; `verdicts.json` beside it says the same."""
    parts, verdicts = found(report)
    (report / "verdicts.json").write_text(json.dumps(listed(verdicts), indent=1) + "\n")
    return page.write(report, parts, verdicts, about(parts))


def listed(verdicts: Sequence[Verdict]) -> list[dict[str, str | None]]:
    """The verdicts as plain values."""
    return [
        {"claim": v.claim.name, "where": v.claim.where, "quote": v.claim.quote, "verdict": v.label.value,
         "program": None if v.program is None else v.program.value, "evidence": v.evidence, "command": v.command}
        for v in verdicts
    ]  # fmt: skip


def write_document(report: Path, docs: Path) -> Path:
    """The path of the document: the report's parts, and of a full report those that only the document has."""
    made = {part.name: part for part in (load(report, name) for name in PARTS) if part is not None}
    if all(part.extent is Extent.FULL for part in made.values()):
        made = {part.name: part for part in document.parts_of(docs)} | made
    parts = [made[name] for name in PARTS if name in made]
    if not parts:
        raise ValueError(f"neither {report} nor {docs} holds a part yet: run `cepam reproduce all` first")
    document.write(report, parts, claims.verdicts(parts), about(parts), docs)
    return docs / "reproduction.md"


def about(parts: Sequence[Part]) -> dict[str, str]:
    """Command, size, dates, machine and versions, as each part recorded them: what a reader needs to do it again.

    Parts that differ are listed by value.
    """
    extent = next((part.extent for part in parts if part.extent is not Extent.FULL), Extent.FULL)
    facts = {
        "command": COMMANDS[extent],
        "mode": extent.value,
        "time taken": f"{sum(part.seconds for part in parts) / 60:.0f} minutes",
    }
    for fact in dict.fromkeys(fact for part in parts for fact in part.made_by):
        named: dict[str, list[str]] = {}
        for part in parts:
            named.setdefault(part.made_by.get(fact, "not recorded"), []).append(part.name)
        listed = [f"{value} ({', '.join(names)})" for value, names in named.items()]
        facts[fact] = next(iter(named)) if len(named) == 1 else "; ".join(listed)
    return facts


def _surroundings() -> dict[str, str]:
    """The date, the machine and the versions under which a part is made."""
    facts = {
        "date": date.today().isoformat(),
        "cores": str(os.cpu_count()),
        "machine": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
    for name in PACKAGES:
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return facts

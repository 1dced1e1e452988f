"""A claim of the paper, the numbers it is judged by, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any

from scipy import stats

from cepam_paper.run_size import Extent
from cepam_paper.section import Part


class Label(StrEnum):
    """What a verdict says of a claim."""

    HOLDS = "holds"
    REPAIRED = "holds after repair"
    INCONCLUSIVE = "inconclusive"
    FAILS = "does not hold"
    PROGRAM = "only the published program shows this"
    UNTESTED = "not tested"


class Missing(LookupError):
    """A part or one of its numbers is not there; the message says which."""


@dataclass(frozen=True)
class Estimate:
    """A mean with the ends of its 95 % confidence interval, which are infinite where one seed gives none."""

    mean: float
    low: float
    high: float
    seeds: int = 0
    """How many values the mean is of; 0: not known, and then many."""

    def __str__(self) -> str:
        if math.isinf(self.low):
            return f"{signed(self.mean)} (one seed, no interval)"
        return f"{signed(self.mean)} (95 % {signed(self.low)} to {signed(self.high)})"

    @property
    def half(self) -> float:
        """Half the interval's width."""
        return (self.high - self.low) / 2

    def at(self, chance: float) -> Estimate:
        """The same mean with the interval that misses the truth with this chance instead of 0.05."""
        if math.isinf(self.low):
            return self
        times = _widening(chance, self.seeds)
        return Estimate(self.mean, self.mean - times * self.half, self.mean + times * self.half, self.seeds)

    def apart(self, other: Estimate) -> Estimate:
        """The difference to an independent estimate: squares of the half-widths add up."""
        half = math.hypot(self.half, other.half)
        return Estimate(
            self.mean - other.mean, self.mean - other.mean - half, self.mean - other.mean + half, self.seeds
        )

    def less(self, other: Estimate) -> Estimate:
        """The difference to an estimate from other runs: at least 95 % sure, since both ends are taken together."""
        return Estimate(self.mean - other.mean, self.low - other.high, self.high - other.low)


def signed(value: float) -> str:
    """Two digits with the sign; what rounds to zero has a plus."""
    return f"{round(value, 2) + 0.0:+.2f}"


@cache
def _widening(chance: float, seeds: int) -> float:
    """How many times as wide as the 95 % interval of so many seeds is the one that misses with this chance."""
    law = stats.t(seeds - 1) if seeds > 1 else stats.norm
    return float(law.ppf(1 - chance / 2) / law.ppf(0.975))


@dataclass(frozen=True)
class Findings:
    """The numbers of all parts, read by path from the part that a claim names (or from another)."""

    numbers: Mapping[str, Mapping[str, Any]]
    part: str

    def number(self, path: str, part: str = "") -> float:
        """The number at a path such as `quoted/delta`."""
        value = self._at(path, part)
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            raise self._unfit(path, part, "a number", value)
        return float(value)

    def flag(self, path: str, part: str = "") -> bool:
        """The truth value at a path."""
        value = self._at(path, part)
        if not isinstance(value, bool):
            raise self._unfit(path, part, "true or false", value)
        return value

    def text(self, path: str, part: str = "") -> str:
        """The words at a path."""
        value = self._at(path, part)
        if not isinstance(value, str):
            raise self._unfit(path, part, "words", value)
        return value

    def estimate(self, path: str, part: str = "") -> Estimate:
        """The mean and interval at a path; without an interval where there is one seed."""
        mean, seeds = self.number(f"{path}/mean", part), 0
        if self.has(f"{path}/seeds", part):
            seeds = int(self.number(f"{path}/seeds", part))
        if self.empty(f"{path}/low", part) and seeds == 1:
            return Estimate(mean, -math.inf, math.inf, seeds)
        return Estimate(mean, self.number(f"{path}/low", part), self.number(f"{path}/high", part), seeds)

    def median(self, path: str, part: str = "") -> Estimate:
        """The median and its interval at a path; without an interval where there are too few seeds for one."""
        middle = self.number(f"{path}/median", part)
        if self.empty(f"{path}/low", part):
            return Estimate(middle, -math.inf, math.inf, 1)
        return Estimate(middle, self.number(f"{path}/low", part), self.number(f"{path}/high", part))

    def keys(self, path: str, part: str = "") -> tuple[str, ...]:
        """The names under a path."""
        value = self._at(path, part)
        if not isinstance(value, Mapping) or not value:
            raise self._unfit(path, part, "a table of names", value)
        return tuple(str(key) for key in value)

    def pairs(self, path: str, part: str = "") -> tuple[tuple[float, float], ...]:
        """The pairs of numbers at a path, in their order."""
        value = self._at(path, part)
        try:
            return tuple((float(first), float(second)) for first, second in value)
        except (TypeError, ValueError):
            raise self._unfit(path, part, "a list of pairs", value) from None

    def has(self, path: str, part: str = "") -> bool:
        """Whether there is anything at a path."""
        try:
            self._at(path, part)
        except Missing:
            return False
        return True

    def empty(self, path: str, part: str = "") -> bool:
        """Whether the path is there and says null: looked for, and none found."""
        above, _, last = path.rpartition("/")
        holder = self._at(above, part) if above else self.numbers.get(part or self.part)
        return isinstance(holder, Mapping) and last in holder and holder[last] is None

    def _at(self, path: str, part: str) -> Any:
        name = part or self.part
        if name not in self.numbers:
            raise Missing(f"the part {name!r} has not been computed")
        value: Any = self.numbers[name]
        for step in path.split("/"):
            if not isinstance(value, Mapping) or value.get(step) is None:
                raise Missing(f"the results of the part {name!r} have no {path!r}; a new run will")
            value = value[step]
        return value

    def _unfit(self, path: str, part: str, kind: str, value: object) -> Missing:
        return Missing(f"{path!r} of the part {part or self.part!r} should be {kind}, got {str(value)[:40]!r}")


@dataclass(frozen=True)
class Ruling:
    """What a rule says: of the scheme done right, the sentence with the evidence, and of the published program."""

    label: Label
    evidence: str
    program: Label | None = None
    """None where the claim is not about anything that the program does, or it was not measured."""


Rule = Callable[[Findings], Ruling]
"""From the findings to a ruling."""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, abridged, the part that tests it, and the rule by which its numbers decide."""

    name: str
    where: str
    quote: str
    part: str
    command: str
    rule: Rule = field(repr=False, compare=False)
    needs_seeds: bool = False
    """Whether seeds of training runs decide it: then parts of a run with fewer seeds give no verdict."""


@dataclass(frozen=True)
class Verdict:
    """What became of a claim, for the scheme and for the published program, and why."""

    claim: Claim
    label: Label
    evidence: str
    command: str
    program: Label | None = None


def judge(claims: Sequence[Claim], parts: Sequence[Part]) -> tuple[Verdict, ...]:
    """A verdict on every claim, in order; what cannot be read from the parts is "not tested", with the reason."""
    numbers = {part.name: part.numbers for part in parts}
    short = {part.name: part.extent for part in parts if part.extent is not Extent.FULL}
    return tuple(_verdict(claim, Findings(numbers, claim.part), short) for claim in claims)


def _verdict(claim: Claim, found: Findings, short: Mapping[str, Extent]) -> Verdict:
    """The verdict; `short` has the parts of runs that are not full, which decide nothing that needs seeds."""
    try:
        if claim.needs_seeds and claim.part in short:
            raise Missing(f"no verdict on accuracy from a run of this extent ({short[claim.part]})")
        made = claim.rule(found)
    except Missing as missing:
        made = Ruling(Label.UNTESTED, f"{str(missing)[:1].upper()}{str(missing)[1:]}.")
    label = made.label
    if label is Label.FAILS and made.program in (Label.HOLDS, Label.REPAIRED):
        label = Label.PROGRAM
    return Verdict(claim, label, made.evidence, claim.command, made.program)


def known(label: Label, evidence: str) -> Rule:
    """A rule for a matter of proof or of record: the verdict rests on what the evidence names."""
    return lambda found: Ruling(label, evidence)


def decided(holds: bool, repaired: bool = False) -> Label:
    """The label of a claim that holds as printed, or else, repaired, holds; or does not hold.

    For what is proved, computed or tested with a stated chance of error. What seeds decide goes through `weighing`.
    """
    return Label.HOLDS if holds else Label.REPAIRED if repaired else Label.FAILS

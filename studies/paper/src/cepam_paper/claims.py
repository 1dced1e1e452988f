"""Every claim of the paper, from the abstract to the appendix, and the verdict on each.

A verdict follows from the parts' numbers by the rule that stands beside the claim: what the scheme done right does, and
what the published program does. A number that is not there makes it "not tested", and an interval that excludes neither
the claim nor its opposite "inconclusive". Claims that are matters of proof or record name what shows them.
"""

from __future__ import annotations

from collections.abc import Sequence

from cepam_paper import accuracy_claims, analysis_claims, budget_claims, scheme_claims, setup_claims
from cepam_paper.section import Part
from cepam_paper.verdict import Claim, Label, Verdict, judge

CHAPTERS: tuple[tuple[str, tuple[Claim, ...]], ...] = (
    ("The scheme (abstract, Sections I to III)", scheme_claims.CLAIMS),
    ("The analysis (Section IV and the appendix)", analysis_claims.CLAIMS),
    ("The experiments (Sections V-A, V-B and VI)", (*setup_claims.CLAIMS, *accuracy_claims.CLAIMS)),
    ("The budgets (Sections V-B and V-C)", budget_claims.CLAIMS),
)
CLAIMS: tuple[Claim, ...] = tuple(claim for _, chapter in CHAPTERS for claim in chapter)


def verdicts(parts: Sequence[Part]) -> tuple[Verdict, ...]:
    """A verdict on every claim of the paper, in the order of `CLAIMS`."""
    return judge(CLAIMS, parts)


def tally(found: Sequence[Verdict]) -> dict[Label, int]:
    """How many verdicts carry each label."""
    return {label: sum(one.label is label for one in found) for label in Label}


def by_chapter(found: Sequence[Verdict]) -> tuple[tuple[str, tuple[Verdict, ...]], ...]:
    """The verdicts under the headings of their claims; claims of nobody's chapter come last, under "Others"."""
    places = {claim.name: title for title, chapter in CHAPTERS for claim in chapter}
    titles = [title for title, _ in CHAPTERS] + ["Others"]
    groups = ((title, tuple(v for v in found if places.get(v.claim.name, "Others") == title)) for title in titles)
    return tuple((title, group) for title, group in groups if group)

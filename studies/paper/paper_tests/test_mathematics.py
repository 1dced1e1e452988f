"""Formulas: the TeX that the report writes, as MathML, by hand and for every formula that can come up."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from cepam_paper import claims, proof_repairs
from cepam_paper.mathematics import FORMULA, mathml, worded
from paper_tests.made_up import NUMBERS, part


def plain(formula: str) -> str:
    """The formula as a tree of tags and letters, without what only helps the setting."""

    def told(node: ElementTree.Element) -> str:
        inner = "".join(told(child) for child in node)
        kept = node.tag in ("msub", "msup", "msubsup", "mfrac", "msqrt", "mover")
        return f"{node.tag}({inner})" if kept else (node.text or "") + inner

    return told(ElementTree.fromstring(mathml(formula)))


@pytest.mark.parametrize(
    ("formula", "tree"),
    [
        (r"\epsilon = 1.45", "ε=1.45"),
        (r"\tilde\epsilon", "mover(ε~)"),
        (r"E\|Z\|^2", "EmsubZ".replace("msubZ", "‖Zmsup(‖2)")),
        (r"\sum_k p_k^2", "msub(∑k)msubsup(pk2)"),
        (r"\frac{L}{2(T+\alpha)}", "mfrac(L2(T+α))"),
        (r"e^{-x} \le 1 - x/2", "msup(e−x)≤1−x/2"),
        (r"\mathrm{Var}(f)/n", "Var(f)/n"),
        (r"\lceil\log_2 |\mathcal{M}(U)|\rceil", "⌈msub(log2)|ℳ(U)|⌉"),
        (r"\sqrt{8}", "msqrt(8)"),
        (r"9.69e-3", "9.69×msup(10−3)"),
        (r"1e-05", "msup(10−5)"),
        (r"\max\{a, b\}", "max{a,b}"),
    ],
)
def test_what_a_formula_becomes(formula: str, tree: str) -> None:
    assert plain(formula) == tree


def test_words_around_formulas_are_escaped() -> None:
    assert worded("a < b $x$ & c").startswith("a &lt; b <math")
    assert worded("one $ alone").endswith("one $ alone")
    assert "&lt;" in mathml("x < y")


def test_every_formula_of_every_claim_and_repair_is_well_formed() -> None:
    found = claims.verdicts([part(name) for name in NUMBERS])
    words = [text for one in found for text in (one.evidence, one.claim.quote)]
    words += [cell for row in proof_repairs.ROWS for cell in row]
    formulas = [formula for text in words for formula in FORMULA.findall(text)]
    assert len(formulas) > 150
    for formula in formulas:
        ElementTree.fromstring(mathml(formula))
    assert all(text.count("$") % 2 == 0 for text in words)


def test_control_an_unknown_command_is_refused() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        mathml(r"\nonsense")

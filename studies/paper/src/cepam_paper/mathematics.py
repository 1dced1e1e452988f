"""Formulas: the small part of TeX that the report writes between dollar signs, as MathML for the page.

Browsers set MathML by themselves, so the page needs no script, no font and no network; Markdown viewers set the TeX.
"""

from __future__ import annotations

import html
import re

FORMULA = re.compile(r"\$([^$\n]+)\$")
TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\d+(?:\.\d+)?(?:e[-+]?\d+)?|[A-Za-z]|\S")
LETTERS = {
    name: chr(code)
    for names, first in (("alpha beta gamma delta epsilon zeta eta theta", 0x3B1), ("lambda mu", 0x3BB), ("pi", 0x3C0),
                         ("sigma tau", 0x3C3), ("psi", 0x3C8))
    for code, name in enumerate(names.split(), first)
} | {"phi": "\u03c6", "Gamma": "\u0393", "Phi": "\u03a6", "ell": "\u2113", "infty": "\u221e"}  # fmt: skip
OPERATORS = {
    "le": "\u2264", "ge": "\u2265", "approx": "\u2248", "times": "\u00d7", "in": "\u2208", "cap": "\u2229",
    "sum": "\u2211", "lceil": "\u2308", "rceil": "\u2309", "to": "\u2192", "-": "\u2212", "*": "\u2217", "|": "\u2016",
    "{": "{", "}": "}", "vert": "|", "Vert": "\u2016",
}  # fmt: skip
NAMES = ("log", "exp", "max", "min")
ACCENTS = {"tilde": "~", "bar": "\u00af", "hat": "^"}
FENCES = set("()[]{}|\u2308\u2309\u2016")


def worded(words: str, escape: bool = True) -> str:
    """The words as HTML with every formula between dollar signs as MathML; the rest escaped unless it is already."""
    pieces = FORMULA.split(words)
    plain = html.escape if escape else str
    return "".join(mathml(piece) if i % 2 else plain(piece) for i, piece in enumerate(pieces))


def mathml(formula: str) -> str:
    """A formula as a MathML element, its TeX kept for those who cannot see it set."""
    tokens = TOKEN.findall(formula)
    made = _Reader(tokens).row()
    return f'<math alttext="{html.escape(formula)}"><mrow>{made}</mrow></math>'


class _Reader:
    """Tokens read once from left to right; what is no TeX of ours stands as it is."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.at = tokens, 0

    def row(self, end: str = "") -> str:
        made = []
        while self.at < len(self.tokens) and self.tokens[self.at] != end:
            made.append(self._scripted())
        self.at += 1
        return "".join(made)

    def _scripted(self) -> str:
        """A piece with its subscript and superscript, in either order."""
        piece, scripts = self._piece(), {}
        while self.at < len(self.tokens) and self.tokens[self.at] in "_^":
            kind = self.tokens[self.at]
            self.at += 1
            scripts[kind] = self._piece()
        if "_" in scripts and "^" in scripts:
            return f"<msubsup>{piece}{scripts['_']}{scripts['^']}</msubsup>"
        for kind, tag in (("_", "msub"), ("^", "msup")):
            if kind in scripts:
                return f"<{tag}>{piece}{scripts[kind]}</{tag}>"
        return piece

    def _piece(self) -> str:
        if self.at >= len(self.tokens):
            return "<mrow></mrow>"
        token = self.tokens[self.at]
        self.at += 1
        if token == "{":
            return f"<mrow>{self.row('}')}</mrow>"
        if token.startswith("\\"):
            return self._command(token[1:])
        if token[0].isdigit():
            return _number(token)
        if token.isalpha():
            return f"<mi>{html.escape(token)}</mi>"
        return _operator(OPERATORS.get(token, token) if token not in "{}|" else token)

    def _command(self, name: str) -> str:
        if name == "frac":
            return f"<mfrac>{self._piece()}{self._piece()}</mfrac>"
        if name == "sqrt":
            return f"<msqrt>{self._piece()}</msqrt>"
        if name in ACCENTS:
            return f'<mover accent="true">{self._piece()}<mo stretchy="false">{ACCENTS[name]}</mo></mover>'
        if name == "mathrm":
            return f"<mi>{html.escape(self._raw())}</mi>"
        if name == "mathcal":
            # Script capitals lie one after the other in Unicode but for a few that were there before.
            letter = self._raw()
            script = {"M": "\u2133"}.get(letter, chr(0x1D49C + ord(letter) - ord("A")))
            return f"<mi>{script}</mi>"
        if name == ",":
            return '<mspace width="0.17em"></mspace>'
        if name in LETTERS:
            return f"<mi>{LETTERS[name]}</mi>"
        if name in NAMES:
            return f"<mi>{name}</mi>"
        if name in OPERATORS:
            return _operator(OPERATORS[name])
        raise ValueError(f"\\{name} is no command that formulas of the report may use")

    def _raw(self) -> str:
        """The letters of a group in braces, as they stand."""
        end = self.tokens.index("}", self.at)
        inside, self.at = "".join(self.tokens[self.at + 1 : end]), end + 1
        return inside


def _number(token: str) -> str:
    """A number; one with an exponent as a power of ten."""
    digits, _, power = token.partition("e")
    if not power:
        return f"<mn>{digits}</mn>"
    exponent = f"<msup><mn>10</mn><mrow><mo>\u2212</mo><mn>{int(power[1:])}</mn></mrow></msup>"
    if not power.startswith("-"):
        exponent = f"<msup><mn>10</mn><mn>{int(power)}</mn></msup>"
    return exponent if digits == "1" else f"<mrow><mn>{digits}</mn><mo>\u00d7</mo>{exponent}</mrow>"


def _operator(sign: str) -> str:
    fixed = ' stretchy="false"' if sign in FENCES else ""
    return f"<mo{fixed}>{html.escape(sign)}</mo>"

"""A hook of the documentation site: formulas between dollar signs as MathML.

Browsers set that without script or network. Pages of the study write them; GitHub sets the same TeX by itself.
"""

from __future__ import annotations

import re
from typing import Any

from cepam_paper.mathematics import FORMULA, mathml

CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page's text with its formulas as MathML; what stands in code stays."""
    pieces = CODE.split(markdown)
    pieces[::2] = [FORMULA.sub(set_formula, piece) for piece in pieces[::2]]
    return "".join(pieces)


def set_formula(found: re.Match[str]) -> str:
    """The formula as MathML that may stand in a cell of a table, where a bare bar would end the cell."""
    return mathml(found[1]).replace("|", "&#124;")

"""Hooks of the documentation site: pages written from source, and formulas between dollar signs as MathML.

Browsers set MathML without script or network. Pages of the study write TeX; GitHub sets it by itself. The hooks import
what they need when they run, so that the formulas need the study alone and the reference the commands alone.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)


def generated() -> dict[str, str]:
    """The pages that the site writes from source, by their place in docs/."""
    sys.path.insert(0, str(Path(__file__).parent))
    import make_cli
    import make_settings

    return {"reference/cli.md": make_cli.page(), "reference/settings.md": make_settings.page()}


def on_files(files: Any, config: Any) -> Any:
    """The site's files with the generated pages among them."""
    from mkdocs.structure.files import File

    for place, text in generated().items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page's text with its formulas as MathML; what stands in code stays."""
    from cepam_paper.mathematics import FORMULA

    pieces = CODE.split(markdown)
    pieces[::2] = [FORMULA.sub(set_formula, piece) for piece in pieces[::2]]
    return "".join(pieces)


def set_formula(found: re.Match[str]) -> str:
    """The formula as MathML that may stand in a cell of a table, where a bare bar would end the cell."""
    from cepam_paper.mathematics import mathml

    return mathml(found[1]).replace("|", "&#124;")

"""Hooks of the documentation site: pages written from source, and formulas between dollar signs as MathML.

Browsers set MathML without script or network. Pages of the study write TeX; GitHub sets it by itself. The hooks import
what they need when they run, so that the formulas need the study alone and the reference the commands alone.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)([^)#]*)(#[^)]*)?\)")
ROOT_PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def generated() -> dict[str, str]:
    """The pages that the site writes from source, by their place in docs/."""
    sys.path.insert(0, str(Path(__file__).parent))
    import make_benchmarks
    import make_cli
    import make_settings

    return {
        "reference/cli.md": make_cli.page(),
        "reference/settings.md": make_settings.page(),
        "notebook.md": notebook_page((ROOT / "docs" / "tutorial.ipynb").read_text(encoding="utf-8")),
        **{place: root_page((ROOT / name).read_text(encoding="utf-8")) for name, place in ROOT_PAGES.items()},
        **{f"benchmarks/{name}": text for name, text in make_benchmarks.pages().items()},
    }


def root_page(text: str) -> str:
    """A page of the repository's root as a page of the site: links into docs/ stay, other files are named without."""

    def moved(found: re.Match[str]) -> str:
        words, place, anchor = found.groups()
        if place.startswith("docs/"):
            return f"[{words}]({place.removeprefix('docs/')}{anchor or ''})"
        if place in ROOT_PAGES or (not place and anchor):
            return f"[{words}]({ROOT_PAGES.get(place, '')}{anchor or ''})"
        return words

    pieces = CODE.split(text)
    pieces[::2] = [LINK.sub(moved, piece) for piece in pieces[::2]]
    return "".join(pieces)


def notebook_page(held: str) -> str:
    """The notebook as a page: its text, its code, and the outputs and plots of that run."""
    parts = []
    for cell in json.loads(held)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                parts.append(f"![Plot](data:image/png;base64,{''.join(data['image/png'].split())})")
                continue
            said = "".join(output.get("text", data.get("text/plain", [])))
            if said.strip():
                parts.append(f"```text\n{said.rstrip()}\n```")
    first, *rest = parts
    title = first.replace("# Tutorial", "# Tutorial, with outputs", 1)
    return "\n\n".join([title, *rest]) + "\n"


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

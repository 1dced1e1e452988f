"""The tutorial as a notebook: `python tools/make_notebook.py` writes docs/tutorial.ipynb from docs/tutorial.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


def cells_of(text: str) -> list[dict[str, Any]]:
    """The page as cells: its Python blocks as code, what lies between them as text."""
    made = []
    for place, piece in enumerate(BLOCK.split(text)):
        words = piece.strip("\n")
        if not words:
            continue
        code = {"cell_type": "code", "execution_count": None, "outputs": []} if place % 2 else {"cell_type": "markdown"}
        made.append({**code, "id": f"cell-{len(made)}", "metadata": {}, "source": words.splitlines(keepends=True)})
    return made


def notebook_of(text: str) -> str:
    """The notebook, in the format that Jupyter reads (version 4.5), without outputs."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    held = {"cells": cells_of(text), "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(held, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Nothing; the notebook is that of the page."""
    page = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    (DOCS / "tutorial.ipynb").write_text(notebook_of(page), encoding="utf-8")


if __name__ == "__main__":
    main()

"""The tutorial as a notebook with outputs: `python tools/make_notebook.py` runs docs/tutorial.md.

It writes docs/tutorial.ipynb, and needs `pip install ".[docs,torch,plots,flower-simulation]"`. Keys are fresh in every
run, so noise and plots differ a little each time.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
SECONDS = 600  # for one cell; the first run on a machine compiles kernels


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


def notebook_of(text: str) -> dict[str, Any]:
    """The notebook, in the format that Jupyter reads (version 4.5), without outputs."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells_of(text), "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with the outputs of its cells, without logs and times; runs in an empty folder.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell raised.
    """
    import nbformat
    from nbclient import NotebookClient

    made = nbformat.reads(json.dumps(notebook), as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(made, timeout=SECONDS, resources={"metadata": {"path": folder}}).execute()
    made.metadata = notebook["metadata"]
    for cell in made.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
    return dict(json.loads(nbformat.writes(made)))


def main() -> None:
    """Write the notebook of the page, with fresh outputs."""
    page = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    held = json.dumps(executed(notebook_of(page)), indent=1, ensure_ascii=False) + "\n"
    (DOCS / "tutorial.ipynb").write_text(held, encoding="utf-8")


if __name__ == "__main__":
    main()

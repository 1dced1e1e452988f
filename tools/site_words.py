"""Count the words of the site's stored pages: `python tools/site_words.py` prints them, longest pages first.

Pages that the site writes from source are not counted, nor is the reproduction, which a command writes. A word has a
letter: numbers, signs of formulas and bars of tables have none. What `wc -w` counts, these too, is printed beside it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
WRITTEN = {"paper/reproduction.md"}
MOST = 35_000
LETTER = re.compile(r"[^\W\d_]")


def words(docs: Path = DOCS) -> dict[str, int]:
    """Words of each stored page by its place in the folder, code blocks included."""
    return {name: sum(bool(LETTER.search(token)) for token in tokens) for name, tokens in _tokens(docs).items()}


def _tokens(docs: Path) -> dict[str, list[str]]:
    found = {str(page.relative_to(docs)): page.read_text(encoding="utf-8").split() for page in docs.rglob("*.md")}
    return {name: tokens for name, tokens in found.items() if name not in WRITTEN}


def main() -> int:
    """Print the counts; 1 if the pages have too many words together."""
    found = words()
    together = sum(found.values())
    for name, count in sorted(found.items(), key=lambda each: -each[1])[:10]:
        print(f"{count:7,} {name}")
    every = sum(map(len, _tokens(DOCS).values()))
    print(f"{together:7,} words in {len(found)} stored pages (at most {MOST:,}); {every:,} by wc -w")
    return int(together > MOST)


if __name__ == "__main__":
    sys.exit(main())

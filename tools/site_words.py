"""Count the words of the site's stored pages: `python tools/site_words.py` prints them, longest pages first.

A word is what `wc -w` counts: anything between spaces, with numbers, bars of tables and code. Only the reproduction of
the paper and its theory (`docs/paper/`) are left out. Pages that the site writes from source are not stored.
"""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
LEFT_OUT = "paper"
MOST = 35_000


def words(docs: Path = DOCS) -> dict[str, int]:
    """Words of each stored page by its place in the folder, code blocks included, without the reproduction."""
    pages = [page for page in docs.rglob("*.md") if page.relative_to(docs).parts[0] != LEFT_OUT]
    return {str(page.relative_to(docs)): len(page.read_text(encoding="utf-8").split()) for page in pages}


def main() -> int:
    """Print the counts; 1 if the pages have too many words together."""
    found = words()
    together = sum(found.values())
    for name, count in sorted(found.items(), key=lambda each: -each[1])[:10]:
        print(f"{count:7,} {name}")
    print(f"{together:7,} words by wc -w in {len(found)} stored pages, without docs/{LEFT_OUT}/ (at most {MOST:,})")
    return int(together > MOST)


if __name__ == "__main__":
    sys.exit(main())

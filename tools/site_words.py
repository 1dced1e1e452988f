"""Count the words of the site's stored pages: `python tools/site_words.py` prints them, longest pages first.

Pages that the site writes from source are not counted, nor is the reproduction, which a command writes.
"""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
WRITTEN = {"paper/reproduction.md"}
MOST = 35_000


def words(docs: Path = DOCS) -> dict[str, int]:
    """Words of each stored page, as `wc -w` counts them, by its place in the folder."""
    found = {str(page.relative_to(docs)): len(page.read_text(encoding="utf-8").split()) for page in docs.rglob("*.md")}
    return {name: count for name, count in found.items() if name not in WRITTEN}


def main() -> int:
    """Print the counts; 1 if the pages have too many words together."""
    found = words()
    together = sum(found.values())
    for name, count in sorted(found.items(), key=lambda each: -each[1])[:10]:
        print(f"{count:7,} {name}")
    print(f"{together:7,} words in {len(found)} stored pages (at most {MOST:,})")
    return int(together > MOST)


if __name__ == "__main__":
    sys.exit(main())

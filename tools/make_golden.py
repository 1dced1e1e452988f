"""Writes the pinned messages of tests/golden anew: `python tools/make_golden.py`. See CONTRIBUTING.md before you do."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.golden.cases import FILE, cases, measure, pinned

if __name__ == "__main__":
    before = pinned() if FILE.exists() else {}
    entries = [measure(case) for case in cases()]
    FILE.write_text(json.dumps(entries, indent=1) + "\n")
    changed = [entry["name"] for entry in entries if before.get(entry["name"]) != entry]
    print(f"{len(entries)} messages, {len(changed)} changed")
    for name in changed:
        print(f"  {name}")

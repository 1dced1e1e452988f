"""Every module can be imported on Windows: what only Unix has is imported where it is used, or under a condition."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNIX = {
    "crypt", "curses", "fcntl", "grp", "nis", "ossaudiodev", "posix", "pty", "pwd", "readline", "resource", "spwd",
    "syslog", "termios", "tty",
}  # fmt: skip


def unguarded(body: Iterable[ast.stmt]) -> Iterator[str]:
    """The names of Unix's modules that these statements import as soon as they run."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in UNIX)
        elif isinstance(node, ast.ImportFrom) and node.module in UNIX:
            yield node.module
        elif isinstance(node, ast.ClassDef | ast.With):
            yield from unguarded(node.body)


def test_no_module_needs_unix_to_be_imported() -> None:
    sources = [*ROOT.glob("src/**/*.py"), *ROOT.glob("studies/*/src/**/*.py")]
    assert sources
    found = {str(path): names for path in sources if (names := [*unguarded(ast.parse(path.read_text("utf-8")).body)])}
    assert found == {}


def test_what_is_guarded_is_told_from_what_is_not() -> None:
    guarded = "import sys\nif sys.platform != 'win32':\n    import fcntl\ndef f():\n    import pwd\n"
    assert [*unguarded(ast.parse(guarded).body)] == []
    bare = "import fcntl\nclass A:\n    from termios import TCSANOW\n"
    assert [*unguarded(ast.parse(bare).body)] == ["fcntl", "termios"]

"""The `cepam` command, a process of its own; also `python -m cepam`."""

from __future__ import annotations

import atexit
import gc


def main() -> None:
    """Run the command.

    What imports make stays, and whoever looks for garbage looks at all of it again: a sixth of their time, and most of
    the time in which a process ends. So nobody looks until the command's module is imported (`Command.load`), nor at
    the end.
    """
    gc.disable()
    atexit.register(gc.freeze)
    from cepam.cli import app

    app(prog_name="cepam")


if __name__ == "__main__":
    main()

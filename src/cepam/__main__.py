"""`python -m cepam`: the `cepam` command."""

from __future__ import annotations

from cepam.cli import app

if __name__ == "__main__":
    app(prog_name="cepam")

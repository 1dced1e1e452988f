"""`python -m cepam`: the `cepam` command."""

from cepam.cli import app

if __name__ == "__main__":
    app(prog_name="cepam")

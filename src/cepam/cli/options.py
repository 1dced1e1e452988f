"""The options that several commands share, and the codec, key and address that they describe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cepam import Codec, Key, Lattice, Law


class LawName(StrEnum):
    """The laws that the command line knows."""

    gaussian = "gaussian"
    laplace = "laplace"
    uniform_ball = "uniform-ball"


class CoderName(StrEnum):
    """The entropy codes."""

    adaptive = "adaptive"
    paper = "paper"


LawOption = Annotated[LawName, typer.Option("--law", help="The noise that the decoded vector carries.")]
SigmaOption = Annotated[float | None, typer.Option("--sigma", help="Standard deviation of Gaussian noise.")]
ScaleOption = Annotated[float | None, typer.Option("--b", help="Scale of Laplace noise.")]
RadiusOption = Annotated[float | None, typer.Option("--radius", help="Radius of uniform-ball noise.")]
LatticeOption = Annotated[
    str,
    typer.Option("--lattice", help="auto, Z1 to Z10, A2, D4, E8, or a .npy file with a generator matrix."),
]
CoderOption = Annotated[CoderName, typer.Option("--coder", help="adaptive is small; paper is the paper's code.")]
BoundOption = Annotated[float | None, typer.Option("--bound", help="Bound on the update's norm, for --coder paper.")]
KeyOption = Annotated[Path, typer.Option("--key", help="The client's key file, made by `cepam keygen`.")]
RoundOption = Annotated[int, typer.Option("--round", help="The round. Use each (round, client, attempt) once.")]
ClientOption = Annotated[int, typer.Option("--client", help="The client's number.")]
RunOption = Annotated[str, typer.Option("--run", help="A name that separates runs that share keys.")]
AttemptOption = Annotated[int, typer.Option("--attempt", help="Counts further tries within a round.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")]


def law_of(name: LawName, sigma: float | None, b: float | None, radius: float | None) -> Law:
    """The law that the options describe; exactly its own scale must be given."""
    import cepam

    makers = {
        LawName.gaussian: ("--sigma", sigma, cepam.Gaussian),
        LawName.laplace: ("--b", b, cepam.Laplace),
        LawName.uniform_ball: ("--radius", radius, cepam.UniformBall),
    }
    for other, (option, value, _) in makers.items():
        if other is not name and value is not None:
            raise ValueError(f"{option} belongs to --law {other.value}, not to --law {name.value}")
    option, value, maker = makers[name]
    if value is None:
        raise ValueError(f"--law {name.value} needs {option}, for example {option} 0.01")
    return maker(value)


def lattice_of(text: str) -> Lattice | None:
    """The lattice that the text names, or None for the codec's own choice."""
    import cepam

    if text == "auto":
        return None
    if text.endswith(".npy"):
        from cepam.cli.files import read_array

        return cepam.Lattice(read_array(Path(text)))
    from cepam.noise.lattices import lattice_named

    return lattice_named(text.upper())


def codec_of(law: Law, lattice: str, coder: CoderName = CoderName.adaptive, bound: float | None = None) -> Codec:
    """The codec that the options describe."""
    import cepam

    return cepam.Codec(law, lattice=lattice_of(lattice) or "auto", coder=coder.value, bound=bound)


def read_key(path: Path) -> Key:
    """The key in a file, as hex digits or as 32 raw bytes; a file that others can read earns a warning."""
    import cepam

    data = path.read_bytes()
    if path.stat().st_mode & 0o077:
        typer.echo(f"warning: other users can read {path}: chmod 600 it", err=True)
    if len(data) == 32:
        return cepam.Key(data)
    try:
        return cepam.Key(bytes.fromhex(data.decode("ascii").strip()))
    except ValueError as refused:
        raise ValueError(f"{path} is not a key file: 64 hex digits or 32 raw bytes are expected") from refused


@contextmanager
def waiting(text: str, shown: bool) -> Iterator[None]:
    """Nothing; while the block runs, a moving bar on stderr if `shown` (for work that takes seconds)."""
    if not shown:
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        progress.add_task(text, total=None)
        yield

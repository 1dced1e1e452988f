"""Options, files and small parsers that several commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from cepam._internal.files import write_atomically

if TYPE_CHECKING:
    from cepam import Address, Codec, Key, Lattice, Law, UsedAddresses


def read_array(path: Path) -> Any:
    """The array in a .npy file."""
    import numpy as np

    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, MemoryError) as refused:
        raise ValueError(f"{path} is not a .npy file of numbers") from refused
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{path} is an .npz archive: give one array as .npy")
    return array


def write_array(path: Path, values: Any) -> None:
    """Write the array to a .npy file."""
    import io

    import numpy as np

    buffer = io.BytesIO()
    np.save(buffer, values)
    check_folder(path)
    write_atomically(path, buffer.getvalue())


def check_folder(path: Path) -> None:
    """Raise `ValueError` if the file could not be written for want of its folder."""
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{path}: the folder does not exist")


@contextmanager
def used_addresses(path: Path | None) -> Iterator[UsedAddresses | None]:
    """The addresses noted in a file, locked during the block, each on the disk once claimed; None without a file."""
    from cepam import UsedAddresses

    if path is None:
        yield None
        return
    check_folder(path)
    with UsedAddresses.kept(path) as used:
        yield used


LawName = Literal["gaussian", "laplace", "uniform-ball"]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


@dataclass(frozen=True)
class CodecOptions:
    """What the command line says about a codec; every field is an option."""

    law: Annotated[LawName, typer.Option("--law", help="Distribution of the noise.")] = "gaussian"
    noise_scale: Annotated[
        float | None,
        typer.Option(
            "--noise-scale",
            help="Noise scale per coordinate, in the unit of the update: sigma of Gaussian or b of Laplace noise.",
        ),
    ] = None
    radius: Annotated[
        float | None, typer.Option("--radius", help="Radius of uniform-ball noise, in the unit of the update.")
    ] = None
    lattice: Annotated[
        str, typer.Option("--lattice", help="Lattice: Z1 to Z10, A2, D4, E8, or a .npy file with a generator matrix.")
    ] = "Z1"
    coder: Annotated[
        Literal["auto", "layered", "paper"],
        typer.Option("--coder", help="Coder; auto has far fewer bytes than layered where noise drowns the update."),
    ] = "auto"
    bound: Annotated[float | None, typer.Option("--bound", help="Bound on the update's norm, for --coder paper.")] = (
        None
    )

    def codec(self) -> Codec:
        """The codec that they describe."""
        import cepam

        law, lattice = law_of(self.law, self.noise_scale, self.radius), lattice_of(self.lattice)
        return cepam.Codec(law, lattice=lattice, coder=self.coder, bound=self.bound)


@dataclass(frozen=True)
class AddressOptions:
    """What the command line says about an address; every field is an option."""

    key: Annotated[Path, typer.Option("--key", help="The client's key file, made by `cepam keygen`.")]
    round: Annotated[int, typer.Option("--round", help="Number of the round. Use each (round, client, attempt) once.")]
    client: Annotated[int, typer.Option("--client", help="Number of the client.")] = 0
    run: Annotated[str, typer.Option("--run", help="Name of the run; it separates runs that share keys.")] = ""
    attempt: Annotated[int, typer.Option("--attempt", help="Number of the try within the round, from 0.")] = 0

    def address(self) -> Address:
        """The address that they describe."""
        from cepam import Address

        key = read_key(self.key)
        return Address(key, round=self.round, client=self.client, run=self.run.encode(), attempt=self.attempt)


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of a dataclass as options, in the place of an argument of that type."""
    hints, parameters = get_type_hints(command, include_extras=True), []
    groups: dict[str, Any] = {}
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if not is_dataclass(kind):
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=kind))
            continue
        inner, groups[parameter.name] = get_type_hints(kind, include_extras=True), kind
        for each in fields(kind):
            default = inspect.Parameter.empty if each.default is MISSING else each.default
            parameters.append(
                inspect.Parameter(
                    each.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=inner[each.name]
                )
            )

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        made = {
            name: kind(**{each.name: given.pop(each.name) for each in fields(kind)}) for name, kind in groups.items()
        }
        command(**made, **given)

    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    del wrapped.__wrapped__
    return wrapped


def law_of(name: LawName, noise_scale: float | None, radius: float | None) -> Law:
    """The law that the options describe; exactly its own scale must be given."""
    import cepam
    from cepam.distributions.laws import PRIVATE_LAWS

    ball = name == "uniform-ball"
    option, value, other, wrong = ("--noise-scale", noise_scale, "--radius", radius)
    if ball:
        option, value, other, wrong = other, wrong, option, value
    if wrong is not None:
        raise ValueError(f"{other} does not go with --law {name}, which needs {option}")
    if value is None:
        raise ValueError(f"--law {name} needs {option}, for example {option} 0.01")
    if ball:
        return cepam.UniformBall(value)
    return PRIVATE_LAWS[name](value)


def lattice_of(text: str) -> Lattice:
    """The lattice that the text names."""
    import cepam

    if text.endswith(".npy"):
        return cepam.Lattice(read_array(Path(text)))
    from cepam.lattices.lattice import lattice_named

    return lattice_named(text.upper())


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
    """Show a moving bar on stderr while the block runs, if `shown` (for work that takes seconds)."""
    if not shown:
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        progress.add_task(text, total=None)
        yield

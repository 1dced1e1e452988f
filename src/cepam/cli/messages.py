"""`cepam keygen`, `cepam encode`, `cepam decode` and `cepam inspect`."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cepam._internal.files import write_atomically
from cepam.cli.options import (
    AddressOptions,
    CodecOptions,
    JsonOption,
    check_folder,
    read_array,
    spread,
    used_addresses,
    waiting,
    write_array,
)

if TYPE_CHECKING:
    from cepam import Clip, Law


def keygen(
    path: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")],
    json_out: JsonOption = False,
) -> None:
    """Make a fresh key for ONE client and the server, in a file that only you can read (mode 600).

    Whoever holds a key and the traffic can strip the noise: never share one between clients. `cepam encode` notes the
    addresses that it used beside it, in KEY.used: keep the two files together.

    Example: `cepam keygen alice.key`
    """
    from cepam import Key

    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ValueError(f"{path} exists: a key is never overwritten") from None
    with os.fdopen(handle, "w") as file:
        file.write(Key.generate().secret.hex() + "\n")
    typer.echo(json.dumps({"key_file": str(path), "bytes": 32}) if json_out else f"a fresh key is in {path} (mode 600)")


_LONG = 2_000_000
_LONG_MESSAGE = 500_000
UsedOption = Annotated[
    Path | None, typer.Option("--used", help="A file of addresses decoded so far: a second use is refused.")
]
SentOption = Annotated[
    Path | None,
    typer.Option("--used", help="The file of addresses used so far.", show_default="the key's name with .used"),
]
RememberOption = Annotated[
    bool, typer.Option("--remember/--no-remember", help="Refuse an address that was used before, and note this one.")
]


@dataclass(frozen=True)
class ClipOptions:
    """What the command line says about a clip: one of them."""

    clipping_norm: Annotated[
        float | None,
        typer.Option(
            "--clipping-norm",
            help="Clipping norm: scale the update down to at most this norm, l2, or l1 with Laplace noise.",
        ),
    ] = None
    unclipped: Annotated[
        bool, typer.Option("--unclipped", help="Send it as it is: no guarantee, unless it was clipped before.")
    ] = False

    def chosen(self, law: Law) -> Clip | None:
        """The clip in the law's norm, or None where it is said that there is none."""
        from cepam.clip import CLIPS

        if (self.clipping_norm is None) != self.unclipped:
            raise ValueError(
                "give either --clipping-norm (a bound on the norm, without which noise promises nothing) or --unclipped"
            )
        if self.clipping_norm is None:
            return None
        return CLIPS[law.norm](self.clipping_norm)


@dataclass(frozen=True)
class LookOptions(AddressOptions):
    """An address for a look inside, which needs a key."""

    key: Annotated[Path | None, typer.Option("--key", help="The client's key file: look inside too.")] = None  # type: ignore[assignment]
    round: Annotated[int, typer.Option("--round", help="Number of the round, as given to `encode`.")] = 0


def _print(facts: dict[str, Any], json_out: bool) -> None:
    if json_out:
        typer.echo(json.dumps(facts))
        return
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        typer.echo(f"{name.replace('_', ' '):<{width}}  {value}")


@spread
def encode(
    update: Annotated[Path, typer.Argument(help="The update: a .npy file, one dimension, float32 or float64.")],
    message: Annotated[Path, typer.Argument(help="Where the message goes.")],
    place: AddressOptions,
    description: CodecOptions,
    clipping: ClipOptions,
    padding: Annotated[int | None, typer.Option(help="Pad the message to a multiple of this many bytes.")] = None,
    used: SentOption = None,
    remember: RememberOption = True,
    json_out: JsonOption = False,
) -> None:
    """Turn an update into a sealed message: small, and with `--clipping-norm` private once decoded.

    Use each address (key, run, round, client, attempt) ONCE: two messages at one address share their noise. Used ones
    are noted beside the key, in KEY.used (mode 600), and a second use is refused; `--no-remember` leaves that to you.

    Example: `cepam encode update.npy message.cepam --key alice.key --round 1 --noise-scale 0.01 --clipping-norm 1`
    """
    codec = replace(description.codec(), padding=padding)
    chosen, noted = clipping.chosen(codec.law), _noted(place.key, used, remember)
    at = place.address()
    check_folder(message)
    values = read_array(update)
    clipped = values if chosen is None else chosen.apply(values)
    with used_addresses(noted) as seen, waiting("encoding", values.size > _LONG):
        data = codec.encode(clipped, at, seen)
    write_atomically(message, data)
    facts: dict[str, Any] = {"message": str(message), "coordinates": len(values), "bytes": len(data)}
    facts["bits_per_coordinate"] = 8 * len(data) / max(len(values), 1)
    facts["clip"] = (
        "none: private only if it was clipped before" if chosen is None else f"{chosen.norm} {chosen.bound:g}"
    )
    _print(facts, json_out)


def _noted(key: Path, used: Path | None, remember: bool) -> Path | None:
    """Where used addresses are noted: the file given, else beside the key; None where it is said that nowhere."""
    if used is not None and not remember:
        raise ValueError("--used names the file that --no-remember leaves out: give one of them")
    return (used or key.with_name(f"{key.name}.used")) if remember else None


@spread
def decode(
    message: Annotated[Path, typer.Argument(help="The message.")],
    vector: Annotated[Path, typer.Argument(help="Where the decoded vector goes, as .npy.")],
    place: AddressOptions,
    description: CodecOptions,
    used: UsedOption = None,
    json_out: JsonOption = False,
) -> None:
    """Turn a message back into the update plus noise of exactly the law. All options must be the encoder's.

    Example: `cepam decode message.cepam vector.npy --key alice.key --round 1 --noise-scale 0.01`
    """
    codec, at = description.codec(), place.address()
    data = message.read_bytes()
    with used_addresses(used) as seen, waiting("decoding", len(data) > _LONG_MESSAGE):
        values = codec.decode(data, at, seen)
    write_array(vector, values)
    facts = {"vector": str(vector), "coordinates": len(values), "type": str(values.dtype), "grid": codec.grid}
    _print(facts, json_out)


@spread
def inspect(
    message: Annotated[Path, typer.Argument(help="The message.")],
    place: LookOptions,
    description: CodecOptions,
    json_out: JsonOption = False,
) -> None:
    """Show what a message is. Without a key: what anyone on the wire sees. With one: what is inside.

    Examples: `cepam inspect message.cepam` and
    `cepam inspect message.cepam --key alice.key --round 1 --noise-scale 0.01`
    """
    from cepam.codec import wire

    data = message.read_bytes()
    wire.check_version(data)
    facts: dict[str, Any] = {"message": str(message), "bytes": len(data), "version": data[0] >> 4}
    facts["codec_tag"] = data[1 : wire.HEAD_BYTES].hex()
    facts["coder"] = "search" if data[0] & wire.SEARCHED else "layered or paper"
    if place.key is not None:
        codec = description.codec()
        contents, task = codec.open(data, place.address())
        facts |= _inside(contents, codec.on.name, len(data))
        facts["coder"] = {"adaptive": "layered"}.get(task.coder, task.coder)
    _print(facts, json_out)


def _inside(contents: Any, lattice: str, length: int) -> dict[str, Any]:
    sizes = [len(block) for block in contents.blocks]
    return {
        "coordinates": contents.size,
        "type": "float64" if contents.double else "float32",
        "lattice": lattice,
        "blocks": len(sizes),
        "block_bytes_least_and_most": [min(sizes), max(sizes)] if sizes else [],
        "overhead_bytes": length - sum(sizes),
        "bits_per_coordinate": 8 * length / max(contents.size, 1),
    }

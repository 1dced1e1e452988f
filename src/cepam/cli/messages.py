"""`cepam encode`, `cepam decode` and `cepam inspect`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from cepam.cli.files import read_array, used_addresses, write_array, write_bytes
from cepam.cli.options import (
    AttemptOption,
    BoundOption,
    ClientOption,
    CoderName,
    CoderOption,
    JsonOption,
    KeyOption,
    LatticeOption,
    LawName,
    LawOption,
    RadiusOption,
    RoundOption,
    RunOption,
    ScaleOption,
    SigmaOption,
    codec_of,
    law_of,
    read_key,
    waiting,
)

_LONG = 2_000_000
_LONG_MESSAGE = 500_000
UsedOption = Annotated[
    Path | None, typer.Option("--used", help="A file of addresses used so far: a second use is refused.")
]


def _print(facts: dict[str, Any], json_out: bool) -> None:
    if json_out:
        typer.echo(json.dumps(facts))
        return
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        typer.echo(f"{name.replace('_', ' '):<{width}}  {value}")


def encode(
    update: Annotated[Path, typer.Argument(help="The update: a .npy file, one dimension, float32 or float64.")],
    message: Annotated[Path, typer.Argument(help="Where the message goes.")],
    key: KeyOption,
    round: RoundOption,
    client: ClientOption = 0,
    law: LawOption = LawName.gaussian,
    sigma: SigmaOption = None,
    b: ScaleOption = None,
    radius: RadiusOption = None,
    lattice: LatticeOption = "auto",
    coder: CoderOption = CoderName.adaptive,
    bound: BoundOption = None,
    bucket: Annotated[int | None, typer.Option(help="Pad the message to a multiple of so many bytes.")] = None,
    run: RunOption = "",
    attempt: AttemptOption = 0,
    used: UsedOption = None,
    json_out: JsonOption = False,
) -> None:
    """Turn an update into a sealed message: small, and private once decoded.

    Use each address (key, run, round, client, attempt) ONCE: two messages at one address share their noise.

    Example: `cepam encode update.npy message.cepam --key alice.key --round 1 --sigma 0.01 --lattice E8`
    """
    from dataclasses import replace

    from cepam import Address

    codec = replace(codec_of(law_of(law, sigma, b, radius), lattice, coder, bound), bucket=bucket)
    at = Address(read_key(key), round=round, client=client, run=run.encode(), attempt=attempt)
    values = read_array(update)
    with used_addresses(used) as seen, waiting("encoding", values.size > _LONG):
        data = codec.encode(values, at, seen)
    write_bytes(message, data)
    rate = 8 * len(data) / max(len(values), 1)
    facts = {
        "message": str(message),
        "coordinates": len(values),
        "bytes": len(data),
        "bits_per_coordinate": rate,
    }
    _print(facts, json_out)


def decode(
    message: Annotated[Path, typer.Argument(help="The message.")],
    vector: Annotated[Path, typer.Argument(help="Where the decoded vector goes, as .npy.")],
    key: KeyOption,
    round: RoundOption,
    client: ClientOption = 0,
    law: LawOption = LawName.gaussian,
    sigma: SigmaOption = None,
    b: ScaleOption = None,
    radius: RadiusOption = None,
    lattice: LatticeOption = "auto",
    coder: CoderOption = CoderName.adaptive,
    bound: BoundOption = None,
    run: RunOption = "",
    attempt: AttemptOption = 0,
    used: UsedOption = None,
    json_out: JsonOption = False,
) -> None:
    """Turn a message back into the update plus noise of exactly the law. All options must be the encoder's.

    Example: `cepam decode message.cepam vector.npy --key alice.key --round 1 --sigma 0.01 --lattice E8`
    """
    from cepam import Address

    codec = codec_of(law_of(law, sigma, b, radius), lattice, coder, bound)
    at = Address(read_key(key), round=round, client=client, run=run.encode(), attempt=attempt)
    data = message.read_bytes()
    with used_addresses(used) as seen, waiting("decoding", len(data) > _LONG_MESSAGE):
        values = codec.decode(data, at, seen)
    write_array(vector, values)
    facts = {"vector": str(vector), "coordinates": len(values), "type": str(values.dtype), "grid": codec.grid}
    _print(facts, json_out)


def inspect(
    message: Annotated[Path, typer.Argument(help="The message.")],
    key: Annotated[Path | None, typer.Option("--key", help="With the client's key, look inside too.")] = None,
    round: RoundOption = 0,
    client: ClientOption = 0,
    law: LawOption = LawName.gaussian,
    sigma: SigmaOption = None,
    b: ScaleOption = None,
    radius: RadiusOption = None,
    lattice: LatticeOption = "auto",
    coder: CoderOption = CoderName.adaptive,
    bound: BoundOption = None,
    run: RunOption = "",
    attempt: AttemptOption = 0,
    json_out: JsonOption = False,
) -> None:
    """Show what a message is. Without a key: what anyone on the wire sees. With one: what is inside.

    Examples: `cepam inspect message.cepam` and
    `cepam inspect message.cepam --key alice.key --round 1 --sigma 0.01 --lattice E8`
    """
    from cepam import Address
    from cepam.codec import wire
    from cepam.errors import MalformedMessage

    data = message.read_bytes()
    if len(data) < wire.HEAD_BYTES + wire.SEAL_BYTES:
        raise MalformedMessage(f"{message} has {len(data)} bytes: too short for a message")
    if data[0] != wire.VERSION:
        raise MalformedMessage(f"{message} is not a message of version {wire.VERSION}")
    facts: dict[str, Any] = {"message": str(message), "bytes": len(data), "version": data[0]}
    facts["codec_tag"] = data[1 : wire.HEAD_BYTES].hex()
    if key is not None:
        codec = codec_of(law_of(law, sigma, b, radius), lattice, coder, bound)
        at = Address(read_key(key), round=round, client=client, run=run.encode(), attempt=attempt)
        dimensions = [each.dimension for each in codec.lattices]
        contents = wire.open_sealed(data, at.derive(), codec.fingerprint, dimensions)
        facts |= _inside(contents, codec.lattices[contents.lattice].name, len(data))
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

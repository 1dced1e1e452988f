"""`cepam verify` and `cepam bench`."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cepam.cli.options import CodecOptions, JsonOption, spread

if TYPE_CHECKING:
    from rich.table import Table

    from cepam.secure_aggregation.channel import SecAggChannel
    from cepam.verify.certificate import Certificate, CertifiedCodec, Check


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="One million coordinates instead of ten.")] = False,
    coordinates: Annotated[
        int | None,
        typer.Option(min=1000, help="Number of coordinates to time. Default: 10,000,000, or 1,000,000 with --quick."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Time encode and decode beside `x + sigma * randn` in one run. Look at the ratios: machines are noisy.

    Example:

    `cepam bench --quick`
    """
    from rich.console import Console
    from rich.table import Table

    from cepam.verify.benchmark import machine, speed_table

    console = Console(stderr=True, quiet=as_json)
    with console.status("timing; the first run on a machine also compiles"):
        rows = speed_table(coordinates or (1_000_000 if quick else 10_000_000))
    if as_json:
        typer.echo(json.dumps({"machine": machine(), "speed": [vars(row) for row in rows]}))
        return
    table = Table("what", "ns per coordinate", "times the noise alone", "bits per coordinate")
    for row in rows:
        bits = "" if row.bits_per_coordinate is None else f"{row.bits_per_coordinate:.3f}"
        table.add_row(row.what, f"{row.nanoseconds:.2f}", f"{row.ratio:.2f}", bits)
    Console().print(table)
    typer.echo("; ".join(f"{name} {value}" for name, value in machine().items()))


@spread
def verify(
    description: CodecOptions,
    samples: Annotated[
        int, typer.Option(help="Number of noise draws (sub-vectors of the lattice) per input, from 10,000.")
    ] = 50_000,
    false_alarm: Annotated[
        float, typer.Option(help="Probability that a correct codec fails, over all checks, in (0, 1).")
    ] = 1e-3,
    plot: Annotated[Path | None, typer.Option(help="File for a figure: histogram, Q-Q, error against input.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Print every check, not a summary by kind.")] = False,
    json_out: JsonOption = False,
    trust: Annotated[
        Literal["server", "secure-aggregation"],
        typer.Option(
            help="What is tested: a decoded vector (server), or a sum of --clients clients (secure-aggregation)."
        ),
    ] = "server",
    clients: Annotated[
        int, typer.Option(help="Number of clients in the sum, each with this noise (--trust secure-aggregation).")
    ] = 4,
) -> None:
    """Test on fresh randomness that decoded vectors have exactly the stated noise; print a certificate.

    Encode and decode zero, constant, sparse, heavy-tailed, tiny and huge updates. Test the distribution of the error,
    its radius, directions, covariance and independence, each with a p-value. Exit code 1 if a test fails.

    Example: `cepam verify --law gaussian --noise-scale 0.01 --lattice E8 --plot certificate.png`

    Example: `cepam verify --trust secure-aggregation --clients 30 --noise-scale 0.18`
    """
    codec: CertifiedCodec = description.codec() if trust == "server" else _channel(description, clients)
    if plot is not None:
        import_module("matplotlib")  # missing, it is missed before the work and not after it
        if not plot.absolute().parent.is_dir():
            raise ValueError(f"--plot {plot}: the folder does not exist")
    certificate = _run(codec, samples, false_alarm)
    if plot is not None:
        from cepam.verify.certificate import plot_errors

        plot_errors(certificate.sample, codec.law, codec.on.dimension, plot)
    if json_out:
        typer.echo(json.dumps(certificate.as_dict() | ({"plot": str(plot)} if plot else {})))
    else:
        _print(certificate, every)
        if plot is not None:
            typer.echo(f"figure: {plot}")
    raise typer.Exit(0 if certificate.passed else 1)


def _channel(description: CodecOptions, clients: int) -> SecAggChannel:
    """The sum of so many clients, each with the noise that is described."""
    from cepam.secure_aggregation.channel import SecAggChannel

    codec = description.codec()
    if description.lattice != "Z1" or codec.coder != "auto":
        raise ValueError("--trust secure-aggregation codes sums on the integers: leave --lattice and --coder out")
    return SecAggChannel(codec.law, clients)  # type: ignore[arg-type]  # which says what it takes


def _run(codec: CertifiedCodec, samples: int, false_alarm: float) -> Certificate:
    from rich.console import Console
    from rich.progress import Progress

    from cepam.verify.certificate import verify as certify

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("drawing", total=1.0)
        return certify(
            codec,
            samples=samples,
            false_alarm=false_alarm,
            report=lambda share, text: progress.update(task, completed=share, description=text),
        )


def _worst_by_kind(certificate: Certificate) -> list[tuple[Check, int]]:
    """For each lattice and statistic the check with the least p-value over all inputs, and how many there were."""
    kinds: dict[tuple[str, str], list[Check]] = {}
    for check in certificate.checks:
        kinds.setdefault((check.lattice, check.statistic), []).append(check)
    return [(min(checks, key=lambda check: check.p_value), len(checks)) for checks in kinds.values()]


def _print(certificate: Certificate, every: bool) -> None:
    """Print the verdict, what it rests on, every failure, and a table that fits the terminal."""
    from rich.console import Console

    failures, count = certificate.failures, len(certificate.checks)
    verdict = "PASSED" if certificate.passed else f"FAILED: {len(failures)} of {count} checks"
    typer.echo(f"{verdict}: {certificate.law} on {certificate.lattice}")
    typer.echo(f"{count} checks, {certificate.samples:,} sub-vectors per input; a correct codec fails with")
    typer.echo(
        f"probability at most {certificate.false_alarm:g}; least p-value times {count}: {certificate.least_p_value:.3g}"
    )
    console = Console(highlight=False)
    for check in failures:
        console.print(
            f"failed: {check.lattice}, {check.input}: the error {check.about}"
            f" ({check.statistic} {check.value:.5g}, p-value {check.p_value:.3g})",
            style="bold red",
        )
    console.print(_table(certificate, every))


def _table(certificate: Certificate, every: bool) -> Table:
    """Every check, or for each kind the one with the least p-value."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for name in ("lattice", "statistic"):
        table.add_column(name, no_wrap=True)
    table.add_column("p-value" if every else "least p", justify="right", no_wrap=True)
    table.add_column("value" if every else "of", justify="right", no_wrap=True)
    table.add_column("input: the error…")
    failures = set(certificate.failures)
    for check, many in [(check, 1) for check in certificate.checks] if every else _worst_by_kind(certificate):
        last = f"{check.value:.5g}" if every else str(many)
        facts = (check.lattice, check.statistic, f"{check.p_value:.3g}", last, f"{check.input}: {check.about}")
        table.add_row(*facts, style="bold red" if check in failures else None)
    return table

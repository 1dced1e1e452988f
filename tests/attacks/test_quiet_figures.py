"""Figures of the command line that were too small: one round for many, all clients for a quorum."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from cepam.cli import app

SECURE_AGGREGATION = (
    "--expected-batch-size 1920 --records-total 60000 --noise-multiplier 1.658 --rounds 500 "
    "--trust secure-aggregation --quorum 24"
)


@pytest.mark.parametrize(
    "command",
    [
        "epsilon --noise-scale 0.25 --local-steps 15 --records 2000",
        "epsilon --unit client --clients 100000 --sampling-rate 0.01 --noise-multiplier 1",
        "calibrate --local-steps 15 --records 2000 --epsilon 1",
        "explain --noise-scale 0.25 --local-steps 15 --records 2000",
        "epsilon --noise-scale 0.25 --local-steps 15 --records 2000 --rounds 0",
    ],
)
def test_no_figure_without_the_number_of_rounds(command: str) -> None:
    done = CliRunner().invoke(app, ["privacy", *command.split()])
    assert done.exit_code == 2
    assert "--rounds must be given" in done.output


def test_sums_show_the_figure_at_the_quorum() -> None:
    """With 24 of 30 in each sum a fifth of the noise is missing, and nobody lied."""
    found = json.loads(CliRunner().invoke(app, ["privacy", "epsilon", *SECURE_AGGREGATION.split(), "--json"]).stdout)
    whole, least = found["observers"], found["observers_at_quorum"]
    assert whole.keys() == least.keys()
    for who in ("outsider", "server"):
        assert least[who] > 1.1 * whole[who]
    assert least["lying server"] == whole["lying server"] > least["server"]
    said = CliRunner().invoke(app, ["privacy", "epsilon", *SECURE_AGGREGATION.split()]).stdout
    assert f"against server: {whole['server']:.6g} if nobody drops out, {least['server']:.6g} at the quorum" in said

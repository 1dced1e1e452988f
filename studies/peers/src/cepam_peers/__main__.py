"""Private sums side by side on one preset: accuracy, epsilon of each observer, bytes both ways, round trips.

    python -m cepam_peers --seeds 5 --processes 16           every row that studies/peers/results does not hold yet
    python -m cepam_peers --seeds 5 --processes 16 --dropout 0.1
    python -m cepam_peers --report docs                      nothing runs: the table, and docs/img/sums.png
    python -m cepam_peers --rows sum,ddg-16 --rounds 50 --out /tmp/look

Runs are simulations, paired by seed. Rivals' bytes are those of their vectors: their key agreement and shares come on
top and are not counted, in their favour; those of `sum` are. Our own rows are taken from `bench/results/engine.json`
where that holds more seeds of them (`python bench/engine.py --suite sum`). Run it in the repository's root.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cepam import fl
from cepam.fl.aggregation.trusted_server import Aggregator, AggregatorContext
from cepam.fl.simulation import aggregator_for
from cepam.privacy import fingerprint
from cepam.verify.benchmark import machine
from cepam_peers.report import Found, draw, engine_rows, place_of, tables
from cepam_peers.rivals import LegacyQuantization, RivalUplink, RotatedIntegers

Make = Callable[[AggregatorContext], Aggregator]
TRIPS = {"server": 1, "local": 1, "sum": 2}
RESULTS, ENGINE = Path("studies/peers/results"), Path("bench/results/engine.json")
SECAGG_TRIPS = 4
"""Of Bonawitz et al. 2017, and of SecAgg+: keys, shares, masked vectors, unmasking, in every round."""


def integers(kind: Literal["ddg", "skellam"], bits: int) -> Make:
    """A rival on rotated integers of so many bits."""
    return lambda row: RivalUplink(row, partial(RotatedIntegers, kind, bits))


def legacy(row: AggregatorContext) -> Aggregator:
    """Flower's legacy quantization with client noise."""
    return RivalUplink(row, lambda row, scale, moved: LegacyQuantization(row, scale))


ROWS: dict[str, tuple[dict[str, Any], Make]] = {
    "server": ({}, aggregator_for),
    "sum": ({"privacy.trust": "secure-aggregation"}, aggregator_for),
    "sum-sketch": ({"privacy.trust": "secure-aggregation", "compression.sketch": 1600}, aggregator_for),
    "secagg+": ({}, legacy),
    "ddg-16": ({}, integers("ddg", 16)),
    "skellam-16": ({}, integers("skellam", 16)),
    "ddg-12": ({}, integers("ddg", 12)),
    "skellam-12": ({}, integers("skellam", 12)),
    "ddg-8": ({}, integers("ddg", 8)),
    "skellam-8": ({}, integers("skellam", 8)),
    "local": ({}, aggregator_for),
}


def settings_of(name: str, base: fl.Settings) -> fl.Settings:
    """The settings of a row. Local noise: each client's own, so that its vector alone has the target."""
    changed = base.updated(ROWS[name][0])
    if name != "local":
        return changed
    alone = fl.Simulation(base, fl.prepared(base)).aggregators[0].plans[0].law
    assert alone is not None
    return base.updated(
        {
            "privacy.epsilon": None,
            "privacy.noise_scale": alone.scale * math.sqrt(base.clients.count),
            "clients.dropout_handling": "charge",
        }
    )


def observers_of(name: str, aggregator: Aggregator, settings: fl.Settings) -> dict[str, float | None]:
    """epsilon of outsider, server and a server that lies; None where the row claims nothing."""
    if name.startswith("sum"):
        found = aggregator.views()
        return {who: found[who] for who in ("outsider", "server", "lying server")}
    outsider = aggregator.spent()
    if name == "server":
        return {"outsider": outsider, "server": None, "lying server": None}
    if name == "local":
        each = aggregator.accountant.against(settings.clients.count - 1).epsilon(settings.privacy.delta)
        return {"outsider": outsider, "server": each, "lying server": each}
    return {"outsider": outsider, "server": outsider, "lying server": None}


def run(name: str, base: fl.Settings) -> Found:
    """One row's figures at one seed."""
    settings = settings_of(name, base)
    simulation = fl.Simulation(settings, fl.prepared(settings), aggregator=ROWS[name][1])
    lines: list[dict[str, Any]] = []
    while not simulation.done:
        lines += simulation.step()
    sent = [line["bits_per_coordinate"] for line in lines if line["bits_per_coordinate"] is not None]
    return {
        "row": name, "seed": settings.run.seed, "settings": fingerprint(settings), "accuracy": lines[-1]["accuracy"],
        "dropout": settings.clients.dropout_rate, "lost": sum(not line["replies"] for line in lines),
        "epsilon": observers_of(name, simulation.aggregators[0], settings), "bits_up": float(np.mean(sent)),
        "bytes_up": sum(line["bits"] for line in lines) // 8,
        "bytes_down": sum(line["downlink_bits"] for line in lines) // 8,
        "trips": TRIPS.get(name.partition("-")[0], SECAGG_TRIPS),
        "stamp": {"date": datetime.now(UTC).date().isoformat(), **machine()},
    }  # fmt: skip


def measure(rows: list[str], bases: list[fl.Settings], held: Path, processes: int = 1) -> list[Found]:
    """What the file holds, once every row of these settings is in it."""
    found: list[Found] = json.loads(held.read_text()) if held.exists() else []
    known = {(each["row"], each["settings"]) for each in found}
    jobs = [
        (name, base) for base in bases for name in rows if (name, fingerprint(settings_of(name, base))) not in known
    ]
    with ProcessPoolExecutor(processes) as pool:
        for done in as_completed([pool.submit(run, *job) for job in jobs]):
            new = done.result()
            found = [each for each in found if place_of(each) != place_of(new)] + [new]
            held.write_text(json.dumps(found, indent=1) + "\n")
            print(json.dumps(new), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="cepam_peers", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--preset", default="private")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--dropout", type=float, default=0.0, help="the chance that a client is missing in a round")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument(
        "--report", type=Path, metavar="DOCS", help="nothing runs: the picture of what is kept goes into this folder"
    )
    parser.add_argument("--engine", type=Path, default=ENGINE)
    given = parser.parse_args()
    held, engine = given.out / "sums.json", engine_rows(given.engine, TRIPS)
    if given.report:
        found: list[Found] = json.loads(held.read_text())
        draw(found, engine, given.report / "img" / "sums.png")
        print(tables(found, engine))
        return
    given.out.mkdir(parents=True, exist_ok=True)
    fewer = {"training.rounds": given.rounds} if given.rounds else {}
    bases = [
        fl.preset(given.preset).updated(
            {"run.seed": seed, "run.simulate": True, "clients.dropout_rate": given.dropout, **fewer}
        )
        for seed in range(1, given.seeds + 1)
    ]
    print(tables(measure(given.rows.split(","), bases, held, given.processes), []))


if __name__ == "__main__":
    main()

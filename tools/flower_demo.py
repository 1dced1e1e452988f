"""MNIST over a real Flower federation on loopback: with and without cepam, insecure and authenticated over TLS.

    python tools/flower_demo.py [--rounds 15] [--nodes 4] [--simulation]

Starts a SuperLink and SuperNodes, runs `examples/flower-mnist`, prints accuracy, epsilon and uplink bytes, by our own
count and by the SuperLink's, and stops everything, whatever happens.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from loopback import Federation, Finished
from loopback_simulation import simulate

APP = Path(__file__).resolve().parent.parent / "examples" / "flower-mnist"
SECONDS_A_ROUND = 90.0


@dataclass(frozen=True)
class Row:
    """One run as the table shows it; `inbound` is missing where no SuperLink counts."""

    name: str
    accuracy: float
    epsilon: float | None
    message_bytes: int | None
    float32_bytes: int | None
    inbound: int | None
    seconds: float


def row(name: str, report: Path, done: Finished | None, seconds: float) -> Row:
    """The row of a run that wrote its report."""
    read = json.loads(report.read_text())
    rounds = read["rounds"]
    accuracy = read["accuracy"][max(read["accuracy"], key=int)]
    private = any("cepam-epsilon" in metrics for metrics in rounds.values())
    total = {
        key: sum(int(metrics[key]) for metrics in rounds.values()) if private else None
        for key in ("cepam-message-bytes", "cepam-float32-bytes")
    }
    epsilon = max(metrics["cepam-epsilon"] for metrics in rounds.values()) if private else None
    inbound = done.inbound_bytes if done else None
    return Row(name, accuracy, epsilon, total["cepam-message-bytes"], total["cepam-float32-bytes"], inbound, seconds)


def loopback_rows(folder: Path, nodes: int, rounds: int, secure: bool) -> list[Row]:
    """The runs over one federation: first without cepam, then with it."""
    where = "TLS, node authentication" if secure else "insecure"
    made = []
    with Federation(folder, nodes, secure) as federation:
        federation.wait_for_nodes(nodes)
        for private in (False, True):
            name = f"{'cepam' if private else 'plain'}, {where}"
            print(f"running: {name}, {nodes} SuperNodes, {rounds} rounds", flush=True)
            report = folder / f"report-{private}.json"
            config = {"private": private, "num-server-rounds": rounds, "clients": nodes, "report": str(report)}
            if secure:
                config |= {"authentication": "require", "server-key": str(federation.server_key)}
            done = federation.run(APP, config, 60 + SECONDS_A_ROUND * rounds)
            made.append(row(name, report, done, done.seconds))
    return made


def simulation_rows(folder: Path, clients: int, rounds: int) -> list[Row]:
    """The same app in Flower's simulation engine."""
    name = f"cepam, simulation of {clients} clients"
    print(f"running: {name}, {rounds} rounds", flush=True)
    report = folder / "report.json"
    # The same guarantee from more clients: each draws fewer records and adds more noise.
    config = {
        "num-server-rounds": rounds,
        "clients": clients,
        "draws": 64,
        "sigma": 0.006,
        "report": str(report),
    }
    done = simulate(folder, APP, clients, config, 120 + 4 * SECONDS_A_ROUND * rounds)
    return [row(name, report, None, done.seconds)]


def show(rows: list[Row]) -> None:
    """Print the table."""
    heads = ("run", "accuracy", "epsilon", "our bytes", "smaller", "SuperLink in", "s")
    print("\n{:38} {:>8} {:>8} {:>10} {:>8} {:>13} {:>5}".format(*heads))
    for r in rows:
        epsilon = f"{r.epsilon:.3f}" if r.epsilon is not None else "none"
        ours = f"{r.message_bytes:,}" if r.message_bytes else "-"
        smaller = f"{r.float32_bytes / r.message_bytes:.1f}x" if r.float32_bytes and r.message_bytes else "-"
        inbound = f"{r.inbound:,}" if r.inbound is not None else "-"
        print(f"{r.name:38} {r.accuracy:8.2%} {epsilon:>8} {ours:>10} {smaller:>8} {inbound:>13} {r.seconds:5.0f}")
    print(
        "epsilon: at delta 1e-5, for one record, in all published models; the server is trusted. plain: no guarantee."
    )


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--nodes", type=int, default=4, help="SuperNodes")
    parser.add_argument(
        "--only", choices=("insecure", "secure", "simulation"), help="one part instead of both federations"
    )
    parser.add_argument(
        "--simulation", action="store_true", help="also Flower's simulation engine (needs flwr[simulation])"
    )
    parser.add_argument("--clients", type=int, default=30, help="clients of the simulation")
    asked = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="flower-demo-") as made:
        for secure in (False, True):
            if asked.only in (None, "secure" if secure else "insecure"):
                rows += loopback_rows(Path(made) / f"federation-{secure}", asked.nodes, asked.rounds, secure)
        if asked.simulation or asked.only == "simulation":
            rows += simulation_rows(Path(made) / "simulation", asked.clients, asked.rounds)
    show(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())

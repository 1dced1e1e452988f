"""Seconds that a server spends on its accountant per round, where each round samples other nodes.

Run: python bench/accounting.py [--rounds 1000] [--nodes 100] [--drawn 30]; written to bench/results/accounting.json.

Per round, as a Flower server does it: the round's release is added, epsilon is computed, and the account is written as
JSON and read back. Each row is the mean of the five rounds up to it. With `--saved` the server's own `RunAccount` asks
for epsilon with the round in it, charges the round in a folder on disk, and reports epsilon; in processor time.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from cepam import L2, Gaussian
from cepam.privacy import Accountant, Client, Mechanism, Sampling, spent
from cepam.protocol.account import Accounting, RunAccount
from stamp import merge

ROUNDS = (1, 50, 200, 1000)
WINDOW = 5


def drawn_round(nodes: list[int], given: argparse.Namespace) -> Mechanism:
    weights = [1.0 + node % 7 if given.unlike else 1.0 for node in nodes]
    clients = tuple(Client(Gaussian(2.0), 500, weight) for weight in weights)
    sampling = Sampling("poisson", 50) if given.poisson else Sampling("all")
    return Mechanism(clients, L2(1.0), sampling, coordinates=100_000, nodes=tuple(nodes))


def measure_saved(arguments: argparse.Namespace, stable: bool) -> None:
    """Prints processor milliseconds per round of a server's `RunAccount` at the marked rounds, and writes them."""
    draw, rows, marks = random.Random(1), [], [mark for mark in ROUNDS if mark <= arguments.rounds]
    took: dict[str, list[float]] = {"epsilon": [], "saving": []}
    print(f"{'round':>7}{'epsilon':>14}{'charge, save':>14}{'epsilon =':>16}")
    with tempfile.TemporaryDirectory() as folder:
        account = RunAccount(Path(folder), Accounting(stable_nodes=stable), strict=True)
        account.resume("run", "start")
        for done in range(1, marks[-1] + 1):
            new = drawn_round(sorted(draw.sample(range(arguments.nodes), arguments.drawn)), arguments)
            start = time.process_time()
            figure = account.epsilon(new)
            took["epsilon"].append(time.process_time() - start)
            start = time.process_time()
            account.charge(new, f"model-{done}")
            took["saving"].append(time.process_time() - start)
            start = time.process_time()
            account.epsilon()
            took["epsilon"][-1] += time.process_time() - start
            if done in marks:
                last = {name: 1e3 * sum(each[-WINDOW:]) / min(WINDOW, done) for name, each in took.items()}
                size = account.path.stat().st_size
                rows.append(
                    {"round": done, **{f"{n}_ms": v for n, v in last.items()}, "bytes": size, "epsilon": figure}
                )
                print(f"{done:>7}{last['epsilon']:>11.2f} ms{last['saving']:>11.2f} ms{figure:>16.9g}")
    write_rows(arguments, rows)


def measure(arguments: argparse.Namespace, stable: bool) -> None:
    """Prints milliseconds per round at the marked rounds, and writes them."""
    rows = []
    draw = random.Random(1)
    accountant, took = Accountant(identified=stable), {"epsilon": [0.0], "saving": [0.0]}
    marks = [mark for mark in ROUNDS if mark <= arguments.rounds]
    print(f"{arguments.drawn} of {arguments.nodes} nodes, {'followed by id' if stable else 'ids not stable'}")
    print(f"{'round':>7}{'epsilon':>14}{'saving':>14}{'epsilon =':>16}")
    for done in range(1, marks[-1] + 1):
        nodes = sorted(draw.sample(range(arguments.nodes), arguments.drawn))
        near = any(mark - WINDOW <= done <= mark for mark in marks)  # the first finds what is kept for the others
        start = time.perf_counter()
        new = drawn_round(nodes, arguments)
        accountant = (
            replace(accountant, mechanisms=(*accountant.mechanisms, new)) if arguments.listed else accountant.add(new)
        )
        figure = spent(accountant, 1e-5) if near else 0.0
        took["epsilon"].append(time.perf_counter() - start)
        start = time.perf_counter()
        if near:
            state = json.loads(json.dumps(accountant.state_dict()))
            Accountant(identified=stable).load_state_dict(state)
        took["saving"].append(time.perf_counter() - start)
        if done in marks:
            last = {name: sum(each[-WINDOW:]) / min(WINDOW, done) for name, each in took.items()}
            rows.append(
                {"round": done, **{f"{name}_ms": 1e3 * value for name, value in last.items()}, "epsilon": figure}
            )
            print(f"{done:>7}{1e3 * last['epsilon']:>11.2f} ms{1e3 * last['saving']:>11.2f} ms{figure:>16.9g}")
    write_rows(arguments, rows)


def write_rows(arguments: argparse.Namespace, rows: list[dict[str, float]]) -> None:
    """Writes the rows under the options' names."""
    chosen = [name for name in ("stable_nodes", "listed", "poisson", "unlike", "saved") if getattr(arguments, name)]
    told = {"nodes": arguments.nodes, "sampled": arguments.drawn, "options": chosen}
    merge("accounting", " ".join(["rounds", *chosen]), {**told, "rows": rows})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=max(ROUNDS))
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--drawn", type=int, default=30)
    parser.add_argument("--stable-nodes", action="store_true", help="follow nodes by their ids")
    parser.add_argument("--listed", action="store_true", help="keep every round by itself, for comparison")
    parser.add_argument("--poisson", action="store_true", help="clients draw one record of ten, in secret")
    parser.add_argument("--unlike", action="store_true", help="weights from 1 to 7: few rounds are alike")
    parser.add_argument("--saved", action="store_true", help="charge a server's account in a folder on disk")
    given = parser.parse_args()
    (measure_saved if given.saved else measure)(given, given.stable_nodes)

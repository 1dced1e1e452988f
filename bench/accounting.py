"""Seconds that a server spends on its accountant per round, where each round samples other nodes.

Run: python bench/accounting.py [--rounds 1000] [--nodes 100] [--drawn 30]; written to bench/results/accounting.json.

Per round, as a Flower server does it: the round's release is added, epsilon is computed, and the account is written as
JSON and read back. Each row is the mean of the five rounds up to it.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import replace

from cepam import L2, Gaussian
from cepam.privacy import Accountant, Client, Mechanism, Sampling, spent
from stamp import merge

ROUNDS = (1, 50, 200, 1000)
WINDOW = 5


def drawn_round(nodes: list[int], given: argparse.Namespace) -> Mechanism:
    weights = [1.0 + node % 7 if given.unlike else 1.0 for node in nodes]
    clients = tuple(Client(Gaussian(2.0), 500, weight) for weight in weights)
    sampling = Sampling("poisson", 50) if given.poisson else Sampling("all")
    return Mechanism(clients, L2(1.0), sampling, coordinates=100_000, nodes=tuple(nodes))


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
    chosen = [name for name in ("stable_nodes", "listed", "poisson", "unlike") if getattr(arguments, name)]
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
    given = parser.parse_args()
    measure(given, given.stable_nodes)

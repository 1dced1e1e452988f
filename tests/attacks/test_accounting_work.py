"""A server that draws other nodes in each round must not pay for all earlier rounds again in each."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from cepam import L2, Gaussian
from cepam.lattices import lattice as lattices
from cepam.privacy import Accountant, Client, Mechanism, Sampling, spent
from cepam.protocol.account import Accounting, RunAccount


def drawn_round(draw: random.Random, unlike: bool = False) -> Mechanism:
    nodes = tuple(sorted(draw.sample(range(100), 30)))
    clients = tuple(Client(Gaussian(2.0), 500, 1.0 + node % 7 if unlike else 1.0) for node in nodes)
    return Mechanism(clients, L2(1.0), Sampling("all"), nodes=nodes, coordinates=1000)


@pytest.mark.parametrize("identified", [True, False])
def test_the_account_does_not_grow_with_the_rounds(identified: bool) -> None:
    draw, accountant, sizes = random.Random(1), Accountant(identified=identified), {}
    for done in range(1, 121):
        accountant = accountant.add(drawn_round(draw))
        sizes[done] = len(json.dumps(accountant.state_dict())) if done in (20, 120) else 0
    assert accountant.rounds == 120
    assert len(accountant.mechanisms) == 1
    assert sizes[120] < 1.2 * sizes[20]


def test_the_geometry_of_a_lattice_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`acceptance` searched all short vectors of E8 again for every release and every figure."""
    draw, accountant = random.Random(2), Accountant()
    for _ in range(3):
        accountant = accountant.add(drawn_round(draw))
    spent(accountant, 1e-5)
    searched = []
    plain = lattices._short_vectors
    monkeypatch.setattr(lattices, "_short_vectors", lambda lattice: searched.append(lattice) or plain(lattice))
    for _ in range(3):
        accountant = accountant.add(drawn_round(draw))
        spent(accountant, 1e-5)
    assert searched == []


def test_saving_a_round_writes_that_round_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of unlike weights are listed one by one: at round 1,000 most of a charge was writing all of them again."""
    encoded: list[int] = []
    plain = json.dumps

    def counted(value: Any, **options: Any) -> str:
        made = plain(value, **options)
        encoded.append(len(made))
        return made

    monkeypatch.setattr(json, "dumps", counted)
    draw, account, work = random.Random(3), RunAccount(tmp_path, Accounting(), strict=True), {}
    account.resume("run", "start")
    for done in range(1, 91):
        encoded.clear()
        account.charge(drawn_round(draw, unlike=True), f"model {done}")
        work[done] = sum(encoded)
    assert len(account.accountant.mechanisms) == 90  # control: none were merged
    assert work[90] < 1.2 * work[20]
    assert account.accountant.state_text() == json.dumps(account.accountant.state_dict())
    again = RunAccount(tmp_path, Accounting(), strict=True)
    again.resume("run", "start")
    assert again.accountant == account.accountant

"""The account on disk: a server that starts again goes on where it was, and one that cannot says so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import cepam
from cepam._internal.files import locked_file
from cepam.privacy import Mechanism, Sampling
from cepam.protocol.account import Accounting, AccountLost, RunAccount
from cepam.protocol.settings import UplinkSettings

OPTIONS = Accounting(record_sampling=Sampling("poisson", 10), clipped="example", adjacency="add-remove", colluders=1)


def used(count: int = 4, sigma: float = 0.5, twice: bool = False) -> Mechanism:
    settings = UplinkSettings(cepam.Gaussian(sigma), cepam.L2(1.0), lattice=cepam.E8, weight=2.0, records=100)
    nodes = [2**63 + k for k in range(count)] + ([2**63] if twice else [])
    return OPTIONS.mechanism([(node, settings) for node in nodes], True, 1000)


def account(folder: Path, strict: bool = True, said: list[str] | None = None) -> RunAccount:
    return RunAccount(folder, OPTIONS, strict, lambda level, text, *a: (said or []).append(text % a))


def test_an_account_is_found_by_its_run_and_by_each_model_that_was_published(tmp_path: Path) -> None:
    first = account(tmp_path)
    first.resume("1", "start")
    for model, round_ in (("m1", used()), ("m2", used(3)), ("m3", used(twice=True))):
        first.charge(round_, model)
    assert first.epsilon() > 0
    for run, model in (("1", "elsewhere"), ("2", "m1"), ("3", "m3")):
        again = account(tmp_path)
        again.resume(run, model)
        assert again.accountant == first.accountant
        assert again.epsilon() == first.epsilon()
    fresh = account(tmp_path, strict=False)
    fresh.resume("4", "another start")
    assert fresh.epsilon() == 0.0
    assert fresh.path != first.path


def test_the_round_is_on_disk_before_the_model_may_be_published(tmp_path: Path, monkeypatch) -> None:
    from cepam.protocol import account as account_store

    made = account(tmp_path)
    made.resume("1", "start")

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(account_store, "write_atomically", full)
    with pytest.raises(OSError, match="no space"):
        made.charge(used(), "m1")
    assert "model m1" not in (tmp_path / "index.txt").read_text()


@pytest.mark.parametrize("damage", ["gone", "cut", "another version"])
def test_a_model_without_its_account_is_an_error_under_a_budget_and_a_warning_otherwise(tmp_path, damage) -> None:
    first = account(tmp_path)
    first.resume("1", "start")
    first.charge(used(), "m1")
    if damage == "gone":
        first.path.unlink()
    elif damage == "cut":
        first.path.write_bytes(first.path.read_bytes()[:-9])
    else:
        first.path.write_text(json.dumps({**json.loads(first.path.read_text()), "version": 99}))
    with pytest.raises(AccountLost, match="budget"):
        account(tmp_path).resume("2", "m1")
    said: list[str] = [""]
    lenient = account(tmp_path, strict=False, said=said)
    lenient.resume("2", "m1")
    assert any("counted from here only" in text for text in said)
    lenient.charge(used(), "m2")


def test_two_servers_cannot_go_on_with_one_account_at_once(tmp_path: Path) -> None:
    first, second = account(tmp_path), account(tmp_path)
    first.resume("1", "start")
    second.resume("1", "start")
    first.charge(used(), "m1")
    with pytest.raises(AccountLost, match="somebody else"):
        second.charge(used(), "m2")
    second.resume("1", "start")
    second.charge(used(), "m2")
    assert second.accountant.rounds == 2


def test_accounts_of_the_run_and_of_the_model_are_added_up(tmp_path: Path) -> None:
    one, other = account(tmp_path, strict=False), account(tmp_path, strict=False)
    one.resume("1", "a")
    one.charge(used(), "m1")
    other.resume("2", "b")
    other.charge(used(3), "m2")
    both = account(tmp_path, strict=False)
    both.resume("1", "m2")
    assert both.accountant.rounds == 2
    both.charge(used(), "m3")
    later = account(tmp_path, strict=False)
    later.resume("3", "m3")
    assert later.accountant.rounds == 3


def test_accounts_that_cannot_be_added_up_are_refused(tmp_path: Path) -> None:
    made = account(tmp_path)
    made.resume("1", "start")
    made.charge(used(), "m1")
    other = RunAccount(tmp_path, replace(OPTIONS, adjacency="replace"), True)
    with pytest.raises(AccountLost, match="adjacency"):
        other.resume("2", "m1")


def test_an_account_is_given_back_when_its_last_user_is_gone(tmp_path: Path) -> None:
    first, second = account(tmp_path), account(tmp_path)
    first.resume("1", "start")
    second.resume("1", "start")
    lock = tmp_path / f".{first.path.name}.lock"
    with pytest.raises(BlockingIOError), locked_file(lock, wait=False):
        pass
    del first
    with pytest.raises(BlockingIOError), locked_file(lock, wait=False):
        pass
    del second
    with locked_file(lock, wait=False):
        pass


def test_a_full_disk_between_account_and_index_costs_a_round_and_nothing_else(tmp_path: Path, monkeypatch) -> None:
    from cepam.protocol.account import AccountIndex

    made = account(tmp_path)
    made.resume("1", "start")
    with monkeypatch.context() as patch:
        patch.setattr(AccountIndex, "append", lambda *_: (_ for _ in ()).throw(OSError("no space")))
        with pytest.raises(OSError, match="no space"):
            made.charge(used(), "m1")
    made.charge(used(), "m2")
    again = account(tmp_path)
    again.resume("2", "m2")
    assert again.accountant.rounds == 2


def test_a_large_epsilon_is_cautioned_about_once(tmp_path: Path) -> None:
    made = account(tmp_path)
    made.resume("1", "start")
    loud = used(sigma=1e-4)
    made.charge(loud, "m1")
    assert any("no-guarantee" in caution for caution in made.privacy_warnings(loud))
    assert made.privacy_warnings(loud) == []

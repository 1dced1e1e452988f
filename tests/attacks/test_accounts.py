"""Accidents with the saved accounts: none of them may make a spent budget look unspent."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

import cepam
from cepam.privacy import Mechanism
from cepam.protocol.account import Accounting, AccountLost, RunAccount
from cepam.protocol.settings import UplinkSettings

OPTIONS = Accounting()
SETTINGS = UplinkSettings(cepam.Gaussian(2.0), cepam.L2(1.0))


def a_round() -> Mechanism:
    return OPTIONS.mechanism([(node, SETTINGS) for node in range(4)], True, 100)


def account(folder: Path, strict: bool = True, said: list[str] | None = None) -> RunAccount:
    notes = [] if said is None else said
    return RunAccount(folder, OPTIONS, strict, lambda level, text, *given: notes.append(text % given))


def published(folder: Path, rounds: int = 4, strict: bool = True) -> RunAccount:
    """An account after a run of so many rounds from the model `start`, which published m1, m2, …"""
    made = account(folder, strict)
    made.resume("1", "start")
    for number in range(1, rounds + 1):
        made.charge(a_round(), f"m{number}")
    return made


def test_a_lost_index_does_not_reset_the_budget(tmp_path: Path) -> None:
    published(tmp_path)
    (tmp_path / "index.txt").unlink()
    with pytest.raises(AccountLost, match="does not name"):
        account(tmp_path).resume("2", "m4")
    said: list[str] = []
    account(tmp_path, strict=False, said=said).resume("2", "m4")
    assert any("does not name" in text for text in said)


def test_an_emptied_index_ends_the_run_and_the_error_has_the_lines_that_repair_it(tmp_path: Path) -> None:
    epsilon = published(tmp_path).epsilon()
    (tmp_path / "index.txt").write_text("")
    with pytest.raises(AccountLost, match="add these lines") as lost:
        account(tmp_path).resume("2", "m4")
    (tmp_path / "index.txt").write_text("".join(f"{line}\n" for line in str(lost.value).split("'")[1::2]))
    for model in ("start", "m4"):
        again = account(tmp_path)
        again.resume("2", model)
        assert again.epsilon() == pytest.approx(epsilon)


@pytest.mark.parametrize("cut", [1, 2, 5, 20, 40])
def test_a_cut_last_line_is_repaired_and_not_joined_to_the_next(tmp_path: Path, cut: int) -> None:
    epsilon = published(tmp_path).epsilon()
    index = tmp_path / "index.txt"
    index.write_bytes(index.read_bytes()[:-cut])
    for run in ("2", "3"):
        again = account(tmp_path)
        again.resume(run, "m4")
        assert again.epsilon() == pytest.approx(epsilon)


def test_an_index_that_lost_more_than_its_last_line_is_refused(tmp_path: Path) -> None:
    published(tmp_path)
    index = tmp_path / "index.txt"
    index.write_text("".join(index.read_text().splitlines(keepends=True)[:-2]))
    with pytest.raises(AccountLost, match="index was cut"):
        account(tmp_path).resume("2", "m2")


def test_an_account_that_the_index_names_and_that_is_gone_ends_a_run_from_any_model(tmp_path: Path) -> None:
    published(tmp_path).path.unlink()
    with pytest.raises(AccountLost, match="cannot be counted"):
        account(tmp_path).resume("2", "another start")


def test_an_edited_account_is_refused(tmp_path: Path) -> None:
    path = published(tmp_path).path
    content = json.loads(path.read_text())
    assert content["accountant"]["releases"][0]["rounds"] == 4
    content["accountant"]["releases"][0]["rounds"] = 1
    path.write_text(json.dumps(content))
    with pytest.raises(AccountLost, match="checksum"):
        account(tmp_path).resume("2", "m4")


def test_an_account_from_a_backup_is_refused(tmp_path: Path) -> None:
    made = published(tmp_path, rounds=1)
    shutil.copy(made.path, tmp_path / "backup")
    for number in (2, 3, 4):
        made.charge(a_round(), f"m{number}")
    path = made.path
    del made
    shutil.copy(tmp_path / "backup", path)
    for model in ("m4", "m1", "start"):
        with pytest.raises(AccountLost, match="restored"):
            account(tmp_path).resume("2", model)


def test_a_whole_folder_from_a_backup_does_not_know_the_model_that_was_published_since(tmp_path: Path) -> None:
    folder = tmp_path / "accounts"
    made = published(folder, rounds=1)
    shutil.copytree(folder, tmp_path / "backup")
    made.charge(a_round(), "m2")
    del made
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "backup", folder)
    with pytest.raises(AccountLost, match="in none of them"):
        account(folder).resume("2", "m2")


def test_an_account_that_is_replaced_during_the_run_is_refused_before_the_next_model(tmp_path: Path) -> None:
    made = published(tmp_path, rounds=1)
    old = made.path.read_bytes()
    made.charge(a_round(), "m2")
    made.path.write_bytes(old)
    with pytest.raises(AccountLost, match="restored"):
        made.charge(a_round(), "m3")


def test_an_index_that_is_removed_during_the_run_ends_it(tmp_path: Path) -> None:
    made = published(tmp_path, rounds=2)
    (tmp_path / "index.txt").unlink()
    with pytest.raises(AccountLost, match="index was cut"):
        made.charge(a_round(), "m3")


def test_the_natural_restart_from_the_same_start_goes_on_with_the_account(tmp_path: Path) -> None:
    first = published(tmp_path)
    again = account(tmp_path)
    again.resume("2", "start")
    assert again.path == first.path
    assert again.epsilon() == pytest.approx(first.epsilon())
    again.charge(a_round(), "n1")
    assert again.accountant.rounds == 5


def test_a_restart_from_other_weights_is_refused_under_a_budget(tmp_path: Path) -> None:
    # An app that draws its first weights without a seed never starts from the same model twice.
    published(tmp_path)
    with pytest.raises(AccountLost, match="in none of them") as unknown:
        account(tmp_path).resume("2", "drawn anew")
    line = str(unknown.value).split("add the line '")[1].split("'")[0]
    with (tmp_path / "index.txt").open("a") as index:
        index.write(f"{line}\n")
    again = account(tmp_path)
    again.resume("2", "drawn anew")
    assert again.accountant.rounds == 4


def test_without_a_budget_a_restart_from_the_same_start_is_warned_about(tmp_path: Path) -> None:
    published(tmp_path, strict=False)
    said: list[str] = []
    fresh = account(tmp_path, strict=False, said=said)
    fresh.resume("2", "start")
    assert fresh.epsilon() == 0.0
    assert any("same model (run-1)" in text for text in said)


def test_a_budget_counts_every_account_of_the_folder(tmp_path: Path) -> None:
    for run in ("1", "2", "3"):
        made = account(tmp_path, strict=False)
        made.resume(run, "start")
        made.charge(a_round(), f"m{run}")
        del made
    bounded = account(tmp_path)
    bounded.resume("4", "start")
    assert bounded.accountant.rounds == 3
    bounded.charge(a_round(), "m4")
    del bounded
    later = account(tmp_path, strict=False)  # what was counted together stays together
    later.resume("5", "m4")
    assert later.accountant.rounds == 4


OTHER_PROCESS = """
import sys
from pathlib import Path
from tests.attacks.test_accounts import account, a_round
made = account(Path(sys.argv[1]))
made.resume("1", "start")
made.charge(a_round(), "m1")
print("ready", flush=True)
sys.stdin.readline()
"""


def test_a_second_server_on_the_account_is_refused_by_the_name_of_the_first(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", OTHER_PROCESS, str(tmp_path)]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "ready\n"
            for strict in (True, False):
                for run, model in (("1", "start"), ("2", "m1")):
                    with pytest.raises(AccountLost, match=f"in use by process {other.pid} on "):
                        account(tmp_path, strict).resume(run, model)
        finally:
            other.kill()
    after = account(tmp_path)
    after.resume("1", "start")
    assert after.accountant.rounds == 1


def test_two_strategies_of_one_process_lose_no_charge(tmp_path: Path) -> None:
    accounts = [account(tmp_path), account(tmp_path)]
    models: list[str] = []

    def charge(number: int) -> None:
        for attempt in range(20):
            accounts[number].resume("1", "start")
            try:
                accounts[number].charge(a_round(), f"m{number}-{attempt}")
            except AccountLost:
                continue
            models.append(f"m{number}-{attempt}")

    accounts[0].resume("1", "start")
    threads = [Thread(target=charge, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = account(tmp_path)
    after.resume("1", "start")
    assert after.accountant.rounds == len(models) > 0
    assert not list(tmp_path.glob(".*.tmp"))

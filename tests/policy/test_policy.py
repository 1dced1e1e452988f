"""Policies: their files, their floors, and the node's own figure, against closed forms."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize, stats
from typer.testing import CliRunner

import cepam
from cepam.cli import app
from cepam.policy import (
    AccountUnusable,
    AnsweredRounds,
    ClientPolicy,
    FileAccount,
    NodeAccount,
    PolicyRefused,
    RoundCharge,
    read_policy,
)
from cepam.protocol.correlated_noise import CorrelatedNoiseConfig
from cepam.protocol.enforcement import charge_of
from cepam.protocol.settings import UplinkSettings

DELTA = 1e-5
SERVER = ClientPolicy(noise_scale=0.1, clipping_norm=1.0, rounds=100, trust="server")


def gaussian_epsilon(mu: float, delta: float = DELTA) -> float:
    """epsilon of mu-Gaussian differential privacy by its closed form (Balle and Wang 2018)."""

    def excess(epsilon: float) -> float:
        lost = math.exp(epsilon + stats.norm.logcdf(-epsilon / mu - mu / 2))
        return float(stats.norm.cdf(-epsilon / mu + mu / 2)) - lost - delta

    return float(optimize.brentq(excess, 0.0, 500.0))


def test_a_trusted_servers_round_costs_what_the_nodes_own_noise_alone_hides() -> None:
    """Twice the clip over its own deviation, composed over rounds of any size: the squares of mu add up."""
    answered = AnsweredRounds()
    for noise, clip, rounds in ((4.0, 1.0, 3), (5.0, 0.5, 2)):
        settings = UplinkSettings(cepam.Gaussian(noise), cepam.L2(clip))
        for _ in range(rounds):
            answered = answered.add(charge_of(SERVER, settings, 400, True))
    assert [charge.rounds for charge in answered.charges] == [3, 2]
    mu = math.sqrt(3 * (2 / 4) ** 2 + 2 * (1 / 5) ** 2)
    assert answered.epsilon(DELTA) == pytest.approx(gaussian_epsilon(mu), rel=2e-3)
    assert AnsweredRounds().epsilon(DELTA) == 0.0


def test_the_figure_holds_against_the_best_test_of_one_decoded_vector() -> None:
    """An attack on what leaves: the likelihood-ratio test of the decoded vector itself, which others never see.

    4,000 messages of either neighbour; the charged delta bounds its gain at every epsilon, with a margin of five
    deviations. Half the charged noise, the control, is caught.
    """
    from cepam.keys import Address, Key

    rng, size, sigma = np.random.default_rng(5), 4, 1.0
    settings = UplinkSettings(cepam.Gaussian(sigma), cepam.L2(1.0))
    ends = np.zeros((2, size), np.float32)
    ends[0, 0], ends[1, 0] = 1.0, -1.0
    seen = np.empty((2, 4_000))
    for world in (0, 1):
        for k in range(4_000):
            at = Address(Key(rng.bytes(32)), 0, world)
            seen[world, k] = settings.codec.decode(settings.codec.encode(ends[world], at), at)[0]
    epsilon, margin = 1.0, 5 / math.sqrt(4_000)
    cut = epsilon * sigma**2 / 2.0
    gain = float((seen[0] > cut).mean() - math.exp(epsilon) * (seen[1] > cut).mean())
    charged = AnsweredRounds((charge_of(SERVER, settings, size, True),)).accountant().delta(epsilon)
    assert gain <= charged + (1 + math.e) * margin
    doubled = UplinkSettings(cepam.Gaussian(2 * sigma), cepam.L2(1.0))
    too_little = AnsweredRounds((charge_of(SERVER, doubled, size, True),)).accountant().delta(epsilon)
    assert gain > too_little + (1 + math.e) * margin


def test_what_is_believed_and_what_is_not() -> None:
    plain = UplinkSettings(cepam.Gaussian(0.5), cepam.L2(0.5))
    alone = charge_of(SERVER, plain, 10, True)
    assert alone == RoundCharge("server", 0.5, 0.5, 10)
    many = ClientPolicy(noise_scale=0.1, clipping_norm=1.0, rounds=9, trust="server", participants=4)
    assert charge_of(many, plain, 10, True).shares == 4
    examples = ClientPolicy(
        noise_scale=0.1, clipping_norm=1.0, rounds=9, trust="server", divisor=64.0, records=64, record_sampling_rate=0.5
    )
    # A server's smaller clip is not believed where training code clips; the node's own policy is.
    assert charge_of(examples, plain, 10, True) == RoundCharge("server", 0.5, 1.0, 10, 1, 64.0, 0.5)
    counted = UplinkSettings(cepam.Gaussian(0.5), cepam.L2(0.5), bit=0.5)
    assert charge_of(examples, counted, 10, True).clipping_norm == pytest.approx(math.hypot(0.5, 0.5))
    assert charge_of(examples, counted, 10, True).divisor == 0.0
    laplace = UplinkSettings(cepam.Laplace(0.5), cepam.L1(0.5))
    charge = charge_of(many, laplace, 10, True)
    assert (charge.law, charge.norm_type, charge.shares) == ("laplace", "l1", 1)
    assert AnsweredRounds((charge,)).epsilon(DELTA) <= 2 * 0.5 / 0.5 + 1e-3
    with pytest.raises(PolicyRefused, match="l1 clip"):
        charge_of(SERVER, UplinkSettings(cepam.Laplace(0.5), cepam.L2(0.5)), 10, True)


def test_kinds_of_rounds_add_up() -> None:
    """Modes and laws on one account: at least the worst of them, at most the sum of all epsilons."""
    kinds = (
        RoundCharge("server", 4.0, 1.0, 100),
        RoundCharge("secure-aggregation", 2.0, 1.0, 100, shares=9),
        RoundCharge("server", 8.0, 1.0, 100, law="laplace", norm_type="l1"),
        RoundCharge("secure-aggregation", 2.0, 1.0, 100, divisor=64.0, record_sampling_rate=0.1),
    )
    each = [AnsweredRounds((kind,)).epsilon(DELTA / 4) for kind in kinds]
    together = AnsweredRounds(kinds).epsilon(DELTA)
    assert max(AnsweredRounds((kind,)).epsilon(DELTA) for kind in kinds) < together < sum(each)


def test_a_stream_costs_its_first_message_all_of_it() -> None:
    terms = CorrelatedNoiseConfig(0.5, 1, 4)
    settings = UplinkSettings(cepam.Gaussian(8.0), cepam.L2(1.0), correlated_noise=terms)
    answered = AnsweredRounds().add(charge_of(SERVER, settings, 10, True))
    cost = answered.epsilon(DELTA)
    for _ in range(3):
        answered = answered.add(charge_of(SERVER, settings, 10, False))
    assert answered.rounds == 4
    assert answered.epsilon(DELTA) == cost
    # By hand: a record is in all four messages, and message t holds the earlier ones times 1/2 each round.
    column = np.tril(0.5 ** np.abs(np.subtract.outer(range(4), range(4)))).sum(axis=1)
    assert cost == pytest.approx(gaussian_epsilon(2 * float(np.linalg.norm(column)) / 8.0), rel=2e-3)


@pytest.mark.parametrize("place", [1, 2, 3])
def test_numbers_of_a_stream_that_no_float_holds_are_refused(place: int) -> None:
    """Found by fuzzing: 10^400 as a divisor passed every check, and then raised OverflowError."""
    terms = CorrelatedNoiseConfig(0.5, 1, 4)
    read = json.loads(UplinkSettings(cepam.Gaussian(8.0), cepam.L2(1.0), correlated_noise=terms).to_json())
    read["stream"][place] = 10**400
    with pytest.raises(ValueError, match="cannot be read"):
        UplinkSettings.from_json(json.dumps(read))


def test_limits_over_all_modes() -> None:
    policy = ClientPolicy(noise_scale=1.0, clipping_norm=1.0, rounds=3, epsilon=5.0, trust="server")
    answered = AnsweredRounds((RoundCharge("server", 4.0, 1.0, 10), RoundCharge("secure-aggregation", 4.0, 1.0, 10)))
    answered = policy.check_limits(answered, RoundCharge("server", 4.0, 1.0, 11))
    with pytest.raises(PolicyRefused, match="3 rounds"):
        policy.check_limits(answered, RoundCharge("server", 400.0, 1.0, 11))
    with pytest.raises(PolicyRefused, match="epsilon to"):
        policy.check_limits(AnsweredRounds(), RoundCharge("server", 1.0, 1.0, 11))
    with pytest.raises(PolicyRefused, match="no epsilon is known"):  # found by fuzzing: a clip beyond all ranges
        policy.check_limits(AnsweredRounds(), RoundCharge("server", 1.0, 1e-300, 11))
    worst = policy.largest_epsilon()
    assert worst["server"] == pytest.approx(gaussian_epsilon(math.sqrt(3) * 2), rel=2e-3)
    assert worst["secure-aggregation"] == pytest.approx(gaussian_epsilon(math.sqrt(3 / 2) * 2), rel=2e-3)


def test_a_limit_with_record_sampling_ends_rounds_before_the_figure_for_fixed_parameters_does() -> None:
    """The filter costs little: a limit is reached after 80 to 100 % of the rounds, and by fewer at the floors."""
    policy = ClientPolicy(
        noise_scale=2.0, clipping_norm=1.0, rounds=10**6, epsilon=4.0, trust="server", divisor=1.0, records=100,
        record_sampling_rate=0.02,
    )  # fmt: skip
    charge = charge_of(policy, UplinkSettings(cepam.Gaussian(2.0), cepam.L2(1.0)), 10, True)

    def many(rounds: int) -> AnsweredRounds:
        return AnsweredRounds((dataclasses.replace(charge, rounds=rounds, releases=rounds),))

    most = next(n for n in range(100, 10**5, 50) if policy.spent(many(n)) > 4.0)
    assert 3.2 < many(most).accountant().epsilon(policy.delta, client=0) < 4.0
    with pytest.raises(PolicyRefused, match="epsilon to"):
        policy.check_limits(many(most), charge)
    assert policy.check_limits(many(most - 51), charge).rounds == most - 50
    assert many(most).epsilon(policy.delta) > 4 * policy.spent(many(most))  # the control: draws are counted


@pytest.mark.parametrize(
    "line",
    [
        "epsilon = 0", 'epsilon = "8"', "epsilon = nan", "epsilon = true", "delta = 1.0", "delta = 0.0", "metrics = 1",
        'trust = "nobody"', "trust = true", "participants = 0", "participants = 2.0", "epsilom = 8.0",
    ],
)  # fmt: skip
def test_policy_files_with_a_wrong_limit(line: str) -> None:
    text = "noise_scale = 0.2\nclipping_norm = 1.0\nrounds = 500\n"
    assert read_policy(text.encode()).epsilon is None
    with pytest.raises(ValueError, match=line.split(" ")[0]):
        read_policy(f"{text}{line}\n".encode())


def test_an_account_is_opened_once_and_never_by_being_away(tmp_path: Path) -> None:
    path = tmp_path / "account"
    with pytest.raises(AccountUnusable, match="cepam policy open"), FileAccount(path).hold():
        pass
    assert not list(tmp_path.iterdir())
    FileAccount.create(path)
    assert {name.stat().st_mode & 0o777 for name in tmp_path.iterdir()} == {0o600}
    with pytest.raises(FileExistsError):
        FileAccount.create(path)
    with FileAccount(path).hold() as account:
        assert account == NodeAccount()
        FileAccount(path).commit(account)
    for spoiled in (b"", b"{}", b"[" * 100_000, path.read_bytes().replace(b'"revision": 1', b'"revision": 2')):
        kept = path.read_bytes()
        path.write_bytes(spoiled)
        with pytest.raises(AccountUnusable, match="no sound account"), FileAccount(path).hold():
            pass
        path.write_bytes(kept)
    (tmp_path / "account.mark").unlink()
    with pytest.raises(AccountUnusable, match="mark"), FileAccount(path).hold():
        pass


def test_a_kill_between_account_and_mark_is_no_rollback(tmp_path: Path) -> None:
    FileAccount.create(tmp_path / "account")
    mark = (tmp_path / "account.mark").read_bytes()
    with FileAccount(tmp_path / "account").hold() as account:
        FileAccount(tmp_path / "account").commit(account)
    (tmp_path / "account.mark").write_bytes(mark)
    with FileAccount(tmp_path / "account").hold() as account:
        assert account.revision == 1


def test_a_policy_is_shown_with_the_units_of_its_noise(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    new = ["policy", "new", str(file), "--noise-scale", "4", "--clipping-norm", "2", "--rounds", "9", "--epsilon", "20"]
    assert CliRunner().invoke(app, new).exit_code == 0
    shown = CliRunner().invoke(app, ["policy", "show", str(file)]).stdout
    assert "noise_scale = 4.0  # per coordinate of this node's update, in the unit of the update" in shown
    assert "least_noise_multiplier = 2  # this node's own noise_scale over clipping_norm" in shown
    found = json.loads(CliRunner().invoke(app, ["policy", "show", str(file), "--json"]).stdout)
    assert found["least_noise_multiplier"] == 2.0

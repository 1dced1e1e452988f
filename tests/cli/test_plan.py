"""`cepam plan`: what it prints, what it asks, what it refuses."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from cepam.cli import app

SITES = "--clients 3 --records 500,4000,20000 --rounds 20 --coordinates 1000 --epsilon 2"


def run(command: str, code: int = 0, answers: str | None = None):
    result = CliRunner().invoke(app, ["plan", *command.split()], input=answers)
    assert result.exit_code == code, result.output
    return result


def test_a_plan_says_what_to_run_and_what_to_expect() -> None:
    found = json.loads(run(f"{SITES} --json").stdout)
    assert found["mode"] == "per-example"
    assert found["epsilon"] <= 2.0
    assert found["server_learning_rate"] == pytest.approx(4.0, rel=0.01)
    assert found["noise_multiplier"] > 0
    assert set(found["units"]) == {"noise_scale", "noise_multiplier"}
    assert found["observers"]["server"] is None
    assert found["train"].startswith("cepam train ")
    assert "--epsilon 2" in found["train"]
    assert "cepam.flower.Private(" in found["flower"]
    assert "epsilon 2 at delta 1e-06" in found["paragraph"]
    assert "no guarantee against it" in found["paragraph"]
    text = " ".join(run(SITES).stdout.split())
    assert "What to expect: the noise of one round's average is" in text
    assert "For the data-protection officer:" in text


def test_secure_aggregation_holds_against_the_server() -> None:
    command = "--clients 10 --records 2000 --trust secure-aggregation --rounds 20 --coordinates 1000 --epsilon 2 --json"
    found = json.loads(run(command).stdout)
    assert found["observers"]["server"] <= 2.0
    assert "SecureAggregation(" in found["flower"]
    assert "privacy.trust=secure-aggregation" in found["train"]


def test_it_asks_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from cepam.cli import plan

    told = iter(["client", 5000, 30, "server", 700, 4.0])
    monkeypatch.setattr(plan.typer, "prompt", lambda question, default: next(told))
    found = plan.answers(dict.fromkeys(plan.QUESTIONS), ask=True)
    assert found == {
        "unit": "client", "clients": 5000, "records": None, "rounds": 30, "trust": "server", "coordinates": 700,
        "epsilon": 4.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("--clients 3", "--coordinates, --epsilon, --records must be given"),
        ("--unit client --clients 3 --coordinates 10", "--epsilon must be given"),
        ("--clients 3 --records 1,2 --coordinates 10 --epsilon 1", "--records must give"),
        ("--unit client --clients 9 --trust nobody --coordinates 10 --epsilon 1", "secure aggregation"),
    ],
)
def test_what_is_missing_is_said_in_one_line(command: str, says: str) -> None:
    result = run(command, 2)
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("cepam plan: ")
    assert says in line


def test_help_teaches_by_example() -> None:
    assert "cepam plan --unit client" in run("--help").stdout


@pytest.mark.parametrize(
    "command",
    [
        "--clients 4 --records 2000 --rounds 20 --coordinates 1000 --epsilon 2",
        "--clients 10 --records 2000 --trust secure-aggregation --rounds 20 --coordinates 1000 --epsilon 2",
        "--unit client --clients 5000 --rounds 20 --coordinates 1000 --epsilon 4",
        "--unit client --clients 12 --rounds 20 --coordinates 1000 --epsilon 4",
    ],
)
def test_the_lines_for_flower_make_a_strategy(command: str) -> None:
    pytest.importorskip("flwr")
    from flwr.serverapp.strategy import FedAvg

    import cepam
    import cepam.flower
    import cepam.privacy

    made: dict = {"FedAvg": FedAvg, "cepam": cepam}
    exec(json.loads(run(f"{command} --json").stdout)["flower"], made)
    assert "strategy" in made


@pytest.mark.parametrize("mode", ["server", "secure-aggregation", "nobody", "client"])
def test_the_command_for_training_has_settings_that_go_together(mode: str) -> None:
    """Of a plan's command every flag and `--set` is known, and the settings pass their checks."""
    pytest.importorskip("torch")
    from cepam.cli.settings import chosen_settings

    records = "--unit client" if mode == "client" else f"--records 2000 --trust {mode}"
    command = f"--clients 10 {records} --rounds 20 --coordinates 1000 --epsilon 2 --json"
    words = json.loads(run(command).stdout)["train"].split()[2:]
    pairs = list(zip(words[::2], words[1::2]))
    given = {flag[2:].replace("-", "_"): value for flag, value in pairs if flag not in ("--set", "--preset")}
    numbers = {name: float(value) for name, value in given.items() if name not in ("data", "model", "scheme")}
    flags = {**given, **numbers, "clients": int(given["clients"]), "rounds": int(given["rounds"])}
    sets = [value for flag, value in pairs if flag == "--set"]
    preset = dict(pairs).get("--preset")
    settings = chosen_settings(preset, None, sets, flags)
    assert settings.privacy.epsilon == 2.0
    assert settings.clients.count == 10

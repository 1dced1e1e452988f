"""`cepam plan`: what it prints, what it asks, what it refuses."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
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
    assert (found["server_optimizer"], found["server_learning_rate"]) == ("adam", 0.02)
    assert "training.server_optimizer=adam --server-learning-rate 0.02" in found["train"]
    assert "FedAdam(eta=0.02, beta_1=0.9, beta_2=0.999, tau=1e-8)" in found["flower"]
    assert "update=cepam.flower.Gradient()" in found["flower"]
    assert any("follow epsilon" in reason for reason in found["reasons"])
    assert found["noise_multiplier"] > 0
    assert set(found["units"]) == {"noise_scale", "noise_multiplier"}
    assert found["observers"]["server"] is None
    assert found["train"].startswith("cepam train ")
    assert "--epsilon 2" in found["train"]
    assert "cepam.flower.Private(" in found["flower"]
    assert found["paragraph"]
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
    from flwr.serverapp.strategy import FedAdam, FedAvg

    import cepam
    import cepam.flower
    import cepam.privacy

    made: dict = {"FedAdam": FedAdam, "FedAvg": FedAvg, "cepam": cepam}
    exec(json.loads(run(f"{command} --json").stdout)["flower"], made)
    assert "strategy" in made


def test_flower_lines_for_unlike_sites_meet_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower weighs sites equally, the engine by records; the engine's least noise, a control, costs more on Flower."""
    pytest.importorskip("flwr")
    from flwr.serverapp.strategy import FedAdam
    from flwr.supercore.task_identity import TaskIdentity

    import cepam
    import cepam.flower
    from tests.flower.fakes import RUN, FakeGrid, Node, adding, start_arrays

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, 1  # as Flower's processes do
    command = "--clients 4 --records 500,500,1000,6000 --rounds 5 --coordinates 400 --epsilon 2 --json"
    found = json.loads(run(command).stdout)
    least = min(found["noise_scale"])
    wanted, other = "epsilon=cepam.flower.Target(2, rounds=5, nodes=4)", f"noise=cepam.Gaussian({least})"
    spent = []
    for line in (wanted, other):
        monkeypatch.setenv("FLWR_HOME", str(tmp_path / line[:5]))
        made: dict = {"FedAdam": partial(FedAdam, fraction_evaluate=0.0), "cepam": cepam}
        exec(found["flower"].replace(wanted, line), made)
        grid = FakeGrid([Node(k, adding(np.zeros(400))) for k in range(1, 5)])
        made["strategy"].start(grid, start_arrays(400), num_rounds=5)
        spent.append(made["strategy"].epsilon)
    assert 1.99 < spent[0] <= 2.0
    assert spent[1] > 2.5


def settings_of(train: str):
    """The settings of a plan's command."""
    from cepam.cli.settings import chosen_settings

    words = train.split()[2:]
    pairs = list(zip(words[::2], words[1::2]))
    given = {flag[2:].replace("-", "_"): value for flag, value in pairs if flag not in ("--set", "--preset")}
    numbers = {name: float(value) for name, value in given.items() if name not in ("data", "model", "scheme")}
    flags = {**given, **numbers, "clients": int(given["clients"]), "rounds": int(given["rounds"])}
    return chosen_settings(
        dict(pairs).get("--preset"), None, [value for flag, value in pairs if flag == "--set"], flags
    )


def engine_observers(train: str, records: list[int], size: int, colluders: int = 0) -> dict[str, float]:
    """What a run of a plan's command reports where nobody drops out: the engine's own code, without training."""
    from cepam.fl.aggregation.accounting import mechanism_of, plan_clients
    from cepam.fl.aggregation.cohorts import mechanism_of_cohort
    from cepam.fl.aggregation.local import mechanism_of_steps
    from cepam.fl.aggregation.secure import SecureAggregator
    from cepam.fl.clients.sending import draft_of, plan_of
    from cepam.fl.config.settings import ClientOverride, SecAggGraph
    from cepam.privacy import Accountant

    settings, held = settings_of(train), np.array(records)
    if settings.privacy.unit == "client":
        start = draft_of(settings, ClientOverride((0,)), 1, 1.0, 1)
        made = mechanism_of_cohort(settings, plan_of(settings, start, 1.0, size), size)
    elif settings.training.update == "dp-sgd":
        made = mechanism_of_steps(settings, held, size)
    else:
        made = mechanism_of(settings, plan_clients(settings, held, size, 1), size)
    spent = Accountant((made.over(settings.training.rounds),))
    if settings.privacy.trust == "secure-aggregation":
        graph = SecAggGraph.of(settings)
        run = SimpleNamespace(settings=settings, graph=graph, accountant=spent, answered=spent)
        return SecureAggregator.views(run)
    pooled = {f"{colluders} other clients": spent.against(colluders).epsilon(settings.privacy.delta)}
    return spent.observers(settings.privacy.delta) | (pooled if colluders > 1 else {})


@pytest.mark.parametrize("mode", ["server", "secure-aggregation", "nobody", "client"])
def test_the_command_for_training_has_settings_that_go_together(mode: str) -> None:
    """Of a plan's command every flag and `--set` is known, and the settings pass their checks."""
    pytest.importorskip("torch")
    records = "--unit client" if mode == "client" else f"--records 2000 --trust {mode}"
    found = json.loads(run(f"--clients 10 {records} --rounds 20 --coordinates 1000 --epsilon 2 --json").stdout)
    settings = settings_of(found["train"])
    if mode == "secure-aggregation":
        assert (settings.privacy.epsilon, settings.privacy.noise_scale) == (None, found["noise_scale"])
    else:
        assert settings.privacy.epsilon == 2.0
    assert settings.clients.count == 10


@pytest.mark.parametrize(("clients", "colluders"), [(40, 0), (40, 3), (120, 3)])
def test_a_run_with_secure_aggregation_costs_what_the_plan_says(clients: int, colluders: int) -> None:
    """The engine's figure of every observer, and the target where only the quorum is in each sum.

    The control is the target in place of the noise: the engine then counts on all clients.
    """
    pytest.importorskip("torch")
    command = f"--clients {clients} --records 2000 --rounds 200 --coordinates 12 --epsilon 2 --colluders {colluders}"
    found = json.loads(run(f"{command} --trust secure-aggregation --json").stdout)
    ran = engine_observers(found["train"], [2000] * clients, 12)
    for who, spent in found["observers"].items():
        name = f"{clients - 1} colluders" if who.startswith("all ") else who
        assert ran[name] == pytest.approx(math.inf if spent is None else spent, rel=1e-5)
    held = "server" if not colluders else f"server with {colluders} colluders"
    assert 1.999 < found["observers_at_quorum"][held] <= found["epsilon"] * (1 + 1e-8) <= 2.0
    other = found["train"].replace(f"--noise-scale {found['noise_scale']}", "--epsilon 2")
    assert other != found["train"]
    assert engine_observers(other, [2000] * clients, 12)["server"] > 1.1 * found["observers"]["server"]


@pytest.mark.parametrize(
    ("command", "records"),
    [
        ("--clients 5 --records 500,500,500,9000,9000 --rounds 50 --colluders 3", [500] * 3 + [9000] * 2),
        ("--clients 5 --records 500,500,500,9000,9000 --rounds 200 --trust nobody", [500] * 3 + [9000] * 2),
        ("--unit client --clients 5000 --rounds 50 --colluders 3", []),
        ("--unit client --clients 30 --rounds 50 --colluders 3", []),
    ],
)  # fmt: skip
def test_no_run_costs_more_than_its_plan_says(command: str, records: list[int]) -> None:
    pytest.importorskip("torch")
    found = json.loads(run(f"{command} --coordinates 100000 --epsilon 2 --json").stdout)
    assert 1.999 < found["epsilon"] <= 2.0
    colluders = 3 if "--colluders" in command else 0
    ran = engine_observers(found["train"], records, 100_000, colluders)
    if colluders:
        assert found["observers"]["3 other clients"] == found["epsilon"]
        assert 1.99 < ran["3 other clients"] <= 2.0
    same = [who for who in found["observers"] if who in ran and found["observers"][who] is not None]
    assert "outsider" in same
    assert all(ran[who] <= found["observers"][who] * (1 + 1e-6) for who in same)


UNLIKE = ",".join(str(500 + 218 * k) for k in range(40))


def test_unlike_sites_of_secure_aggregation_share_one_divisor() -> None:
    """Flower's lines are the plan's mechanism; the engine has another, so that no command is printed."""
    pytest.importorskip("flwr")
    from flwr.serverapp.strategy import FedAdam

    import cepam
    import cepam.flower
    from cepam.secure_aggregation import epsilons

    command = f"--clients 40 --records {UNLIKE} --rounds 200 --coordinates 12 --epsilon 2 --trust secure-aggregation"
    found = json.loads(run(f"{command} --json").stdout)
    assert found["train"] is None
    assert "another mechanism" in found["train_note"]
    assert "no command: the simulation engine divides" in run(command).stdout
    lines: dict = {"FedAdam": FedAdam, "cepam": cepam}
    exec(found["flower"], lines)
    strategy = lines["strategy"]
    accounting, quorum = strategy.accounting, found["quorum"]
    assert f"quorum={quorum}," in found["flower"]
    made = accounting.mechanism([(k, strategy.settings) for k in range(40)], True, 12).over(200)
    assert epsilons(made, accounting.delta, quorum) == pytest.approx(
        {who: found["observers"][who] for who in ("outsider", "server", "lying server")}, rel=1e-5
    )
    assert epsilons(made, accounting.delta, quorum, survivors=quorum)["server"] <= 2.0
    batch = f".gradient(data, {accounting.record_sampling.draws:.12g}, records={accounting.records})"
    assert batch in found["flower"]


def test_plan_and_engine_share_masks_on_one_graph() -> None:
    pytest.importorskip("torch")
    from cepam.fl.config.settings import COMPLETE
    from cepam.privacy.reports.planning import COMPLETE_GRAPH

    assert COMPLETE_GRAPH == COMPLETE


def test_the_engine_has_no_secure_aggregation_of_whole_clients() -> None:
    found = json.loads(
        run(
            "--unit client --clients 12 --rounds 20 --coordinates 9 --epsilon 4 --trust secure-aggregation --json"
        ).stdout
    )
    assert found["train"] is None
    assert "only where the server is trusted" in found["train_note"]


@pytest.mark.parametrize(
    "command",
    [
        "--clients 3 --records 500,4000,20000 --colluders 1",
        "--clients 3 --records 500,4000,20000 --trust nobody",
        f"--clients 40 --records {UNLIKE} --trust secure-aggregation --colluders 3",
        "--unit client --clients 5000 --colluders 3",
        "--unit client --clients 12",
    ],
)
def test_the_accountant_gives_the_figures_again(command: str) -> None:
    """The command with the noise of every client; one multiplier for all would be another mechanism."""
    found = json.loads(run(f"{command} --rounds 20 --coordinates 1000 --epsilon 2 --json").stdout)
    result = CliRunner().invoke(app, [*found["check"].split()[1:], "--json"])
    assert result.exit_code == 0, result.output
    again = json.loads(result.stdout)
    for which in ("observers", "observers_at_quorum"):
        for who, spent in again.get(which, {}).items():
            assert found[which][who] == (None if spent is None else pytest.approx(spent, rel=1e-6))
    if "observers_at_quorum" not in found:
        assert again["epsilon"] == pytest.approx(found["epsilon"], rel=1e-6)


def test_local_noise_is_shown_whole() -> None:
    records = ",".join(["500"] * 13 + ["9000"])
    command = f"--clients 14 --records {records} --rounds 2 --coordinates 12 --epsilon 2 --trust nobody --colluders 1"
    found = json.loads(run(f"{command} --json").stdout)
    (line,) = [line for line in found["flower"].splitlines() if "noise multiplier per client" in line]
    assert len(line.split(",")) == len(found["noise_multiplier"]) == 14
    low, high = min(found["noise_multiplier"]), max(found["noise_multiplier"])
    assert f"noise_multiplier {low:.4g} to {high:.4g}, one per client" in run(command).stdout
    assert "all other participants together" in found["paragraph"]
    assert "1 other participant" not in found["paragraph"]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (
            "--clients 10 --records 2000",
            ["Other participants: epsilon 2.", "(one curious client), no guarantee (all 9"],
        ),
        ("--clients 10 --records 2000 --colluders 3", ["also holds against 3 other participants who pool"]),
        ("--clients 10 --records 2000 --colluders 1", ["also holds against 1 other participant."]),
        (
            "--clients 10 --records 2000 --trust secure-aggregation",
            ["A server that lies about who dropped out: epsilon"],
        ),
        ("--clients 120 --records 2000 --trust secure-aggregation", ["dropped out: no guarantee (lying server)"]),
        ("--unit client --clients 5000", ["gainst an adversary who sees participation"]),
    ],
)
def test_the_paragraph_names_whoever_has_a_weaker_guarantee(command: str, says: list[str]) -> None:
    text = json.loads(run(f"{command} --rounds 20 --coordinates 1000 --epsilon 2 --json").stdout)["paragraph"]
    for each in [*says, "In a deployment raw data stay", "message lengths", "time that", "metrics", "tuned"]:
        assert each in text


def test_the_engine_meets_a_target_against_colluders() -> None:
    """The engine's target is for an outsider, so the command's is the outsider's figure, at most."""
    found = json.loads(run(f"{SITES} --colluders 1 --json").stdout)
    words = found["train"].split()
    aim = float(words[words.index("--epsilon") + 1])
    assert found["observers"]["outsider"] - 0.001 <= aim <= found["observers"]["outsider"] < found["epsilon"] <= 2.0


def test_bytes_are_the_codecs_own_for_every_site() -> None:
    """The quietest site sends most; the noisiest alone, a control, would say far too little."""
    import cepam

    found = json.loads(run("--records 500,1000,9000 --rounds 20 --coordinates 2000 --epsilon 2 --json").stdout)
    assert len(found["bytes_up"]) == 3
    draw = np.random.default_rng(5).normal(size=2000)
    at = cepam.Address(cepam.Key(bytes(32)), round=1, client=0)
    for k in (0, 2):
        codec = cepam.Codec(cepam.Gaussian(found["noise_scale"][k]), size=2000)
        sent = len(codec.encode(draw / np.linalg.norm(draw), at))
        assert found["bytes_up"][k] == pytest.approx(sent, rel=0.1)
    assert found["bytes_up"][0] < found["bytes_up"][1] < found["bytes_up"][2]
    assert found["bytes_up"][0] < found["bytes_up_mean"] < found["bytes_up"][2]
    said = run("--records 500,1000,9000 --rounds 20 --coordinates 2000 --epsilon 2").stdout
    assert "bytes_up: per client and round, of updates at the clipping norm" in said


def test_bytes_of_masked_and_of_local_updates_are_not_those_of_floats() -> None:
    from cepam.secure_aggregation.settings import fit

    given = "--clients 5 --records 2000 --rounds 20 --coordinates 2000 --epsilon 2 --json"
    masked = json.loads(run(f"{given} --trust secure-aggregation").stdout)
    import cepam

    widest = fit(cepam.Gaussian(masked["noise_scale"]), 5, 2000, 5.0, 20).message_bytes
    assert masked["bytes_up_later"] < masked["bytes_up"] == widest < masked["bytes_float32"]
    local = json.loads(run(f"{given} --trust nobody").stdout)
    assert 250 < local["bytes_up"] < masked["bytes_float32"]
    assert "fl+sdq" in local["bytes_up_of"]


@pytest.mark.parametrize("who", ["--clients 5 --records 400", "--unit client --clients 200"])
def test_a_run_downloads_what_the_plan_says(who: str) -> None:
    """Bytes of the plan's own command, run on data whose updates are small beside the noise."""
    pytest.importorskip("torch")
    from cepam import fl

    found = json.loads(run(f"{who} --rounds 40 --coordinates 7850 --epsilon 2 --json").stdout)
    data = fl.synthetic(2000, 40)
    chosen = {"data.name": "synthetic", "model.name": "linear", "run.simulate": True, "run.evaluate_every": 40}
    simulation = fl.Simulation(settings_of(found["train"]).updated(chosen), data, fl.build("linear", data, "relu"))
    lines = []
    while not simulation.done:
        lines += simulation.step()
    assert simulation.size == 7850
    received = np.mean([line["bits_per_coordinate_down"] for line in lines]) * simulation.size / 8
    assert found["bytes_down"] / 2 < received < 2 * found["bytes_down"]
    assert found["bytes_down"] < found["bytes_float32"] / 10


def test_bytes_of_the_downlink_are_per_client_and_round() -> None:
    """Whoever is sampled in few rounds downloads what they missed; a model of twice the size takes twice as much."""
    often, seldom = (
        json.loads(run(f"--unit client --clients {many} --rounds 20 --coordinates 4096 --epsilon 4 --json").stdout)
        for many in (20, 5000)
    )
    assert (often["client_sampling_rate"], seldom["client_sampling_rate"]) == (1.0, 0.05)
    assert seldom["bytes_down"] > 1.5 * often["bytes_down"]
    given = "--clients 5 --records 2000 --rounds 20 --epsilon 2 --json"
    half, whole = (json.loads(run(f"{given} --coordinates {size}").stdout)["bytes_down"] for size in (2**20, 2**21))
    assert whole == pytest.approx(2 * half, rel=0.01)
    local = json.loads(run(f"{given} --coordinates 2000 --trust nobody").stdout)
    assert local["bytes_down"] == local["bytes_float32"] == 8000
    assert "bytes_down: per client and round, of the quantized model broadcast" in " ".join(
        run(given.replace(" --json", " --coordinates 2000")).stdout.split()
    )


def test_the_plan_sends_models_as_the_presets_do() -> None:
    pytest.importorskip("torch")
    from cepam.cli import downlink_size as used
    from cepam.fl import preset
    from cepam.fl.optim import optimizer

    for unit, name in (("record", "private"), ("client", "users")):
        chosen = preset(name)
        assert used.STEPS[unit] == (
            chosen.compression.downlink_step_factor, chosen.compression.downlink_step_exponent
        )  # fmt: skip
        assert (chosen.compression.downlink, chosen.training.schedule) == ("quantized", "linear")
        assert (chosen.training.server_optimizer, chosen.training.server_momentum) == ("momentum", used.MOMENTUM)
    adam = optimizer("adam", used.MOMENTUM)
    assert (adam.momentum, adam.second, adam.floor) == (used.MOMENTUM, used.SECOND, used.FLOOR)


def test_the_plan_codes_local_updates_as_the_engine_does() -> None:
    pytest.importorskip("torch")
    from cepam.cli.uplink_size import LOCAL_RATE, STEP
    from cepam.fl import CompressionSettings, TrainingSettings

    assert CompressionSettings().sdq_step == STEP
    assert TrainingSettings().server_learning_rate == LOCAL_RATE
    assert TrainingSettings().local_learning_rate is None


def test_a_plan_says_whose_sampling_rate_is_which() -> None:
    found = json.loads(run(f"{SITES} --json").stdout)
    assert "sampling_rate" not in found
    assert (found["client_sampling_rate"], found["record_sampling_rate"]) == (1.0, pytest.approx(1 / 16))
    local = json.loads(run(f"{SITES} --trust nobody --json").stdout)
    assert local["record_sampling_rate_per_step"] == [64 / 500, 64 / 4000, 64 / 20000]
    assert "has no Flower lines for this plan" in local["flower"]
    assert "`cepam train` above runs it" in local["flower"]
    users = json.loads(run("--unit client --clients 5000 --rounds 20 --coordinates 1000 --epsilon 4 --json").stdout)
    assert users["client_sampling_rate"] == 0.05
    assert "record_sampling_rate" not in users

"""`cepam privacy`: what the command line prints, and how it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from cepam.cli import app

RUN = (
    "--clients 30 --clipping-norm 1 --local-steps 15 --records 2000 --rounds 80 --delta 1e-5 "
    "--record-sampling replacement"
)


WATCHER = "an adversary who sees participation"


def run(command: str, code: int = 0):
    result = CliRunner().invoke(app, ["privacy", *command.split()])
    assert result.exit_code == code, result.output
    return result


def as_json(command: str) -> dict:
    return json.loads(run(command + " --json").stdout)


@pytest.mark.parametrize(("adjacency", "want"), [("replace", 2.05172), ("add-remove", 2.01232)])
def test_epsilon(adjacency: str, want: float) -> None:
    command = f"epsilon {RUN} --noise-scale 0.25 --adjacency {adjacency}"
    found = as_json(command)
    assert found["epsilon"] == pytest.approx(want, rel=1e-5)
    assert found["adjacency"] == adjacency
    assert found["warnings"] == []
    assert run(command).stdout.splitlines()[0] == f"epsilon {want:.5f}"


def test_colluders_and_numerics() -> None:
    alone = as_json(f"epsilon {RUN} --noise-scale 1.663 --colluders 29 --coordinates 6422")
    assert alone["epsilon"] == pytest.approx(1.0, rel=1e-3)
    assert 0 < alone["slack_delta"] < 1e-7
    assert 0 < alone["slack_epsilon"] < 1e-5


def test_calibrate() -> None:
    found = as_json(f"calibrate {RUN} --epsilon 1")
    assert found["noise_scale"] == pytest.approx(0.3037, abs=5e-5)
    assert found["epsilon"] <= 1.0


def test_private_preset() -> None:
    command = "--record-sampling poisson --expected-batch-size 960 --records-total 60000 --rounds 600 --delta 1e-5"
    assert as_json(f"epsilon {command} --noise-multiplier 1.1")["epsilon"] == pytest.approx(1.967, rel=5e-4)
    found = as_json(f"calibrate {command} --epsilon 1.9663683")
    assert found["noise_multiplier"] == pytest.approx(1.1, rel=1e-4)


def test_laplace() -> None:
    pure = as_json(
        "epsilon --law laplace --noise-scale 4 --norm-type l1 --local-steps 15 --records 1666 --rounds 80 --delta 0"
    )
    assert pure["epsilon"] == pure["pure_epsilon"]
    one = "--local-steps 15 --records 1666 --rounds 1 --delta 0"
    l2 = as_json(f"epsilon --law laplace --noise-scale 0.01 --norm-type l2 {one} --coordinates 6422")
    assert l2["epsilon"] == pytest.approx(16_023, abs=1)
    assert {"no-guarantee", "l2-laplace"} <= {one["code"] for one in l2["warnings"]}
    b = as_json(f"calibrate --law laplace --norm-type l1 {one} --epsilon 1")["noise_scale"]
    assert b > 0


def test_per_client() -> None:
    found = as_json(
        "epsilon --clients 2 --noise-scale 1,2 --records 1000,2000 --local-steps 10 --rounds 5 --per-client"
    )
    assert [row["client"] for row in found["clients"]] == [0, 1]
    assert (
        "outsider"
        in run("epsilon --clients 2 --noise-scale 1,2 --records 1000 --local-steps 10 --rounds 1 --per-client").stdout
    )


def test_explain(tmp_path) -> None:
    page = tmp_path / "page.html"
    run(f"explain --clients 3 --noise-scale 1 --local-steps 5 --records 500 --rounds 10 --out {page}")
    assert page.read_text().count('<figure class="chart">') == 2


STEADY = (
    "--noise-correlation matrix --clipped example --clipping-norm 0.1 --records-total 60000 "
    "--slices 31 --rounds 496 --delta 1e-5"
)


def test_noise_that_cancels_over_rounds() -> None:
    found = as_json(f"epsilon {STEADY} --decay 0.9617 --noise-scale 0.0109301 --per-client --coordinates 6422")
    assert found["epsilon"] == pytest.approx(2.0, abs=1e-4)
    assert found["sensitivity"] == pytest.approx(19.3718, abs=5e-5)
    assert (found["events"], found["slices"], found["unit"], found["adjacency"]) == (1, 31, "record", "add-remove")
    assert found["clients"][0]["colluding"] == pytest.approx(14.889, abs=1e-3)
    auto = as_json(f"calibrate {STEADY} --decay auto --server-momentum 0.9 --schedule linear --epsilon 2")
    assert auto["decay"] == pytest.approx(0.961712, abs=1e-6)
    assert auto["noise_scale"] == pytest.approx(0.0109332, abs=5e-8)
    whole = as_json(
        "epsilon --noise-correlation matrix --decay 0 --slices 1 --rounds 4 --clients 1 --noise-scale 9 --unit client"
    )
    assert whole["mu"] == pytest.approx(2 * 2 / 9)


USERS = (
    "--unit client --clients 100000 --sampling-rate 0.01 --clipping-norm 1 --rounds 1000 --delta "
    "1e-6 --adjacency add-remove"
)


def test_whole_clients_in_cohorts() -> None:
    found = as_json(f"epsilon {USERS} --noise-multiplier 1 --per-client")
    assert found["epsilon"] == pytest.approx(2.12452, abs=1e-5)
    assert (found["unit"], found["sampling"], found["clients"], found["max_cohort"]) == (
        "client",
        "poisson",
        100000,
        1379,
    )
    seen = found["observers"]
    assert (
        seen["outsider"] == found["epsilon"] < seen["one curious client"] < seen["an adversary who sees participation"]
    )
    assert found["warnings"] == []
    assert len(found["per_client"]) == 1
    limited = as_json(f"epsilon {USERS} --noise-multiplier 1 --max-participations 2")
    assert (
        limited["observers"]["an adversary who sees participation"] < 0.5 * seen["an adversary who sees participation"]
    )
    assert limited["epsilon"] == found["epsilon"]
    assert "against an adversary who sees participation: " in run(f"epsilon {USERS} --noise-multiplier 1").stdout
    made = as_json(f"calibrate {USERS} --epsilon 2")
    again = as_json(f"epsilon {USERS} --noise-multiplier {made['noise_multiplier']!r}")
    assert again["epsilon"] == pytest.approx(2.0, rel=1e-5)
    thirty = "epsilon --unit client --clients 30 --noise-multiplier 4 --rounds 1 --adjacency add-remove"
    assert as_json(thirty)["epsilon"] == as_json(f"{thirty} --sampling-rate 1")["epsilon"]


def test_explain_and_audit_whole_clients(tmp_path) -> None:
    page = tmp_path / "page.html"
    run(
        "explain --unit client --clients 500 --sampling-rate 0.02 --max-cohort 100 "
        f"--noise-multiplier 2 --rounds 4 --out {page}"
    )
    text = page.read_text()
    assert "all data but one client" in text
    assert "cohorts of 10 (poisson, at most 100)" in text
    command = (
        "audit --unit client --clients 4 --sampling-rate 0.5 --max-cohort 4 --noise-multiplier "
        "1 --adjacency add-remove --trials 20000"
    )
    assert not as_json(command)["refuted"]
    assert json.loads(run(command + " --actual 0.4 --json", code=1).stdout)["refuted"]


def test_cohorts_spelt_as_draws_of_records_draw_a_caution() -> None:
    found = as_json("epsilon --clients 1000 --local-steps 100 --records 1 --noise-scale 100 --rounds 10")
    assert "draws-of-clients" in [one["code"] for one in found["warnings"]]


def test_a_matrix_of_ones_own_and_secret_draws(tmp_path) -> None:
    np.save(tmp_path / "column.npy", 0.9 ** np.arange(16))
    run = (
        "--clipped example --clipping-norm 0.1 --records-total 60000 --slices 16 --rounds 496 "
        "--record-sampling poisson --expected-batch-size 1920"
    )
    own = as_json(f"epsilon --noise-correlation matrix --matrix {tmp_path}/column.npy {run} --noise-scale 0.01")
    cut = as_json(f"epsilon --noise-correlation matrix --decay 0.9 --bands 16 {run} --noise-scale 0.01")
    assert own["epsilon"] == cut["epsilon"]
    assert (own["bands"], own["events"]) == (16, 31)
    best = as_json(
        f"epsilon --noise-correlation matrix --bands 16 --server-momentum 0.9 --schedule linear {run} "
        "--noise-scale 0.01"
    )
    assert best["epsilon"] > cut["epsilon"]  # a longer carry: a longer column, and less of it in the weights


def test_explain_shows_the_correlation(tmp_path) -> None:
    page = tmp_path / "page.html"
    run(
        "explain --noise-correlation matrix --decay 0.9 --slices 4 --rounds 12 --clients 3 "
        f"--noise-scale 9 --out {page}"
    )
    text = page.read_text()
    assert text.count('<figure class="chart">') == 4
    assert "records in 4 fixed slices" in text
    assert "independent noise of the same epsilon" in text


@pytest.mark.usefixtures("fixed_keys")
def test_audit_of_a_stream() -> None:
    command = (
        "audit --noise-correlation matrix --decay 0.9 --slices 2 --rounds 6 --clients 1 "
        "--clipping-norm 0.5 --noise-scale 4 --trials 20000"
    )
    assert not as_json(command)["refuted"]
    assert json.loads(run(command + " --actual 0.5 --json", code=1).stdout)["refuted"]


@pytest.mark.usefixtures("fixed_keys")
def test_audit_passes_and_refutes() -> None:
    command = "audit --clients 1 --clipping-norm 0.5 --noise-scale 1 --delta 1e-2 --trials 20000"
    sound = as_json(command)
    assert sound["lower"] <= sound["claim"]
    assert not sound["refuted"]
    assert json.loads(run(command + " --actual 0.5 --json", code=1).stdout)["refuted"]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("epsilon --local-steps 15 --records 2000", "--noise-scale"),
        ("epsilon --noise-scale x --local-steps 15 --records 2000", "--noise-scale"),
        ("epsilon --noise-scale -1 --local-steps 15 --records 2000", "sigma"),
        ("epsilon --noise-scale 1,2 --local-steps 15 --records 2000", "--noise-scale"),
        ("epsilon --noise-scale 1 --records 2000", "--local-steps"),
        ("epsilon --noise-scale 1 --local-steps 15", "--records"),
        ("epsilon --noise-scale 1 --local-steps 15 --records 2000 --delta 2", "delta"),
        ("epsilon --noise-scale 1 --local-steps 15 --records 2000 --rounds 0", "rounds"),
        ("epsilon --noise-scale 1 --local-steps 15 --records 2000 --colluders 30", "colluders"),
        ("epsilon --clients 7 --expected-batch-size 960 --records-total 60000 --noise-multiplier 1", "--records-total"),
        ("epsilon --noise-scale 1 --noise-multiplier 1 --expected-batch-size 9 --records 20", "--noise-multiplier"),
        ("epsilon --noise-scale 0.4 --local-steps 15 --records 2000 --rounds 80 --coordinates 999999999999", "slack"),
        ("calibrate --local-steps 15 --records 2000 --epsilon -1", "epsilon"),
        ("calibrate --local-steps 15 --records 2000 --epsilon 1 --delta 0.5", "delta"),
        ("audit --clients 1 --noise-scale 1 --trials 3", "trials"),
        ("epsilon --noise-scale 1 --local-steps 15 --records 2000 --slices 3", "--noise-correlation matrix"),
        (
            "epsilon --noise-scale 1 --local-steps 15 --records 2000 --record-sampling poisson --unit client",
            "sampling 'all'",
        ),
        ("epsilon --noise-scale 1 --local-steps 15 --records 2000 --sampling-rate 0.1", "--unit client"),
        ("epsilon --unit client --sampling-rate 0.1 --noise-multiplier 1 --local-steps 3", "--local-steps"),
        ("epsilon --unit client --sampling-rate 1.1 --noise-multiplier 1", "--sampling-rate"),
        ("epsilon --unit client --noise-multiplier 1 --max-participations 3", "--sampling-rate"),
        ("epsilon --unit client --sampling-rate 0.666 --max-cohort 20 --noise-multiplier 1", "cap"),
        ("epsilon --noise-correlation matrix --noise-scale 1", "--slices"),
        ("epsilon --noise-scale 1 --local-steps 15 --records 2000 --quorum 24", "--trust secure-aggregation"),
        ("audit --clients 5 --noise-scale 1 --quorum 4", "--trust secure-aggregation"),
        (
            "calibrate --local-steps 15 --records 2000 --epsilon 1 --trust secure-aggregation --per-client",
            "--per-client",
        ),
        (
            "epsilon --noise-scale 1 --local-steps 15 --records 2000 --trust secure-aggregation --quorum 15",
            "K + c < 2t",
        ),
        (
            "epsilon --law laplace --noise-scale 1 --norm-type l1 --local-steps 15 --records 2000 "
            "--trust secure-aggregation",
            "Gaussian noise",
        ),
        ("epsilon --noise-correlation matrix --noise-scale 1 --slices 3 --decay x", "--decay"),
        ("epsilon --noise-correlation matrix --noise-scale 1 --slices 3 --decay 1", "--decay"),
        ("epsilon --noise-correlation matrix --noise-scale 1 --slices 3 --matrix a.npy --decay 0.5", "--matrix"),
        ("epsilon --noise-correlation matrix --noise-scale 1 --slices 3 --matrix nowhere.npy", "nowhere.npy"),
        ("epsilon --noise-correlation matrix --noise-scale 1 --slices 3 --matrix missing.npy", "missing.npy"),
        ("epsilon --noise-correlation matrix --law laplace --noise-scale 1 --slices 3", "Laplace"),
    ],
)
def test_bad_input_is_one_line_and_code_two(command: str, says: str) -> None:
    result = run(command if "--rounds" in command else f"{command} --rounds 1", code=2)
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"cepam privacy {command.split()[0]}: ")
    assert says in lines[0]
    assert result.stdout == ""


def test_a_server_that_learns_sums_has_an_epsilon_for_each_observer(tmp_path) -> None:
    given = (
        "--expected-batch-size 1920 --records-total 60000 --noise-multiplier 1.658 --rounds 500 "
        "--trust secure-aggregation --colluders 3"
    )
    found = json.loads(run(f"epsilon {given} --json").stdout)
    assert found["quorum"] == 24
    assert {who: round(value, 2) for who, value in found["observers"].items()} == {
        "outsider": 1.99, "server": 1.99, "server with 3 colluders": 2.15, "lying server": 2.93,
        "lying server with 3 colluders": 3.42,
    }  # fmt: skip
    asked = given.replace("--noise-multiplier 1.658", "--epsilon 1.99")
    met = json.loads(run(f"calibrate {asked} --json").stdout)
    assert met["observers"]["server with 3 colluders"] == pytest.approx(1.99, abs=1e-3)
    assert met["observers"].keys() == found["observers"].keys()
    page = tmp_path / "page.html"
    said = run(
        f"explain --noise-scale 0.25 --record-sampling all --rounds 1 --trust secure-aggregation --out {page}"
    ).stdout
    assert "against lying server" in said
    assert "server, at the quorum of 24" in page.read_text()
    assert "<td>lying server</td>" in page.read_text().replace('<td class="name">', "<td>")


def test_the_audit_of_sums_attacks_what_each_observer_sees() -> None:
    """The sums as they are opened, few bits and all; a false alarm has chance 1e-9, half the noise must be refuted."""
    command = (
        "audit --clients 5 --clipping-norm 0.5 --noise-scale 0.5 --trust secure-aggregation "
        "--quorum 4 --colluders 1 --trials 20000 --json"
    )
    found = json.loads(run(f"{command} --confidence 0.999999999").stdout)
    each = found["views"]
    assert list(each) == ["server", "server with 1 colluders", "lying server", "lying server with 1 colluders"]
    claims = [view["claim"] for view in each.values()]
    assert claims == sorted(claims)
    assert not found["refuted"]
    assert all(0.2 * view["claim"] < view["lower"] < view["claim"] for view in each.values())
    assert json.loads(run(f"{command} --actual 0.4 --confidence 0.999", 1).stdout)["refuted"]


@pytest.mark.parametrize("name", ["epsilon", "calibrate", "explain", "audit"])
def test_help_teaches_by_example(name: str) -> None:
    assert f"cepam privacy {name}" in run(f"{name} --help").stdout


def test_every_answer_has_the_noise_in_both_units_and_every_adversary() -> None:
    given = f"{RUN} --coordinates 6422"
    for command in (f"epsilon {given} --noise-scale 0.25", f"calibrate {given} --epsilon 2"):
        found = as_json(command)
        assert found["noise_multiplier"] == pytest.approx(found["noise_scale"] * 30**0.5)
        assert set(found["units"]) == {"noise_scale", "noise_multiplier"}
        assert "neither number is Opacus's" in found["opacus"]
        assert found["numerics"].startswith("charged")
        assert list(found["observers"]) == ["outsider", "one curious client", "all 29 other clients", WATCHER, "server"]
        assert found["observers"]["server"] is None
        said = " ".join(run(command).stdout.split())
        assert "against server: no guarantee" in said
        assert (
            "noise_multiplier: standard deviation of the noise of the sum over all clients, in clipping norms" in said
        )
    bare = " ".join(run(f"epsilon {RUN} --noise-scale 0.25").stdout.split())
    assert "rounding: not charged" in bare


def test_a_noise_multiplier_that_is_given_comes_back() -> None:
    examples = "--expected-batch-size 960 --records-total 60000 --rounds 600 --noise-multiplier 1.1"
    users = "--unit client --clients 1000 --sampling-rate 0.1 --rounds 10 --noise-multiplier 1.1"
    local = "--clients 2 --records 500,4000 --local-epochs 1 --batch-size 64 --rounds 5 --noise-multiplier 1.1"
    for given in (examples, users, local):
        assert as_json(f"epsilon {given}")["noise_multiplier"] == pytest.approx(1.1)
    assert "is Opacus's own at each client" in as_json(f"epsilon {local}")["opacus"]


def test_the_draw_is_by_record_where_clients_hold_unequal_numbers() -> None:
    """One chance for all records, and so one epsilon for all: that of equal clients with the same total."""
    run = "--expected-batch-size 600 --rounds 100 --noise-multiplier 1.1 --clients 3"
    unequal = as_json(f"epsilon {run} --records 1000,9000,20000 --per-client")
    assert len({round(row["sampling_rate"], 12) for row in unequal["clients"]}) == 1
    assert unequal["epsilon"] == pytest.approx(as_json(f"epsilon {run} --records-total 30000")["epsilon"], rel=1e-9)
    assert unequal["noise_multiplier"] == pytest.approx(1.1)


NINE = "500,1000,1500,2000,3000,4000,5000,7000,9000"


def test_nine_unlike_sites_cost_what_the_plan_says() -> None:
    """Clients add equal shares of the sum's noise; one scale for all, a control, lays most of it on the largest."""
    plan = ["plan", "--records", NINE, "--rounds", "200", "--coordinates", "10000", "--epsilon", "2", "--json"]
    planned = json.loads(CliRunner().invoke(app, plan).stdout)
    given = f"--records {NINE} --rounds 200 --coordinates 10000 --delta {planned['delta']} --expected-batch-size 2062.5"
    met = as_json(f"calibrate {given} --epsilon 2")
    assert planned["observers"]["one curious client"] == pytest.approx(2.159, abs=5e-4)
    again = as_json(f"epsilon {given} --noise-multiplier {planned['noise_multiplier']!r}")
    for found in (met, again):
        assert found["noise_scale"] == pytest.approx(planned["noise_scale"], rel=1e-6)
        assert found["noise_multiplier"] == pytest.approx(planned["noise_multiplier"], rel=1e-6)
        for who, spent in planned["observers"].items():
            assert found["observers"][who] == (None if spent is None else pytest.approx(spent, rel=1e-6))
    alike = as_json(f"epsilon {given} --noise-scale {planned['noise_scale'][4]!r}")
    assert alike["observers"]["one curious client"] > 1.2 * alike["observers"]["outsider"]


def test_a_page_shares_the_noise_equally(tmp_path) -> None:
    given = f"--records {NINE} --rounds 20 --expected-batch-size 2062.5 --noise-multiplier 2"
    found = as_json(f"explain {given} --out {tmp_path / 'page.html'}")
    noise = [scale * int(many) for scale, many in zip(found["noise_scale"], NINE.split(","), strict=True)]
    assert noise == pytest.approx([noise[0]] * 9)


@pytest.mark.parametrize("many", [9, 40])
def test_a_list_of_records_says_how_many_clients_there_are(many: int) -> None:
    listed = ",".join(str(500 + 100 * k) for k in range(many))
    found = as_json(f"epsilon --records {listed} --expected-batch-size 200 --noise-multiplier 3 --rounds 5")
    assert len(found["noise_scale"]) == many
    plan = CliRunner().invoke(app, f"plan --records {listed} --rounds 5 --coordinates 99 --epsilon 2 --json".split())
    assert json.loads(plan.stdout)["clients"] == many
    result = run(f"epsilon --clients 7 --records {listed} --expected-batch-size 200 --noise-multiplier 3 --rounds 5", 2)
    assert f"--records must give 1 or 7 values, got {many}" in result.stderr


def test_a_quorum_is_a_fraction_or_a_number() -> None:
    given = "--expected-batch-size 1920 --records-total 60000 --noise-multiplier 1.7 --rounds 5"
    found = [as_json(f"epsilon {given} --trust secure-aggregation --quorum {each}") for each in ("0.8", "24")]
    assert found[0] == found[1]
    assert found[0]["quorum"] == 24
    for each in ("-0.5", "1.5", "31"):
        assert "--quorum must be" in run(f"epsilon {given} --trust secure-aggregation --quorum {each}", 2).stderr

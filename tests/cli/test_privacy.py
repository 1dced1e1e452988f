"""`cepam privacy`: what the command line prints, and how it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from cepam.cli import app

RUN = "--clients 30 --clip 1 --draws 15 --records 2000 --rounds 80 --delta 1e-5 --sampling replacement"


def run(command: str, code: int = 0):
    result = CliRunner().invoke(app, ["privacy", *command.split()])
    assert result.exit_code == code, result.output
    return result


def as_json(command: str) -> dict:
    return json.loads(run(command + " --json").stdout)


@pytest.mark.parametrize(("adjacency", "want"), [("replace", 2.05172), ("add-remove", 2.01232)])
def test_epsilon(adjacency: str, want: float) -> None:
    command = f"epsilon {RUN} --sigma 0.25 --adjacency {adjacency}"
    found = as_json(command)
    assert found["epsilon"] == pytest.approx(want, rel=1e-5)
    assert found["adjacency"] == adjacency
    assert found["warnings"] == []
    assert run(command).stdout.splitlines()[0] == f"epsilon {want:.5f}"


def test_colluders_and_numerics() -> None:
    alone = as_json(f"epsilon {RUN} --sigma 1.663 --colluders 29 --coordinates 6422")
    assert alone["epsilon"] == pytest.approx(1.0, rel=1e-3)
    assert 0 < alone["slack_delta"] < 1e-7
    assert 0 < alone["slack_epsilon"] < 1e-5


def test_calibrate() -> None:
    found = as_json(f"calibrate {RUN} --epsilon 1")
    assert found["sigma"] == pytest.approx(0.3037, abs=5e-5)
    assert found["epsilon"] <= 1.0


def test_private_preset() -> None:
    command = "--sampling poisson --batch 960 --records-total 60000 --rounds 600 --delta 1e-5"
    assert as_json(f"epsilon {command} --noise-multiplier 1.1")["epsilon"] == pytest.approx(1.967, rel=5e-4)
    found = as_json(f"calibrate {command} --epsilon 1.9663683")
    assert found["noise_multiplier"] == pytest.approx(1.1, rel=1e-4)


def test_laplace() -> None:
    pure = as_json("epsilon --law laplace --b 4 --clip-norm l1 --draws 15 --records 1666 --rounds 80 --delta 0")
    assert pure["epsilon"] == pure["pure_epsilon"]
    one = "--draws 15 --records 1666 --rounds 1 --delta 0"
    l2 = as_json(f"epsilon --law laplace --b 0.01 --clip-norm l2 {one} --coordinates 6422")
    assert l2["epsilon"] == pytest.approx(16_023, abs=1)
    assert {"no-guarantee", "l2-laplace"} <= {one["code"] for one in l2["warnings"]}
    b = as_json(f"calibrate --law laplace --clip-norm l1 {one} --epsilon 1")["b"]
    assert b > 0


def test_per_client() -> None:
    found = as_json("epsilon --clients 2 --sigma 1,2 --records 1000,2000 --draws 10 --rounds 5 --per-client")
    assert [row["client"] for row in found["clients"]] == [0, 1]
    assert "outsider" in run("epsilon --clients 2 --sigma 1,2 --records 1000 --draws 10 --rounds 1 --per-client").stdout


def test_explain(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    page = tmp_path / "page.html"
    run(f"explain --clients 3 --sigma 1 --draws 5 --records 500 --rounds 10 --out {page}")
    assert page.read_text().count("<svg") == 2


STEADY = "--noise matrix --clipped example --clip 0.1 --records-total 60000 --slices 31 --rounds 496 --delta 1e-5"


def test_noise_that_cancels_over_rounds() -> None:
    found = as_json(f"epsilon {STEADY} --carry 0.9617 --sigma 0.0109301 --per-client --coordinates 6422")
    assert found["epsilon"] == pytest.approx(2.0, abs=1e-4)
    assert found["sensitivity"] == pytest.approx(19.3718, abs=5e-5)
    assert (found["events"], found["slices"], found["unit"], found["adjacency"]) == (1, 31, "record", "add-remove")
    assert found["clients"][0]["colluding"] == pytest.approx(14.889, abs=1e-3)
    auto = as_json(f"calibrate {STEADY} --carry auto --momentum 0.9 --schedule linear --epsilon 2")
    assert auto["carry"] == pytest.approx(0.961712, abs=1e-6)
    assert auto["sigma"] == pytest.approx(0.0109332, abs=5e-8)
    whole = as_json("epsilon --noise matrix --carry 0 --slices 1 --rounds 4 --clients 1 --sigma 9 --unit client")
    assert whole["mu"] == pytest.approx(2 * 2 / 9)


USERS = "--unit client --clients 100000 --cohort 1000 --clip 1 --rounds 1000 --delta 1e-6 --adjacency add-remove"


def test_whole_clients_in_cohorts() -> None:
    found = as_json(f"epsilon {USERS} --noise-multiplier 1 --per-client")
    assert found["epsilon"] == pytest.approx(2.12452, abs=1e-5)
    assert (found["unit"], found["sampling"], found["clients"], found["cap"]) == ("client", "poisson", 100000, 1379)
    seen = found["observers"]
    assert seen["outsider"] == found["epsilon"] < seen["one curious client"] < seen["whoever sees who uploads"]
    assert found["warnings"] == []
    assert len(found["per_client"]) == 1
    limited = as_json(f"epsilon {USERS} --noise-multiplier 1 --participations 2")
    assert limited["observers"]["whoever sees who uploads"] < 0.5 * seen["whoever sees who uploads"]
    assert limited["epsilon"] == found["epsilon"]
    assert "against whoever sees who uploads: " in run(f"epsilon {USERS} --noise-multiplier 1").stdout
    made = as_json(f"calibrate {USERS} --epsilon 2")
    again = as_json(f"epsilon {USERS} --noise-multiplier {made['noise_multiplier']!r}")
    assert again["epsilon"] == pytest.approx(2.0, rel=1e-5)
    thirty = "epsilon --unit client --clients 30 --noise-multiplier 4 --rounds 1 --adjacency add-remove"
    assert as_json(thirty)["epsilon"] == as_json(f"{thirty} --cohort 30")["epsilon"]


def test_explain_and_audit_whole_clients(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    page = tmp_path / "page.html"
    run(f"explain --unit client --clients 500 --cohort 10 --cap 100 --noise-multiplier 2 --rounds 4 --out {page}")
    text = page.read_text()
    assert "all data but one client" in text
    assert "cohorts of 10 (poisson, at most 100)" in text
    command = (
        "audit --unit client --clients 4 --cohort 2 --cap 4 --noise-multiplier 1 --adjacency add-remove --trials 20000"
    )
    assert not as_json(command)["refuted"]
    assert json.loads(run(command + " --actual 0.4 --json", code=1).stdout)["refuted"]


def test_cohorts_spelt_as_draws_of_records_draw_a_caution() -> None:
    found = as_json("epsilon --clients 1000 --draws 100 --records 1 --sigma 100 --rounds 10")
    assert "draws-of-clients" in [one["code"] for one in found["warnings"]]


def test_a_matrix_of_ones_own_and_secret_draws(tmp_path) -> None:
    np.save(tmp_path / "column.npy", 0.9 ** np.arange(16))
    run = "--clipped example --clip 0.1 --records-total 60000 --slices 16 --rounds 496 --sampling poisson --batch 1920"
    own = as_json(f"epsilon --noise matrix --matrix {tmp_path}/column.npy {run} --sigma 0.01")
    cut = as_json(f"epsilon --noise matrix --carry 0.9 --bands 16 {run} --sigma 0.01")
    assert own["epsilon"] == cut["epsilon"]
    assert (own["bands"], own["events"]) == (16, 31)
    best = as_json(f"epsilon --noise matrix --bands 16 --momentum 0.9 --schedule linear {run} --sigma 0.01")
    assert best["epsilon"] > cut["epsilon"]  # a longer carry: a longer column, and less of it in the weights


def test_explain_shows_the_correlation(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    page = tmp_path / "page.html"
    run(f"explain --noise matrix --carry 0.9 --slices 4 --rounds 12 --clients 3 --sigma 9 --out {page}")
    text = page.read_text()
    assert text.count("<svg") == 4
    assert "records in 4 fixed slices" in text
    assert "independent noise of the same epsilon" in text


@pytest.mark.usefixtures("fixed_keys")
def test_audit_of_a_stream() -> None:
    command = "audit --noise matrix --carry 0.9 --slices 2 --rounds 6 --clients 1 --clip 0.5 --sigma 4 --trials 20000"
    assert not as_json(command)["refuted"]
    assert json.loads(run(command + " --actual 0.5 --json", code=1).stdout)["refuted"]


@pytest.mark.usefixtures("fixed_keys")
def test_audit_passes_and_refutes() -> None:
    command = "audit --clients 1 --clip 0.5 --sigma 1 --delta 1e-2 --trials 20000"
    sound = as_json(command)
    assert sound["lower"] <= sound["claim"]
    assert not sound["refuted"]
    assert json.loads(run(command + " --actual 0.5 --json", code=1).stdout)["refuted"]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("epsilon --draws 15 --records 2000", "--sigma"),
        ("epsilon --sigma x --draws 15 --records 2000", "--sigma"),
        ("epsilon --sigma -1 --draws 15 --records 2000", "sigma"),
        ("epsilon --sigma 1,2 --draws 15 --records 2000", "--sigma"),
        ("epsilon --sigma 1 --records 2000", "--draws"),
        ("epsilon --sigma 1 --draws 15", "--records"),
        ("epsilon --sigma 1 --draws 15 --records 2000 --delta 2", "delta"),
        ("epsilon --sigma 1 --draws 15 --records 2000 --rounds 0", "rounds"),
        ("epsilon --sigma 1 --draws 15 --records 2000 --colluders 30", "colluders"),
        ("epsilon --clients 7 --batch 960 --records-total 60000 --noise-multiplier 1", "--records-total"),
        ("epsilon --sigma 1 --noise-multiplier 1 --batch 9 --records 20", "--noise-multiplier"),
        ("epsilon --sigma 0.4 --draws 15 --records 2000 --rounds 80 --coordinates 999999999999", "slack"),
        ("calibrate --draws 15 --records 2000 --epsilon -1", "epsilon"),
        ("calibrate --draws 15 --records 2000 --epsilon 1 --delta 0.5", "delta"),
        ("audit --clients 1 --sigma 1 --trials 3", "trials"),
        ("epsilon --sigma 1 --draws 15 --records 2000 --slices 3", "--noise matrix"),
        ("epsilon --sigma 1 --draws 15 --records 2000 --sampling poisson --unit client", "sampling 'all'"),
        ("epsilon --sigma 1 --draws 15 --records 2000 --cohort 3", "--unit client"),
        ("epsilon --unit client --cohort 3 --noise-multiplier 1 --draws 3", "--draws"),
        ("epsilon --unit client --cohort 31 --noise-multiplier 1", "size"),
        ("epsilon --unit client --noise-multiplier 1 --participations 3", "--cohort"),
        ("epsilon --unit client --cohort 20 --cap 20 --noise-multiplier 1", "cap"),
        ("epsilon --noise matrix --sigma 1", "--slices"),
        ("epsilon --sigma 1 --draws 15 --records 2000 --quorum 24", "--trust sum"),
        ("audit --clients 5 --sigma 1 --quorum 4", "--trust sum"),
        ("calibrate --draws 15 --records 2000 --epsilon 1 --trust sum --per-client", "--per-client"),
        ("epsilon --sigma 1 --draws 15 --records 2000 --trust sum --quorum 15", "K + c < 2t"),
        ("epsilon --law laplace --b 1 --clip-norm l1 --draws 15 --records 2000 --trust sum", "Gaussian noise"),
        ("epsilon --noise matrix --sigma 1 --slices 3 --carry x", "--carry"),
        ("epsilon --noise matrix --sigma 1 --slices 3 --carry 1", "carry"),
        ("epsilon --noise matrix --sigma 1 --slices 3 --matrix a.npy --carry 0.5", "--matrix"),
        ("epsilon --noise matrix --sigma 1 --slices 3 --matrix nowhere.npy", "nowhere.npy"),
        ("epsilon --noise matrix --sigma 1 --slices 3 --matrix missing.npy", "missing.npy"),
        ("epsilon --noise matrix --law laplace --b 1 --slices 3", "Laplace"),
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
    pytest.importorskip("matplotlib")
    given = "--batch 1920 --records-total 60000 --noise-multiplier 1.658 --rounds 500 --trust sum --colluders 3"
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
    said = run(f"explain --sigma 0.25 --sampling all --rounds 1 --trust sum --out {page}").stdout
    assert "against lying server" in said
    assert "server, at the quorum of 24" in page.read_text()
    assert "<td>lying server</td>" in page.read_text().replace('<td class="name">', "<td>")


def test_the_audit_of_sums_attacks_what_each_observer_sees() -> None:
    """The sums as they are opened, few bits and all; a false alarm has chance 1e-9, half the noise must be refuted."""
    command = "audit --clients 5 --clip 0.5 --sigma 0.5 --trust sum --quorum 4 --colluders 1 --trials 20000 --json"
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

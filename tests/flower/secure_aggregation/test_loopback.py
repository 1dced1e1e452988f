"""Sums end to end: a real SuperLink and five real SuperNodes, one killed in each stage; `make test-flower` runs it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))
from cepam.distributions.laws import Gaussian
from cepam.policy import FileAccount, NodeAccount
from cepam.secure_aggregation import fit
from cepam.secure_aggregation.messages import RefusalReply, TrainReply
from loopback import Federation
from loopback_keys import make_key

from .app.sumapp.client_app import SECRET, known_update

pytestmark = pytest.mark.flower
APP = Path(__file__).parent / "app"
NODES, SIZE, SIGMA, ROUNDS = 5, 2000, 0.001, 6
REPLIES = [5, 3, 4, 4, 4, 4]
TERMS = "noise_scale = 0.001\nclipping_norm = 1.0\nrounds = 20\nquorum = 3\nhonest = 1\n"


def configured(folder: Path) -> dict[str, str]:
    """Keys, terms and pinned cohort of all nodes on disk, and the configuration that names them."""
    for k in range(NODES):
        make_key(folder / f"identity{k}.key", folder / f"identity{k}.pub")
        FileAccount.create(folder / f"account{k}")
    (folder / "policy.toml").write_text(TERMS)
    (folder / "cohort.pub").write_bytes(b"\n".join((folder / f"identity{k}.pub").read_bytes() for k in range(NODES)))
    return {
        "cepam-identity": str(folder / "identity{node}.key"),
        "cepam-account": str(folder / "account{node}"),
        "cepam-policy": str(folder / "policy.toml"),
        "cepam-cohort": str(folder / "cohort.pub"),
    }


def test_a_node_killed_in_each_stage(tmp_path: Path) -> None:
    deaths = ["4:train:2", "3:repair:1", "0:hello:2", "2:unmask:6"]
    with Federation(tmp_path, nodes=NODES, node_config=configured(tmp_path)) as federation:
        federation.wait_for_nodes(NODES)
        config = {"folder": str(tmp_path), "deaths": ",".join(deaths), "size": SIZE, "sigma": SIGMA}
        run = federation.submit(APP, config)
        run.wait_for("cepam: round 2:", 200)
        for k in (3, 4):
            federation.stop_node(k)
            (tmp_path / f"node{k}.log").rename(tmp_path / f"node{k}-before.log")
            federation.start_node(k)
        federation.wait_for_nodes(NODES)
        (tmp_path / "resume").touch()
        done = run.wait(400)
    assert all((tmp_path / death.replace(":", "-")).exists() for death in deaths)
    check_models(tmp_path)
    check_traffic(tmp_path)
    # Every node has charged each round that it answered, those that it was killed in among them.
    answered = [account_of(tmp_path, k).answered.rounds for k in range(NODES)]
    assert sum(answered) >= sum(REPLIES)
    assert max(answered) <= ROUNDS
    print(f"{done.seconds:.0f} s")


def test_a_server_killed_in_each_stage(tmp_path: Path) -> None:
    """kill -9 of the ServerApp: what was asked for is charged before, nothing else is published, a new run goes on.

    One SuperLink for all: node 4 is killed too where a repair is needed, and started again.
    """
    with Federation(tmp_path, nodes=NODES, node_config=configured(tmp_path)) as federation:
        federation.wait_for_nodes(NODES)
        common = {"folder": str(tmp_path), "size": SIZE, "sigma": SIGMA, "pause-after": 9, "num-server-rounds": 1}
        for number, stage in enumerate(("hello", "train", "repair", "unmask")):
            deaths = "4:train:1" if stage == "repair" else ""
            federation.submit(APP, {**common, "server-death": stage, "deaths": deaths, "timeout": 45.0})
            wait_for_file(tmp_path / f"server-{stage}", 240)
            # Charged on disk before the first share is asked for: only then can a sum be opened.
            assert charged_rounds(tmp_path) == (1 if stage == "unmask" else 0), stage
            assert not list(tmp_path.glob("published-*"))
            if stage == "repair":
                federation.stop_node(4)
                (tmp_path / "node4.log").rename(tmp_path / "node4-before.log")
                federation.start_node(4)
                federation.wait_for_nodes(NODES)
            assert number < 3 or all(federation.node_is_running(k) for k in range(NODES))
        done = federation.run(APP, {**common, "nodes": NODES, "timeout": 60.0}, 200)
    assert len(list(tmp_path.glob("published-*"))) == 1
    assert charged_rounds(tmp_path) == 2
    answered = [account_of(tmp_path, k).answered.rounds for k in range(NODES)]
    assert all(3 <= rounds <= 4 for rounds in answered), answered  # train, repair, unmask and the last; none twice
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["1"]["cepam-opened"], report["1"]["cepam-replies"]) == (1, NODES)
    check_sum(tmp_path)
    print(f"{done.seconds:.0f} s")


def wait_for_file(path: Path, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < until, f"{path.name} did not come in {seconds:.0f} s"
        time.sleep(0.1)


def account_of(folder: Path, node: int) -> NodeAccount:
    with FileAccount(folder / f"account{node}").hold() as account:
        return account


def charged_rounds(folder: Path) -> int:
    """How many rounds the servers' accounts hold, over all runs."""
    found = 0
    for path in (folder / "home").rglob("run-*.json"):
        found += sum(int(release["rounds"]) for release in json.loads(path.read_text())["accountant"]["releases"])
    return found


def check_sum(folder: Path) -> None:
    """The one model that was published is the sum of all updates over the nodes, with its noise; node 1 raised."""
    moved = np.diff(np.load(folder / "models.npy").astype(np.float64), axis=0)[0]
    updates = np.array([known_update(k, SIZE) for k in range(NODES)], dtype=np.float64)
    weights = np.linalg.lstsq(updates.T, moved * NODES, rcond=None)[0]
    np.testing.assert_allclose(weights, [1, 0, 1, 1, 1], atol=0.05)


def test_over_tls_with_registered_keys_a_server_that_signs_and_a_pinned_cohort(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(TERMS)
    for k in range(3):
        FileAccount.create(tmp_path / f"account{k}")
    files = {"cepam-account": "account{node}", "cepam-policy": "policy.toml", "cepam-cohort": "cohort.pub"}
    node_config = {key: str(tmp_path / name) for key, name in files.items()}
    with Federation(tmp_path, nodes=3, secure=True, node_config=node_config) as federation:
        keys = [(tmp_path / f"node{k}.pub").read_bytes() for k in range(3)]
        (tmp_path / "cohort.pub").write_bytes(b"\n".join(keys))
        federation.wait_for_nodes(3)
        strict = {"authentication": "require", "server-key": str(federation.server_key)}
        long = {"timeout": 60.0, "unmask-timeout": 60.0}
        config = {"folder": str(tmp_path), "nodes": 3, "size": SIZE, "sigma": 2.0, "num-server-rounds": 2}
        federation.run(APP, {**config, **strict, **long, "pause-after": 9}, 300)
    report = json.loads((tmp_path / "report.json").read_text())
    assert [report[r]["cepam-opened"] for r in ("1", "2")] == [1, 1]
    assert report["2"]["cepam-epsilon-server"] == pytest.approx(report["2"]["cepam-epsilon"])
    assert 3.0 < report["2"]["cepam-epsilon"] < 4.0


def check_models(folder: Path) -> None:
    """Every round moved the model by the sum of those in it over those asked, or, without a quorum, not at all."""
    report = {int(r): m for r, m in json.loads((folder / "report.json").read_text()).items()}
    models = np.load(folder / "models.npy").astype(np.float64)
    updates = np.array([known_update(k, SIZE) for k in range(NODES)], dtype=np.float64)
    assert sorted(report) == list(range(1, ROUNDS + 1))
    opened = [r for r in report if report[r]["cepam-opened"]]
    for r, metrics in report.items():
        moved = models[r] - models[r - 1]
        if r not in opened:
            assert not moved.any()
            continue
        # Each update's weight in the sum, by least squares; its noise is under 0.001 √(5 · 13/12) / 0.5.
        weights = np.linalg.lstsq(updates.T, moved * metrics["cepam-sampled"], rcond=None)[0]
        inside = np.abs(weights - 1.0) < 0.05
        assert (inside | (np.abs(weights) < 0.05)).all(), (r, weights)
        silent_one = int(r == 1)  # node 1's training raises: its part is zero, with its noise, as if nothing were
        assert inside.sum() == metrics["cepam-replies"] - silent_one, (r, weights, metrics)
    # Killed in train and in repair: three are left in the second round; both are back in a new epoch, in whose hello a
    # third is killed. Killed in unmask: the other shares open the sixth round.
    assert [report[r]["cepam-replies"] for r in report] == REPLIES
    assert len(opened) == ROUNDS


def check_traffic(folder: Path) -> None:
    """Nothing that the server got, and no log, tells more than sums."""
    said = (folder / "traffic.bin").read_bytes()
    lines = [json.loads(line) for line in (folder / "traffic.jsonl").read_text().splitlines()]
    assert sum("records" in line for line in lines) >= 40
    for line in lines:
        if "error" not in line:
            assert line["records"] == ["cepam-secure-aggregation"]
            assert not line["others"]
    logs = b"".join(path.read_bytes() for path in folder.glob("*.log"))
    for told in (said, logs, json.dumps(lines).encode()):
        assert SECRET.encode() not in told
        assert b"loss" not in told
    vectors = [_vector(said[line["at"] : line["at"] + line["bytes"]]) for line in lines if "error" not in line]
    masked = [vector for vector in vectors if vector is not None]
    assert len(masked) >= 22
    assert len({len(vector) for vector in masked}) <= 4  # the public rule for the range changes the bits
    check_updates_are_hidden(said + logs, masked)


def check_updates_are_hidden(told: bytes, masked: list[bytes]) -> None:
    """No update is there as numbers or as text, and no single vector points its way."""
    for k in range(NODES):
        update = known_update(k, SIZE)
        for at in range(0, SIZE - 2, 97):
            assert update[at : at + 2].tobytes() not in told
            assert update[at : at + 2].astype(np.float64).tobytes() not in told
        assert not any(f"{value:.6g}".encode() in told for value in update[:50].tolist())
    for vector in masked:
        codec = fit(Gaussian(SIGMA), NODES, SIZE, 5.0, bits=8 * len(vector) // SIZE)
        if codec.message_bytes != len(vector):
            continue
        guess = codec.open([vector], [])
        for k in range(NODES):
            direction = known_update(k, SIZE) * 2.0
            # Uniform values of deviation span/√12: seven of them are exceeded with chance below 3e-12.
            assert abs(guess @ direction) < 7.0 * codec.span / np.sqrt(12.0)


def _vector(message: bytes) -> bytes | None:
    if message[4] == RefusalReply.code or message[4] != TrainReply.code:
        return None
    return TrainReply.decode(message).vector

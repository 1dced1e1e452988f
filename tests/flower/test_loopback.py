"""End to end: a real SuperLink and real SuperNodes on loopback, each a process of its own.

`make test-flower` runs these, three at a time; the ordinary suite leaves them out.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.serverapp import GaussianPrivacyEvent
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from loopback import Federation, FederationFailed, Finished
from loopback_simulation import simulate

from .app.loopapp.client_app import known_update
from .app.loopapp.server_app import accountant_of, start_of

pytestmark = pytest.mark.flower
APP = Path(__file__).parent / "app"


def ran(federation: Federation, name: str, seconds: float, **config: object) -> tuple[Finished, dict, np.ndarray]:
    """A finished run, its rounds' metrics and its final model."""
    report = federation.folder / name
    settings = {key.replace("_", "-"): value for key, value in config.items()}
    done = federation.run(APP, {"report": str(report), **settings}, seconds)
    return done, rounds_of(report), np.load(f"{report}.npy")


def rounds_of(report: Path) -> dict[int, dict[str, float]]:
    return {int(r): metrics for r, metrics in json.loads(report.read_text()).items()}


def counted(rounds: dict[int, dict[str, float]], key: str) -> list[int]:
    return [int(rounds[r].get(key, 0)) for r in sorted(rounds)]


def test_a_million_parameters_are_private_and_small(tmp_path: Path) -> None:
    size, sigma = 1_000_000, 0.01
    with Federation(tmp_path, nodes=2) as federation:
        federation.wait_for_nodes(2)
        plain, _, model = ran(federation, "plain", 150, size=size, private=False, num_server_rounds=2)
        private, rounds, noisy = ran(federation, "private", 150, size=size, sigma=sigma, num_server_rounds=2)
    mean = (known_update(0, size) + known_update(1, size)) / 2
    np.testing.assert_allclose(model, 2 * mean, atol=1e-6)
    assert counted(rounds, "cepam-replies") == [2, 2]
    message_bytes = sum(counted(rounds, "cepam-message-bytes"))
    assert sum(counted(rounds, "cepam-float32-bytes")) == 4 * 4 * size
    assert 4 * 4 * size >= 30 * message_bytes
    assert plain.inbound_bytes >= 20 * private.inbound_bytes
    print(
        f"float32 / ours: {16 * size / message_bytes:.1f}; SuperLink inbound, plain / private: "
        f"{plain.inbound_bytes / private.inbound_bytes:.1f} ({plain.inbound_bytes} / {private.inbound_bytes} bytes)"
    )
    # Two rounds, two clients: the noise of the sum of averages has variance 2 (sigma^2 / 2). Fresh keys: false
    # alarm 1e-9; the control, a scale wrong by 3 %, must fail, and misses with chance below 1e-12.
    noise = noisy.astype(np.float64) - 2 * mean
    assert stats.kstest(noise, stats.norm(scale=sigma).cdf).pvalue > 1e-9
    assert stats.kstest(noise, stats.norm(scale=1.03 * sigma).cdf).pvalue < 1e-9


def test_a_million_parameters_are_small_both_ways(tmp_path: Path) -> None:
    size, sigma, spread = 1_000_000, 0.01, 0.03
    common = {"size": size, "spread": spread, "num_server_rounds": 3}
    with Federation(tmp_path, nodes=2) as federation:
        federation.wait_for_nodes(2)
        plain, _, _ = ran(federation, "plain", 400, private=False, **common)
        both, rounds, model = ran(federation, "both", 400, sigma=sigma, downlink="quantized", **common)
    assert counted(rounds, "cepam-replies") == [2, 2, 2]
    assert sum(counted(rounds, "cepam-downlink-float32-bytes")) == 3 * 2 * 4 * size
    assert plain.inbound_bytes + plain.outbound_bytes >= 15 * (both.inbound_bytes + both.outbound_bytes)
    print(
        f"SuperLink, both ways, plain / quantized: {plain.inbound_bytes + plain.outbound_bytes} / "
        f"{both.inbound_bytes + both.outbound_bytes} bytes; down by our count {counted(rounds, 'cepam-downlink-bytes')}"
    )
    # The public model: the start, three mean updates, noise of three rounds, and one rounding to the grid (a step of
    # 2^-4: 16 noises of the average, rounded down). False alarms: 7 and 14 deviations. Controls: another number of
    # updates is off by 1; three roundings that add up would have 1.7 times the variance.
    mean = (known_update(0, size) + known_update(1, size)).astype(np.float64) / 2
    moved = model - start_of(size, spread).astype(np.float64)
    assert abs(moved @ mean / (mean @ mean) - 3) < 0.3
    variance, once = np.mean((moved - 3 * mean) ** 2), 3 * sigma**2 / 2 + 2.0**-8 / 12
    assert variance == pytest.approx(once, rel=0.02)
    assert variance != pytest.approx(once + 2 * 2.0**-8 / 12, rel=0.02)


def test_with_tls_and_node_authentication_a_restarted_node_agrees_again(tmp_path: Path) -> None:
    with Federation(tmp_path, nodes=2, secure=True) as federation:
        federation.wait_for_nodes(2)
        report = tmp_path / "report"
        run = federation.submit(
            APP,
            {
                "report": str(report),
                "num-server-rounds": 5,
                "authentication": "require",
                "server-key": str(federation.server_key),
                "nodes": 1,
                "timeout": 90.0,
            },
        )
        run.wait_for("cepam: round 1:", 90)
        federation.stop_node(1)
        federation.start_node(1)
        done = run.wait(300)
    rounds = rounds_of(report)
    assert counted(rounds, "cepam-replies")[0] == 2
    assert counted(rounds, "cepam-replies")[-1] == 2
    assert min(counted(rounds, "cepam-replies")) >= 1
    assert "agreed on a new key" in done.output
    assert "is not authenticated" not in done.output


def failed(federation: Federation, seconds: float, **config: object) -> str:
    """What a run prints that Flower lists as failed."""
    run = federation.submit(APP, {key.replace("_", "-"): value for key, value in config.items()})
    with pytest.raises(FederationFailed, match="the run ended as finished:failed"):
        run.wait(seconds)
    return run.output


def test_runs_without_node_authentication_without_the_mod_and_at_their_budget(tmp_path: Path) -> None:
    """Replies are warned of or refused; a run that trains nothing fails, and so does one whose budget is spent."""
    with Federation(tmp_path, nodes=2) as federation:
        federation.wait_for_nodes(2)
        report = tmp_path / "report"
        config = {"report": str(report), "num-server-rounds": 1, "nodes": 2}
        warned = federation.run(APP, config, 120)
        assert warned.output.count("is not authenticated") == 1  # once for all nodes
        assert counted(rounds_of(report), "cepam-replies") == [2]
        refused = failed(federation, 120, nodes=2, authentication="require")
        assert "nothing was trained: every node of the first round refused" in refused
        plain = failed(federation, 120, nodes=2, uplink=False)
        assert "NoUsableReplies" in plain
        assert "does the ClientApp use cepam.flower.Uplink?" in plain
        # Flower's own fixed clipping with our accountant: the budget is that of two rounds, and five are asked for.
        two = accountant_of(2)
        two.compose(GaussianPrivacyEvent(1.0, 2, 2), count=2)
        budget = two.get_epsilon(1e-5) + 1e-6
        spent = failed(federation, 120, private=False, nodes=2, num_server_rounds=5, budget=budget)
        assert "PrivacyBudgetExhausted" in spent
        assert "[ROUND 3/5]" in spent
        assert "[ROUND 4/5]" not in spent


def test_bad_replies_cost_themselves_only(tmp_path: Path) -> None:
    size = 2000
    faults = ["", "garbage", "truncated", "flipped", "replayed", "nan", "nothing", "crash", "huge"]
    schedule = ",".join(f"1:{r}:{fault}" for r, fault in enumerate(faults, 1) if fault)
    with Federation(tmp_path, nodes=3) as federation:
        federation.wait_for_nodes(3)
        done, rounds, model = ran(
            federation, "report", 400, size=size, sigma=0.001, nodes=3, num_server_rounds=len(faults), faults=schedule
        )
    # A NaN (round 6) leaves as zero with its noise: nothing can be seen of it.
    assert counted(rounds, "cepam-replies") == [3, 2, 2, 2, 2, 3, 2, 2, 3]
    kinds = {2: "seal", 3: "seal", 4: "seal", 5: "seal", 7: "malformed", 8: "error"}
    for r, kind in kinds.items():
        assert rounds[r][f"cepam-dropped-{kind}"] == 1, (r, rounds[r])
    updates = [known_update(k, size) for k in range(3)]
    # Whoever is missing counts as zero, with the server's noise: the mean is over all who were asked.
    full, thin = sum(updates) / 3, (updates[0] + updates[2]) / 3
    np.testing.assert_allclose(model, 2 * full + 7 * thin, atol=0.02)
    # So little noise is no guarantee, and the log says so once.
    assert {rounds[r]["cepam-epsilon"] for r in rounds} == {np.inf}
    assert done.output.count("no-guarantee") == 1


def test_a_node_that_is_stopped_killed_or_restarted_costs_its_own_replies(tmp_path: Path) -> None:
    with Federation(tmp_path, nodes=3) as federation:
        federation.wait_for_nodes(3)
        report = tmp_path / "report"
        config = {"report": str(report), "num-server-rounds": 6, "nodes": 2, "timeout": 30.0, "pause": 2.0}
        run = federation.submit(APP, config)
        run.wait_for("cepam: round 1:", 120)
        federation.signal_node(2, signal.SIGSTOP)
        run.wait_for("cepam: round 2:", 120)
        federation.signal_node(2, signal.SIGCONT)
        run.wait_for("cepam: round 3:", 120)
        federation.signal_node(2, signal.SIGKILL)
        run.wait_for("cepam: round 4:", 120)
        federation.stop_node(2)
        federation.start_node(2)
        run.wait(400)
    rounds = rounds_of(report)
    replies = counted(rounds, "cepam-replies")
    assert len(replies) == 6
    assert replies[0] == 3
    assert replies[1] == 2
    assert replies[3] == 2
    assert replies[-1] == 3
    assert min(replies) >= 2
    assert rounds[2]["cepam-dropped-missing"] == 1


def test_a_stream_outlives_its_node_and_a_server_that_breaks_the_order_gets_nothing(tmp_path: Path) -> None:
    """Node 1's processes end after round 2 and new ones start; round 5 asks for round 4 once more.

    SIGTERM, not SIGKILL: the SuperLink would take the node for alive for another minute, and turn the new one away.
    """
    size, hold = 1000, tmp_path / "hold"
    node = {"cepam-correlated-noise-folder": f"{tmp_path}/streams{{node}}", "told": f"{tmp_path}/told{{node}}"}
    with Federation(tmp_path, nodes=2, secure=True, node_config=node) as federation:
        federation.wait_for_nodes(2)
        report = tmp_path / "report"
        config = {"report": str(report), "num-server-rounds": 6, "size": size, "sigma": 1e-4, "timeout": 120.0}
        keys = {"authentication": "require", "server-key": str(federation.server_key)}
        run = federation.submit(APP, {**config, **keys, "slices": 3, "backwards": 5, "hold": str(hold)})
        run.wait_for("cepam: round 2:", 120)
        federation.stop_node(1)
        before = [stream_of(tmp_path, k) for k in (0, 1)]
        federation.start_node(1)
        hold.touch()
        run.wait(300)
    assert counted(rounds_of(report), "cepam-replies") == [2, 2, 2, 2, 0, 2]
    for k in (0, 1):
        assert (tmp_path / f"told{k}").read_text().split() == ["0", "1", "2", "0", "1"]  # each in its turn, none twice
        after = stream_of(tmp_path, k)
        assert (before[k]["position"], after["position"]) == (2, 5)
        assert before[k]["name"] == after["name"]
    # The server undid the shaping: what it holds is five updates of each, not what their streams add up to.
    want = 5 * (known_update(0, size) + known_update(1, size)) / 2
    np.testing.assert_allclose(np.load(f"{report}.npy"), want, atol=0.002)


def stream_of(folder: Path, node: int) -> dict:
    (kept,) = (folder / f"streams{node}").iterdir()
    return dict(json.loads(kept.read_text()))


def test_thirty_clients_in_the_simulation_engine(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="flwr[simulation] is not installed")
    report = tmp_path / "report"
    size = 100_000
    config = {"report": str(report), "num-server-rounds": 2, "nodes": 30, "size": size, "sigma": 0.1, "timeout": 300.0}
    simulate(tmp_path / "simulation", APP, 30, config, 500)
    assert counted(rounds_of(report), "cepam-replies") == [30, 30]
    mean = sum(known_update(k, size) for k in range(30)) / 30
    noise = np.load(f"{report}.npy").astype(np.float64) - 2 * mean
    # Fresh keys: false alarm 1e-9; the control, a scale wrong by 10 %, must fail, and misses with chance below 1e-13.
    scale = 0.1 * np.sqrt(2 / 30)
    assert stats.kstest(noise, stats.norm(scale=scale).cdf).pvalue > 1e-9
    assert stats.kstest(noise, stats.norm(scale=1.1 * scale).cdf).pvalue < 1e-9

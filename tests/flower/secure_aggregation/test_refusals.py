"""What a node of sums refuses: everything that would leak, and every offer below its own terms."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

import cepam
from cepam.flower import Authentication, Private, SecureAggregation
from cepam.flower.client_mod import SECURE_AGGREGATION, carried
from cepam.flower.secure_aggregation.client_mod import read_cohort
from cepam.flower.secure_aggregation.transport import statement
from cepam.policy import read_policy
from cepam.privacy import Sampling
from cepam.protocol.agreement import sign
from cepam.secure_aggregation import HelloRequest
from tests.flower.fakes import RUN, FakeGrid, Node, adding, outcome, start_arrays

from .fakes import NAMES, SIZE, SumGrid, ask, key_pair, request, secagg_client, sum_fleet, summing

HELLO = HelloRequest(f"flower {RUN}".encode(), 7).encode()
SECRET = "the patient is called Ada"


def telling(message: Message, context) -> Message:
    """A ClientApp that tries to say more than its update."""
    arrays = ArrayRecord({"w": message.content["arrays"]["w"]})
    records = {
        "arrays": arrays,
        "metrics": MetricRecord({"num-examples": 3, "loss": 0.25}),
        "notes": ConfigRecord({"note": SECRET}),
    }
    return Message(RecordDict(records), reply_to=message)


def never(message: Message, context) -> Message:
    raise AssertionError("user code was called")


@pytest.mark.parametrize("kind", ["evaluate", "query", "train", "train.custom", "evaluate.custom"])
def test_a_node_of_sums_answers_nothing_but_sums(kind: str, tmp_path) -> None:
    node = secagg_client(tmp_path, 0, never)
    message = Message(RecordDict({"arrays": start_arrays(8)}), dst_node_id=100, message_type=kind)
    reply = node.handle(message)
    assert reply.error.reason == "cepam: secure-aggregation-only"
    if kind != "train":
        assert node.handle(request(node, HELLO, kind=kind if "." not in kind else "evaluate.x")).has_error()
    node.uplink.required = False
    assert node.handle(message).error.reason == "cepam: secure-aggregation-only"


def test_a_node_of_sums_refuses_a_server_that_would_open_single_replies(tmp_path) -> None:
    grid = FakeGrid([secagg_client(tmp_path, k, never) for k in range(3)])
    strategy = Private(FedAvg(), noise=cepam.Gaussian(0.1), clip=cepam.L2(1.0))
    result = outcome(strategy, grid, start_arrays(8), 2)
    assert "cepam.flower.SecureAggregation" in str(result.error)
    metrics = result.train_metrics_clientapp[1]
    assert metrics["cepam-replies"] == 0
    assert metrics["cepam-dropped-error"] == 3


def test_a_node_without_policy_is_in_no_sum(tmp_path) -> None:
    grid = SumGrid([Node(100 + k, never) for k in range(4)])
    assert ask(grid.nodes[100], HELLO) == "cepam: policy"
    result = outcome(summing(), grid, start_arrays(8), 5)
    assert result.train_metrics_clientapp[1]["cepam-sampled"] == 0
    assert list(result.train_metrics_clientapp) == [1]  # every node refused: the other rounds are not begun
    assert "cepam: policy" in str(result.error)
    assert "or the node has none" in str(result.error)


def test_nothing_but_the_masked_update_leaves(tmp_path, caplog) -> None:
    logging.getLogger("flwr").addHandler(caplog.handler)
    grid = SumGrid([secagg_client(tmp_path, k, telling) for k in range(4)])
    result = summing(quorum=3, downlink="quantized").start(grid, start_arrays(SIZE), num_rounds=2)
    assert result.train_metrics_clientapp[2]["cepam-opened"] == 1
    for stage, _, _, reply in grid.traffic:
        expected = [SECURE_AGGREGATION, "cepam-downlink"] if stage == "train" else [SECURE_AGGREGATION]
        assert list(reply.content) == expected, stage
        assert SECRET.encode() not in carried(reply.content[SECURE_AGGREGATION])
    assert "loss" not in result.train_metrics_clientapp[2]
    assert SECRET not in caplog.text
    assert not any(message.metadata.message_type != "train" for _, _, message, _ in grid.traffic)


def raising(message: Message, context) -> Message:
    raise ValueError(SECRET)


def leaving(message: Message, context) -> Message:
    raise SystemExit(SECRET)


def infinite(message: Message, context) -> Message:
    weights = np.full((SIZE // 4, 4), np.inf, dtype=np.float32)
    return Message(RecordDict({"a": ArrayRecord({"w": Array(weights)})}), reply_to=message)


def misshapen(message: Message, context) -> Message:
    return Message(RecordDict({"a": ArrayRecord({"w": Array(np.zeros(3, dtype=np.float32))})}), reply_to=message)


def empty(message: Message, context) -> Message:
    return Message(RecordDict(), reply_to=message)


@pytest.mark.parametrize("train", [raising, leaving, infinite, misshapen, empty], ids=lambda t: t.__name__)
def test_a_crafted_model_that_breaks_training_tells_nothing(train, tmp_path, caplog) -> None:
    """The overflow gate: an error that depends on the data would be a bit about them, without noise."""
    logging.getLogger("flwr").addHandler(caplog.handler)
    zero = adding(np.zeros(SIZE))
    grid = SumGrid([secagg_client(tmp_path, k, train if k == 2 else zero) for k in range(4)])
    arrays = summing(sigma=0.001, quorum=4).start(grid, start_arrays(SIZE), num_rounds=1).arrays
    lengths = {len(said) for said in grid.replies("train").values()}
    assert len(lengths) == 1
    assert np.abs(arrays["w"].numpy()).max() < 9 * 0.001 * np.sqrt(13 / 12) / 2  # chance below 1e-15
    assert SECRET not in caplog.text


BELOW = {
    "noise_scale": ({"sigma": 0.0009}, ""),
    "clipping_norm": ({}, "clipping_norm = 0.9"),
    "quorum": ({"quorum": 3}, "quorum = 4"),
    "honest": ({"quorum": 3}, "honest = 2"),
    "colluders": ({"quorum": 4}, "honest = 3\ncolluders = 1"),
    "record_sampling_rate": ({}, "record_sampling_rate = 0.5"),
    "divisor": ({"clipped": "example", "record_sampling": Sampling("poisson", 4), "records": 8}, ""),
}


@pytest.mark.parametrize("name", BELOW)
def test_offers_below_the_policy_are_refused(name: str, tmp_path) -> None:
    options, line = BELOW[name]
    key = line.split(" ")[0]
    usual = ("noise_scale = 0.001", "clipping_norm = 1.0", "rounds = 5", "quorum = 3", "honest = 1")
    policy = [t for t in usual if t.split()[0] != key]
    for k in range(5):
        (tmp_path / f"{k}.toml").write_text("\n".join([*policy, line]))
    grid = SumGrid([secagg_client(tmp_path, k, never) for k in range(5)])
    metrics = outcome(summing(**{"sigma": 0.001, **options}), grid, start_arrays(SIZE)).train_metrics_clientapp[1]
    assert metrics["cepam-opened"] == 0
    assert metrics["cepam-dropped-refused"] == 5


def test_the_rounds_of_the_policy_are_spent_over_all_servers(tmp_path) -> None:
    for k in range(5):
        (tmp_path / f"{k}.toml").write_text("noise_scale = 0.001\nclipping_norm = 1\nrounds = 2\nhonest = 1")
    grid, _ = sum_fleet(tmp_path)
    assert [_opened(summing(), grid) for _ in range(3)] == [1, 1, 0]


def _opened(strategy: SecureAggregation, grid: SumGrid) -> float:
    return outcome(strategy, grid, start_arrays(SIZE)).train_metrics_clientapp[1]["cepam-opened"]


def test_a_pinned_cohort_refuses_a_roster_with_an_invented_node(tmp_path) -> None:
    pinned = tmp_path / "cohort.pub"
    pinned.write_bytes(b"# the clinics\n" + b"\n".join(key_pair(k)[1] + b" clinic" for k in range(5)))
    grid, _ = sum_fleet(tmp_path, **{"cepam-cohort": str(pinned)})
    strategy = summing()
    assert _opened(strategy, grid) == 1
    grid.nodes[107] = secagg_client(tmp_path, 7, adding(np.zeros(SIZE)))
    metrics = outcome(strategy, grid, start_arrays(SIZE)).train_metrics_clientapp[1]
    assert metrics["cepam-opened"] == 0
    assert metrics["cepam-dropped-refused"] == 5


def test_identities_that_are_not_registered_are_warned_about_or_left_out(tmp_path, caplog) -> None:
    logging.getLogger("flwr").addHandler(caplog.handler)
    grid, _ = sum_fleet(tmp_path)
    grid.nodes[103].public_key = key_pair(30)[1]
    grid.nodes[104].public_key = b""
    assert summing().start(grid, start_arrays(SIZE), 1).train_metrics_clientapp[1]["cepam-sampled"] == 5
    said = {record.getMessage() for record in caplog.records}
    assert sum("is not the key that it is registered with" in line for line in said) == 1
    strategy = summing(quorum=3, authentication=Authentication(required=True))
    assert strategy.start(grid, start_arrays(SIZE), 1).train_metrics_clientapp[1]["cepam-sampled"] == 3


def test_a_hello_that_another_key_signed_or_that_two_nodes_share_is_left_out(tmp_path) -> None:
    grid, _ = sum_fleet(tmp_path, 6)
    Path(grid.nodes[104].config["cepam-identity"]).write_bytes(key_pair(5)[0])  # node 105's key: both are left out
    metrics = summing(quorum=3).start(grid, start_arrays(SIZE), 1).train_metrics_clientapp[1]
    assert metrics["cepam-sampled"] == 4
    assert metrics["cepam-opened"] == 1


def test_a_node_that_knows_the_server_refuses_requests_that_it_did_not_sign(tmp_path) -> None:
    key, public = tmp_path / "server.key", tmp_path / "server.pub"
    key.write_bytes(key_pair(50)[0])
    public.write_bytes(key_pair(50)[1])
    grid, _ = sum_fleet(tmp_path, **{"cepam-server": str(public)})
    assert _opened(summing(authentication=Authentication(server_key=key)), grid) == 1
    unsigned = outcome(summing(), grid, start_arrays(SIZE))
    assert unsigned.train_metrics_clientapp[1]["cepam-sampled"] == 0
    assert "Authentication(server_key=…)" in str(unsigned.error)
    for_another = ConfigRecord({"signature": sign(key_pair(50)[0], statement(RUN, 101, HELLO))})
    assert ask(grid.nodes[100], HELLO, {"cepam": for_another}) == "cepam: unsigned"


def test_a_configuration_that_cannot_be_read_refuses(tmp_path) -> None:
    for key in ("cepam-identity", "cepam-policy", "cepam-account"):
        missing = secagg_client(tmp_path / key, 0, never)
        del missing.config[key]
        missing.config.setdefault("cepam-policy", "")
        missing.restart()
        assert ask(missing, HELLO) == "cepam: policy"
    gone = secagg_client(tmp_path / "gone", 0, never, **{"cepam-policy": str(tmp_path / "nowhere.toml")})
    assert ask(gone, HELLO) == "cepam: key-file"
    misspelt = secagg_client(tmp_path / "misspelt", 0, never)
    Path(misspelt.config["cepam-policy"]).write_text("noise_scale = 0.1\nclipping_norm = 1.0\nrounds = 5\nhonset = 3")
    assert ask(misspelt, HELLO) == "cepam: policy"
    for text in (
        b"noise_scale = ",
        b"noise_scale = 0.1",
        b"noise_scale = 0.1\nclipping_norm = 1.0\nrounds = 5\ncohort = []",
        b"noise_scale = -1.0\nclipping_norm = 1.0\nrounds = 5",
    ):
        with pytest.raises(ValueError, match=r"Invalid|missing|cohort|noise_scale"):
            read_policy(text)
    with pytest.raises(ValueError, match="nobody"):
        read_cohort(b"# nobody\n")
    assert read_policy(b"noise_scale = 1\nclipping_norm = 2\nrounds = 5").noise_scale == 1.0


def test_keys_of_earlier_versions_refuse(tmp_path) -> None:
    """A limit that is no longer read would be none: a node with an old configuration sends nothing at all."""
    for old in ("cepam-terms", "cepam-state", "cepam-epsilon", "cepam-delta", "cepam-batch"):
        assert ask(secagg_client(tmp_path / old, 0, never, **{old: "1"}), HELLO) == "cepam: policy"


def test_an_account_that_cannot_be_written_or_is_lost_stops_the_node(tmp_path, monkeypatch) -> None:
    grid, _ = sum_fleet(tmp_path)
    assert _opened(summing(), grid) == 1
    node = grid.nodes[100]
    before = bytes(node.context.state[SECURE_AGGREGATION]["state"])
    with monkeypatch.context() as patched:
        patched.setattr("os.replace", _full)
        assert ask(node, HelloRequest(f"flower {RUN}".encode(), 2**62).encode()) == "cepam: policy"
    assert node.context.state[SECURE_AGGREGATION]["state"] == before
    Path(node.config["cepam-account"]).unlink()
    assert ask(node, HelloRequest(f"flower {RUN}".encode(), 2**62).encode()) == "cepam: policy"


def _full(*_: object) -> None:
    raise OSError("no space left")


def test_user_code_sees_neither_the_secrets_nor_the_request(tmp_path) -> None:
    seen = []

    def looking(message: Message, context) -> Message:
        seen.append((sorted(message.content), sorted(context.state)))
        return telling(message, context)

    grid = SumGrid([secagg_client(tmp_path, k, looking) for k in range(4)])
    summing().start(grid, start_arrays(SIZE), num_rounds=2)
    assert seen == [(["arrays", "config"], [])] * 8
    assert set(NAMES) == {100, 101, 102, 103, 104}

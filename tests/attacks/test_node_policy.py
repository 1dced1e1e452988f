"""Servers that ask a node for more than its operator allows, in every mode: nothing leaves, nothing is forgotten."""

from __future__ import annotations

import copy
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

import cepam
from cepam.flower import Uplink
from cepam.flower.client_mod import carried
from cepam.policy import FileAccount, NodeAccount, PolicyRefused, read_policy
from cepam.protocol.agreement import RECORD, Answer, Peer
from cepam.protocol.correlated_noise import ClientCorrelatedNoise, CorrelatedNoiseConfig
from cepam.protocol.enforcement import charge_of
from cepam.protocol.server import ServerEnd
from cepam.protocol.settings import UplinkSettings
from cepam.secure_aggregation.messages import HelloRequest

from ..flower.conftest import _fast_disk, _identity  # noqa: F401
from ..flower.fakes import RUN, Node, start_arrays
from ..flower.secure_aggregation.fakes import ask, key_pair
from ..policy.test_policy import gaussian_epsilon

SIZE, DELTA = 400, 1e-5
SECRET = np.full(SIZE, 0.01)
GOOD = UplinkSettings(cepam.Gaussian(4.0), cepam.L2(1.0))
FLOORS = {"noise_scale": 4.0, "clipping_norm": 1.0, "rounds": 50, "delta": DELTA, "trust": "server"}


def written(folder: Path, **values: Any) -> dict[str, str]:
    """A node's configuration, with a policy of these values and an account that was opened."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{k} = {str(v).lower() if isinstance(v, bool) else repr(v)}" for k, v in {**FLOORS, **values}.items()]
    (folder / "policy.toml").write_text("\n".join(lines).replace("'", '"'))
    (folder / "node.key").write_bytes(key_pair(0)[0])
    if not (folder / "account").exists():
        FileAccount.create(folder / "account")
    return {
        "cepam-policy": str(folder / "policy.toml"),
        "cepam-account": str(folder / "account"),
        "cepam-identity": str(folder / "node.key"),
    }


def telling(message: Message, context: Context) -> Message:
    """A training function that adds the secret, and says it in every other way too."""
    weights = message.content["arrays"]["w"].numpy()
    return Message(
        RecordDict(
            {
                "arrays": ArrayRecord({"w": Array((weights.ravel() + SECRET).reshape(weights.shape).astype("f4"))}),
                "metrics": MetricRecord({"num-examples": 10, "loss": 0.01}),
                "notes": ConfigRecord({"note": "0.01"}),
            }
        ),
        reply_to=message,
    )


class Server:
    """A server of one run that asks a node for whatever it likes."""

    def __init__(self, node: Node, run: int = RUN) -> None:
        self.node, self.run, self.end, self.pending = node, run, ServerEnd(log=lambda *_: None), None

    def ask(self, settings: UplinkSettings | None = GOOD, kind: str = "train") -> Message:
        content: dict[str, Any] = {"arrays": start_arrays(SIZE), "config": ConfigRecord({})}
        if settings is not None:
            known = key_pair(0)[1] if "cepam-identity" in self.node.config else b""
            self.pending = self.end.offer(settings, Peer(self.run, self.node.node_id, known), SIZE + settings.beside)
            content[RECORD] = ConfigRecord(self.pending.offer.to_fields())
        message = Message(RecordDict(content), dst_node_id=self.node.node_id, message_type=kind)
        message.metadata.__dict__["_run_id"] = self.run
        return self.node.handle(message)

    def learns(self, settings: UplinkSettings | None = GOOD, kind: str = "train") -> bool:
        """Whether the node sends an update; else it must send one fixed code and nothing beside."""
        reply = self.ask(settings, kind)
        if reply.has_error():
            assert str(reply.error.reason) in {"cepam: policy", "cepam: no-offer", "cepam: offer"}, reply.error.reason
            return False
        self.opened(reply)
        return True

    def opened(self, reply: Message) -> np.ndarray:
        """The decoded vector of a reply."""
        assert self.pending is not None
        (record,) = reply.content.array_records.values()
        answer = Answer.from_fields(reply.content[RECORD])  # type: ignore[arg-type]
        return np.asarray(self.end.open(self.pending, answer, carried(record)))


def node_of(config: dict[str, str], train: Callable[..., Message] = telling, run: int = RUN) -> Node:
    node = Node(100, train, **config)
    node.context = Context(run, 100, config, RecordDict(), {})
    return node


def spent(config: dict[str, str]) -> NodeAccount:
    with FileAccount(Path(config["cepam-account"])).hold() as account:
        return account


def forged(settings: UplinkSettings, **values: Any) -> UplinkSettings:
    """Settings that no honest end can make, as a server may write them."""
    made = copy.copy(settings)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


GREEDY = {
    "clip 10,000": UplinkSettings(cepam.Gaussian(4.0), cepam.L2(1e4)),
    "noise 1e-6": UplinkSettings(cepam.Gaussian(1e-6), cepam.L2(1e-6)),
    "less noise": UplinkSettings(cepam.Gaussian(3.99), cepam.L2(1.0)),
    "a longer clip": UplinkSettings(cepam.Gaussian(4.0), cepam.L2(1.01)),
    "Laplace noise under l2": UplinkSettings(cepam.Laplace(4.0), cepam.L2(1.0)),
    "a loud bit beside the update": UplinkSettings(cepam.Gaussian(4.0), cepam.L2(1.0), bit=100.0),
    "a stream with less noise": UplinkSettings(
        cepam.Gaussian(3.9), cepam.L2(1.0), correlated_noise=CorrelatedNoiseConfig(0.5, 1, 4)
    ),
    "a stream with a bit": forged(
        UplinkSettings(cepam.Gaussian(8.0), cepam.L2(1.0), correlated_noise=CorrelatedNoiseConfig(0.5, 1, 4)), bit=9.0
    ),
}


def test_noise_of_another_law_is_never_charged_as_laplace(tmp_path: Path) -> None:
    """No message can ask for it today; a law that offers can name one day must not be charged as one that it is not."""
    policy = read_policy(Path(written(tmp_path)["cepam-policy"]).read_bytes())
    known = UplinkSettings(cepam.Laplace(4.0), cepam.L1(1.0))
    assert charge_of(policy, known, 12, True).law == "laplace"
    with pytest.raises(PolicyRefused, match="UniformBall"):
        charge_of(policy, forged(known, law=cepam.UniformBall(4.0)), 12, True)


@pytest.mark.parametrize("name", GREEDY)
def test_offers_below_the_floors_learn_nothing(name: str, tmp_path: Path) -> None:
    def never(message: Message, context: Context) -> Message:
        raise AssertionError("trained for an offer that is refused")

    config = written(tmp_path)
    assert not Server(node_of(config, never)).learns(GREEDY[name])
    assert spent(config).answered.rounds == 0
    if "stream" not in name:
        assert Server(node_of({})).learns(GREEDY[name])  # control: a node without a policy answers
    assert Server(node_of(config)).learns()


def test_endless_rounds_and_new_runs_end_at_the_nodes_rounds(tmp_path: Path) -> None:
    config = written(tmp_path, rounds=7)
    answers = []
    for run in range(1, 6):  # a new run, a restarted node and a new server each time
        server = Server(node_of(config, run=run), run)
        answers += [server.learns() for _ in range(3)]
    assert answers == [True] * 7 + [False] * 8
    assert spent(config).answered.rounds == 7


@pytest.mark.parametrize("mixed", [False, True])
def test_epsilon_ends_every_run_where_the_closed_form_says(mixed: bool, tmp_path: Path) -> None:
    """n rounds of mu = 2 · 1/4 each are sqrt(n)/2-Gaussian private: 6 fit under epsilon(sqrt(6.6)/2), 7 do not."""
    config = written(tmp_path, epsilon=gaussian_epsilon(math.sqrt(6.6) / 2))
    wider = UplinkSettings(cepam.Gaussian(8.0), cepam.L2(1.0))  # a quarter of the cost
    answers = []
    for run in range(1, 5):
        server = Server(node_of(config, run=run), run)
        answers += [server.learns() for _ in range(3)]
    assert answers == [True] * 6 + [False] * 6
    if mixed:
        assert [Server(node_of(config, run=9), 9).learns(wider) for _ in range(4)] == [True, True, False, False]
    assert spent(config).answered.epsilon(DELTA) <= gaussian_epsilon(math.sqrt(6.6) / 2)


def test_a_limit_is_not_passed_by_asking_for_no_stream_or_for_another(tmp_path: Path) -> None:
    """The stream alone costs mu = 0.43, which the limit allows; then neither a plain round nor another stream does."""
    terms = CorrelatedNoiseConfig(0.5, 1, 2)
    stream = UplinkSettings(cepam.Gaussian(8.0), cepam.L2(1.0), correlated_noise=terms)
    config = written(tmp_path, epsilon=gaussian_epsilon(0.47))
    assert not Server(node_of(config)).learns(GOOD)  # mu = 0.5
    server = Server(node_of(config))
    assert not server.ask(stream).has_error()
    for settings in (UplinkSettings(cepam.Gaussian(8.0), cepam.L2(1.0)), GOOD):
        assert not server.learns(settings)
    assert not Server(node_of(config, run=9), 9).learns(stream)


def test_a_stream_costs_no_more_than_the_floors_say(tmp_path: Path) -> None:
    """With decay 0.5 an update is in later messages too: six of them at the floors cost twice what six rounds do."""

    def stream(decay: float, scale: float = 4.0) -> UplinkSettings:
        terms = CorrelatedNoiseConfig(decay, 1, 6)
        return UplinkSettings(cepam.Gaussian(scale), cepam.L2(1.0), correlated_noise=terms)

    greedy = written(tmp_path / "floors", rounds=6)
    most = read_policy(Path(greedy["cepam-policy"]).read_bytes()).largest_epsilon()["server"]
    assert not Server(node_of(greedy)).learns(stream(0.5))
    assert spent(greedy).answered.rounds == 0
    for number, settings in enumerate((stream(0.0), stream(0.9, 40.0))):
        config = written(tmp_path / str(number), rounds=6)
        assert not Server(node_of(config)).ask(settings).has_error()
        assert spent(config).answered.epsilon(DELTA) <= most * (1.0 + 1e-9)
    weak = written(tmp_path / "weak", rounds=6, noise_scale=0.2)  # these floors have no finite epsilon themselves
    assert not Server(node_of(weak)).learns(stream(0.9, 0.2))
    equal = written(tmp_path / "equal", rounds=6, noise_scale=1.0)
    assert not Server(node_of(equal)).ask(stream(0.0, 1.0)).has_error()
    drawn = written(tmp_path / "drawn", rounds=6, noise_scale=1.0, record_sampling_rate=0.5)
    assert not Server(node_of(drawn)).learns(stream(0.0, 1.0))  # a stream draws nobody in secret
    limited = written(tmp_path / "limited", rounds=6, epsilon=15.0)  # the operator's own figure
    assert not Server(node_of(limited)).ask(stream(0.5)).has_error()
    assert spent(limited).answered.epsilon(DELTA) > 1.5 * most


def test_a_server_cannot_say_that_training_looks_at_slices(tmp_path: Path) -> None:
    """Training that uses all records, asked 20 times for one slice of 20: mu = 1.12, not 0.25."""
    terms = CorrelatedNoiseConfig(0.0, slices=20, max_participations=20)
    stream = UplinkSettings(cepam.Gaussian(8.0), cepam.L2(1.0), correlated_noise=terms)
    assert not Server(node_of(written(tmp_path / "whole", epsilon=gaussian_epsilon(0.5)))).learns(stream)
    sliced = written(tmp_path / "sliced", epsilon=gaussian_epsilon(0.3), slices=20)  # the operator says that it does
    assert not Server(node_of(sliced)).ask(stream).has_error()
    few = written(tmp_path / "few", epsilon=gaussian_epsilon(0.5), slices=4)
    assert not Server(node_of(few)).learns(stream)


def test_a_model_that_grows_in_mid_stream_is_charged_anew(tmp_path: Path) -> None:
    """The rounding of a long message costs more than that of the short one with which the stream began."""
    terms = CorrelatedNoiseConfig(0.5, 1, 4)
    stream = UplinkSettings(cepam.Gaussian(8.0), cepam.L2(1.0), correlated_noise=terms)
    offer: Any = SimpleNamespace(settings=stream, run=RUN, server_round=1, noise_id=b"", place=0)
    begun = ClientCorrelatedNoise.follow(offer, 10, None)
    begun.charged = "an account"
    kept = begun.to_fields(RUN)
    offer.server_round = 2
    assert ClientCorrelatedNoise.follow(offer, 10, kept).charged
    assert not ClientCorrelatedNoise.follow(offer, 10**6, kept).charged


def test_a_policy_that_comes_in_mid_stream_charges_the_whole_stream_once(tmp_path: Path) -> None:
    """What was sent before went uncharged; the first message under the policy pays for all messages of the stream."""
    stream = UplinkSettings(cepam.Gaussian(8.0), cepam.L2(1.0), correlated_noise=CorrelatedNoiseConfig(0.5, 1, 4))
    config = written(tmp_path)
    node = node_of({"cepam-identity": config["cepam-identity"]})
    server = Server(node)
    assert not server.ask(stream).has_error()
    node.context = Context(RUN, 100, config, node.context.state, {})
    charged = []
    for _ in range(2):
        assert not server.ask(stream).has_error()
        charged.append(spent(config).answered.epsilon(DELTA))
    whole = written(tmp_path / "whole")
    assert not Server(node_of(whole)).ask(stream).has_error()
    assert charged == [spent(whole).answered.epsilon(DELTA)] * 2
    assert charged[0] > 0.0


def test_another_account_file_in_the_middle_of_a_run_pays_again(tmp_path: Path) -> None:
    """Correlated noise is charged with its first message; an account that comes in later must not find it paid."""
    correlated = UplinkSettings(cepam.Gaussian(8.0), cepam.L2(1.0), correlated_noise=CorrelatedNoiseConfig(0.5, 1, 4))
    first, second = written(tmp_path / "first"), written(tmp_path / "second")
    node = node_of(first)
    server = Server(node)
    charged = []
    for config in (first, first, second, second):
        node.context = Context(RUN, 100, {**first, "cepam-account": config["cepam-account"]}, node.context.state, {})
        assert not server.ask(correlated).has_error()
        charged.append((spent(first).answered.epsilon(DELTA), spent(second).answered.epsilon(DELTA)))
    whole = charged[0][0]
    assert whole > 0.0
    assert charged == [(whole, 0.0), (whole, 0.0), (whole, whole), (whole, whole)]


def test_secure_aggregation_and_a_trusted_server_share_one_account(tmp_path: Path) -> None:
    config = written(tmp_path, rounds=1)
    assert Server(node_of(config)).learns()
    hello = HelloRequest(f"flower {RUN}".encode(), 1).encode()
    assert isinstance(ask(node_of(config), hello), bytes)  # it answers both modes
    assert not Server(node_of(config)).learns()
    guarded = written(tmp_path / "other", trust="secure-aggregation")
    server = Server(node_of(guarded))
    reply = server.ask()
    assert reply.has_error()
    assert str(reply.error.reason) == "cepam: secure-aggregation-only"


@pytest.mark.parametrize("kind", ["evaluate", "query", "train"])
def test_nothing_plain_leaves_whatever_is_asked(kind: str, tmp_path: Path) -> None:
    node = node_of(written(tmp_path))
    node.uplink = Uplink(required=False)  # the app's choice, which the operator's policy overrules
    assert not Server(node).learns(None, kind)
    open_node = node_of({})
    open_node.uplink = Uplink(required=False)
    assert not Server(open_node).ask(None, kind).has_error()  # control


def test_only_numbers_leave_where_the_policy_allows_metrics(tmp_path: Path) -> None:
    said = Server(node_of(written(tmp_path, metrics=True))).ask(None, "evaluate")
    assert list(said.content) == ["metrics"]
    trained = Server(node_of(written(tmp_path, metrics=True))).ask()
    assert set(trained.content) == {"arrays", "metrics", RECORD}
    silent = Server(node_of(written(tmp_path / "silent"))).ask()
    assert set(silent.content) == {"arrays", RECORD}


def test_an_account_that_is_lost_damaged_or_restored_answers_nothing(tmp_path: Path) -> None:
    config = written(tmp_path, epsilon=50.0)
    path = Path(config["cepam-account"])
    before = path.read_bytes()
    assert Server(node_of(config)).learns()
    after = path.read_bytes()
    for spoiled in (before, b"", after.replace(b'"rounds": 1', b'"rounds": 0'), after[:-40]):
        path.write_bytes(spoiled)
        assert not Server(node_of(config)).learns()
    path.unlink()
    assert not Server(node_of(config)).learns()
    assert not path.exists()
    path.write_bytes(after)
    assert Server(node_of(config)).learns()


def test_a_charge_that_cannot_be_written_sends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = written(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", full)
        assert not Server(node_of(config)).learns()
    assert spent(config).answered.rounds == 0


def test_a_policy_without_an_account_or_that_cannot_be_read_answers_nothing(tmp_path: Path) -> None:
    config = written(tmp_path)
    assert not Server(node_of({**config, "cepam-account": ""})).learns()
    assert not Server(node_of({k: v for k, v in config.items() if k != "cepam-account"})).learns()
    (tmp_path / "policy.toml").write_text("noise_scale = 4.0\nclipping_norm = 1.0\nrounds = 50\nepsilom = 1.0\n")
    assert not Server(node_of(config)).learns()


CHARGING = """
import sys
from pathlib import Path
import cepam
from cepam.policy import FileAccount, read_policy
from cepam.protocol.agreement import Declined
from cepam.protocol.enforcement import EnforcedPolicy
from cepam.protocol.settings import UplinkSettings
folder = Path(sys.argv[1])
rules = EnforcedPolicy(read_policy((folder / "policy.toml").read_bytes()), FileAccount(folder / "account"))
settings = UplinkSettings(cepam.Gaussian(4.0), cepam.L2(1.0))
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[2])):
    try:
        rules.charge(settings, 400)
    except Declined:
        break
    print("sent", flush=True)
"""


def charging(folder: Path, times: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", CHARGING, str(folder), str(times)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_two_processes_at_once_spend_one_limit(tmp_path: Path) -> None:
    config = written(tmp_path, rounds=40)
    processes = [charging(tmp_path, 100) for _ in range(2)]
    for process in processes:
        go(process)
    sent = [process.communicate(timeout=60)[0].count("sent") for process in processes]
    assert sum(sent) == 40
    assert spent(config).answered.rounds == 40


KILLED = """
import os, signal, sys
from pathlib import Path
import cepam
from cepam.policy import FileAccount, read_policy
from cepam.protocol.enforcement import EnforcedPolicy
from cepam.protocol.settings import UplinkSettings
folder = Path(sys.argv[1])
account = FileAccount(folder / "account")
rules = EnforcedPolicy(read_policy((folder / "policy.toml").read_bytes()), account)
settings = UplinkSettings(cepam.Gaussian(4.0), cepam.L2(1.0))
rules.check(settings, 400)  # what is imported late is there before the clock starts
def dying(call, left):
    def counted(*given):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*given)
    return counted
def killed(calls, least):
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        if calls is not None:
            left = [calls]
            os.fsync, os.replace = dying(os.fsync, left), dying(os.replace, left)
        while True:
            rules.charge(settings, 400)
            os.write(writes, b"x")
    os.close(writes)
    sent = 0
    if calls is None:
        sent = len(b"".join(os.read(reads, 1) for _ in range(least)))
        os.kill(child, signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    sent += len(os.read(reads, 1 << 16))
    os.close(reads)
    with account.hold() as entry:
        print(sent, entry.answered.rounds, flush=True)
for calls in range(int(sys.argv[2])):
    killed(calls, 0)
for least in range(int(sys.argv[3])):
    killed(None, least)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_kill_9_at_any_moment_forgets_no_message(tmp_path: Path) -> None:
    """A process dies before each write of three messages, and ten times somewhere after so many messages.

    A message makes six calls that the disk sees: of the account, and of its mark, each is written, renamed and settled.
    """
    config = written(tmp_path, rounds=10**6)
    command = [sys.executable, "-c", KILLED, str(tmp_path), "18", "10"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout.split()
    ends = list(zip(map(int, lines[::2]), map(int, lines[1::2]), strict=True))
    assert len(ends) == 28
    before = 0
    for number, (sent, rounds) in enumerate(ends):
        assert rounds - before in (sent, sent + 1), (number, sent, rounds - before)
        before = rounds
    assert [sent for sent, _ in ends[:18]] == [0] * 6 + [1] * 6 + [2] * 6
    assert all(sent >= least for least, (sent, _) in enumerate(ends[18:]))
    assert Server(node_of(config)).learns()
    assert spent(config).answered.rounds == before + 1


def test_a_flare_site_keeps_to_its_own_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed")
    from nvflare.apis.dxo import DXO, DataKind, from_shareable
    from nvflare.apis.fl_constant import FilterKey

    from cepam.flare import ClientFilter, ServerFilter
    from cepam.protocol.agreement import Declined

    from ..flare.test_filters import Site, context

    monkeypatch.chdir(tmp_path)
    config = written(tmp_path, rounds=3)
    own = {"policy": config["cepam-policy"], "account": config["cepam-account"]}
    weights = {"w": np.zeros((100, 4), np.float32)}

    def site(job: str, scale: float = 4.0, bound: float = 1.0) -> Site:
        made = Site(job)
        made.server = [ServerFilter(clip=cepam.L2(bound), noise=cepam.Gaussian(scale)) for _ in range(2)]
        made.mine = [ClientFilter(required=False, **own), ClientFilter(required=False, **own)]
        return made

    for scale, bound in ((4.0, 1e4), (1e-6, 1e-6), (3.9, 1.0)):
        with pytest.raises(Declined):
            site(f"greedy {scale} {bound}", scale, bound).task(dict(weights))
    asked = site("rounds")
    for _ in range(3):
        asked.task(dict(weights))
        result = DXO(DataKind.WEIGHTS, data={"w": weights["w"] + 0.01}, meta={"note": "0.01"})
        sealed = asked.seal(result)
        assert "note" not in repr(from_shareable(sealed).meta)
        # A job's own filter behind the site's lets pass what that sealed, and nothing else.
        behind = ClientFilter().process(sealed, context(FilterKey.OUT, "rounds", "site-1"))
        assert np.isfinite(asked.open(behind).data["w"]).all()
    with pytest.raises(Declined, match="3 rounds"):
        asked.task(dict(weights))
    with pytest.raises(Declined):
        site("another job").task(dict(weights))
    with pytest.raises(Declined):  # a plain result, though the job's filter was told not to mind
        asked.seal(DXO(DataKind.WEIGHTS, data=dict(weights)))
    with pytest.raises(Declined):  # metrics, which this policy does not allow
        asked.seal(DXO(DataKind.METRICS, data={"loss": 0.01}))
    assert spent(config).answered.rounds == 3
    with pytest.raises(ValueError, match="go together"):
        ClientFilter(policy=own["policy"])
    with pytest.raises(ValueError, match="trust"):
        ClientFilter(**written_for_sums(tmp_path / "sums"))


def written_for_sums(folder: Path) -> dict[str, str]:
    config = written(folder, trust="secure-aggregation")
    return {"policy": config["cepam-policy"], "account": config["cepam-account"]}

"""Correlated noise in Flower: the node keeps the order, the server decorrelates, the run is one charge."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message
from flwr.serverapp.strategy import FedAvg, FedMedian

import cepam
from cepam import privacy
from cepam.flower import Accounting, CorrelatedNoiseConfig, Dropouts, Private, Target
from cepam.policy import FileAccount
from cepam.protocol.agreement import RECORD, Offer
from tests.deployment import flat

from .fakes import FakeGrid, Node, adding, copied, start_arrays, vector_of

DELTA, SIZE, ROUNDS = 1e-5, 400, 6
TERMS = CorrelatedNoiseConfig(decay=0.8, slices=3, max_participations=ROUNDS)
CLIP = cepam.L2(1.0)


def wrapped(folder: Path, sigma: float = 4.0, strategy=None, **options) -> Private:
    options = {"delta": DELTA, "stable_nodes": True, "correlated_noise": TERMS, "folder": folder} | options
    return Private(strategy or FedAvg(), noise=cepam.Gaussian(sigma), clip=CLIP, **flat(**options))


class Learner(Node):
    """A node whose update is small and the same in every round; remembers which slices it was told."""

    def __init__(self, node_id: int, value: float = 0.01, **config: str) -> None:
        self.slices: list[tuple[int, int]] = []
        plain = adding(np.full(SIZE, value))

        def train(message: Message, context: Context) -> Message:
            told = message.content.config_records["config"]
            self.slices.append((int(told["cepam-slice"]), int(told["cepam-slices"])))  # type: ignore[arg-type]
            return plain(message, context)

        super().__init__(node_id, train, **config)


def four() -> FakeGrid:
    return FakeGrid([Learner(k) for k in range(1, 5)])


def last_to(grid: FakeGrid, node: int) -> Message:
    return next(message for message in reversed(grid.seen) if message.metadata.dst_node_id == node)


def one_event(rounds: int, nodes: int = 4, sigma: float = 4.0, **more) -> privacy.MatrixMechanism:
    return privacy.MatrixMechanism(
        (privacy.Client(cepam.Gaussian(sigma), 3),) * nodes,
        CLIP,
        rounds=rounds,
        link=TERMS.link,
        coordinates=SIZE,
        **more,
    )


def test_the_strategy_sees_updates_whose_noise_cancels_and_the_run_is_one_event(tmp_path: Path) -> None:
    """Six rounds of noise add up to less than independent noise would: |1^T C^-1| is 1 + 5 (1 - decay) of sqrt(6)."""
    grid, tiny = four(), 1e-3
    result = wrapped(tmp_path, sigma=tiny).start(grid, start_arrays(SIZE), num_rounds=ROUNDS)
    noise = vector_of(result.arrays) - ROUNDS * 0.01
    want = tiny / 2 * np.sqrt(1 + 5 * (1 - TERMS.decay) ** 2)
    assert np.std(noise) == pytest.approx(want, rel=0.25)  # 400 coordinates; independent noise would be 2.2 times it
    assert np.std(noise) < 0.6 * tiny / 2 * np.sqrt(ROUNDS)
    assert [node.slices for node in grid.nodes.values()] == [[(i % 3, 3) for i in range(ROUNDS)]] * 4
    strategy = wrapped(tmp_path / "account")
    strategy.start(four(), start_arrays(SIZE), num_rounds=ROUNDS)
    assert strategy.epsilon == pytest.approx(privacy.epsilon(one_event(ROUNDS), DELTA), rel=1e-3)


def test_a_target_is_met_by_the_whole_run(tmp_path: Path) -> None:
    strategy = Private(
        FedAvg(),
        clip=CLIP,
        epsilon=Target(2.0, rounds=ROUNDS),
        accounting=Accounting(delta=DELTA, folder=tmp_path, stable_nodes=True),
        correlated_noise=TERMS,
    )
    strategy.start(four(), start_arrays(SIZE), num_rounds=ROUNDS)
    assert 1.99 < strategy.epsilon <= 2.0


def test_absent_nodes_go_on_with_their_slice_and_are_charged_as_it_was(tmp_path: Path) -> None:
    """Node 2 is not reached in round 3, node 3's reply of round 4 is lost: a gap of one, and a gap of two."""
    grid, strategy = four(), wrapped(tmp_path)
    handle, at = grid.nodes[2].handle, {"round": 0}
    grid.nodes[2].handle = lambda m: handle(m) if _round(m) != 3 else Message(_gone(), reply_to=m)
    grid.meddle = lambda node, reply: [] if node == 3 and at["round"] == 4 else [reply]
    start = strategy.configure_train

    def noting(server_round, *rest):
        at["round"] = server_round
        return start(server_round, *rest)

    strategy.configure_train = noting  # type: ignore[method-assign]
    strategy.start(grid, start_arrays(SIZE), num_rounds=5)
    sent = np.ones((4, 5), dtype=bool)
    lost = np.zeros_like(sent)
    sent[1, 2], lost[2, 3] = False, True
    assert grid.nodes[2].slices == [(0, 3), (1, 3), (2, 3), (0, 3)]  # type: ignore[attr-defined]
    assert grid.nodes[3].slices == [(i % 3, 3) for i in range(5)]  # type: ignore[attr-defined]
    known = one_event(5, observed_participation=privacy.ObservedParticipation.observed(sent, lost))
    assert strategy.epsilon == pytest.approx(privacy.epsilon(known, DELTA), rel=1e-3)


def _gone():
    from flwr.app import Error

    return Error(1, "away")


def _offer(message: Message) -> Offer:
    return Offer.from_fields(message.content[RECORD])


def _round(message: Message) -> int:
    return _offer(message).server_round if RECORD in message.content else 0


def policy_files(path: Path, **values: float) -> dict[str, str]:
    """The configuration of a node that trusts the server within these limits, at this test's delta."""
    lines = {"noise_scale": 0.01, "clipping_norm": 1.0, "rounds": 10_000, "delta": DELTA, **values}
    path.write_text("\n".join([f"{name} = {value!r}" for name, value in lines.items()] + ['trust = "server"']))
    FileAccount.create(Path(f"{path}.account"))
    return {"cepam-policy": str(path), "cepam-account": f"{path}.account"}


def _error(reply: Message) -> str:
    assert reply.has_error()
    return str(reply.error.reason)


def offered(message: Message, **changes) -> Message:
    """The training message with another offer: what a server that breaks the order would send."""
    made = copied(message)
    made.content[RECORD] = ConfigRecord(replace(_offer(made), **changes).to_fields())
    return made


@pytest.fixture
def third(tmp_path: Path) -> tuple[Node, Message]:
    """A node after three rounds, and the message of the last."""
    grid = four()
    wrapped(tmp_path).start(grid, start_arrays(SIZE), num_rounds=3)
    return grid.nodes[1], last_to(grid, 1)


def test_a_server_that_breaks_the_order_gets_nothing(third: tuple[Node, Message]) -> None:
    """A replay, a round again at a new place of the key chain, a round backwards, and one message too many."""
    node, message = third
    before = dict(node.context.state["cepam-correlated-noise"])
    offer = _offer(message)
    for changes in ({}, {"position": 7}, {"position": 8, "server_round": 2}, {"position": 9, "chain": b"", "place": 0}):
        assert _error(node.handle(offered(message, **changes))) == "cepam: order"
    assert dict(node.context.state["cepam-correlated-noise"]) == before
    assert len(node.slices) == 3  # type: ignore[attr-defined]
    for more in range(1, ROUNDS - 2):  # what the terms allow, whatever position the server claims
        asked = offered(message, position=10 + more, server_round=offer.server_round + more, place=0)
        assert not node.handle(asked).has_error()
    assert [told for told, _ in node.slices] == [0, 1, 2, 0, 1, 2]  # type: ignore[attr-defined]
    beyond = offered(message, position=30, server_round=99, place=0)
    assert _error(node.handle(beyond)) == "cepam: order"


def test_other_terms_in_mid_run_are_refused(third: tuple[Node, Message]) -> None:
    node, message = third
    settings = _offer(message).settings
    for changes in (
        {"law": cepam.Gaussian(0.1)}, {"clip": cepam.L2(2.0)},
        {"correlated_noise": replace(TERMS, max_participations=600)},
        {"correlated_noise": replace(TERMS, slices=1)}, {"correlated_noise": replace(TERMS, decay=0.0)},
        {"correlated_noise": replace(TERMS, divisor=1.0)},
    ):  # fmt: skip
        asked = offered(message, position=11, server_round=9, settings=replace(settings, **changes))
        assert _error(node.handle(asked)) == "cepam: policy"


def test_a_stream_is_paid_for_once_and_another_run_pays_again(tmp_path: Path) -> None:
    costs = privacy.epsilon(one_event(ROUNDS, nodes=1, sigma=9.0).alone(0), DELTA)
    node = Learner(1, **policy_files(tmp_path / "policy.toml", epsilon=1.01 * costs, slices=TERMS.slices))
    grid = FakeGrid([node, Learner(2)])
    result = wrapped(tmp_path / "one", sigma=9.0).start(grid, start_arrays(SIZE), num_rounds=ROUNDS)
    assert {result.train_metrics_clientapp[r]["cepam-replies"] for r in range(1, ROUNDS + 1)} == {2}
    with FileAccount(tmp_path / "policy.toml.account").hold() as account:
        assert account.answered.rounds == ROUNDS
        assert account.answered.epsilon(DELTA) == pytest.approx(costs, rel=4e-3)
    node.restart()  # nothing of the stream is left, as in another run
    grid = FakeGrid([node, Learner(3)])
    result = wrapped(tmp_path / "two", sigma=9.0).start(grid, start_arrays(SIZE), num_rounds=1)
    assert result.train_metrics_clientapp[1]["cepam-replies"] == 1


def test_a_node_has_a_limit_of_its_own(tmp_path: Path) -> None:
    """Against everybody else together, by its own noise, over all messages that the terms allow."""
    costs = privacy.epsilon(one_event(ROUNDS, nodes=1, sigma=9.0).alone(0), DELTA)
    for limit, replies in ((1.01 * costs, 2), (0.99 * costs, 1)):
        files = policy_files(tmp_path / f"{replies}.toml", epsilon=limit, slices=TERMS.slices)
        grid = FakeGrid([Learner(1, **files), Learner(2)])
        result = wrapped(tmp_path / str(replies), sigma=9.0).start(grid, start_arrays(SIZE), num_rounds=1)
        assert result.train_metrics_clientapp[1]["cepam-replies"] == replies


def test_clipped_examples_are_charged_by_their_public_divisor(tmp_path: Path) -> None:
    """The node is told clip and divisor, the account charges clip/divisor, and so does the node's own limit."""
    each, told = replace(TERMS, divisor=50.0), []
    account = Accounting(delta=DELTA, stable_nodes=True, adjacency="add-remove", clipped="example")
    known = one_event(ROUNDS, sigma=0.2, clipped="example", adjacency="add-remove")
    known = replace(known, clients=(privacy.Client(cepam.Gaussian(0.2), 150, draws=50.0),) * 4)
    own = privacy.epsilon(replace(known.alone(0), adjacency="replace", coordinates=None), DELTA)
    for limit, batch, replies in ((1.01 * own, 60, 4), (0.99 * own, 60, 3), (1.01 * own, 40, 3), (1.01 * own, 0, 3)):
        limits = {"divisor": float(batch), "records": 150} if batch else {}
        files = policy_files(tmp_path / f"{replies} {batch}.toml", epsilon=limit, slices=TERMS.slices, **limits)
        grid = FakeGrid([Learner(1, **files), *(Learner(k) for k in range(2, 5))])
        plain = grid.nodes[2].train
        grid.nodes[2].train = lambda m, c, plain=plain: (told.append(dict(m.content["config"])), plain(m, c))[1]  # type: ignore[misc]
        folder = tmp_path / f"{replies} {batch} folder"
        strategy = wrapped(folder, sigma=0.2, accounting=account, correlated_noise=each, records=150)
        result = strategy.start(grid, start_arrays(SIZE), num_rounds=ROUNDS)
        assert result.train_metrics_clientapp[1]["cepam-replies"] == replies
        if replies == 4:
            assert strategy.epsilon == pytest.approx(privacy.epsilon(known, DELTA), rel=1e-3)
    assert (told[0]["cepam-clip"], told[0]["cepam-divisor"]) == (1.0, 50.0)


@pytest.mark.parametrize("folder", [False, True])
def test_a_node_that_is_restarted(tmp_path: Path, folder: bool) -> None:
    """With a folder it goes on; without, a new stream starts at the position that the server knows."""
    config = {"cepam-correlated-noise-folder": str(tmp_path / "node")} if folder else {}
    grid = FakeGrid([Learner(1, **config), *(Learner(k) for k in range(2, 5))])
    restarting = grid.nodes[1]
    plain = restarting.handle

    def handle(message: Message) -> Message:
        if _round(message) == 4:
            restarting.restart()
        return plain(message)

    restarting.handle = handle  # type: ignore[method-assign]
    strategy = wrapped(tmp_path)
    result = strategy.start(grid, start_arrays(SIZE), num_rounds=ROUNDS)
    assert [told for told, _ in restarting.slices] == [0, 1, 2, 0, 1, 2]  # type: ignore[attr-defined]
    assert [m["cepam-replies"] for m in result.train_metrics_clientapp.values()] == [4] * ROUNDS
    arrivals = [[privacy.Arrival(t, t, int(k == 0 and t >= 3 and not folder)) for t in range(ROUNDS)] for k in range(4)]
    known = one_event(ROUNDS, observed_participation=privacy.ObservedParticipation(ROUNDS, tuple(map(tuple, arrivals))))
    assert strategy.epsilon == pytest.approx(privacy.epsilon(known, DELTA), rel=1e-3)
    if folder:
        (kept,) = (tmp_path / "node").iterdir()
        assert kept.stat().st_mode & 0o777 == 0o600
        kept.write_text(kept.read_text()[:50])
        assert _error(plain(offered(last_to(grid, 1), position=20, server_round=9))) == "cepam: order"


def test_a_server_that_is_restarted_goes_on_with_the_account_and_new_streams(tmp_path: Path) -> None:
    grid = four()
    first = wrapped(tmp_path)
    result = first.start(grid, start_arrays(SIZE), num_rounds=3)
    second = wrapped(tmp_path)
    run = second.configure_train  # a restarted ServerApp goes on with the next round
    second.configure_train = lambda server_round, *rest: run(server_round + 3, *rest)  # type: ignore[method-assign]
    second.start(grid, result.arrays, num_rounds=2)
    assert [told for told, _ in grid.nodes[1].slices] == [0, 1, 2, 0, 1]  # type: ignore[attr-defined]
    arrivals = tuple(tuple(privacy.Arrival(t, t, int(t > 2)) for t in range(5)) for _ in range(4))
    known = one_event(5, observed_participation=privacy.ObservedParticipation(5, arrivals))
    assert second.epsilon == pytest.approx(privacy.epsilon(known, DELTA), rel=1e-3)
    assert second.epsilon > first.epsilon


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"stable_nodes": False}, "stable_nodes=True"),
        ({"dropouts": Dropouts("compensate")}, "dropouts does not go with correlated_noise"),
        ({"nodes": {}}, "nodes does not go with correlated_noise"),
        ({"strategy": FedMedian()}, "publish nothing else"),
        ({"record_sampling": privacy.Sampling("poisson", 1)}, "claims no secret sampling"),
        ({"clipped": "example"}, "with CorrelatedNoiseConfig"),
        ({"correlated_noise": replace(TERMS, divisor=50.0)}, "with CorrelatedNoiseConfig"),
        ({"correlated_noise": CorrelatedNoiseConfig(1 - 1e-12, 3, 6), "sigma": 1e-4}, "correlated noise can add up"),
    ],
)
def test_doors(tmp_path: Path, options: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        wrapped(tmp_path, **options)
    with pytest.raises(ValueError, match="decay"):
        CorrelatedNoiseConfig(1.0, 3, 6)
    with pytest.raises(ValueError, match="max_participations"):
        CorrelatedNoiseConfig(0.5, 3, 0)
    with pytest.raises(ValueError, match="divisor"):
        CorrelatedNoiseConfig(0.5, 3, 6, -1.0)

"""`Private(downlink="quantized")`: nodes compute at the public model, whatever they missed."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM
from hypothesis import given, settings
from hypothesis import strategies as st

import cepam
from cepam.flower import Gradient, Private, QuantizedBroadcast
from cepam.protocol.models import DOWNLINK
from tests.deployment import flat

from .fakes import FakeGrid, Node, copied, start_arrays, vector_of

SIZE = 400


class Watched(Node):
    """A node that keeps what its ClientApp was handed, and drops messages or replies on demand."""

    def __init__(self, node_id: int, change: float = 0.01) -> None:
        self.trained_at: list[np.ndarray] = []
        self.evaluated_at: list[np.ndarray] = []
        self.change = change
        self.answers: list[str] = []
        super().__init__(node_id, self._app)

    def _app(self, message: Message, context) -> Message:
        assert "cepam" not in message.content
        assert DOWNLINK not in message.content
        arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
        metrics = MetricRecord({"num-examples": 10})
        if message.metadata.message_type == "evaluate":
            self.evaluated_at.append(arrays["w"].ravel())
            return Message(RecordDict({"metrics": metrics}), reply_to=message)
        self.trained_at.append(arrays["w"].ravel())
        made = {**arrays, "w": arrays["w"] + np.float32(self.change)}
        record = ArrayRecord({name: Array(array) for name, array in made.items()})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    def handle(self, message: Message) -> Message:
        reply = super().handle(message)
        self.answers.append(reply.error.reason if reply.has_error() else "good")
        return reply


def private(strategy=None, sigma: float = 0.02, **options) -> Private:
    options = {"downlink": "quantized", **options}
    return Private(strategy or FedAvg(), noise=cepam.Gaussian(sigma), clip=cepam.L2(1.0), **flat(**options))


def fleet(count: int) -> FakeGrid:
    grid = FakeGrid([Watched(k) for k in range(1, count + 1)])
    grid.evaluates = True
    return grid


def watched(strategy: Private, grid: FakeGrid, rounds: int, start=None, before=lambda r: None) -> list[np.ndarray]:
    """What `start` had as the model after each round; `before` is called as each round begins."""
    models: list[np.ndarray] = []
    configured = strategy.configure_train

    def configure(server_round, arrays, config, grid):
        before(server_round)
        return configured(server_round, arrays, config, grid)

    strategy.configure_train = configure
    strategy.start(
        grid,
        start_arrays(SIZE, 0.3) if start is None else start,
        num_rounds=rounds,
        evaluate_fn=lambda r, arrays: models.append(vector_of(arrays)),
    )
    return models


def test_nodes_train_and_evaluate_at_the_model_that_the_server_answers_for() -> None:
    grid = fleet(3)
    models = watched(private(), grid, 4)
    for node in grid.nodes.values():
        assert len(node.trained_at) == len(node.evaluated_at) == 4
        for trained, evaluated, before, after in zip(node.trained_at, node.evaluated_at, models, models[1:]):
            assert np.array_equal(evaluated, after)
            # The start comes on the grid too: within half a step of what was given, the rest to the bit.
            assert np.array_equal(trained, before) or before is models[0]
        assert np.abs(node.trained_at[0] - models[0]).max() <= 8 * 0.02 / np.sqrt(3)
        assert set(node.answers) == {"good"}


def test_nothing_adds_up_over_rounds_that_move_less_than_a_step() -> None:
    # The step is 16 times what a round moves: rounded increments would all be zero, or drift (the control).
    grid = fleet(2)
    models = watched(private(sigma=1e-4, downlink=QuantizedBroadcast(0.16)), grid, 32)
    gone = float(np.mean(models[-1] - 0.3))
    assert gone == pytest.approx(32 * 0.01, abs=0.02)
    increments = 0.125 * np.round(0.01 / 0.125)
    assert 32 * increments == 0.0


@pytest.mark.parametrize(
    "strategy", [FedAvg(), FedAvgM(server_momentum=0.5), FedAdam()], ids=lambda s: type(s).__name__
)
def test_strategies_go_on_from_the_exact_model(strategy) -> None:
    grid = fleet(2)
    models = watched(private(strategy), grid, 3)
    assert np.isfinite(models[-1]).all()
    assert models[-1].dtype == np.float32  # FedAdam's own arrays are float64
    assert all(np.array_equal(n.evaluated_at[-1], models[-1]) for n in grid.nodes.values())


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from(["restart", "silent", "unheard", "wiped", "joins"])), max_size=5
    )
)
def test_missed_rounds_restarts_and_newcomers_are_served_in_the_same_round(events: list[tuple[int, str]]) -> None:
    grid = fleet(3)
    happens = dict(enumerate(events, 2))
    unheard: set[int] = set()
    handle = {k: node.handle for k, node in grid.nodes.items()}

    def before(server_round: int) -> None:
        unheard.clear()
        for k, node in grid.nodes.items():
            node.__dict__["handle"] = handle.get(k, type(node).handle.__get__(node))
        node_id, event = happens.get(server_round, (0, ""))
        if event == "restart":
            grid.nodes[node_id].restart()
        elif event == "wiped":
            grid.nodes[node_id].context.state[DOWNLINK] = ConfigRecord({"grid": b"other"})
        elif event == "joins":
            grid.nodes[10 + server_round] = Watched(10 + server_round)
        elif event == "silent":  # the message never arrives
            grid.nodes[node_id].__dict__["handle"] = lambda message: Message(RecordDict(), reply_to=message)
            unheard.add(node_id)
        elif event == "unheard":  # it arrives, and the reply is lost
            unheard.add(node_id)

    grid.meddle = lambda node, reply: [] if node in unheard else [reply]
    strategy = private(FedAvg(fraction_evaluate=0.0))
    models = watched(strategy, grid, 7, before=before)
    for node in grid.nodes.values():
        for trained in node.trained_at[1:]:
            assert any(np.array_equal(trained, model) for model in models[1:])
        assert node.answers[-1] == "good"
        assert np.array_equal(node.trained_at[-1], models[-2])


def test_a_restarted_node_costs_one_more_message_and_no_reply() -> None:
    grid = fleet(3)
    result = {}

    def before(server_round: int) -> None:
        if server_round == 3:
            grid.nodes[2].restart()

    strategy = private(FedAvg(fraction_evaluate=0.0))
    aggregate = strategy.aggregate_train

    def aggregated(server_round, replies):
        made = aggregate(server_round, replies)
        result[server_round] = made[1]
        return made

    strategy.aggregate_train = aggregated
    watched(strategy, grid, 4, before=before)
    assert [result[r]["cepam-replies"] for r in (1, 2, 3, 4)] == [3, 3, 3, 3]
    assert [result[r]["cepam-sampled"] for r in (1, 2, 3, 4)] == [3, 3, 3, 3]
    assert grid.nodes[2].answers == ["good", "good", "cepam: version", "good", "good"]
    assert result[3]["cepam-downlink-bytes"] > result[4]["cepam-downlink-bytes"]


def test_a_node_that_restarts_before_evaluation_is_served_too() -> None:
    grid = fleet(2)
    strategy = private()
    evaluate = strategy.configure_evaluate

    def configure(*given):
        grid.nodes[1].restart()
        return evaluate(*given)

    strategy.configure_evaluate = configure
    result = strategy.start(grid, start_arrays(SIZE, 0.3), num_rounds=2)
    assert len(grid.nodes[1].evaluated_at) == 2
    assert np.array_equal(grid.nodes[1].evaluated_at[-1], vector_of(result.arrays))


def test_a_reply_that_was_computed_elsewhere_is_dropped() -> None:
    for spoil in (lambda r: r.content.__delitem__(DOWNLINK), lambda r: r.content[DOWNLINK].update(version=9)):
        grid = fleet(2)

        def meddle(node, reply, spoil=spoil):
            if node == 1:
                spoil(reply)
            return [reply]

        grid.meddle = meddle
        metrics = private().start(grid, start_arrays(SIZE), num_rounds=1).train_metrics_clientapp[1]
        assert (metrics["cepam-replies"], metrics["cepam-dropped-version"]) == (1, 1)


def test_a_stopped_node_that_answers_only_old_messages_never_trains_on_them() -> None:
    grid = fleet(2)
    private(FedAvg(fraction_evaluate=0.0)).start(grid, start_arrays(SIZE, 0.3), num_rounds=3)
    node = grid.nodes[1]
    old = [m for m in grid.seen if m.metadata.dst_node_id == 1]
    before = len(node.trained_at)
    for message in old[:2]:
        assert node.handle(copied(message)).error.reason == "cepam: version"
    assert len(node.trained_at) == before


def test_one_record_is_made_for_all_nodes_and_it_is_small() -> None:
    grid = FakeGrid([Watched(k) for k in range(1, 6)])
    strategy = private(FedAvg(fraction_evaluate=0.0), sigma=0.2)
    sent: list[list[Message]] = []
    configured = strategy.configure_train
    strategy.configure_train = lambda *given: sent.append(list(configured(*given))) or sent[-1]
    result = strategy.start(grid, start_arrays(100_000, 0.3), num_rounds=3)
    for messages in sent:
        assert len({id(message.content["arrays"]) for message in messages}) == 1
    for metrics in result.train_metrics_clientapp.values():
        assert metrics["cepam-downlink-float32-bytes"] == 5 * 400_000
        assert metrics["cepam-downlink-bytes"] * 30 < metrics["cepam-downlink-float32-bytes"]


def test_integers_and_batch_statistics_travel_beside_the_grid() -> None:
    start = ArrayRecord(
        {
            "n": Array(np.array([7])),
            "w": Array(np.full((10, 4), 0.3, np.float32)),
            "bn.running_var": Array(np.full(4, 0.9, np.float32)),
        }
    )
    grid = FakeGrid([Watched(1), Watched(2)])
    result = private(sigma=1e-3).start(grid, start, num_rounds=2)
    assert list(result.arrays) == ["n", "w", "bn.running_var"]
    assert result.arrays["n"].numpy() == 7
    carried = grid.seen[-1].content["arrays"]
    assert list(carried) == ["cepam.broadcast", "n", "bn.running_var"]


def test_a_strategy_that_makes_arrays_of_its_own_sends_them_as_they_are() -> None:
    class Shifted(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            own = ArrayRecord({"w": Array(arrays["w"].numpy() + 1)})
            return super().configure_train(server_round, own, config, grid)

    grid = fleet(2)
    private(Shifted()).start(grid, start_arrays(SIZE, 0.3), num_rounds=1)
    np.testing.assert_allclose(grid.nodes[1].trained_at[0], 1.3, rtol=1e-6)


def test_the_step_follows_the_noise_or_the_caller() -> None:
    noise = 0.02 / np.sqrt(2)
    for asked, step in (
        (QuantizedBroadcast(), 16 * noise),
        (QuantizedBroadcast(step_factor=32.0), 32 * noise),
        (QuantizedBroadcast(0.5), 0.5),
        (QuantizedBroadcast(lambda r: 0.25 * r), 0.25),
    ):
        grid = fleet(2)
        watched(private(downlink=asked), grid, 1)
        off = np.abs(grid.nodes[1].trained_at[0] - np.float32(0.3)).max()
        # The largest error of 400 dithered coordinates: below 0.4 of a step (of at least half the rule's) only with
        # chance 0.8^400.
        assert 0.2 * step < off <= step / 2


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="downlink"):
        private(downlink="small")
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="step must be a positive number"):
            QuantizedBroadcast(wrong)
        with pytest.raises(ValueError, match="step_factor must be a positive number"):
            QuantizedBroadcast(step_factor=wrong)
    with pytest.raises(ValueError, match="must be given"):
        private(update=Gradient(None))


def test_the_account_knows_the_public_model_and_charges_as_before(tmp_path) -> None:
    spent = []
    for downlink in ("quantized", "float32"):
        strategy = private(sigma=2.0, downlink=downlink, folder=tmp_path / downlink)
        strategy.start(fleet(3), start_arrays(SIZE), num_rounds=2)
        spent.append(strategy.epsilon)
    assert spent[0] == spent[1] > 0
    first = private(sigma=2.0, folder=tmp_path / "again")
    model = first.start(fleet(3), start_arrays(SIZE), num_rounds=1).arrays
    index = (tmp_path / "again" / "index.txt").read_text()
    (tmp_path / "again" / "index.txt").write_text("".join(x for x in index.splitlines(True) if x.startswith("model")))
    second = private(sigma=2.0, folder=tmp_path / "again")
    second.start(fleet(3), model, num_rounds=1)
    assert second.epsilon > first.epsilon

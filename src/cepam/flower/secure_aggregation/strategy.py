"""The server's half of secure aggregation: any averaging strategy of Flower, fed with noisy sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from logging import INFO, WARNING, getLogger
from typing import TYPE_CHECKING, Any, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from cepam._internal.quorum import check_quorum, quorum_count
from cepam.clip import L2
from cepam.distributions.laws import Gaussian, Law
from cepam.flower.client_mod import SECURE_AGGREGATION, record_of
from cepam.flower.downlink import is_stale
from cepam.flower.replies import AVERAGING, Opened, ReplyAggregator, RoundMetrics, publishes_average
from cepam.flower.secure_aggregation.membership import Membership
from cepam.flower.secure_aggregation.transport import Transport, check_value, run_bytes, run_config
from cepam.flower.strategy import DownlinkKind, PrivateStrategy, UpdateKind, check_strategy
from cepam.kernels.format.plan import Floats
from cepam.lattices.lattice import Integer
from cepam.protocol.account import Accounting, Target, noise_of
from cepam.protocol.models import from_vector
from cepam.protocol.server import Refused
from cepam.protocol.settings import Authentication, UplinkSettings
from cepam.secure_aggregation.mechanism import LIES, View, mechanism_for, views
from cepam.secure_aggregation.roster import SecAggRefused
from cepam.secure_aggregation.server import SecAggRound
from cepam.secure_aggregation.settings import QuantizationRange, SecAggSettings, fit
from cepam.secure_aggregation.sketch import Sketch

if TYPE_CHECKING:
    from cepam.privacy import Accountant, Mechanism

LEAST_NODES = 3


@dataclass(frozen=True)
class SecAggOptions:
    """The checked options of `SecureAggregation` that concern the protocol alone; its docstring says what they are."""

    quorum: float = 0.8
    masked_bits: int | Literal["auto"] = "auto"
    unmask_timeout: float = 60.0
    sketch: int | None = None

    def __post_init__(self) -> None:
        check_quorum(self.quorum)
        if self.quorum <= 0.5 or 1.0 < self.quorum < LEAST_NODES:
            raise ValueError(
                f"quorum must be a fraction above 0.5, or a number of nodes of at least {LEAST_NODES}, got "
                f"{self.quorum!r}"
            )
        if self.masked_bits != "auto" and not (type(self.masked_bits) is int and 1 <= self.masked_bits <= 32):
            raise ValueError(f"masked_bits must be 'auto' or an integer from 1 to 32, got {self.masked_bits!r}")
        if not 0.0 < self.unmask_timeout < math.inf:
            raise ValueError(f"unmask_timeout must be positive and finite, got {self.unmask_timeout!r}")
        if self.sketch is not None and not (type(self.sketch) is int and self.sketch >= 1):
            raise ValueError(f"sketch must be a positive integer or None, got {self.sketch!r}")

    def quorum_of(self, nodes: int, colluders: int) -> int:
        """t for so many nodes; ValueError where no sum of them hides its parts."""
        quorum = quorum_count(self.quorum, nodes)
        if nodes < LEAST_NODES or not 2 * quorum > nodes + colluders:
            raise ValueError(
                f"a sum of {nodes} nodes with quorum {quorum} and {colluders} colluders does not hide single updates: "
                f"at least {LEAST_NODES} nodes, and twice the quorum above nodes and colluders together"
            )
        return quorum

    def numbers_of(self, coordinates: int) -> int:
        """How many numbers a node sends for a model of so many coordinates; ValueError where a sketch saves none."""
        if self.sketch is not None and self.sketch >= coordinates:
            raise ValueError(f"sketch must be below the model's {coordinates} coordinates, got {self.sketch}")
        return coordinates if self.sketch is None else self.sketch


class Observers:
    """What each observer has been shown by the rounds of this process; earlier ones are on the account alone."""

    def __init__(self, colluders: int, delta: float) -> None:
        self._colluders, self._delta = colluders, delta
        self._accountants: dict[str, Accountant] = {}

    def requested(self, mechanism: Mechanism, quorum: int) -> None:
        """Count a round that these clients were sent: a server that lies may open a round that it calls lost."""
        self._add(mechanism, views(len(mechanism.clients), quorum, self._colluders), lies=True)

    def released(self, mechanism: Mechanism, nodes: int, quorum: int) -> None:
        """Count a round that was charged, of whose `nodes` those of the mechanism were in the sum."""
        self._add(mechanism, views(nodes, quorum, self._colluders, len(mechanism.clients)), lies=False)

    def _add(self, mechanism: Mechanism, found: tuple[View, ...], lies: bool) -> None:
        from cepam.privacy import Accountant

        for view in found:
            if view.observer.startswith(LIES) == lies:
                accountant = self._accountants.get(view.observer, Accountant(identified=False))
                self._accountants[view.observer] = accountant.add(mechanism_for(view, mechanism))

    def epsilons(self) -> dict[str, float]:
        """epsilon so far, by observer."""
        from cepam.privacy import spent

        return {observer: spent(accountant, self._delta) for observer, accountant in self._accountants.items()}


log = getLogger("flwr").log  # Flower's own log, which `flwr run --stream` shows


@dataclass
class RoundDriver:
    """A round under way: the server's end of the sum, the messages that ask for it, and what came of them."""

    protocol: SecAggRound
    messages: dict[int, Message]
    transport: Transport
    members: Membership
    bytes_of: dict[int, int] = field(default_factory=dict)
    opened: Floats | None = None

    def take(self, reply: Message, before: Callable[[Message], None], drop: Callable[[Refused], None]) -> None:
        """Take the masked vector in this reply, or drop the reply."""

        def counted(node: int, said: bytes) -> None:
            before(reply)
            self.protocol.take(node, said)
            self.members.note_answer(node)
            self.bytes_of[node] = len(said)

        self.transport.give(reply, counted, drop)

    def repair(self, grid: Grid, drop: Callable[[Refused], None]) -> bool:
        """Whether enough nodes are left, once what the missing ones left behind is known."""
        try:
            while asks := self.protocol.repairs():
                self.transport.exchange(grid, asks, self._counting(self.protocol.take_repair), drop)
        except SecAggRefused as lost:
            log(WARNING, "cepam: nothing is opened this round, nothing is charged: %s", lost)
            return False
        return True

    def unmask(self, grid: Grid, drop: Callable[[Refused], None]) -> bool:
        """Whether the sum is open. From the first request on the round counts as released."""
        self.transport.exchange(
            grid, self.protocol.unmasks(), self._counting(self.protocol.take_unmask), drop, done=self._is_open
        )
        if not self._is_open():
            log(WARNING, "cepam: too few good shares came: the sum stays closed, and the round is charged")
        self.members.faults.note(self.protocol, self.opened is not None)
        return self.opened is not None

    def _is_open(self) -> bool:
        if self.opened is None:
            try:
                self.opened = self.protocol.open()
            except SecAggRefused:
                return False
        return True

    def _counting(self, take: Callable[[int, bytes], None]) -> Callable[[int, bytes], None]:
        def counted(node: int, said: bytes) -> None:
            take(node, said)
            self.bytes_of[node] = self.bytes_of.get(node, 0) + len(said)

        return counted


class SecureAggregation(PrivateStrategy):
    """Any averaging strategy of Flower, fed with noisy sums: the server never sees a single update.

    Nodes mask their updates, and the server unmasks one noisy sum per round, over a quorum of nodes at least, or
    nothing. Epsilon holds against the server too. Every node enforces a policy of its own, `ClientPolicy`, and refuses
    what falls below it (docs/proofs/secure-aggregation.md). The wrapped strategy is handed one reply: the model moved
    by the sum over all
    nodes of the round, however many answered. Nodes send no metrics and do not evaluate; `start(evaluate_fn=…)` does. A
    round is charged for the nodes that are in it, on disk before the first share is requested.

    Example:
        ```python
        strategy = SecureAggregation(FedAvg(), clip=cepam.L2(1.0), epsilon=2.0)
        ```

    Args:
        strategy: A strategy that moves the model by the average (FedAvg, FedAvgM, FedProx, FedAdagrad, FedAdam,
            FedYogi), or one of your own with `Accounting(released="average")`.
        clip: The bound on each update before noise, `cepam.L2`, in units of the weights.
        noise: The law of each client's noise, `cepam.Gaussian`, in units of the weights. No other noise adds up.
        epsilon: The target that the noise is calibrated to, a number or `Target`. Exactly one of `noise` and `epsilon`
            is given.
        quorum: The fewest nodes in a sum: a fraction of the round's nodes, in (0.5, 1], or a number of nodes, from 3.
            Default 0.8. Twice the quorum is more than the nodes and `Accounting(colluders=…)` together.
        masked_bits: Bits per coordinate of a masked vector, 1 to 32. Default `"auto"`: the fewest whose rounding is no
            wider than one client's noise.
        sketch: Send so many numbers instead of the model's coordinates, by a public map that is drawn anew each round.
            Whole updates only, clipped after the map. Default: no sketch.
        unmask_timeout: How many seconds the short messages may take: key agreement, repair and shares. Default 60.
        accounting: Delta, unit, budget, colluders, and how epsilon is counted.
        downlink: `"float32"` (default), `"quantized"`, or `QuantizedBroadcast(step)`.
        authentication: Whether nodes must be known by their registered keys, and the server's own key.
        update: `"parameters"` (default), or `Gradient(learning_rate)`.

    Raises:
        ValueError: For options that do not go together, with the reason.
    """

    _counts = (*PrivateStrategy._counts, "cepam-opened")

    def __init__(
        self,
        strategy: Strategy,
        *,
        clip: L2,
        noise: Law | None = None,
        epsilon: float | Target | None = None,
        quorum: float = 0.8,
        masked_bits: int | Literal["auto"] = "auto",
        sketch: int | None = None,
        unmask_timeout: float = 60.0,
        accounting: Accounting = Accounting(),
        downlink: DownlinkKind = "float32",
        authentication: Authentication = Authentication(),
        update: UpdateKind = "parameters",
    ) -> None:
        check_strategy(strategy)
        self._options = SecAggOptions(quorum, masked_bits, unmask_timeout, sketch)
        if not isinstance(clip, L2):
            raise ValueError(f"clip must be cepam.L2 for secure aggregation, got {clip!r}")
        law, target = noise_of(noise, epsilon, clip)
        if not isinstance(law, Gaussian):
            raise ValueError(f"noise must be cepam.Gaussian for secure aggregation: no other adds up; got {law!r}")
        if accounting.released != "vectors" and not publishes_average(strategy, accounting):
            raise ValueError(
                f"strategy must be one that moves the model by the average "
                f"({', '.join(known.__name__ for known in AVERAGING)}), got {type(strategy).__name__} "
                "(set Accounting(released='average') if your strategy publishes the average only)"
            )
        if accounting.released == "vectors":
            raise ValueError("released='vectors' does not go with secure aggregation: the server has no vectors")
        if sketch is not None and accounting.clipped == "example":
            raise ValueError(
                "sketch does not go with clipped='example': the ClientApp clips before the map, which bounds nothing "
                "after it; clip whole updates, or leave the sketch out"
            )
        settings = UplinkSettings(
            law,
            clip,
            Integer(1),
            "layered",
            update="parameters" if update == "parameters" else "gradient",
            records=accounting.records,
            unit=accounting.unit,
        )
        super().__init__(strategy, settings, target, ReplyAggregator(accounting, True, 1), update, downlink)
        self._transport = Transport(authentication.read_server_key(), unmask_timeout)
        self._members = Membership(self._transport, authentication.required)
        self._observers = Observers(accounting.colluders, accounting.delta)
        self._range: QuantizationRange | None = None
        self._driver: RoundDriver | None = None
        self._unfit: list[Refused] = []
        self._sampled = 0

    def summary(self) -> None:
        """Log what the wrapper does, then what the wrapped strategy says of itself."""
        self._noise.summarise()
        log(INFO, "\t│\t└── secure aggregation, quorum %s; no metrics, no evaluation", self._options.quorum)
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The wrapped strategy's messages to the nodes that can be in a sum, each with its request.

        Args:
            server_round: Number of the round.
            arrays: The model of the round.
            config: What the strategy tells the nodes.
            grid: Flower's connection to the nodes.

        Returns:
            The messages; none where there are too few nodes for a sum.
        """
        self._driver, self._unfit, self._sampled = None, [], 0
        messages = self._messages(server_round, arrays, config, grid)
        self._sampled = len(messages)
        if not messages:
            return []
        wanted = {message.metadata.dst_node_id: message for message in messages}
        roster = self._members.settle(wanted, grid)
        self._unfit = [refused for refused in self._members.refused if refused.node in wanted]
        cohort = self._members.cohort(wanted)
        configured = run_config(grid.run)
        try:
            settings = self._settings_for(len(cohort), roster.epoch, int(grid.run.run_id))
            self._publish_model([self.settings] * len(cohort))
            check = self._check_value([wanted[node] for node in cohort], configured)
            protocol = SecAggRound(settings, roster, cohort, check)
        except (SecAggRefused, ValueError) as unfit:
            log(WARNING, "cepam: round %d cannot aggregate securely: %s", server_round, unfit)
            self._unfit.append(Refused("refused", None, str(unfit)))
            return []
        self._observers.requested(self._mechanism(cohort), settings.quorum)
        self._driver = RoundDriver(protocol, {node: wanted[node] for node in cohort}, self._transport, self._members)
        return self._requests(self._driver)

    def _settings_for(self, nodes: int, epoch: int, run: int) -> SecAggSettings:
        """What this round's nodes are sent; ValueError where their number makes no sum."""
        asks, account = self.settings, self.accounting
        quorum = self._options.quorum_of(nodes, account.colluders)
        coordinates = self._options.numbers_of(self._model.coordinates)
        law = Gaussian(asks.law.scale)
        quantization_range = QuantizationRange(law, nodes, float(asks.clip.bound))
        quantization_range.restore(self._range.saved() if self._range is not None else ())
        self._range = quantization_range
        bits = None if self._options.masked_bits == "auto" else self._options.masked_bits
        code = fit(law, nodes, coordinates, quantization_range.value, bits=bits)
        one = account.mechanism([(0, asks)], True, coordinates)
        batch = asks.records if one.sampling.kind == "all" else one.sampling.draws
        return SecAggSettings(
            run_bytes(run), epoch, self._members.next_position(), coordinates, code.bits, code.gain,
            float(asks.law.scale), float(asks.clip.bound), quorum, account.colluders,
            float(batch) if account.clipped == "example" else 0.0, one.sampling_rate(0),
        )  # fmt: skip

    def _check_value(self, messages: list[Message], configured: Mapping[str, Any]) -> bytes:
        """What all nodes are sent to train on; ValueError where a strategy tells them different things."""
        sent = {
            (id(message.content), message.metadata.message_type, message.metadata.group_id): message.content
            for message in messages
        }
        update = self.settings.update
        found = {
            check_value(self._as_received(content), update, configured, message_type, group_id)
            for (_, message_type, group_id), content in sent.items()
        }
        if len(found) != 1:
            raise ValueError(
                "the strategy sends messages with different models, configurations, types or groups: their sum could "
                "not be opened"
            )
        return found.pop()

    def _as_received(self, content: RecordDict) -> RecordDict:
        if self._model.downlink is None:
            return content
        name = next(iter(content.array_records))
        return RecordDict({**dict(content.items()), name: record_of(self._model.downlink.public)})

    def _requests(self, driver: RoundDriver) -> list[Message]:
        known, new = driver.protocol.request(with_roster=False), driver.protocol.request()
        for node, message in driver.messages.items():
            if self._model.downlink is not None and not self._model.downlink.put_into(message):
                raise ValueError("the strategy sends arrays of its own, which a quantized downlink does not carry")
            request = new if self._members.needs_roster(node) else known
            self._transport.put(message, message.metadata.run_id, request, self.settings.update)
        return list(driver.messages.values())

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the wrapped strategy makes of the sum, if a quorum is in it.

        Args:
            server_round: Number of the round.
            replies: The nodes' masked updates.

        Returns:
            The new model, or None where nothing is published; the counts and epsilons as metrics.
        """
        driver, self._driver = self._driver, None
        down = self._model.downlink
        tally = RoundMetrics(
            0 if driver is None else len(driver.messages), down.count() if down is not None else (0, 0)
        )
        arrays, metrics, is_open = None, None, False
        if driver is not None and self._grid is not None:
            self._take(driver, self._with_second(driver, list(replies), self._grid), tally)
            is_open = self._open(driver, self._grid, tally)
            if is_open:
                arrays, metrics = self.strategy.aggregate_train(server_round, [self._aggregate(driver)])
                arrays, model = self._model.published(arrays, server_round + 1, self._moved)
                self._spending.note_model(model)
        report = tally.report(server_round, metrics, self.epsilon, self.accounting.delta)
        report["cepam-opened"] = int(is_open)
        for observer, epsilon in self._observers.epsilons().items():
            report[f"cepam-epsilon-{observer.replace(' ', '-')}"] = epsilon
        for refused in self._unfit:
            self._failure.note(refused)
        return self._finish(server_round, tally, self._sampled, arrays, report)

    def _with_second(self, driver: RoundDriver, replies: list[Message], grid: Grid) -> list[Message]:
        """The replies; nodes that do not hold what their message leads on from get a snapshot and reply to that."""
        self._transport.expect(driver.messages.values())
        stale = [reply for reply in replies if is_stale(reply) and self._transport.node_of(reply) is not None]
        if self._model.downlink is None or not stale:
            return replies
        again = {}
        for reply in stale:
            node = self._transport.waiting[reply.metadata.reply_to_message_id]
            again[node] = self._model.downlink.again(driver.messages[node])
        second = list(grid.send_and_receive(again.values(), timeout=self._timeout))
        driver.messages |= again
        self._transport.expect(driver.messages.values())
        return [reply for reply in replies if reply not in stale] + second

    def _take(self, driver: RoundDriver, replies: list[Message], tally: RoundMetrics) -> None:
        """Take the masked vectors, and count the rest by its reason."""
        down = self._model.downlink

        def drop(refused: Refused) -> None:
            self._members.note_refusal(refused)
            tally.drop(refused)

        for reply in replies:
            driver.take(reply, down.take_report if down is not None else _ignore, drop)
        for node in self._transport.waiting.values():
            tally.drop(Refused("missing", node, "no reply came in time"))

    def _open(self, driver: RoundDriver, grid: Grid, tally: RoundMetrics) -> bool:
        """Whether the sum is open: a quorum is left, the budget allows it, and the account on disk has it."""
        if not driver.repair(grid, tally.drop):
            self._unfit.append(Refused("refused", None, "fewer nodes than the quorum answered"))
            return False
        mechanism = self._mechanism(driver.protocol.survivors)
        for node in driver.protocol.survivors:
            message, size = driver.messages[node], driver.bytes_of[node]
            tally.opened.append(Opened(node, self.settings, message, size, self._model.coordinates, frozenset()))
        if not self._spending.allows(mechanism):
            return False
        self._spending.charge(mechanism, None)
        self._observers.released(mechanism, len(driver.protocol.cohort), driver.protocol.settings.quorum)
        if driver.unmask(grid, tally.drop):
            return True
        self._unfit.append(Refused("refused", None, "too few good shares came to unmask the sum"))
        return False

    def _mechanism(self, nodes: Iterable[int]) -> Mechanism:
        numbers = self._options.numbers_of(self._model.coordinates)
        return self.accounting.mechanism([(node, self.settings) for node in nodes], True, numbers)

    def _aggregate(self, driver: RoundDriver) -> Message:
        """The one reply that the wrapped strategy sees: the sum over all nodes of the round, of weight 1."""
        if driver.opened is None or self._range is None:
            raise ValueError("the sum is not open")
        self._range.observe(driver.opened)
        message = next(iter(driver.messages.values()))
        name = next(key for key in message.content.array_records if key != SECURE_AGGREGATION)
        total = driver.opened
        if self._options.sketch is not None:
            total = Sketch.of(driver.protocol.settings, self._model.coordinates).restore(total)
        mean = total / len(driver.protocol.cohort)
        arrays = record_of(from_vector(mean, self._model.reference, self._step))
        weight = MetricRecord({self._weight_key: 1.0})
        return Message(RecordDict({name: arrays, f"{name}-weight": weight}), reply_to=message)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """No messages: nodes of secure aggregation do not evaluate; `start(…, evaluate_fn=…)` does, on the server.

        Args:
            server_round: Number of the round.
            arrays: The model of the round.
            config: What the strategy tells the nodes.
            grid: Flower's connection to the nodes.

        Returns:
            An empty list.
        """
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> None:
        """No metrics: no node evaluates.

        Args:
            server_round: Number of the round.
            replies: None come.
        """


def _ignore(reply: Message) -> None:
    """Take no report where models travel as they are."""

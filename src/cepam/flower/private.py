"""The server's half: a wrapper that makes any Flower strategy ask for private, small replies and open them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from logging import INFO, WARNING, getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi, Strategy
from flwr.supercore.utils import get_flwr_home

from cepam.clip import Clip
from cepam.exchange.account import Account
from cepam.exchange.account_store import RunAccount
from cepam.exchange.server_end import Authentication, Refused, ServerEnd
from cepam.exchange.uplink_settings import Update, UplinkSettings
from cepam.exchange.vectors import Arrays, Layout, count, digest, has_batch_statistics, kept_positive
from cepam.flower.arrays import numpy_of, record_of
from cepam.flower.replies import Known, Opened, Replies
from cepam.noise.lattices import Lattice
from cepam.noise.laws import Law

if TYPE_CHECKING:
    from cepam.privacy import Release

log = getLogger("flwr").log  # Flower's own log, which `flwr run --stream` shows

BATCH_NORM = (
    "the model has statistics of batch normalisation: they travel as part of the update, take their share of the clip, "
    "and get noise, which harms; group normalisation (torch.nn.GroupNorm) has none"
)
# Strategies of Flower whose published model depends on the replies through their weighted average alone.
AVERAGING = (FedAvg, FedAvgM, FedProx, FedAdagrad, FedAdam, FedYogi)


@dataclass
class Tally:
    """What became of one round's replies."""

    asked: int
    opened: list[Opened] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)

    def drop(self, refused: Refused) -> None:
        """Nothing; the reply is counted by its reason, and the reason is logged."""
        self.dropped[refused.kind] += 1
        log(WARNING, "cepam: dropped the reply of node %s: %s (%s)", refused.node, refused, refused.kind)


class Private(Strategy):  # type: ignore[misc]
    """`strategy`, fed with updates that carry exactly the noise of `law` and travel in few bits.

    Every client's update is clipped to `clip`, gets noise of `law` by the codec, and travels sealed; the wrapped
    strategy sees ordinary dense arrays. `of_node` overrides settings by node id (a mapping or a function). With
    `update="gradient"` the ClientApp replies with gradients, and the wrapped strategy is handed the broadcast model
    less `learning_rate` times the noisy gradient (`learning_rate=None`: the noisy gradient itself).

    A reply that is missing, broken, forged or replayed costs itself only. Fewer replies mean less noise in the
    average, so the policy is stated: a round with fewer than `least_replies` good ones is not published and costs
    nothing; any other is charged for the noise that is really in it. Once a round would bring epsilon above `budget`
    nothing more is published. The account is saved under `accounts` (default: `cepam` in Flower's home) before each
    model is published; a ServerApp that starts again, in this run or from a model that was published, goes on with it.

    Integer arrays do not travel, whatever the wrapped strategy makes of them; variances of batch normalisation stay
    positive. `bucket` pads messages to a multiple of that many bytes.

    `authentication` says what to do about a key agreement that is not signed with the node's authentication key:
    `warn`, or `require` to drop its replies. `server_key` is a private key file with which the server signs its
    offers, for clients that know the public one.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        law: Law,
        clip: Clip,
        lattice: Lattice | Literal["auto"] = "auto",
        coder: Literal["adaptive", "paper"] = "adaptive",
        bucket: int | None = None,
        update: Update = "parameters",
        learning_rate: float | None = 1.0,
        of_node: Mapping[int, UplinkSettings] | Callable[[int], UplinkSettings | None] | None = None,
        records: int = 1,
        account: Account | None = None,
        least_replies: int = 1,
        budget: float | None = None,
        authentication: Authentication = "warn",
        server_key: str | Path | None = None,
        accounts: str | Path | None = None,
    ) -> None:
        if not isinstance(strategy, Strategy):
            raise ValueError(f"strategy must be a flwr.serverapp.strategy.Strategy, got {type(strategy).__name__}")
        if isinstance(least_replies, bool) or not isinstance(least_replies, int) or least_replies < 1:
            raise ValueError(f"least_replies must be at least 1, got {least_replies!r}")
        if budget is not None and not budget > 0:
            raise ValueError(f"budget must be a positive epsilon, got {budget!r}")
        self.strategy = strategy
        self.settings = UplinkSettings(law, clip, lattice, coder, bucket, update, records=records)
        self.least_replies = least_replies
        self.budget = budget
        self.account = account or Account()
        self._of_node = of_node.get if isinstance(of_node, Mapping) else of_node
        self._returns_models = update == "parameters" or learning_rate is not None
        self._average = publishes_average(strategy, self.account)
        key = Path(server_key).read_bytes() if server_key else None
        self._replies = Replies(ServerEnd(authentication, key, log), learning_rate)
        folder = Path(accounts) if accounts is not None else get_flwr_home() / "cepam"
        self._account = RunAccount(folder, self.account, strict=budget is not None, log=log)
        self._layout: Layout | None = None
        self._reference: Arrays = {}
        self._exhausted = False

    def summary(self) -> None:
        """Logs what the wrapper does, then what the wrapped strategy says of itself."""
        log(
            INFO,
            "\t├──> cepam: %s, %s, lattice %s",
            self.settings.law,
            self.settings.clip,
            self.settings.lattice,
        )
        log(INFO, "\t│\t├── ClientApps reply with: %s", self.settings.update)
        noise = (
            "all replies" if self._average else "each reply by itself (the strategy may publish more than the average)"
        )
        log(INFO, "\t│\t├── noise counted: %s; delta %g", noise, self.account.delta)
        log(INFO, "\t│\t└── the server holds the keys and is trusted; metrics and evaluation are not covered")
        self.strategy.summary()

    @property
    def epsilon(self) -> float:
        """epsilon of everything published so far, at the account's delta."""
        return self._account.epsilon()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The wrapped strategy's messages, each with an offer for its client."""
        self._replies.close_round()
        if self._exhausted:
            return []
        given = numpy_of(arrays)
        self._reference = self._as_first_sent(given)
        sent = _same_or_new(arrays, given, self._reference)
        messages = list(self.strategy.configure_train(server_round, sent, config, grid))
        if not messages or not self._has_budget(str(messages[0].metadata.run_id)):
            return []
        identities = {node.node_id: bytes(node.public_key) for node in grid.get_nodes()}
        known = Known()
        asked = [(message.metadata.dst_node_id, self._settings_of(message)) for message in messages]
        # Settings that cannot be accounted for together are refused before anything is asked for.
        self.account.release(asked, self._average, count(self._reference))
        for message, (node, settings) in zip(messages, asked):
            self._replies.ask(message, settings, server_round, identities.get(node, b""), known)
        return messages

    def _settings_of(self, message: Message) -> UplinkSettings:
        own = self._of_node(message.metadata.dst_node_id) if self._of_node else None
        return own or self.settings

    def _as_first_sent(self, arrays: Arrays) -> Arrays:
        """The arrays with the types that they had first: an average makes floats of counters."""
        if self._layout is None:
            self._layout = Layout.of(arrays)
            if has_batch_statistics(arrays):
                log(WARNING, "cepam: %s", BATCH_NORM)
        return self._layout.restored(arrays)

    def _has_budget(self, run: str) -> bool:
        """Whether the account of this run, found again on disk, leaves anything to spend."""
        self._account.resume(run, digest(self._reference))
        if self.budget is not None and self.epsilon >= self.budget:
            self._exhausted = True
            log(WARNING, "cepam: epsilon %.4g was spent before, of %.4g: nothing is trained", self.epsilon, self.budget)
        return not self._exhausted

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the wrapped strategy makes of the good replies, with the counts and epsilon among the metrics."""
        tally = Tally(self._replies.sent)
        for reply in replies:
            try:
                tally.opened.append(
                    self._replies.open(reply, getattr(self.strategy, "weighted_by_key", "num-examples"))
                )
            except Refused as refused:
                tally.drop(refused)
        _drop_odd_metrics(tally)
        for node in self._replies.silent():
            tally.drop(Refused("missing", node, "no reply came in time"))
        self._replies.close_round()
        arrays, metrics = None, None
        release = self._release_of(tally)
        if release is not None:
            arrays, metrics = self.strategy.aggregate_train(server_round, [o.message for o in tally.opened])
            arrays = self._charged(arrays, release)
        return arrays, self._report(server_round, tally, metrics)

    def _charged(self, arrays: ArrayRecord | None, release: Release) -> ArrayRecord | None:
        """What may be published of a round, once the round is on the account and on disk."""
        given = self._reference if arrays is None else numpy_of(arrays)
        made = self._as_first_sent(given)
        if self._returns_models:
            made = kept_positive(made, self._reference)
        self._account.charge(release, digest(made))
        for caution in self._account.cautions(release):
            log(WARNING, "cepam: %s", caution)
        return None if arrays is None else _same_or_new(arrays, given, made)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The wrapped strategy's messages: evaluation is not covered by the guarantee."""
        return list(self.strategy.configure_evaluate(server_round, arrays, config, grid))

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """What the wrapped strategy makes of the evaluation replies."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def _release_of(self, tally: Tally) -> Release | None:
        """The round as the accountant sees it, or None where it must not be published."""
        if len(tally.opened) < self.least_replies:
            log(
                WARNING,
                "cepam: %d good replies, %d needed: nothing is published this round, nothing is charged",
                len(tally.opened),
                self.least_replies,
            )
            return None
        replies = [(o.node, o.settings) for o in tally.opened]
        release = self.account.release(replies, self._average, count(self._reference))
        after = self._account.epsilon(release) if self.budget is not None else 0.0
        if self.budget is not None and after > self.budget:
            self._exhausted = True
            log(WARNING, "cepam: this round would bring epsilon to %.4g, above %.4g: training ends", after, self.budget)
            return None
        return release

    def _report(self, server_round: int, tally: Tally, metrics: MetricRecord | None) -> MetricRecord:
        report = MetricRecord(dict(metrics) if metrics is not None else {})
        message_bytes = sum(o.message_bytes for o in tally.opened)
        dense = sum(4 * o.coordinates for o in tally.opened)
        epsilon = self.epsilon
        counts: dict[str, int | float] = {
            "cepam-asked": tally.asked,
            "cepam-replies": len(tally.opened),
            "cepam-dropped": sum(tally.dropped.values()),
            "cepam-message-bytes": message_bytes,
            "cepam-float32-bytes": dense,
            "cepam-epsilon": epsilon,
            "cepam-delta": self.account.delta,
        }
        counts.update({f"cepam-dropped-{kind}": times for kind, times in tally.dropped.items()})
        for key, value in counts.items():
            report[key] = value
        log(
            INFO,
            "cepam: round %d: %d of %d replies, %d bytes (float32: %d, %.1f times), epsilon so far %.4g at delta %g",
            server_round,
            len(tally.opened),
            tally.asked,
            message_bytes,
            dense,
            dense / message_bytes if message_bytes else 0.0,
            epsilon,
            self.account.delta,
        )
        return report


def publishes_average(strategy: Strategy, account: Account) -> bool:
    """Whether the noise of all replies may be counted together: only where nothing but their average is published."""
    if account.released == "auto":
        return type(strategy) in AVERAGING
    return account.released == "average"


def _same_or_new(record: ArrayRecord, given: Arrays, made: Arrays) -> ArrayRecord:
    """The record itself where nothing was changed: writing a large model anew takes time."""
    return record if all(made[name] is given[name] for name in given) else record_of(made)


def _drop_odd_metrics(tally: Tally) -> None:
    """Nothing; replies whose metrics differ in kind from the majority's are dropped: Flower would end the run."""
    kinds = Counter(o.metrics_kind for o in tally.opened)
    if len(kinds) < 2:
        return
    usual = kinds.most_common(1)[0][0]
    for odd in [o for o in tally.opened if o.metrics_kind != usual]:
        tally.drop(Refused("metrics", odd.node, "its metrics are not those of the other replies"))
    tally.opened = [o for o in tally.opened if o.metrics_kind == usual]

"""Counts of a round's replies, in the log and among the metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from logging import DEBUG, INFO, WARNING, getLogger

from flwr.app import MetricRecord

from cepam.flower.replies import Opened
from cepam.protocol.server import Refused

log = getLogger("flwr").log  # Flower's own log, which `flwr run --stream` shows


@dataclass
class RoundMetrics:
    """What became of one round's replies; `down` are the bytes of its broadcasts, and as float32 (0: none).

    Where the cohort is `secret`, what tells who was sampled, or how many, is logged at DEBUG and is no metric.
    """

    sampled: int
    down: tuple[int, int] = (0, 0)
    secret: bool = False
    opened: list[Opened] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)

    def drop(self, refused: Refused) -> None:
        """Count a reply that is of no use by its reason, and log the reason."""
        self.refused.append(refused)
        log(
            DEBUG if self.secret else WARNING,
            "cepam: dropped the reply of node %s: %s (%s)",
            refused.node,
            refused,
            refused.kind,
        )

    def drop_odd_metrics(self) -> None:
        """Drop replies whose metrics differ in kind from the majority's: Flower would end the run."""
        kinds = Counter(o.metrics_kind for o in self.opened)
        if len(kinds) < 2:
            return
        usual = kinds.most_common(1)[0][0]
        for odd in [o for o in self.opened if o.metrics_kind != usual]:
            self.drop(Refused("metrics", odd.node, "its metrics are not those of the other replies"))
        self.opened = [o for o in self.opened if o.metrics_kind == usual]

    def report(self, server_round: int, metrics: MetricRecord | None, epsilon: float, delta: float) -> MetricRecord:
        """The metrics with the counts and epsilon among them; the log says the same in a line."""
        report = MetricRecord(dict(metrics) if metrics is not None else {})
        so_far = f"epsilon so far {epsilon:.4g} at delta {delta:g}"
        if self.secret:
            log(INFO, "cepam: round %d: %s; the cohort is secret", server_round, so_far)
        log(DEBUG if self.secret else INFO, "cepam: round %d: %s, %s", server_round, self, so_far)
        counts = {} if self.secret else self._counts()
        for key, value in {**counts, "cepam-epsilon": epsilon, "cepam-delta": delta}.items():
            report[key] = value
        return report

    @property
    def message_bytes(self) -> int:
        """What the good replies took."""
        return sum(o.message_bytes for o in self.opened)

    @property
    def dense_bytes(self) -> int:
        """What they would have taken as float32."""
        return sum(4 * o.coordinates for o in self.opened)

    def _counts(self) -> dict[str, int]:
        dropped = Counter(refused.kind for refused in self.refused)
        counts = {
            "cepam-sampled": self.sampled,
            "cepam-replies": len(self.opened),
            "cepam-dropped": len(self.refused),
            "cepam-message-bytes": self.message_bytes,
            "cepam-float32-bytes": self.dense_bytes,
        }
        if self.down[0]:
            counts |= {"cepam-downlink-bytes": self.down[0], "cepam-downlink-float32-bytes": self.down[1]}
        return counts | {f"cepam-dropped-{kind}": times for kind, times in dropped.items()}

    def __str__(self) -> str:
        sent, dense = self.message_bytes, self.dense_bytes
        times = dense / sent if sent else 0.0
        down = f"; down {self.down[0]} bytes (float32: {self.down[1]})" if self.down[0] else ""
        replies = f"{len(self.opened)} of {self.sampled} replies"
        return f"{replies}, {sent} bytes (float32: {dense}, {times:.1f} times){down}"

"""A run that trained nothing: which replies were of no use and why, and when that ends the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from logging import WARNING, getLogger
from typing import Any

from cepam.errors import NoUsableReplies
from cepam.protocol.server import Refused

log = getLogger("flwr").log  # Flower's own log, which `flwr run --stream` shows

MOST_REASONS = 3
MOST_KEPT = 1000  # nodes choose parts of these texts
TRANSIENT = ("cepam: training", "cepam: version", "cepam: order", "cepam: internal")
HINTS = {
    "cepam: policy": "a node's own policy refuses what this server asks for, or the node has none (docs/production.md)",
    "cepam: legacy-app": "the ClientApp is built from client_fn or NumPyClient: use @app.train() (docs/flower.md)",
    "cepam: training": "the ClientApp's training function raised; the node's log says what",
    "cepam: key-file": "a file that the node's configuration names cannot be read",
    "cepam: arrays": "the reply must hold one ArrayRecord with the names and shapes of the model",
    "cepam: unsigned": "nodes know a server key that this server does not sign with: Authentication(server_key=…)",
    "cepam: secure-aggregation-only": "the nodes answer to secure aggregation only: cepam.flower.SecureAggregation",
}


def is_refusal(refused: Refused) -> bool:
    """Whether a node refuses for a reason that the next round will not change: a configuration, not a fault."""
    if refused.kind == "error":
        said = str(refused).partition(": ")[2]
        return said.startswith("cepam: ") and said not in TRANSIENT
    if refused.kind == "refused":  # a node that lost its state refuses once, and takes part in the next epoch
        return not str(refused).endswith((": position", ": cohort"))
    return refused.kind in ("agreement", "malformed")


@dataclass
class RunFailure:
    """Follows a run until one round is published that a good reply is in; `secret`: nobody may learn who was sampled.

    A round without a usable reply is a warning. The run ends at once where every node of its first round refused, and
    at its end where no reply was ever used.
    """

    secret: bool = False
    reasons: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    trained: bool = False
    hopeless: bool = False
    _refusals: int = 0

    def note(self, refused: Refused) -> None:
        """Count why a reply, or a whole round (node None), was of no use."""
        reason = f"{refused} ({refused.kind})"
        if not self.trained and (reason in self.reasons or len(self.reasons) < MOST_KEPT):
            self.reasons[reason] += 1
        self._refusals += refused.node is not None and is_refusal(refused)

    def end_round(self, server_round: int, sampled: int, trained: bool) -> None:
        """Count a round for which so many nodes were sampled; `trained`: it was published and a reply is in it."""
        refusals, self._refusals = self._refusals, 0
        if not sampled:
            return
        self.rounds += 1
        self.trained = self.trained or trained
        if not trained and not self.secret:
            log(WARNING, "cepam: round %d trained nothing: no reply could be used", server_round)
            self.hopeless = self.rounds == 1 and refusals >= sampled

    def check(self, metrics: Mapping[int, Any]) -> None:
        """Raise where nothing was trained although nodes were sampled.

        Raises:
            NoUsableReplies: The commonest reasons, and the metrics of all rounds.
        """
        if self.trained or not self.rounds:
            return
        commonest = self.reasons.most_common(MOST_REASONS)
        said = "; ".join(reason if self.secret else f"{times} times {reason}" for reason, times in commonest)
        hints = [hint for code, hint in HINTS.items() if any(code in reason for reason, _ in commonest)]
        where = "every node of the first round refused" if self.hopeless else "no reply of any round could be used"
        raise NoUsableReplies(
            f"nothing was trained: {where}: {said or 'no reply came'}" + "".join(f". {hint}" for hint in hints),
            dict(self.reasons),
            dict(metrics),
        )

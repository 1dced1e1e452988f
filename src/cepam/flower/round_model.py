"""The model from round to round: what nodes are sent, and what may be published of an aggregate."""

from __future__ import annotations

from logging import WARNING, getLogger

from flwr.app import ArrayRecord

from cepam.flower.arrays import numpy_of, same_or_new
from cepam.flower.downlink import Distribution
from cepam.protocol.vectors import BATCH_NORM, Arrays, Layout, count, digest, has_batch_statistics, kept_positive

log = getLogger("flwr").log  # Flower's own log, which `flwr run --stream` shows


class RoundModel:
    """The arrays that a round starts from (`reference`) and those that it publishes, with the types they had first.

    `downlink` sends them quantized; `whole` says that aggregates are models (else noisy gradients).
    """

    def __init__(self, downlink: Distribution | None, whole: bool) -> None:
        self.downlink = downlink
        self.reference: Arrays = {}
        self._whole = whole
        self._layout: Layout | None = None

    @property
    def coordinates(self) -> int:
        """How many coordinates travel."""
        return count(self.reference)

    def sent(self, arrays: ArrayRecord) -> tuple[ArrayRecord, str]:
        """The arrays that the wrapped strategy sends, now the reference, and the digest of what was published."""
        given = numpy_of(arrays)
        restored = self._as_first_sent(given)
        self.reference = restored if self.downlink is None else self.downlink.exact(restored)
        return same_or_new(arrays, given, self.reference), digest(restored)

    def digest_of(self, arrays: ArrayRecord) -> str:
        """The digest by which the account knows these arrays, if they were published."""
        return digest(self._as_first_sent(numpy_of(arrays)))

    def published(self, arrays: ArrayRecord | None, next_round: int, noise: float) -> tuple[ArrayRecord | None, str]:
        """The aggregate as all will see it, and its digest; None, and the reference's, where there is none.

        `noise` is what a round's noise moves the model by, per coordinate.
        """
        given = self.reference if arrays is None else numpy_of(arrays)
        made: Arrays = self._as_first_sent(given)
        if self._whole:
            made = kept_positive(made, self.reference)
        if self.downlink is not None:
            made = self.downlink.publish(made, next_round, noise)
        return None if arrays is None else same_or_new(arrays, given, made), digest(made)

    def _as_first_sent(self, arrays: Arrays) -> Arrays:
        """The arrays with the types that they had first: an average makes floats of counters."""
        if self._layout is None:
            self._layout = Layout.of(arrays)
            if has_batch_statistics(arrays):
                log(WARNING, "cepam: %s", BATCH_NORM)
        return self._layout.restored(arrays)

"""The settings of a round that every client must be sent alike."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from cepam.distributions.laws import Gaussian
from cepam.errors import MalformedMessage
from cepam.secure_aggregation.fields import ByteReader, ByteWriter
from cepam.secure_aggregation.mechanism import MOST_COORDINATES, WORD_BITS, MaskedSumCodec
from cepam.secure_aggregation.refusal import SecAggRefused
from cepam.secure_aggregation.roster import LEAST_COHORT, LONGEST_RUN

MODEL_BYTES = 32


@dataclass(frozen=True)
class SecAggSettings:
    """One round: where it stands, how it is noised, clipped, coded and shared.

    `position` counts the rounds of an epoch. `noise` is the deviation of each client's Gaussian share. `clip` bounds a
    client's whole update; with `batch` above zero it bounds each example's gradient instead, and the update is their
    sum over `batch`. `record_sampling_rate` is the share of a client's records that a round looks at. `quorum` clients
    at least are in every sum, `threshold` shares open a self-mask: the same on the complete graph (`degree` 0).
    """

    run: bytes
    epoch: int
    position: int
    coordinates: int
    bits: int
    gain: int
    noise: float
    clip: float
    quorum: int
    colluders: int = 0
    batch: float = 0.0
    record_sampling_rate: float = 1.0
    degree: int = 0
    threshold: int = 0

    def __post_init__(self) -> None:
        if not self.threshold and not self.degree:
            object.__setattr__(self, "threshold", self.quorum)

    @cached_property
    def codec(self) -> MaskedSumCodec:
        """The arithmetic of this round."""
        return MaskedSumCodec(Gaussian(self.noise), self.coordinates, self.bits, self.gain)

    def honest(self, clients: int, colluders: int | None = None) -> int:
        """How many honest clients are in every sum that the server can open, whatever it says about drop-outs.

        On a sparse graph only a server that says the truth is covered.
        """
        taken = max(self.colluders, colluders or 0)
        return self.quorum - taken if self.degree else 2 * self.quorum - clients - taken

    def protecting(self, clients: int, colluders: int | None = None) -> int:
        """How many honest clients, the node itself among them, are in every sum with it that a lying server can open.

        On a sparse graph the server can cut a node off from all but the holders of its shares: what holds for the
        cohort of a complete graph holds for the neighbourhood of each node (docs/proofs/secure-aggregation.md,
        Theorem 3).
        """
        taken = max(self.colluders, colluders or 0)
        return max(1, 2 * self.threshold - self.holders(clients) - taken)

    def holders(self, clients: int) -> int:
        """The most clients who hold shares of one seed, its owner among them."""
        return min(self.degree + 1, clients) if self.degree else clients

    def check(self, clients: int) -> None:
        """Raise `SecAggRefused` unless the numbers make a sum that hides its parts."""
        if clients < LEAST_COHORT:
            raise SecAggRefused("cohort", f"a sum needs {LEAST_COHORT} clients at least, got {clients}")
        if not self.quorum <= clients or self.honest(clients) < 1:
            raise SecAggRefused(
                "quorum", f"quorum {self.quorum} of {clients} with {self.colluders} colluders: 2t > K + c"
            )
        if not self.degree and self.threshold != self.quorum:
            raise SecAggRefused("quorum", "on the complete graph the threshold is the quorum")
        holders = self.holders(clients)
        if not self.threshold <= holders < 2 * self.threshold:
            raise SecAggRefused(
                "quorum", f"threshold {self.threshold} of {holders} holders: more than half, at most all"
            )
        try:
            reach = self.codec.plan.reach
        except ValueError as refused:
            raise SecAggRefused("policy", str(refused)) from refused
        if not (0.0 < self.clip <= reach and 0.0 < self.record_sampling_rate <= 1.0):
            raise SecAggRefused(
                "policy", f"clip {self.clip} or record_sampling_rate {self.record_sampling_rate} is out of range"
            )

    def write(self, writer: ByteWriter) -> None:
        """Append the fields."""
        writer.blob(self.run).number(self.epoch, 8).number(self.position, 8)
        writer.number(self.coordinates, 4).number(self.bits, 1).number(self.gain, 4)
        for real in (self.noise, self.clip, self.batch, self.record_sampling_rate):
            writer.real(real)
        for count in (self.quorum, self.colluders, self.degree, self.threshold):
            writer.number(count, 4)

    @classmethod
    def read(cls, reader: ByteReader) -> SecAggSettings:
        """The settings whose fields come next."""
        run, epoch, position = reader.blob(LONGEST_RUN), reader.number(8), reader.number(8)
        coordinates, bits = reader.number(4, 1, MOST_COORDINATES), reader.number(1, 1, WORD_BITS)
        gain = reader.number(4, 1)
        noise, clip, batch, record_sampling_rate = (reader.real() for _ in range(4))
        quorum, colluders, degree, threshold = (
            reader.number(4, 1),
            reader.number(4),
            reader.number(4),
            reader.number(4, 1),
        )
        if degree % 2:
            raise MalformedMessage(f"the degree of a graph must be even, got {degree}")
        return cls(
            run,
            epoch,
            position,
            coordinates,
            bits,
            gain,
            noise,
            clip,
            quorum,
            colluders,
            batch,
            record_sampling_rate,
            degree,
            threshold,
        )


def round_salt(settings: SecAggSettings, roster: bytes, cohort: Sequence[int], model: bytes) -> bytes:
    """32 bytes that bind a round's keys to all that its nodes must have seen alike, roster and model among it."""
    if len(model) != MODEL_BYTES:
        raise ValueError(f"model must be a check value of {MODEL_BYTES} bytes, got {len(model)}")
    writer = ByteWriter(b"cepam sum round v1")
    settings.write(writer)
    writer.raw(roster).names(cohort).raw(model)
    return hashlib.sha256(writer.bytes()).digest()

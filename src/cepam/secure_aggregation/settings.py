"""The settings of a round that every client must be sent alike, and what a node's policy says of them."""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from cepam.distributions.laws import Gaussian, check_scale
from cepam.errors import MalformedMessage
from cepam.kernels.format.plan import Floats, layered_plan
from cepam.lattices.lattice import Integer
from cepam.policy import ClientPolicy, RoundCharge
from cepam.secure_aggregation.fields import ByteReader, ByteWriter
from cepam.secure_aggregation.mechanism import MOST_COORDINATES, WORD_BITS, MaskedSumCodec
from cepam.secure_aggregation.roster import LEAST_COHORT, LONGEST_RUN, Roster, SecAggRefused

WRAP_CHANCE = 1e-9
MEMORY = 10
MARGIN = 3.5
HEADROOM = 2.0


def fit(
    law: Gaussian, clients: int, coordinates: int, quantization_range: float, rounds: int = 500, bits: int | None = None
) -> MaskedSumCodec:
    """Fit a codec to sums of updates: bits and gain for a quantization range.

    The noise wraps with probability under 1e-9 over all coordinates and rounds (sub-Gaussian tail); wrapping never
    touches privacy.

    Args:
        law: each client's noise.
        clients: how many clients are in a sum.
        coordinates: the length of an update.
        quantization_range: the largest coordinate of a sum of updates.
        rounds: over how many rounds the noise may not wrap.
        bits: bits per coordinate; None: the fewest whose rounding is at most as wide as one client's noise.

    Returns:
        The codec.

    Raises:
        ValueError: a sum does not fit into 32 bits, or a value is out of range.
    """
    for name, count in (("clients", clients), ("coordinates", coordinates), ("rounds", rounds)):
        if type(count) is not int or count < 1:
            raise ValueError(f"{name} must be a positive integer, got {count!r}")
    if not 0.0 <= quantization_range < math.inf:
        raise ValueError(f"quantization_range must be finite and not negative, got {quantization_range!r}")
    grid, scale = layered_plan(law, Integer(1)).grid, law.scale
    deviations = math.sqrt(2.0 * math.log(2.0 * coordinates * rounds / WRAP_CHANCE))
    # Rounding is at most as wide as the noise scale where bits are chosen here; where they are given it may be wider.
    half = quantization_range + deviations * scale * math.sqrt(clients * (1.0 + 1.0 / 12.0))
    gain = _gain(half, grid)
    if bits is None:
        bits = min(max(1, math.ceil(math.log2(2.0**WORD_BITS * grid / (gain * scale)))), WORD_BITS)
    else:
        for _ in range(8):
            width = 2.0**WORD_BITS / gain * grid / 2.0**bits
            half = quantization_range + deviations * math.sqrt(clients * (scale**2 + width**2 / 12.0))
            gain = _gain(half, grid)
    return MaskedSumCodec(law, coordinates, bits, gain)


def _gain(half: float, grid: float) -> int:
    gain = math.floor(math.ldexp(grid, WORD_BITS - 1) / half)
    if gain < 1:
        raise ValueError(f"a sum of up to {half:.3g} does not fit into 32 bits of the grid {grid:.3g}: lower it")
    return min(gain, (1 << WORD_BITS) - 1)


@dataclass
class QuantizationRange:
    """The public rule for the largest coordinate of the next sum of updates.

    It starts at clients times the clip, which it never exceeds. Then it is twice the largest coordinate of the last
    ten released sums, less what the noise of so many coordinates reaches by itself: √(2 ln 2m) standard deviations,
    at least 3.5. Only released sums go in, so the range is public. Larger sums wrap, which costs accuracy and never
    privacy.

    Args:
        law: The noise of each client.
        clients: Clients of a round.
        clip: Clipping norm of an update.

    Raises:
        ValueError: A value is out of range.
    """

    law: Gaussian
    clients: int
    clip: float
    _beyond: deque[float] = field(default_factory=lambda: deque(maxlen=MEMORY), repr=False)

    def __post_init__(self) -> None:
        check_scale("clip", self.clip)
        if type(self.clients) is not int or self.clients < 1:
            raise ValueError(f"clients must be a positive integer, got {self.clients!r}")

    @property
    def value(self) -> float:
        """X, a guess from public data of the largest coordinate of the next sum of updates."""
        most = self.clients * self.clip
        return min(most, HEADROOM * max(self._beyond)) if self._beyond else most

    def observe(self, released: Floats) -> None:
        """Count the released sum of a round from now on.

        Args:
            released: The sum, per coordinate.

        Raises:
            ValueError: It is not finite.
        """
        largest = float(np.abs(released).max(initial=0.0))
        if not math.isfinite(largest):
            raise ValueError("a released sum must be finite")
        alone = max(MARGIN, math.sqrt(2.0 * math.log(2.0 * max(1, len(released)))))
        self._beyond.append(max(0.0, largest - alone * self.law.scale * math.sqrt(self.clients)))

    def saved(self) -> tuple[float, ...]:
        """What the rule remembers, to be stored beside the model.

        Returns:
            Numbers for `restore`.
        """
        return tuple(self._beyond)

    def restore(self, beyond: Iterable[float]) -> None:
        """Restore what `saved` gave.

        Args:
            beyond: What `saved` gave.
        """
        self._beyond = deque(beyond, maxlen=MEMORY)


MODEL_BYTES = 32


@dataclass(frozen=True)
class SecAggSettings:
    """One round of secure aggregation: its place in the run, its noise and clip, its coding, and its thresholds.

    Args:
        run: Id of the run.
        epoch: Number of the epoch in the run.
        position: Number of the round in the epoch.
        coordinates: Length of a message's vector.
        bits: Bits per coordinate of a message.
        gain: 32-bit units per grid step.
        noise: Standard deviation of each client's Gaussian noise.
        clip: Clipping norm of a client's whole update, or with `batch` of each example's gradient.
        quorum: Fewest clients of a sum.
        colluders: Clients that collude with the server.
        batch: The number that divides a sum of clipped examples; 0: whole updates are clipped.
        record_sampling_rate: Share of its records that a client looks at in a round.
        degree: Neighbors per node of a sparse graph; 0: the complete graph.
        threshold: Shares that open a self-mask; on the complete graph the quorum.
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
        """How many honest clients are in every sum that the server can open, whatever it says about dropouts.

        On a sparse graph only a server that says the truth is covered.

        Args:
            clients: Clients of the round.
            colluders: Where more collude than the settings say.

        Returns:
            A number; below 1 nobody is hidden.
        """
        taken = max(self.colluders, colluders or 0)
        return self.quorum - taken if self.degree else 2 * self.quorum - clients - taken

    def protecting(self, clients: int, colluders: int | None = None) -> int:
        """How many honest clients, the node itself among them, are in every sum with it that a lying server can open.

        On a sparse graph the server can cut a node off from all but the holders of its shares: what holds for the
        cohort of a complete graph holds for the neighbourhood of each node (docs/proofs/secure-aggregation.md,
        Theorem 3).

        Args:
            clients: Clients of the round.
            colluders: Where more collude than the settings say.

        Returns:
            A number of at least 1.
        """
        taken = max(self.colluders, colluders or 0)
        return max(1, 2 * self.threshold - self.holders(clients) - taken)

    def holders(self, clients: int) -> int:
        """The most clients who hold shares of one seed, its owner among them.

        Args:
            clients: Clients of the round.

        Returns:
            A number of clients.
        """
        return min(self.degree + 1, clients) if self.degree else clients

    def check(self, clients: int) -> None:
        """Raise `SecAggRefused` unless the numbers make a sum that hides its parts.

        Args:
            clients: Clients of the round.

        Raises:
            SecAggRefused: They do not.
        """
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
        """Append the fields to what is written.

        Args:
            writer: Takes the bytes.
        """
        writer.blob(self.run).number(self.epoch, 8).number(self.position, 8)
        writer.number(self.coordinates, 4).number(self.bits, 1).number(self.gain, 4)
        for real in (self.noise, self.clip, self.batch, self.record_sampling_rate):
            writer.real(real)
        for count in (self.quorum, self.colluders, self.degree, self.threshold):
            writer.number(count, 4)

    @classmethod
    def read(cls, reader: ByteReader) -> SecAggSettings:
        """Read the settings whose fields come next.

        Args:
            reader: Gives the bytes.

        Returns:
            The settings.

        Raises:
            MalformedMessage: The bytes are not settings.
        """
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


def check_offer(policy: ClientPolicy, offer: SecAggSettings, clients: int) -> None:
    """Check an offer against the node's floors.

    Raises:
        PolicyRefused: the noise or the clip is out of bounds.
        SecAggRefused: another floor is not kept.
    """
    policy.check_noise_and_clip(offer.noise, offer.clip)
    for name, fits in (
        ("quorum", offer.quorum >= policy.quorum),
        ("honest", offer.honest(clients, policy.colluders) >= policy.honest),
        ("divisor", not offer.batch or offer.batch >= policy.divisor > 0.0),
        ("record_sampling_rate", offer.record_sampling_rate <= policy.record_sampling_rate),
        ("sparse", policy.sparse or not offer.degree),
        ("degree", not offer.degree or offer.degree >= policy.degree),
    ):
        if not fits:
            raise SecAggRefused("policy", f"the offer is below this node's {name}")


def check_roster(policy: ClientPolicy, roster: Roster) -> None:
    """Raise `SecAggRefused` where the roster holds an identity that is not pinned."""
    if policy.cohort is not None and not all(peer.identity in policy.cohort for peer in roster.peers):
        raise SecAggRefused("cohort", "the roster holds an identity that this node does not know")


def largest_update(policy: ClientPolicy, offer: SecAggSettings) -> float:
    """The largest l2 norm of a whole update in a round of this offer, which the node itself enforces."""
    return offer.clip * policy.records / offer.batch if offer.batch else offer.clip


def charge_of(policy: ClientPolicy, offer: SecAggSettings, clients: int) -> RoundCharge:
    """What an answer to this offer costs, against a server that lies about dropouts and about the training.

    The node adds the noise and clips whole updates itself. How examples are drawn, clipped and divided its training
    code decides: there the node believes its own policy alone, whatever smaller draw or larger batch a server says.
    """
    clip, divisor = (policy.clipping_norm, policy.divisor) if offer.batch else (offer.clip, 0.0)
    return RoundCharge(
        "secure-aggregation", offer.noise, float(clip), offer.coordinates, offer.protecting(clients, policy.colluders),
        divisor, policy.record_sampling_rate,
    )  # fmt: skip

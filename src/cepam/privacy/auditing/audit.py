"""The audit: the best distinguisher, run on the mechanism itself, bounds epsilon from below.

Two adjacent data sets are simulated: in one the audited record is there and, when drawn, moves the client's
update from one end of what the clip allows to the other; in the other it is not. Every client's update goes
through the mechanism for real, the decoded values are summed as the server does, and the likelihood ratio
of the *claimed* mechanism is thresholded. Rates are bounded by Clopper and Pearson, thresholds are chosen
on one half of the trials and judged on the other, so the bound holds whatever the mechanism really is: an
account below it is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from scipy import optimize, special

from cepam.codec.codec import Codec, UpdateCodec
from cepam.distributions.laws import Floats
from cepam.keys import Address, Key
from cepam.privacy.composition.accountant import check_delta, epsilon
from cepam.privacy.matrix.mechanism import MatrixMechanism
from cepam.privacy.matrix.participation import worst_slice
from cepam.privacy.mechanisms.dominating_pairs import GaussianShift
from cepam.privacy.mechanisms.mechanism import Mechanism, SubsampledMechanism, check_count

THRESHOLDS = 1000
LEAST_TRIALS = 1000
SCORE_DIGITS = 9  # so that the rounding of this module's own sums does not pass for a leak of the mechanism


class AuditedMechanism(Protocol):
    """A callable that adds noise to many one-coordinate updates, each by itself.

    It may encode and decode, as `RoundTrip` does, or be the mechanism of another library.
    """

    def __call__(self, updates: Floats, client: int, round: int) -> Floats:
        """The decoded values of `updates`, in `client`'s noise; `round` is never used twice."""
        ...


@dataclass(frozen=True)
class Audit:
    """What an audit found: with the given confidence, epsilon at `delta` is at least `lower`.

    Args:
        claim: The epsilon that was claimed.
        lower: The statistical lower bound; it assumes only that trials are independent.
        by_curve: A sharper bound that assumes more: the least epsilon of any mechanism of the claimed kind that
            allows how often the likelier world was guessed right. Known for one event only: a round, or a correlated
            run without sampling.
        delta: delta of the guarantee.
        confidence: Of each bound, in (0, 1).
        trials: Trials in each of the two worlds.

    `refuted` means that the claim is wrong: it promised the whole curve.
    """

    claim: float
    lower: float
    by_curve: float | None
    delta: float
    confidence: float
    trials: int

    @property
    def refuted(self) -> bool:
        """Whether a lower bound exceeds the claim."""
        return max(self.lower, self.by_curve or 0.0) > self.claim


@dataclass(frozen=True)
class Rates:
    """Bounds on how often an event happens: at least `common` in one world, at most `rare` in the other."""

    common: float
    rare: float

    def epsilon(self, delta: float) -> float:
        """The epsilon below which (epsilon, delta) contradicts the rates."""
        return max(0.0, math.log((self.common - delta) / self.rare)) if self.common > delta else 0.0


def audit(
    attacked: AuditedMechanism,
    mechanism: Mechanism,
    delta: float,
    trials: int = 200_000,
    confidence: float = 0.99,
    client: int = 0,
    seed: int = 0,
    claim: float | None = None,
) -> Audit:
    """Attack a mechanism as run: a statistical lower bound on epsilon at delta, beside what the account claims.

    Args:
        attacked: makes what an adversary sees, such as `RoundTrip`, which really encodes and decodes.
        mechanism: what the run releases: clients, noise, clip, sampling, rounds, colluders. The claim is its own.
        delta: of the guarantee.
        trials: how many trials in each of the two worlds.
        confidence: of the lower bound, in (0, 1).
        client: the client that is attacked.
        seed: of the simulated draws.
        claim: epsilon that is claimed; None: what the accountant says.

    Returns:
        What was found: the lower bound, the claim, and whether it is refuted.

    Adjacency: the pair that is worst for both. Sampling, rounds, colluders: as recorded, simulated afresh
    in every trial. Trust: trusted server; the colluders' noise is taken out. Rests on: the definition of
    (epsilon, delta)-DP and Clopper and Pearson's bounds; nothing is assumed about the mechanism but that
    trials are independent.
    Guarantee: exceeds the true epsilon with probability at most 1 - confidence;
    tests/privacy/test_audit.py, with negative controls that must be refuted.

    Raises:
        ValueError: delta, the trials or the confidence are out of range.
    """
    check_delta(delta)
    check_count("trials", trials, LEAST_TRIALS)
    if not (0.5 <= confidence < 1.0):
        raise ValueError(f"confidence must lie in [0.5, 1), got {confidence!r}")
    claimed = epsilon(mechanism, delta, client) if claim is None else claim
    coin = np.random.default_rng(seed)
    score = _stream_scores if isinstance(mechanism, MatrixMechanism) else _scores
    present = score(attacked, mechanism, client, trials, coin, True)
    missing = score(attacked, mechanism, client, trials, coin, False)
    rates = _best_rates(present, missing, delta, confidence)
    by_curve = None
    if mechanism.events == 1:
        likelier = [int(np.count_nonzero(scores > 0.0)) for scores in (present, missing)]
        by_curve = _epsilon_by_curve(mechanism.charge(client), _rates(likelier, trials, confidence), delta)
    return Audit(claimed, rates.epsilon(delta), by_curve, delta, confidence, trials)


def _scores(
    attacked: AuditedMechanism, mechanism: Mechanism, client: int, trials: int, coin: np.random.Generator, present: bool
) -> Floats:
    """The score of each trial: the log-likelihood ratio of the claimed pair, summed over rounds."""
    charge, half = mechanism.charge(client), mechanism.distance(client) / 2
    hidden_by, total = mechanism.hidden_by(client), np.zeros(trials)
    for turn in range(mechanism.rounds):
        drawn = (coin.random(trials) < charge.sampling_rate) if present else np.zeros(trials, dtype=bool)
        number = 2 * turn + int(present)
        moved = attacked(np.where(drawn, half, -half), client, number)
        seen = mechanism.clients[client].weight * (moved + half)
        if mechanism.law_is_gaussian:
            for other in hidden_by[1:]:
                seen = seen + mechanism.clients[other].weight * attacked(np.zeros(trials), other, number)
        total += _loss(charge, seen / _unit(mechanism, client))
    return np.round(total, SCORE_DIGITS)


def _stream_scores(
    attacked: AuditedMechanism, mechanism: Mechanism, client: int, trials: int, coin: np.random.Generator, present: bool
) -> Floats:
    """The score of each trial, a whole run through senders and receivers: a record of the worst slice is there or not.

    The published sums Y are whitened by C: an event that moves the stream along d is seen as <CY, d>.
    """
    assert isinstance(mechanism, MatrixMechanism)
    if mechanism.observed_participation is not None or mechanism.participation is not None:
        raise ValueError("the audit runs fixed slices in which every message comes")
    link, rounds, hidden_by = mechanism.link, mechanism.rounds, mechanism.hidden_by(client)
    slices = 1 if mechanism.unit == "client" else link.slices
    taken = range(worst_slice(link, rounds, slices), rounds, slices)
    matrix, half, sampling_rate = link.matrix(rounds), mechanism.distance(client) / 2, mechanism.sampling_rate(client)
    ways = matrix[:, taken] if mechanism.amplified else matrix[:, taken].sum(axis=1, keepdims=True)
    seen = np.zeros((ways.shape[1], trials))
    ends = {j: (link.sender(trials), link.receiver(trials)) for j in hidden_by}
    for turn in range(rounds):
        total = np.zeros(trials)
        for j, (sender, receiver) in ends.items():
            drawn = (coin.random(trials) < sampling_rate) if present else np.zeros(trials, dtype=bool)
            update = np.where(drawn, half, -half) if j == client and turn in taken else np.zeros(trials)
            decoded = attacked(sender.next(update), j, 2 * turn + int(present))
            total += mechanism.clients[j].weight * receiver.take(decoded, turn)
        if turn in taken:
            total += mechanism.clients[client].weight * half
        seen += np.outer(ways.T @ matrix[:, turn], total)
    scores, unit = np.zeros(trials), mechanism.noise_against(client)
    for way, place in zip(ways.T, seen):
        length = float(np.linalg.norm(way))
        size = mechanism.clients[client].weight * mechanism.distance(client) * length / unit
        scores += _loss(
            SubsampledMechanism(GaussianShift(size), sampling_rate, mechanism.adjacency), place / (length * unit)
        )
    return np.round(scores, SCORE_DIGITS)


def _unit(mechanism: Mechanism, client: int) -> float:
    """The noise scale that the claimed pair is measured in."""
    return mechanism.noise_against(client) if mechanism.law_is_gaussian else mechanism.clients[client].noise


def _loss(charge: SubsampledMechanism, place: Floats) -> Floats:
    """log((1 - p) + p dP/dQ) at each place, Q centred on 0 and P on the shift."""
    size = charge.shift.size
    if math.isinf(charge.shift.largest_loss):
        before = size * (place - size / 2)
    else:
        before = np.abs(place) - np.abs(place - size)
    if charge.sampling_rate == 1.0:
        return before
    return np.logaddexp(math.log1p(-charge.sampling_rate), math.log(charge.sampling_rate) + before)


def _best_rates(present: Floats, missing: Floats, delta: float, confidence: float) -> Rates:
    """Bounds on the rates of the best event, which is chosen on the first half of the trials."""
    middle = len(present) // 2
    choice: tuple[float, float, bool] = (-1.0, 0.0, True)
    for above in (True, False):
        pick = _threshold(present[:middle], missing[:middle], delta, confidence, above)
        choice = max(choice, (*pick, above))
    _, threshold, above = choice
    common, rare = (present, missing) if above else (missing, present)
    side = 1.0 if above else -1.0
    hits = [int(np.count_nonzero(side * scores[middle:] > side * threshold)) for scores in (common, rare)]
    return _rates(hits, len(present) - middle, confidence)


def _rates(hits: Sequence[int], trials: int, confidence: float) -> Rates:
    """Bounds on the rates of one event, from its counts where it is common and where it is rare."""
    least, most = _clopper_pearson(np.array(hits), trials, confidence)
    return Rates(float(least[0]), float(most[1]))


def _threshold(present: Floats, missing: Floats, delta: float, confidence: float, above: bool) -> tuple[float, float]:
    """The best bound that thresholds on these scores give, and the threshold that gives it."""
    common, rare = (present, missing) if above else (-missing, -present)
    tail = np.geomspace(2.0 / len(rare), 0.9, THRESHOLDS)
    cuts = np.quantile(rare, 1.0 - tail)
    hits = [len(scores) - np.searchsorted(np.sort(scores), cuts, side="right") for scores in (common, rare)]
    least, _ = _clopper_pearson(hits[0], len(common), confidence)
    _, most = _clopper_pearson(hits[1], len(rare), confidence)
    with np.errstate(divide="ignore", invalid="ignore"):
        bounds = np.where(least > delta, np.log((least - delta) / most), -np.inf)
    best = int(np.argmax(bounds))
    return float(bounds[best]), float(cuts[best] if above else -cuts[best])


def _clopper_pearson(hits: np.ndarray, trials: int, confidence: float) -> tuple[Floats, Floats]:
    """One-sided bounds on a rate; an audit uses four of them, so each misses with a quarter of the rest."""
    miss = (1.0 - confidence) / 4
    least = np.where(hits > 0, special.betaincinv(np.maximum(hits, 1), trials - hits + 1, miss), 0.0)
    most = np.where(hits < trials, special.betaincinv(hits + 1, np.maximum(trials - hits, 1), 1.0 - miss), 1.0)
    return least, most


def _epsilon_by_curve(charge: SubsampledMechanism, rates: Rates, delta: float) -> float:
    """epsilon at delta of the least shift whose own curve allows the rates."""
    grid = np.linspace(0.0, max(1.0, 2.0 * rates.epsilon(0.0)), 200)

    def violation(log_size: float) -> float:
        scaled = replace(charge, shift=charge.shift.scaled(math.exp(log_size) / charge.shift.size))
        return float(max(rates.common - math.exp(e) * rates.rare - scaled.profile(e) for e in grid))

    low, high = math.log(charge.shift.size) - 12.0, math.log(charge.shift.size) + 6.0
    if violation(low) <= 0.0:
        return 0.0
    if violation(high) > 0.0:
        return math.inf
    place = float(optimize.brentq(violation, low, high, xtol=1e-6))
    return replace(charge, shift=charge.shift.scaled(math.exp(place) / charge.shift.size)).epsilon(delta)


AddressMaker = Callable[[int, int], Address]
STRIDE = 24  # a multiple of every built-in lattice's dimension: 1, 2, 3, 4 and 8


class RoundTrip:
    """A mechanism for audits that really encodes and decodes: one trial per `stride` coordinates.

    The first coordinate of a stretch carries a trial and the others are zero.

    Args:
        codecs: One codec per client.
        address: Makes the address of a message from a round and a client, a new one for every message.
        stride: Coordinates per trial: a multiple of the lattice's dimension, so that trials share no latent and no
            dither.
        longest: The most coordinates of one message.
    """

    def __init__(
        self, codecs: tuple[UpdateCodec, ...], address: AddressMaker, stride: int = STRIDE, longest: int = 1 << 20
    ) -> None:
        check_count("stride", stride)
        check_count("longest", longest)
        self.codecs, self.address, self.stride = codecs, address, stride
        self.trials_a_message = max(1, longest // stride)
        self.messages = 0

    @classmethod
    def of_mechanism(cls, mechanism: Mechanism, noise_factor: float = 1.0) -> RoundTrip:
        """Make it from the package's own codec for every client's law, under a fresh key.

        Args:
            mechanism: The run.
            noise_factor: Factor of the noise that is really added: 0.5 is a control that an audit must refute.

        Returns:
            What `audit` attacks.
        """
        noisy = mechanism.with_noise([client.law.scale * noise_factor for client in mechanism.clients])
        made = {client.law: Codec(client.law) for client in set(noisy.clients)}
        stride = math.lcm(*(codec.on.dimension for codec in made.values()))
        key = Key.generate()

        def address(round: int, client: int) -> Address:
            return Address(key, round=round, client=client)

        return cls(tuple(made[client.law] for client in noisy.clients), address, stride)

    def __call__(self, updates: Floats, client: int, round: int) -> Floats:
        """The decoded values of `updates`, in the client's noise."""
        made = []
        codec = self.codecs[client]
        for start in range(0, len(updates), self.trials_a_message):
            part = updates[start : start + self.trials_a_message]
            long = np.zeros(len(part) * self.stride)
            long[:: self.stride] = part
            at = self.address(self.messages, client)
            self.messages += 1
            decoded = codec.decode(codec.encode(long, at), at)
            made.append(np.asarray(decoded, dtype=np.float64)[:: self.stride])
        return np.concatenate(made)

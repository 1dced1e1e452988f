"""The slack of the mechanism's own arithmetic: finite words and tables, seen on the public grid, for each lattice.

The codec's noise is not exactly its law: the dither is a 64-bit word times an integer, the latent radius a float64 from
a 64-bit word. Seen on the public grid, the probability of an outcome z of a round is the exact one times at least
e^-eta (1 - rho(z)), and at most e^eta times it up to a total excess kappa, where rho, of mean kappa, is large only
where a word's last bit decides (the far tail of the radius). Then, over a run and at every epsilon,

    delta' <= e^eta delta(epsilon - 2 eta) + tail,
    tail = sum over rounds of kappa + min(e^epsilon kappa, 2 e^eta shown), shown = e^t kappa + delta of the round at t
    for any t, or, where Gaussian sums are told apart by one shift, about kappa and a word's miss times e^(9.2 mu):

`epsilon` grows by 2 eta and delta by the tail. That is the one rule, and `Accountant` applies it to every figure; the
proof is in docs/proofs/finite-precision.md. A tail over delta/100 is refused: no figure at all is given then.

The keystream is taken to be random; that it is only pseudorandom is a computational assumption, outside the slack.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from scipy import special

from cepam.distributions.laws import Gaussian, Laplace, Law
from cepam.kernels.format import search
from cepam.kernels.format.plan import GRID_BITS, LEAST_ACCEPTANCE, MOST_TRIALS, layered_plan
from cepam.lattices.lattice import A2, D4, E8, Integer, Lattice, Search
from cepam.privacy.mechanisms.mechanism import Mechanism

WORD_BITS = 64

TABLE = 2.0**-50
"""Relative error of the radius's table (tests/distributions/test_radius.py), and as much for the step between two words
where over 2^-14 of the radii lie beyond; what lies farther out is in `word_miss`. A radius wrong by 1 + t scales the
draw z of a sub-vector, which moves its log density by at most (n + |z|^2/sigma^2) t (Gaussian), (n + |z|_1/b) t
(Laplace)."""

FLUCTUATION = 64.0 * math.log(2.0)
"""Exponent of the probability, 2^-64, that the draws of a round, added up, exceed what is charged for them."""

RAREST = 2.0**-WORD_BITS
STEEPEST = math.exp(-0.5 * float(special.ndtri(RAREST)) ** 2) / (math.sqrt(2.0 * math.pi) * RAREST)
"""The hazard of a normal law where 2^-64 of it lies beyond: a miss of that probability or more, whatever it is of the
noise, grows by at most e^(STEEPEST h) when the noise moves by h standard deviations (Neyman and Pearson)."""

LARGEST_SHARE = 0.01
DEEPEST = 44.0  # 2^-64 is e^-44.4: deeper than that no word reaches
_HUGE = 700.0
BUILT_IN = (Integer(1), A2, D4, E8)

NOT_COVERED = (
    "the server and anyone who holds a key: given the shared randomness a vector is a function of the update",
    "raw diagnostics: loss, SNR, bits, the choice of the best checkpoint, all of which look at the data",
    "message lengths, which tell the update's norm to whoever sees the wire: pad them (`padding`)",
    "which coder a message has: a flag in clear, which tells on which side of -8.5 dB of the noise an update lies",
    "the time that encoding takes, which grows with the update's norm: reply at a fixed time",
    "hyper-parameters tuned on the same private data",
    "whether a node replies, and what its training code does apart from its update",
    "the rounding of sums that a client makes before its clip (many clipped examples, added up in float32)",
    "the assumption that the keystream is indistinguishable from random",
)


@dataclass(frozen=True)
class Slack:
    """What the mechanism's finite arithmetic adds over a run, to epsilon and (`at`) to delta.

    Args:
        epsilon: Twice the relative error of the arithmetic.
        missed: kappa, what the roundings of all noisy coordinates add to delta in each world.
        shown: What that can come to in one world alone.
        coordinates: Noisy coordinates of the run.
        exceeded: Probability that a cohort was over its cap with a given client in it.
        searched: Whether the arithmetic of the search coder is included.
    """

    epsilon: float
    missed: float
    shown: float
    coordinates: int
    exceeded: float = 0.0
    searched: bool = False

    def at(self, epsilon: float) -> float:
        """What to add to delta at epsilon.

        Args:
            epsilon: At which delta is asked.

        Returns:
            What is added to delta.
        """
        if self.epsilon > 2.0:
            return math.inf
        odds = math.exp(min(epsilon, _HUGE))
        return self.missed + min(odds * self.missed, self.shown) + (1.0 + odds) * self.exceeded

    def fits(self, delta: float) -> bool:
        """Whether delta covers it at any epsilon.

        Args:
            delta: delta of the guarantee.

        Returns:
            Whether the rounding leaves a finite bound at this delta.
        """
        return self.at(_HUGE) <= LARGEST_SHARE * delta

    def too_many(self, delta: float) -> bool:
        """Whether what the roundings miss is over delta/100 by itself, whatever a round shows.

        Args:
            delta: delta of the guarantee.

        Returns:
            Whether it is; then no finite bound is available at this delta.
        """
        return self.epsilon > 2.0 or self.missed > LARGEST_SHARE * delta

    def excess(self, epsilon: float, delta: float) -> tuple[str, str] | None:
        """Why no figure can be given at (epsilon, delta), and what to do; None where it can.

        Args:
            epsilon: The figure, before the rounding is added.
            delta: delta of the guarantee.

        Returns:
            The reason and the remedy, or None.
        """
        if self.at(epsilon) <= LARGEST_SHARE * delta:
            return None
        other = ', or coder "layered"' if self.searched else ""
        if (1.0 + math.exp(min(epsilon, 10.0))) * self.exceeded > 0.5 * LARGEST_SHARE * delta:
            reason = f"cohorts are over their cap with probability {self.exceeded:.2g}, which costs more than delta/100"
            return reason, "Raise the cap: the server's own noise makes up for it"
        if 3.0 * self.missed > LARGEST_SHARE * delta:
            reason = f"the roundings of {self.coordinates:.2g} noisy coordinates add up to more than delta/100"
            return reason, f"Choose a delta over {delta:.2g}, fewer rounds, fewer clients or a smaller model{other}"
        reason = "noise this small shows where the mechanism's 64-bit words end, by more than delta/100"
        return reason, "Add noise, or run fewer rounds, until epsilon is under 10"


@dataclass(frozen=True)
class Shown:
    """What one round shows of its worst node: the curves delta(t) of its replies, and where it is known the one shift.

    `shift` is mu where a round without the node is one Gaussian, and one with it a shift of at most mu away, or, with a
    probability of at most 1 - `stays`, drawn in secret: else None.
    """

    curves: Sequence[Callable[[float], float]] = ()
    shift: float | None = None
    stays: float = 1.0


@dataclass(frozen=True)
class SlackPart:
    """What one release adds to a run's slack: relative error, what is missed and shown, coordinates, cap."""

    eta: float = 0.0
    missed: float = 0.0
    shown: float = 0.0
    many: int = 0
    exceeded: float = 0.0
    searched: bool = False


def slack_part(mechanism: Mechanism, seen: Shown) -> SlackPart:
    """What one release, of which a round shows so much of its worst node, adds to the slack of its run."""
    exceeded = mechanism.rounds * mechanism.exceeded
    if mechanism.coordinates is None:
        return SlackPart(exceeded=exceeded)
    kinds, times = _sent(mechanism), mechanism.noisings
    many = times * sum(count for _, _, count in kinds)
    searched = _searched(mechanism)
    eta = relative_error(kinds) + sum(search_error(places) for places in searched)
    blurred = None if searched else blurred_error(kinds, mechanism.equal_shares)
    if blurred is not None:  # of the shares nothing is missed; the server's own draw is one vector
        eta += blurred
        kinds = tuple((law, lattice, mechanism.coordinates) for law, lattice, _ in kinds)
    kappa = _missed(kinds) + (0.0 if blurred is None else RAREST) + sum(search_miss(places) for places in searched)
    shown = 2.0 * min(_seen(kappa, seen.curves), _moved(kinds, kappa, seen, sum(searched)))
    return SlackPart(times * eta, times * kappa, times * shown, many, exceeded, bool(searched))


def slack_of(parts: Iterable[SlackPart]) -> Slack:
    """What finite arithmetic may add over releases, each given as its part.

    Rests on: the module's derivation, from the codec's word sizes. Guarantee: tests/privacy/test_slack.py enumerates
    scaled-down mechanisms on Z1, Z2, A2, D4 and E8, and checks the inequality on perturbed laws.
    """
    eta, missed, shown, many, exceeded, searched = 0.0, 0.0, 0.0, 0, 0.0, False
    for part in parts:
        eta += part.eta
        missed += part.missed
        shown += part.shown
        many += part.many
        exceeded += part.exceeded
        searched = searched or part.searched
    grown = math.exp(min(eta, 1.0))
    return Slack(2.0 * eta, grown * missed, grown * shown, many, exceeded, searched)


LARGE_SUM = 200
"""Shares of a sum from which on what one of them misses is blurred by the others."""
FARTHEST = 12.0
"""More than the longest latent radius that words reach, in scales: chi with 3 to 10 degrees, 2^-65 beyond it."""


@lru_cache(maxsize=256)
def blurred_error(kinds: Kinds, shares: int) -> float | None:
    """What the words of a large sum of equal Gaussian noises miss, as a relative error of the sum's law.

    None where the sum is not large, or this bound is not small. It holds but for a probability of 2^-64 in a round.
    Guarantee: docs/proofs/finite-precision.md, "Large sums"; tests/privacy/test_slack.py convolves such sums.
    """
    if shares < LARGE_SUM or not all(isinstance(law, Gaussian) for law, _, _ in kinds):
        return None
    total = 0.0
    for law, lattice, many in kinds:
        worst = 0.0
        for one in _lattices(law, lattice):
            n = one.dimension
            words = -(-many // n)
            reach = math.sqrt(float(special.chdtri(n, RAREST / words)))  # of a block of the sum, in its deviations
            growth = (16.0 / 15.0) ** (n / 2.0) * math.exp(16.0 / 15.0 * FARTHEST * reach / math.sqrt(shares))
            worst = max(worst, 1.01 * words * growth * word_miss(law, n))
        total += worst
    return total if total <= 0.01 else None


Kinds = tuple[tuple[Law, Lattice | None, int], ...]


def _sent(mechanism: Mechanism) -> Kinds:
    """How many coordinates one round sends of each law on each lattice."""
    if mechanism.coordinates is None:
        raise ValueError("coordinates (m, the length of an update) is needed to bound the mechanism's own slack")
    return tuple((law, lattice, times * mechanism.coordinates) for (law, lattice), times in mechanism.sent().items())


@lru_cache(maxsize=256)
def relative_error(kinds: Kinds) -> float:
    """eta of one round: by how much the logarithm of an outcome's probability may be off, except for what is missed."""
    total = 0.0
    for law, lattice, many in kinds:
        total += max(
            _table_error(law, many, one.dimension) + _dither_error(law, one, many) for one in _lattices(law, lattice)
        )
    return total


def _table_error(law: Law, many: int, n: int) -> float:
    """2 `many` and a fluctuation: what n + |z|^2/sigma^2, or n + |z|_1/b, add up to (Laurent and Massart 2000)."""
    wide = 2.0 if isinstance(law, Gaussian) else 1.0
    spread = math.sqrt(2.0 * wide * many * FLUCTUATION) + wide * FLUCTUATION
    comparison = (n + 2) * 2.0**-54 if n > 1 else 0.0
    return (2.0 * TABLE + comparison) * (2.0 * many + spread)


def _dither_error(law: Law, lattice: Lattice, many: int) -> float:
    """A public cell is an interval of 2^28 of the B h_i dithers, which words hit within one preimage of 2^64.

    So its probability is off by B h_i 2^-92, relative; twice, since a wrap of the box may cut it, and twice again,
    since the probability of acceptance is made of such cells. A cell that the edge of a layer cuts has the same
    absolute error and is met by a 2^-12th of the layers. B is 2 r + 1 on the line and r/rho + 2 elsewhere, and radii
    add up to their mean and a fluctuation (they are Gamma, or lighter).
    """
    plan, n = layered_plan(law, lattice), lattice.dimension
    blocks = -(-many // n)
    mean = _mean_radius(law, n)
    radii = blocks * mean + math.sqrt(2.0 * blocks * (n + 1) * FLUCTUATION) + FLUCTUATION
    sides = n if lattice.search is Search.GENERAL else int(lattice.box.sum())
    slope = 2.0 if n == 1 and lattice.search is Search.CUBIC else plan.inverse_ball
    return float(4.0 * sides * (slope * plan.scale * radii + 2.0 * blocks) * 2.0 ** -(WORD_BITS + GRID_BITS))


def _mean_radius(law: Law, n: int) -> float:
    """The mean latent radius, in scales: chi with n + 2 degrees, or Gamma(n + 1)."""
    if isinstance(law, Gaussian):
        return math.sqrt(2.0) * math.exp(math.lgamma((n + 3) / 2) - math.lgamma((n + 2) / 2))
    return n + 1.0


def word_miss(law: Law, n: int) -> float:
    """kappa of one sub-vector: the first and the last word of the radius, the steps between words in its tail, Laplace
    radii on the line under 2^-30 scales, which are raised to that (2^-61), and an encoder that gives up (2^-94).

    A step of a word moves a ball's density by n dr/r, and radii of the last 2^-16 span less than a factor e.
    """
    if not isinstance(law, (Gaussian, Laplace)):
        raise ValueError(f"what rounding adds to epsilon is not known for the law {law!r}")
    raised = 2.0**-61 if n == 1 and not isinstance(law, Gaussian) else 0.0
    gives_up = math.exp(MOST_TRIALS * math.log1p(-LEAST_ACCEPTANCE))
    return (2.0 + n) * 2.0**-WORD_BITS + raised + gives_up


def _missed(kinds: Kinds) -> float:
    """kappa of one round: what its words miss, and two fluctuations."""
    return 2.0**-63 + sum(
        max(-(-many // one.dimension) * word_miss(law, one.dimension) for one in _lattices(law, lattice))
        for law, lattice, many in kinds
    )


def _searched(mechanism: Mechanism) -> list[int]:
    """How many coordinates of a round may be searched, those that fill up blocks too; for each law."""
    if mechanism.coordinates is None:
        return []
    sizes = mechanism.coordinates, -(-mechanism.coordinates // search.SEGMENT) << search.LARGEST
    places = mechanism.coordinates + min(2 * sizes[0], sizes[1])
    return [times * places for times in mechanism.searched().values()]


_LEAST_ANSWER = 0.09
"""E min(q, c) at the largest |x|^2 that is searched: at least that of one ratio alone (docs/proofs/search-coder.md)."""
_RACES = 2.0**-41
"""Two races, whose times are right to 2^-50 a step: e^(2 (4 + 64) 2^-50) each, and a rounding of every ratio."""


def score_roundings(stages: int) -> int:
    """Roundings of a score, each by 2^-53 |x| |g|: three transforms and a product, x and g, and less |x|^2 / 2."""
    return (3 * stages + 1) + 4 + 1


@lru_cache(maxsize=256)
def search_error(places: int) -> float:
    """What the search coder adds to eta: for each level that is searched, g twice, the scores twice, and the races.

    g is drawn as the layered quantizer's error at zero. Its table errors are taken at |y|^2 <= 2 |y - x|^2 + 2 |x|^2.
    Guarantee: docs/proofs/search-coder.md, "Finite words".
    """
    each, law = 0.0, Gaussian(math.nextafter(2.0, 1.0))  # the largest scale over its unit
    for i in range(search.SMALLEST, search.LARGEST + 1):
        size, norm = 1 << i, math.sqrt(float(search.HOTTEST[i]))
        product = score_roundings(i) * 2.0**-53 * norm * (math.sqrt(size) + norm + 10.0)
        scores = product + 2.0**-44 + (i + 3) * 2.0**-53
        constant = (1.0 + 2.0 * search.CAP * search.SEARCHED_LEVELS) * size * word_miss(law, 1) / _LEAST_ANSWER
        each = max(each, (2.0 * scores + _RACES + constant) / size)
    tables = 2.0 * _table_error(law, places, 1) + 4.0 * search.LOUDEST * places * TABLE
    g = tables + _dither_error(law, BUILT_IN[0], places)
    return search.SEARCHED_LEVELS * (2.0 * g + places * each)


def search_miss(places: int) -> float:
    """What the search coder adds to kappa: of each level c times what its vectors' words miss, and 2^-68 a part.

    Guarantee: docs/proofs/search-coder.md, "Finite words".
    """
    parts = search.SEARCHED_LEVELS * -(-places >> search.SMALLEST)
    return search.SEARCHED_LEVELS * search.CAP * places * word_miss(Gaussian(1.0), 1) + parts * 2.0**-68


def _moved(kinds: Kinds, kappa: float, seen: Shown, places: int = 0) -> float:
    """The same where the noises of a round add up to one Gaussian: what is missed of noises that moved by mu in all.

    Of the search coder, which may take so many places, a block is one sub-vector.

    Guarantee: docs/proofs/finite-precision.md, "Sums"; docs/proofs/search-coder.md;
    tests/privacy/test_slack.py integrates it.
    """
    if seen.shift is None or STEEPEST * seen.shift > DEEPEST:
        return 1.0
    laws = [(law, one.dimension, many) for law, lattice, many in kinds for one in _lattices(law, lattice)]
    each = max(word_miss(law, n) for law, n, _ in laws)
    words = sum(max(-(-many // one.dimension) for one in _lattices(law, lattice)) for law, lattice, many in kinds)
    together = each * math.sqrt(words)
    if places:  # misses add up to kappa, and none is larger than a block's: so much their squares add up to
        each = word_miss(Gaussian(1.0), 1) * (1 << search.LARGEST) + search_miss(1 << search.LARGEST)
        together = math.sqrt(each * kappa)
    steep = STEEPEST * seen.shift
    grown = math.expm1(steep)
    moved = kappa + steep * together + each * (grown - steep) + 3.0 * RAREST * grown
    return min(1.0, max(moved, kappa / seen.stays))


def _seen(kappa: float, curves: Sequence[Callable[[float], float]]) -> float:
    """The probability that what is missed shows: min over t of e^t kappa + the round's delta(t), within a factor of
    two."""
    low, high = 0.0, DEEPEST / max(1, len(curves))
    for _ in range(24):
        at = 0.5 * (low + high)
        over = math.exp(len(curves) * at) * kappa < sum(curve(at) for curve in curves)
        low, high = (at, high) if over else (low, at)
    return min(1.0, math.exp(len(curves) * high) * kappa + sum(curve(high) for curve in curves))


def _lattices(law: Law, lattice: Lattice | None) -> tuple[Lattice, ...]:
    """The lattice that was used, or all that may have been."""
    if lattice is not None:
        return (lattice,)
    return tuple(one for one in BUILT_IN if one.acceptance(law.norm) >= LEAST_ACCEPTANCE)

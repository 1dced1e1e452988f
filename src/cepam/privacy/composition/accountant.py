"""The privacy accountant: all mechanisms of a run, and what they cost together."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import zip_longest
from typing import Any

import numpy as np

from cepam.distributions.laws import Floats
from cepam.privacy.cohorts.cohort import CohortMechanism, epsilon_seen
from cepam.privacy.composition.losses import (
    COARSE,
    FINE,
    ORDERS,
    ROUGH,
    Charges,
    delta_by,
    delta_of,
    epsilon_by,
    epsilon_of,
    gathered,
    merged_gaussians,
    uncovered,
    worst,
    worst_delta,
    worst_epsilon,
)
from cepam.privacy.matrix.mechanism import MatrixMechanism
from cepam.privacy.mechanisms.laplace import ZeroConcentrated, zcdp_of
from cepam.privacy.mechanisms.local import EVERYONE, LocalMechanism
from cepam.privacy.mechanisms.mechanism import Mechanism, SubsampledMechanism, check_count
from cepam.privacy.mechanisms.serialization import WrittenMechanisms, read_mechanisms, written_mechanisms
from cepam.privacy.numerics.slack import Shown, Slack, SlackPart, slack_of, slack_part

TRIES = 8


@dataclass(frozen=True)
class PrivacyProfile:
    """The curves of one or several histories: the worst of them counts, or a bound on all, if less.

    Such bounds are `limited`, and the Rényi divergences `renyi`.
    """

    histories: Sequence[Charges] = ()
    concentrated: Sequence[ZeroConcentrated] = ()
    limited: Charges = ()
    renyi: Floats | None = None
    cells: int = FINE

    def epsilon(self, delta: float) -> float:
        """epsilon at delta."""
        worst = worst_epsilon(self.histories, delta, self.cells)
        worst = max([worst, *(total.epsilon(delta) for total in self.concentrated)])
        worst = min(worst, epsilon_of(self.limited, delta)) if self.limited else worst
        return worst if self.renyi is None else min(worst, epsilon_by(self.renyi, delta))

    def delta(self, epsilon: float) -> float:
        """delta at epsilon."""
        worst = worst_delta(self.histories, epsilon, self.cells)
        worst = max([worst, *(total.delta(epsilon) for total in self.concentrated)])
        worst = min(worst, delta_of(self.limited, epsilon)) if self.limited else worst
        return worst if self.renyi is None else min(worst, delta_by(self.renyi, epsilon))

    def guess(self, delta: float) -> float:
        """About epsilon at delta, found in less time: that of the history whose losses are widest."""
        if not self.histories:
            return self.epsilon(delta)
        widest = max(
            self.histories, key=lambda charges: sum(r * (c.sampling_rate * c.shift.spread) ** 2 for c, r in charges)
        )
        return replace(self, histories=(widest,), cells=ROUGH).epsilon(delta)


def charged(
    curve: Callable[[float], float], slack: Slack | None, delta: float, guess: Callable[[float], float] | None = None
) -> float:
    """epsilon at delta of a mechanism whose exact curve is given, with its slack; infinite where that is too much.

    `guess` is a curve near the exact one that takes less time: where it is far off, the exact one is asked again.
    """
    if delta == 0.0 or slack is None:
        return curve(delta)
    found, extra = (guess or curve)(delta), 0.0
    for _ in range(TRIES):
        if slack.excess(found, delta) is not None:
            break
        if slack.at(found) <= extra:
            return found
        extra = 1.25 * slack.at(found)
        found = curve((delta - extra) * math.exp(-slack.epsilon / 2.0)) + slack.epsilon
    return math.inf if guess is None else charged(curve, slack, delta)


Seats = tuple[tuple[int, int], ...]

MARKS = 16
SEES_PARTICIPATION = "an adversary who sees participation"


def check_delta(delta: float) -> None:
    """Raise ValueError when delta does not lie in [0, 1)."""
    if not (0.0 <= delta < 1.0):
        raise ValueError(f"delta must lie in [0, 1), got {delta!r}")


@dataclass(frozen=True)
class Accountant:
    """Everything that a run has released so far, of which epsilon is asked.

    Add mechanisms in any order; adjacency, unit and kind of noise must be the same in all of them. A record is
    followed from mechanism to mechanism by its client's place, or by `Mechanism.nodes`.

    Args:
        mechanisms: What was released. Start with none, and `add`.
        identified: Whether a node keeps its name. Where it may come back under another one, every round is charged
            as its worst client paid it.
        configuration: The `fingerprint` of the settings; a saved state with another one is refused.

    Raises:
        ValueError: The mechanisms disagree on adjacency, unit, law or clients.

    Guarantee: epsilon is never below the truth under the adjacency, sampling and trust of the mechanisms
    (tests/privacy/test_accountant.py). Rests on: adaptive composition.
    """

    mechanisms: tuple[Mechanism, ...] = ()
    identified: bool = True
    configuration: str = ""

    def __post_init__(self) -> None:
        if len({(r.adjacency, r.unit, r.l2_clipped_laplace) for r in self.mechanisms}) > 1:
            raise ValueError("the releases of one run must agree on the adjacency, the unit and the kind of law")
        places = {None if r.nodes is not None else len(r.clients) for r in self.mechanisms}
        if self.identified and len(places) > 1:
            raise ValueError("the releases of one run must agree on the clients, or name the nodes of each")

    @property
    def rounds(self) -> int:
        """How many rounds have been released."""
        return sum(mechanism.rounds for mechanism in self.mechanisms)

    @property
    def alike(self) -> bool:
        """Whether all rounds so far cost the same, so that what more of them will cost is known."""
        return not self.mechanisms or (len(self.mechanisms) == 1 and self.mechanisms[0].foreseeable)

    def add(self, mechanism: Mechanism) -> Accountant:
        """The accountant with one more mechanism.

        Rounds that differ in nothing but who took part are counted for each node, not listed, so that a long run stays
        as small as a short one; a stream is listed once.

        Args:
            mechanism: What was released next.

        Returns:
            A new accountant; this one does not change.
        """
        made = None
        for place, known in enumerate(self.mechanisms):
            longer = known.followed_by(mechanism)
            if longer is not None:
                made = replace(self, mechanisms=(*self.mechanisms[:place], longer, *self.mechanisms[place + 1 :]))
                break
        else:
            place = len(self.mechanisms)
        made = made or replace(self, mechanisms=(*self.mechanisms, mechanism))
        if "_written" in vars(self):
            vars(made)["_written"] = self._written.with_at(place, made.mechanisms[place])
        if not isinstance(mechanism, MatrixMechanism):  # a stream is charged as a whole
            if "_paid" in vars(self):
                vars(made)["_paid"] = _paid_with(self._paid, mechanism)
            if "_worst_paid" in vars(self):
                vars(made)["_worst_paid"] = _worst_with(self._worst_paid, mechanism)
            if "_unnamed" in vars(self):
                vars(made)["_unnamed"] = _unnamed_with(self._unnamed, mechanism)
        return made

    def against(self, colluders: int) -> Accountant:
        """The same rounds, seen by so many colluding clients (or by all others, where there are fewer).

        Args:
            colluders: How many other clients pool what they know.

        Returns:
            A new accountant, whose figures hold against them.
        """
        check_count("colluders", colluders, 0)
        seen = (replace(r, colluders=min(colluders, r.enrolled - 1)) for r in self.mechanisms)
        return replace(self, mechanisms=tuple(seen))

    def charges(self, client: int) -> Charges:
        """Everything that has been charged to one client's (or node's) records: each of its replies by itself.

        Args:
            client: Its place, or its node where `Mechanism.nodes` names them.

        Returns:
            Pairs of a mechanism of one round and the number of rounds.
        """
        return self._charged([(r, r.taken().get(client, ())) for r in self.mechanisms])

    def envelope(self) -> Charges:
        """Charges that are at least those of every client: each round as its worst client paid it.

        Returns:
            Pairs of a mechanism of one round and the number of rounds.
        """
        return gathered((charge, r.events) for r in self.mechanisms for charge in _worst_of(r))

    def epsilon(self, delta: float, client: int | None = None, cells: int = FINE) -> float:
        """epsilon of everything released so far at delta, for one client or a bound for all.

        Infinite where the mechanism's own rounding may add over delta/100: no figure can be given (`Slack.excess`).
        Adjacency, sampling, colluders: as recorded. Trust: trusted server. Rests on: as `cepam.privacy.epsilon`.
        Guarantee: for all clients the largest of their own figures, however many and unlike they are
        (tests/privacy/test_unlike_sites.py). Where nodes have no stable names: the worst client's own figure if one
        client has both the largest chance and the largest shift of every round; else the smaller of the envelope and,
        for Gaussian noise, a Rényi bound. The rounding is charged at every delta > 0
        (tests/privacy/test_accountant.py).

        Args:
            delta: delta of the guarantee, in [0, 1).
            client: The place of one client; by default the worst of all.
            cells: Resolution of the numerical composition; fewer cells are faster and give a larger bound.

        Returns:
            epsilon, infinite where no finite bound is available.

        Raises:
            ValueError: delta is out of range.
        """
        check_delta(delta)
        slack = self.slack(delta)
        if delta > 0.0 and slack is not None and slack.excess(0.0, delta) is not None:
            return math.inf  # whatever the rounds cost: what rounding adds only grows with epsilon
        costs = self._costs(client, cells)
        return charged(costs.epsilon, slack, delta, costs.guess)

    def delta(self, epsilon: float, client: int | None = None) -> float:
        """delta of everything released so far at epsilon, for one client or a bound for all.

        Adjacency, sampling, colluders, rounding: as `Accountant.epsilon`.

        Args:
            epsilon: epsilon of the guarantee, finite and not negative.
            client: The place of one client; by default the worst of all.

        Returns:
            delta, at most 1.

        Raises:
            ValueError: epsilon is negative or not finite.
        """
        if not (0.0 <= epsilon < math.inf):
            raise ValueError(f"epsilon must be finite and not negative, got {epsilon!r}")
        costs, slack = self._costs(client, FINE), self.slack()
        if slack is None:
            return costs.delta(epsilon)
        before = max(0.0, epsilon - slack.epsilon)
        beyond = -math.expm1(epsilon - slack.epsilon) if epsilon < slack.epsilon else 0.0
        return min(1.0, math.exp(slack.epsilon / 2.0) * (costs.delta(before) + beyond) + slack.at(epsilon))

    def slack(self, delta: float | None = None) -> Slack | None:
        """What the mechanism's own rounding may add over all rounds so far.

        Where a release does not say its `coordinates` figures are those of the ideal law: None, or what cohorts over
        their cap add.

        Args:
            delta: delta of the guarantee. Where it is too small for the roundings whatever a round shows, the result
                leaves out what a round shows.

        Returns:
            What is added to epsilon and to delta; None while nothing was released.
        """
        plain = any(mechanism.coordinates is None for mechanism in self.mechanisms)
        if not self.mechanisms or (plain and not any(mechanism.exceeded for mechanism in self.mechanisms)):
            return None
        if plain:
            return slack_of(SlackPart(exceeded=r.rounds * r.exceeded) for r in self.mechanisms)
        if delta and any("_slack_part" not in vars(mechanism) for mechanism in self.mechanisms):
            least = least_slack(self.mechanisms)
            if least.too_many(delta):
                return least
        return slack_of(_slack_part(r) for r in self.mechanisms)

    def observers(self, delta: float, rough: bool = False) -> dict[str, float]:
        """epsilon against an outsider, one curious client, and all clients but one together; local steps: `EVERYONE`.

        Where clients are drawn in secret: also against an adversary who sees participation, whom draws do not stop.

        Args:
            delta: At which epsilon is given.
            rough: Whether a bound that is found ten times as fast will do, for a chart of many rounds.

        Returns:
            epsilon by observer, infinite where no finite bound is available.
        """
        usual = ROUGH if rough else FINE
        if self.mechanisms and all(isinstance(mechanism, LocalMechanism) for mechanism in self.mechanisms):
            return dict.fromkeys(EVERYONE, _remembered(self, delta, usual))
        most = max((mechanism.enrolled for mechanism in self.mechanisms), default=1) - 1
        views = {"outsider": 0, "one curious client": min(1, most), f"{most} colluders": most}
        drawn = any(isinstance(mechanism, CohortMechanism) for mechanism in self.mechanisms)
        cells = {most: ROUGH} if drawn and most > 1 else {}  # thousands: a rough bound is as good
        found = {w: _remembered(self.against(count), delta, cells.get(count, usual)) for w, count in views.items()}
        return found | {SEES_PARTICIPATION: self.sees_uploads(delta)} if drawn else found

    def sees_uploads(self, delta: float) -> float:
        """epsilon against an adversary who sees participation; infinite unless all rounds had cohorts.

        Args:
            delta: delta of the guarantee.

        Returns:
            epsilon.
        """
        cohorts = [mechanism for mechanism in self.mechanisms if isinstance(mechanism, CohortMechanism)]
        if len(cohorts) < len(self.mechanisms) or delta == 0.0:
            return math.inf
        # `shown` counts on secret draws; and given who uploads, a cap hides or shows nothing more.
        slack = self.slack()
        bare = None if slack is None else replace(slack, shown=math.inf, exceeded=0.0)
        return charged(partial(epsilon_seen, cohorts), bare, delta)

    def running(self, delta: float, rounds: int) -> float | None:
        """epsilon so far in a run of `rounds` rounds, with the work of at most `MARKS` figures in the whole run.

        While all rounds are alike: a bound, exact at every `MARKS`-th of the run, and in between what the next mark
        will cost. Where rounds differ: exact at the marks, None in between. The last is `epsilon` itself, so that a
        run that was calibrated ends at most at its target.

        Args:
            delta: delta of the guarantee.
            rounds: The rounds of the whole run.

        Returns:
            epsilon, or None between marks where rounds differ.
        """
        apart, accountant = -(-rounds // MARKS), self
        if self.mechanisms and self.alike:
            mark = max(self.rounds, min(rounds, -(-self.rounds // apart) * apart))
            accountant = replace(self, mechanisms=(self.mechanisms[0].over(mark),))
        if accountant.rounds < rounds and accountant.rounds % apart:
            return None
        return _remembered(accountant, delta, FINE if accountant.rounds >= rounds else COARSE)

    def foresee(self, mechanism: Mechanism, delta: float, rounds: int) -> None:
        """Compute now, and keep, what `running` and `observers` will ask of so many rounds of `mechanism`.

        Args:
            mechanism: One that every round of the run will have.
            delta: delta of the guarantee.
            rounds: The rounds of the whole run.
        """
        apart = -(-rounds // MARKS)
        for mark in range(apart, rounds + apart, apart):
            self.add(mechanism.over(min(mark, rounds))).running(delta, rounds)
        self.add(mechanism.over(rounds)).observers(delta)

    def state_dict(self) -> dict[str, Any]:
        """The accountant as plain values, for JSON: every mechanism in full, and the fingerprint of the
        configuration.

        Returns:
            Numbers, strings, lists and dictionaries.
        """
        return {
            "configuration": self.configuration, "identified": self.identified, **self._written.plain(),
        }  # fmt: skip

    def state_text(self) -> str:
        """`json.dumps(accountant.state_dict())`; a longer run writes its new releases alone.

        Returns:
            JSON.
        """
        head = json.dumps({"configuration": self.configuration, "identified": self.identified})
        return f"{head[:-1]}, {self._written.text()}}}"

    def load_state_dict(self, state: Mapping[str, Any]) -> Accountant:
        """Read an accountant that `state_dict` wrote.

        Args:
            state: What `state_dict` gave.

        Returns:
            A new accountant with what was saved; this one does not change.

        Raises:
            ValueError: The state is damaged, or of another configuration than this accountant's.
        """
        for name, ours in (("configuration", self.configuration), ("identified", self.identified)):
            if state.get(name) != ours:
                raise ValueError(f"the saved accountant is of another run: {name} {state.get(name)!r}, ours {ours!r}")
        return replace(self, mechanisms=read_mechanisms(state))

    def _costs(self, client: int | None, cells: int) -> PrivacyProfile:
        """The curve of one client, or one that bounds those of all."""
        if self.mechanisms and self.mechanisms[0].l2_clipped_laplace:
            totals = [self._concentrated(client)] if client is not None else self._all_concentrated()
            return PrivacyProfile(concentrated=totals)
        histories = [self.charges(client)] if client is not None else self._histories()
        renyi = self._renyi() if client is None and not self.identified and self.rounds > 1 else None
        return PrivacyProfile(histories, limited=self._limited(), renyi=renyi, cells=cells)

    def _renyi(self) -> Floats | None:
        """A bound on nodes without stable names; None where the envelope is some client's own, or no formula is known.

        Every order takes each round's worst client, so that no client's chance is paired with another's shift.
        """
        paired, total = self._unnamed
        return total if paired else None

    @cached_property
    def _unnamed(self) -> tuple[bool, Floats | None]:
        """Whether some round's envelope is no client's own, and the divergences of all rounds; `add` carries it on."""
        found: tuple[bool, Floats | None] = (False, np.zeros_like(ORDERS))
        for mechanism in self.mechanisms:
            found = _unnamed_with(found, mechanism)
        return found

    @cached_property
    def _written(self) -> WrittenMechanisms:
        """All releases as plain values; `add` carries it on."""
        return written_mechanisms(self.mechanisms)

    def _limited(self) -> Charges:
        """What every client pays at most without any secret, where participations are limited; else nothing."""
        made = [mechanism.limited(0) for mechanism in self.mechanisms]
        known = [one for one in made if one is not None]
        if not known or len(known) < len(made) or len({times for _, times in known}) > 1:
            return ()
        return ((max((charge for charge, _ in known), key=lambda charge: charge.shift.size), known[0][1]),)

    def _histories(self) -> list[Charges]:
        """The histories of clients that no other's covers; where nodes have no stable names, one that covers all."""
        if not self.identified and self.rounds > 1:
            return [self._worst_paid]
        return uncovered(self._paid.values())

    @cached_property
    def _worst_paid(self) -> Charges:
        """The `envelope`, unsampled Gaussian rounds folded into one; `add` carries it on."""
        return merged_gaussians(self.envelope())

    @cached_property
    def _paid(self) -> Mapping[int, Charges]:
        """What each node has paid, unsampled Gaussian rounds folded into one; `add` carries it on."""
        found: Mapping[int, Charges] = {}
        for mechanism in self.mechanisms:
            found = _paid_with(found, mechanism)
        return found

    @staticmethod
    def _charged(path: Sequence[tuple[Mechanism, Seats]]) -> Charges:
        """The charges of a node that took these places of each release."""
        made = ((r.round_charges, seats) for r, seats in path if seats)
        return gathered((charge, times) for known, seats in made for seat, times in seats for charge in known[seat])

    def _concentrated(self, node: int) -> ZeroConcentrated:
        made = ((r, r.node(seat), times) for r in self.mechanisms for seat, times in r.taken().get(node, ()))
        return zcdp_of((r.over(times), r.sent_by_node()[sender]) for r, sender, times in made)

    def _all_concentrated(self) -> list[ZeroConcentrated]:
        if self.identified or self.rounds == 1:
            everyone = {node for mechanism in self.mechanisms for node in mechanism.taken()}
            return sorted({self._concentrated(node) for node in everyone}, key=repr)
        return self._worst_concentrated()

    def _worst_concentrated(self) -> list[ZeroConcentrated]:
        each = [[zcdp_of([(r, sent)]) for sent in r.sent_by_node().values()] for r in self.mechanisms]
        rho = sum(max((cost.rho for cost in costs), default=0.0) for costs in each)
        return [ZeroConcentrated(rho, sum(max((cost.pure for cost in costs), default=0.0) for costs in each))]


def _paid_with(paid: Mapping[int, Charges], mechanism: Mechanism) -> Mapping[int, Charges]:
    """What each node has paid, and what it pays for one more release."""
    known, found = mechanism.round_charges, dict(paid)
    for node, seats in mechanism.taken().items():
        new = ((charge, times) for seat, times in seats for charge in known[seat])
        found[node] = merged_gaussians(gathered((*found.get(node, ()), *new)))
    return found


def _worst_with(paid: Charges, mechanism: Mechanism) -> Charges:
    """What rounds cost their worst clients, and what one more release costs its own."""
    new = ((charge, mechanism.events) for charge in _worst_of(mechanism))
    return merged_gaussians(gathered((*paid, *new)))


def _worst(known: Iterable[tuple[SubsampledMechanism, ...]]) -> list[SubsampledMechanism]:
    """One charge for each reply that a node may have sent, at least as large as anyone's."""
    ranked = [sorted(charges, key=lambda charge: -charge.shift.size) for charges in known]
    worst = []
    for column in zip_longest(*ranked):
        made = [charge for charge in column if charge is not None]
        largest = max((charge.shift for charge in made), key=lambda shift: shift.size)
        worst.append(SubsampledMechanism(largest, max(charge.sampling_rate for charge in made), made[0].adjacency))
    return worst


def _unnamed_with(found: tuple[bool, Floats | None], mechanism: Mechanism) -> tuple[bool, Floats | None]:
    """What `Accountant._unnamed` comes to with one more release."""
    rows, envelope = set(mechanism.round_charges.values()), tuple(_worst_of(mechanism))
    own = envelope in rows
    round_total, total = worst([envelope] if own else rows), found[1]
    known = None if round_total is None or total is None else total + mechanism.events * round_total
    return found[0] or not own, known


def _worst_of(mechanism: Mechanism) -> list[SubsampledMechanism]:
    """`_worst` of one round of a release, found once for each object."""
    known = vars(mechanism)
    if "_worst_of" not in known:
        known["_worst_of"] = _worst(set(mechanism.round_charges.values()))
    found: list[SubsampledMechanism] = known["_worst_of"]
    return found


def least_slack(mechanisms: Iterable[Mechanism]) -> Slack:
    """The slack of releases whatever their rounds show: quickly found, and no different for other noise scales."""
    return slack_of(slack_part(mechanism, Shown()) for mechanism in mechanisms)


def _slack_part(mechanism: Mechanism) -> SlackPart:
    """`slack_part` of a release, found once for each object."""
    known = vars(mechanism)
    if "_slack_part" not in known:
        known["_slack_part"] = slack_part(mechanism, _shown_by(mechanism.once()))
    found: SlackPart = known["_slack_part"]
    return found


@lru_cache(maxsize=256)
def _shown_by(mechanism: Mechanism) -> Shown:
    """What one round alone shows of each reply of the node that it costs most."""
    if mechanism.l2_clipped_laplace:
        return Shown(tuple(cost.delta for cost in Accountant((mechanism,), identified=False)._worst_concentrated()))
    if (
        isinstance(mechanism, CohortMechanism) and mechanism.remembers
    ):  # later rounds tell of this one's draw: e^epsilon
        return Shown((lambda at: 1.0,))
    worst, share = _worst(set(mechanism.round_charges.values())), mechanism.largest_round
    curves = tuple(replace(charge, shift=charge.shift.scaled(share)).profile for charge in worst)
    if len(worst) != 1 or not _shifted_once(mechanism):
        return Shown(curves)
    (charge,) = worst
    return Shown(curves, charge.shift.size, 1.0 if charge.sampling_rate == 1.0 else 1.0 - charge.sampling_rate)


def _shifted_once(mechanism: Mechanism) -> bool:
    """Whether a round is one Gaussian in one world, and in the other the same or, if drawn, one that is shifted."""
    if isinstance(mechanism, CohortMechanism):
        return mechanism.cohort.rate == 1.0 or (
            mechanism.cohort.kind == "poisson" and mechanism.adjacency == "add-remove"
        )
    if type(mechanism) is not Mechanism or not mechanism.law_is_gaussian:
        return False
    return mechanism.sampling.kind == "all" or (mechanism.clipped == "example" and mechanism.adjacency == "add-remove")


@lru_cache(maxsize=256)
def _remembered(accountant: Accountant, delta: float, cells: int) -> float:
    return accountant.epsilon(delta, cells=cells)


# Epsilon and delta of a mechanism: pure functions over the accountant.
#
# Every figure is for one record of one client, against whoever sees all published models and plays `colluders` of the
# other clients. The server and any key holder are outside: against them there is no guarantee.


def epsilon(mechanism: Mechanism, delta: float, client: int | None = None) -> float:
    """epsilon of the whole release at delta, for one client or for the worst.

    Args:
        mechanism: what the run releases: clients, noise, clip, sampling, rounds, colluders.
        delta: of the guarantee; 0 asks for pure differential privacy.
        client: the place of one client; None: the worst.

    Returns:
        epsilon; infinite where no finite bound is available.

    Raises:
        ValueError: delta does not lie in [0, 1).

    Adjacency, sampling, colluders: as recorded. Trust: trusted server; outsiders and other clients are not.
    Rests on: Gaussian and l1-clipped Laplace, one round: closed form (Balle, Barthe and Gaboardi 2018,
    Theorem 2); many rounds: the dominating pair of `SubsampledMechanism`, composed (Zhu, Dong and Wang 2022, Theorem
    10); l2-clipped Laplace: zCDP. Not the paper's theorems: those are in `cepam_paper.theorems`.
    Guarantee: never below the truth, above it by at most 1e-4 relative; tests/privacy/test_account.py.
    """
    return Accountant((mechanism,)).epsilon(delta, client)


def delta(mechanism: Mechanism, epsilon: float, client: int | None = None) -> float:
    """delta of the whole release at epsilon, for one client or for the worst.

    Args:
        mechanism: what the run releases: clients, noise, clip, sampling, rounds, colluders.
        epsilon: of the guarantee, finite and not negative.
        client: the place of one client; None: the worst.

    Returns:
        delta, at most 1.

    Raises:
        ValueError: epsilon is negative or not finite.

    Adjacency, sampling, colluders: as recorded. Trust: trusted server. Rests on: as `epsilon`.
    """
    return Accountant((mechanism,)).delta(epsilon, client)


def epsilon_by_round(mechanism: Mechanism, delta: float, rounds: Sequence[int]) -> tuple[float, ...]:
    """epsilon after each of the given numbers of rounds, at one delta: a schedule to print while training.

    Args:
        mechanism: what the run releases: clients, noise, clip, sampling, rounds, colluders.
        delta: of the guarantee.
        rounds: the numbers of rounds.

    Returns:
        epsilon after each of them.

    Adjacency, sampling, colluders: as recorded. Trust: trusted server. Rests on: as `epsilon`.
    """
    return tuple(spent(mechanism, delta, many) for many in rounds)


def slack(run: Mechanism | Accountant, delta: float | None = None) -> Slack:
    """What finite arithmetic may add to epsilon and to delta over the whole run: every figure has it in already.

    Adjacency, sampling, trust: as recorded. Rests on: `cepam.privacy.numerics.slack`.

    Args:
        run: A mechanism, or what was released.
        delta: Of the guarantee, where the answer may stop once it is known not to cover the roundings.

    Returns:
        What is added to epsilon and to delta.

    Raises:
        ValueError: A mechanism does not say its `coordinates`.
    """
    found = _accountant(run).slack(delta)
    if found is None:
        raise ValueError("coordinates (m, the length of an update) is needed to bound the mechanism's own slack")
    return found


def _accountant(run: Mechanism | Accountant) -> Accountant:
    return run if isinstance(run, Accountant) else Accountant((run,))


def affordable(run: Mechanism, delta: float) -> Mechanism:
    """The run; or that of clients without the search coder, where its arithmetic alone leaves no finite epsilon.

    Whoever configures codecs asks first, and takes `coder="layered"` where the answer's clients do not search.
    """
    if delta == 0.0 or run.coordinates is None or not run.searched() or slack(run, delta).fits(delta):
        return run
    plain = run.layered()
    return plain if math.isinf(epsilon(run, delta)) and math.isfinite(epsilon(plain, delta)) else run


def delta_without_noise(mechanism: Mechanism, client: int | None = None) -> float:
    """The delta that publishing the raw updates would give at every epsilon: 1 - (1 - p)^R.

    A claim at or above it says nothing about the noise. Adjacency: both. Sampling: as recorded. Trust: any.
    Rests on: a record that is never drawn is never seen. Paper: its (1.45, 9.69e-3) lies above this for one
    round.

    Args:
        mechanism: What is published.
        client: One client; the worst one by default.

    Returns:
        A probability.
    """
    sampling_rates = [
        (mechanism.sampling_rate(j), mechanism.events_of(j))
        for j in ([client] if client is not None else _distinct(mechanism))
    ]
    return max(1.0 if p == 1.0 else -math.expm1(times * math.log1p(-p)) for p, times in sampling_rates)


def _distinct(mechanism: Mechanism) -> list[int]:
    """One client of each kind: equal clients have equal guarantees."""
    first = {mechanism.history(j): j for j in reversed(range(len(mechanism.clients)))}
    return sorted(first.values())


def spent(accountant: Accountant | Mechanism, delta: float, rounds: int | None = None) -> float:
    """epsilon spent so far at delta, a bound for every client: what a trainer prints after a round.

    Args:
        accountant: what was released; or a mechanism, with `rounds`.
        delta: of the guarantee.
        rounds: how many rounds of a mechanism were released; None: all.

    Returns:
        epsilon.

    Raises:
        ValueError: `rounds` is negative, or given with an `Accountant`.

    Adjacency, sampling, colluders: as recorded. Trust: trusted server. Rests on: as
    `cepam.privacy.epsilon`.
    Guarantee: never below the truth, on a coarser grid than `epsilon`: at most 2e-4 relative above it, and
    several times faster (the benchmark page on accounting has the figures).
    """
    if rounds is not None:
        check_count("rounds", rounds, 0)
        if not isinstance(accountant, Mechanism):
            raise ValueError("rounds can be given with a Mechanism only: an Accountant knows its own")
        accountant = Accountant((accountant.over(rounds),)) if rounds > 0 else Accountant()
    return _accountant(accountant).epsilon(delta, cells=COARSE)

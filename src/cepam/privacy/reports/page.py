"""The page that explains a guarantee: figures by observer, charts, what the noise means, and what else could be.

One self-contained HTML file, charts inside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from cepam._internal.chart import Axis, Series, far_apart, line_chart
from cepam._internal.files import write_atomically
from cepam._internal.page import bullets, heading, joined, number, page, paragraph, side_by_side, table
from cepam.clip import Adjacency, Unit
from cepam.privacy.cohorts.cohort import CohortMechanism
from cepam.privacy.composition.accountant import (
    SEES_PARTICIPATION,
    Accountant,
    delta_without_noise,
    epsilon,
    slack,
    spent,
)
from cepam.privacy.composition.calibration import calibrate
from cepam.privacy.matrix.mechanism import MatrixMechanism
from cepam.privacy.mechanisms.local import LocalMechanism
from cepam.privacy.mechanisms.mechanism import Mechanism
from cepam.privacy.numerics.slack import NOT_COVERED
from cepam.privacy.reports.guarantee import Guarantee, noise_multiplier, noise_ratio, report
from cepam.privacy.reports.warnings import AS_ACCOUNTED, VOID_EPSILON, Practice, privacy_warnings

LIES = "lying server"
"""How the name of a server begins that lies about dropouts (`cepam.secure_aggregation`)."""

TRUSTED = {
    "server": "The central server is trusted: it can see each participant's update, and there is no guarantee against "
    "it.",
    "secure-aggregation": "By secure aggregation the central server sees sums of updates only, and the guarantee holds "
    "against it too, as long as it follows the protocol.",
    "nobody": "Nobody is trusted: each participant adds its noise before anything leaves it, and the guarantee holds "
    "against the server and all other participants together.",
}
"""What is assumed of the server, by trust."""
UNCOVERED = (
    "Not covered: message lengths; the time that encoding and replies take; training metrics and other statistics that "
    "look at raw data, the choice of the best model among them; settings tuned on the same data; the rounding of sums "
    "before clipping; and the assumption that the pseudorandom numbers look random."
)


def impact_paragraph(
    unit: Unit,
    epsilon: float,
    delta: float,
    rounds: int,
    adjacency: Adjacency,
    trust: str,
    colluders: int = 0,
    observers: Mapping[str, float | None] | None = None,
) -> str:
    """A guarantee in the words of an impact assessment, without symbols that need the rest of the page.

    Args:
        unit: What is protected.
        epsilon: That of all rounds, against whoever sees the published models.
        delta: That of all rounds.
        rounds: How many rounds publish a model.
        adjacency: How neighboring data sets differ.
        trust: A key of `TRUSTED`.
        colluders: Other participants who pool what they know, where the figure holds against them too.
        observers: epsilon by observer, infinite or None for no guarantee. Whoever has more than `epsilon` is named.
    """
    whose = "one record" if unit == "record" else "all records of one participant"
    if not epsilon <= VOID_EPSILON:
        return f"The model has no guarantee of differential privacy for {whose}: no useful bound is available."
    parts = [
        f"The model is trained with differential privacy for {whose}: epsilon {number(epsilon)} at delta "
        f"{number(delta)} over all {rounds:,} rounds ({adjacency} adjacency). Whoever sees every "
        f"published model and knows all other data can raise the odds of a guess about {whose} by a factor of at most "
        f"{number(math.exp(epsilon))} (e^epsilon), except with probability {number(delta)}.",
        *_pooled(colluders if trust != "nobody" else 0),
        TRUSTED[trust],
        *_weaker(observers or {}, epsilon),
        "In a deployment raw data stay where they are.",
        UNCOVERED,
    ]
    return " ".join(parts)


def _pooled(colluders: int) -> list[str]:
    many = "1 other participant" if colluders == 1 else f"{colluders} other participants who pool what they know"
    return [f"It also holds against {many}."] if colluders else []


def _weaker(observers: Mapping[str, float | None], epsilon: float) -> list[str]:
    """A sentence for each kind of observer against whom the guarantee is weaker, or there is none."""
    weaker = {
        who: math.inf if spent is None else spent
        for who, spent in observers.items()
        if spent is None or spent > epsilon * (1.0 + 1e-4)  # less does not show
    }
    weaker.pop("server", None)  # said with the trust
    lying = {who: spent for who, spent in weaker.items() if who.startswith(LIES)}
    others = {who: spent for who, spent in weaker.items() if who not in lying and who != SEES_PARTICIPATION}
    said = []
    if others:
        said.append(f"Other participants: {_figures(others)}.")
    if lying:
        said.append(f"A server that lies about who dropped out: {_figures(lying)}.")
    if SEES_PARTICIPATION in weaker:
        spent = weaker[SEES_PARTICIPATION]
        none = f"There is no guarantee against {SEES_PARTICIPATION}."
        said.append(none if not spent <= VOID_EPSILON else f"Against {SEES_PARTICIPATION}: epsilon {number(spent)}.")
    return said


def _figures(observers: Mapping[str, float]) -> str:
    return ", ".join(
        f"epsilon {number(spent)} ({who})" if spent <= VOID_EPSILON else f"no guarantee ({who})"
        for who, spent in observers.items()
    )


@dataclass(frozen=True)
class Alternative:
    """A run that differs in one thing: what that is, its epsilon, and the noise of a round's average.

    `epsilon` is infinite where no finite bound is available; `noise` is in clipping norms per coordinate.
    """

    change: str
    epsilon: float
    noise: float


def what_if(mechanism: Mechanism, delta: float) -> tuple[Alternative, ...]:
    """The run as it is, then with half and twice the rounds, clients, noise and epsilon, one at a time.

    Args:
        mechanism: The run.
        delta: At which epsilon is given.

    Returns:
        The run itself first. A change that the mechanism does not allow is left out: more rounds than a matrix has, or
        fewer clients where they are unlike.
    """
    now = epsilon(mechanism, delta)
    found = [Alternative("as it is", now, noise_ratio(mechanism).noise)]
    for change, make in _changes(mechanism, delta, now):
        try:
            other = make()
            if other is not None:
                found.append(Alternative(change, spent(other, delta), noise_ratio(other).noise))
        except ValueError:  # refused: such a run cannot be accounted for
            continue
    return tuple(found)


def _changes(mechanism: Mechanism, delta: float, now: float) -> Iterator[tuple[str, Callable[[], Mechanism | None]]]:
    rounds, scales = mechanism.rounds, [client.law.scale for client in mechanism.clients]
    if rounds > 1:
        yield _count(rounds // 2, "round"), lambda: mechanism.over(rounds // 2)
    yield f"{2 * rounds:,} rounds", lambda: mechanism.over(2 * rounds)
    if mechanism.enrolled > 1:
        yield _count(mechanism.enrolled // 2, "client"), lambda: _fewer(mechanism)
    yield f"{2 * mechanism.enrolled:,} clients", lambda: _more(mechanism)
    yield "half the noise", lambda: mechanism.with_noise([scale / 2.0 for scale in scales])
    yield "twice the noise", lambda: mechanism.with_noise([2.0 * scale for scale in scales])
    if 0.0 < now < math.inf:
        for target in (now / 2.0, 2.0 * now):
            yield f"noise for epsilon {target:.3g}", partial(calibrate, mechanism, target, delta)


def _count(many: int, what: str) -> str:
    return f"{many:,} {what}{'' if many == 1 else 's'}"


def _plain(mechanism: Mechanism) -> bool:
    """Whether clients are counted once each, all of them in every round."""
    kept = mechanism.nodes is None and mechanism.node_rounds is None and not mechanism.absent
    return kept and not (isinstance(mechanism, MatrixMechanism) and mechanism.observed_participation is not None)


def _more(mechanism: Mechanism) -> Mechanism | None:
    """Twice as many clients like these; as many of them sampled per round, where clients are sampled."""
    if isinstance(mechanism, CohortMechanism):
        return replace(mechanism, cohort=replace(mechanism.cohort, population=2 * mechanism.cohort.population))
    if not _plain(mechanism):
        return None
    made = tuple(replace(client, weight=client.weight / 2.0) for client in mechanism.clients) * 2
    if isinstance(mechanism, LocalMechanism):
        return replace(mechanism, clients=made, steps=mechanism.steps * 2)
    return replace(mechanism, clients=made)


def _fewer(mechanism: Mechanism) -> Mechanism | None:
    """Half as many clients, where they are alike."""
    if isinstance(mechanism, CohortMechanism):
        half = mechanism.cohort.population // 2
        if mechanism.cohort.cap > half:
            return None
        return replace(mechanism, cohort=replace(mechanism.cohort, population=half))
    if not _plain(mechanism) or len(set(mechanism.clients)) > 1:
        return None
    many = len(mechanism.clients) // 2
    grown = len(mechanism.clients) / many
    made = tuple(replace(client, weight=client.weight * grown) for client in mechanism.clients[:many])
    if isinstance(mechanism, LocalMechanism):
        return replace(mechanism, clients=made, steps=mechanism.steps[:many])
    return replace(mechanism, clients=made)


POINTS = 12
SHOWN_ROUNDS = 64
MOST_ROWS = 40


def explain(
    mechanism: Mechanism,
    delta: float,
    path: str | Path,
    practice: Practice = AS_ACCOUNTED,
    observers: Mapping[str, float] | None = None,
) -> Path:
    """Write a page about a run: what it guarantees to whom, what its noise means, and what else it could have been.

    Args:
        mechanism: The run, with its adjacency, sampling and colluders.
        delta: At which epsilon is given, in (0, 1).
        path: Where the page goes.
        practice: How the run was really done, for warnings.
        observers: epsilon by observer with secure aggregation (`cepam.secure_aggregation.epsilons`).

    Returns:
        The path.

    Raises:
        ValueError: delta does not lie in (0, 1).
    """
    if not (0.0 < delta < 1.0):
        raise ValueError(f"delta must lie in (0, 1) for a page with plots, got {delta!r}")
    found = epsilon(mechanism, delta)
    title = f"{f'epsilon = {number(found)}' if found < math.inf else 'no finite epsilon'} at delta = {number(delta)}"
    said = privacy_warnings(mechanism, found, delta, practice)
    body = [
        heading(title, 1),
        paragraph(_meaning(found, delta, "record" if mechanism.unit == "record" else "client's data"), "verdict"),
        side_by_side([_over_rounds(mechanism, delta), _over_epsilon(mechanism, found)]),
        heading("Warnings"),
        bullets(str(one) for one in said) if said else paragraph("None."),
        heading("What is released"),
        bullets(_facts(mechanism)),
        *(_observers(observers) if observers else []),
        heading("Each client, epsilon against whom"),
        _table(report(mechanism, delta)),
        *_noise(mechanism),
        *_what_if(mechanism, delta),
        *(_correlation(mechanism) if isinstance(mechanism, MatrixMechanism) else []),
        *_assessment(mechanism, found, delta, observers),
        heading("What this does not cover"),
        bullets(_uncovered(mechanism)),
        paragraph(_numerics(mechanism, found)),
    ]
    place = Path(path)
    write_atomically(place, page(f"cepam: {title}", body).encode())
    return place


def _noise(mechanism: Mechanism) -> list[str]:
    """What the noise means for the model: a rule of thumb, no promise of accuracy."""
    found = noise_ratio(mechanism)
    rows = [
        ["noise multiplier", number(noise_multiplier(mechanism))],
        ["noise of a round's average, in clipping norms per coordinate", number(found.noise)],
    ]
    if found.ratio is not None:
        rows += [
            ["noise of a round's average over the largest update", number(found.ratio)],
            ["noise over update after all rounds, where updates agree", number(found.ratio / found.averaging)],
        ]
    return [
        heading("What the noise means for the model"),
        table(("figure", "value"), rows),
        paragraph(f"{found.meaning[0].upper()}{found.meaning[1:]}."),
        paragraph("A rule of thumb: models whose useful directions are few learn under more noise.", "faint"),
    ]


def _what_if(mechanism: Mechanism, delta: float) -> list[str]:
    rows = [[each.change, _bound(each.epsilon), number(each.noise)] for each in what_if(mechanism, delta)]
    said = f"One change at a time; epsilon at delta {number(delta)}, noise in clipping norms per coordinate."
    return [heading("What if"), table(("change", "epsilon", "noise of a round's average"), rows, said)]


def _bound(value: float) -> str:
    return number(value) if value < math.inf else "no finite bound"


def _assessment(mechanism: Mechanism, found: float, delta: float, observers: Mapping[str, float] | None) -> list[str]:
    trust = "nobody" if isinstance(mechanism, LocalMechanism) else "secure-aggregation" if observers else "server"
    given = observers or {}
    worst = max([found, *(figure for who, figure in given.items() if who.split(",")[0] == "server")])
    known = {**Accountant((mechanism,)).observers(delta), **given}
    said = impact_paragraph(
        mechanism.unit, worst, delta, mechanism.rounds, mechanism.adjacency, trust, mechanism.colluders, known
    )
    return [heading("For a data-protection impact assessment"), paragraph(said)]


def _observers(observers: Mapping[str, float]) -> list[str]:
    """The section about secure aggregation."""
    said = "The server learns one noisy sum per round. epsilon over the whole run, by observer:"
    rows = [[who, _bound(value)] for who, value in observers.items()]
    return [heading("Secure aggregation"), paragraph(said), table(("observer", "epsilon"), rows)]


def _meaning(found: float, delta: float, unit: str) -> str:
    if found > VOID_EPSILON:
        return f"This is no guarantee: whatever is published may tell any {unit} apart with certainty."
    return (
        f"Whoever sees every published model, and knows all data but one {unit}, can raise the odds of a "
        f"guess about it at most e^epsilon = {number(math.exp(found))} times, except with probability {number(delta)}."
    )


def _uncovered(mechanism: Mechanism) -> Sequence[str]:
    """What no figure covers; a server that sees noised steps only is covered."""
    return NOT_COVERED[1:] if isinstance(mechanism, LocalMechanism) else NOT_COVERED


def _facts(mechanism: Mechanism) -> list[str]:
    scales = sorted({client.law.scale for client in mechanism.clients})
    records = sorted({client.records for client in mechanism.clients})
    sampling_rates = sorted({mechanism.sampling_rate(j) for j in range(len(mechanism.clients))})
    unit = "each client's whole update" if mechanism.clipped == "update" else "each example's gradient"
    return [
        f"{number(mechanism.enrolled)} clients, {_span(records)} records each, {number(mechanism.rounds)} rounds"
        if mechanism.unit == "record"
        else f"{number(mechanism.enrolled)} clients, {number(mechanism.rounds)} rounds; protects all data of a client",
        f"{unit} clipped to {mechanism.clip.norm} norm {number(mechanism.clip.bound)}",
        f"{type(mechanism.clients[0].law).__name__} noise of scale {_span(scales)} in each {_noised(mechanism)}",
        *(_fixed_order(mechanism) if isinstance(mechanism, MatrixMechanism) else []),
        *_draws(mechanism, sampling_rates),
        f"adjacency {mechanism.adjacency}; {_trusted(mechanism)}",
        f"with no noise at all delta would be {number(delta_without_noise(mechanism))}",
    ]


def _noised(mechanism: Mechanism) -> str:
    return "local step's mean gradient" if isinstance(mechanism, LocalMechanism) else "decoded vector"


def _trusted(mechanism: Mechanism) -> str:
    if isinstance(mechanism, LocalMechanism):
        return "nobody else is trusted: the server and all other clients together see what is noised already"
    return f"{mechanism.colluders} colluding clients; the server is trusted"


def _draws(mechanism: Mechanism, sampling_rates: Sequence[float]) -> list[str]:
    if isinstance(mechanism, LocalMechanism):
        return [
            f"{_span(sorted(set(mechanism.steps)))} local steps per client and round; a given record is drawn in a "
            f"step with probability {_span(sampling_rates)} (poisson)"
        ]
    if not isinstance(mechanism, CohortMechanism):
        return [
            f"sampling {mechanism.sampling.kind}: a record is drawn with probability {_span(sampling_rates)} per round"
        ]
    cohort = mechanism.cohort
    return [
        f"cohorts of {number(cohort.size)} ({cohort.kind}, at most {number(cohort.cap)}): a given client is sampled "
        f"with probability {number(mechanism.sampling_rate(0))}, fresh and in secret; an adversary who "
        "sees participation gets another epsilon",
        f"noise of every sum {number(mechanism.compensation.total)}, whoever replies: the server adds what is missing",
    ]


def _fixed_order(mechanism: MatrixMechanism) -> list[str]:
    link = mechanism.link
    shape = f"decay {number(link.decay)}" if link.bands is None else f"a matrix of {link.bands} bands"
    return [
        f"records in {link.slices} fixed slices, one per message in turn; each decoded stream is undone by {shape}",
        f"the run is {mechanism.events} event(s) of sensitivity {number(mechanism.sensitivity)}",
        f"protected: one {mechanism.unit}",
    ]


def _correlation(mechanism: MatrixMechanism) -> list[str]:
    """The noise of one stream: its correlation between rounds, and how far a sum over rounds strays."""
    shown = min(mechanism.rounds, SHOWN_ROUNDS)
    covariance = mechanism.link.noise_covariance(shown)
    spread = np.sqrt(np.diag(covariance))
    summed = np.sqrt(np.cumsum(np.cumsum(covariance, axis=0), axis=1).diagonal())
    alone = replace(mechanism, link=replace(mechanism.link, decay=0.0, coefficients=None, rows=None))
    level = alone.mu(0) / mechanism.mu(0)  # what independent noise must be multiplied by for the same epsilon
    rounds = np.arange(1, shown + 1)
    independent = (level * np.sqrt(rounds)).tolist()
    last = (covariance / np.outer(spread, spread))[-1, ::-1]
    return [
        heading("Correlation of the noise"),
        side_by_side([
            line_chart(
                [Series("", list(range(shown)), last.tolist())],
                Axis(f"messages before message {shown}", counts=True),
                Axis("correlation of its noise with an earlier one's"),
            ),
            line_chart(
                [
                    Series("correlated noise", rounds.tolist(), summed.tolist()),
                    Series("independent noise of the same epsilon", rounds.tolist(), independent),
                ],
                Axis("messages", counts=True), Axis("noise of their sum, over that of one"),
            ),
        ]),
    ]  # fmt: skip


def _span(values: Sequence[float]) -> str:
    return number(values[0]) if len(values) == 1 else f"{number(values[0])} to {number(values[-1])}"


def _numerics(mechanism: Mechanism, spent_in_all: float) -> str:
    if mechanism.coordinates is None:
        return "The mechanism's own rounding is not charged: say how many coordinates an update has."
    found = slack(mechanism)
    extra = found.at(spent_in_all)
    return (
        f"The mechanism's own rounding is in the figure: {number(found.epsilon)} of epsilon, {number(extra)} of delta."
    )


def _table(guarantees: Sequence[Guarantee]) -> str:
    head = (
        "client",
        "noise scale",
        "weight",
        "records",
        "chance drawn",
        "delta",
        "outsider",
        "one curious client",
        "all others collude",
    )
    rows = (astuple(each)[: len(head)] for each in guarantees)
    shown = joined([[str(row[0]), *map(number, row[1:6]), *map(_bound, row[6:])] for row in rows])
    left_out = sum(many for _, many in shown[MOST_ROWS:])
    said = paragraph(f"And {left_out:,} more clients.") if left_out else ""
    return table(head, [row for row, _ in shown[:MOST_ROWS]]) + said


def _over_rounds(mechanism: Mechanism, delta: float) -> str:
    """epsilon over rounds by observer; of thousands of colluders in cohorts the table alone tells."""
    last, many = mechanism.rounds, mechanism.enrolled
    rounds = sorted({max(1, round(x)) for x in np.linspace(1, last, POINTS)})
    seen = {f"with {mechanism.colluders} colluders" if mechanism.colluders else "outsider": mechanism.colluders}
    if not isinstance(mechanism, LocalMechanism):
        seen |= {"one curious client": min(1, many - 1)}
        seen |= {} if isinstance(mechanism, CohortMechanism) else {"all others collude": many - 1}
    drawn = []
    for who, colluders in seen.items():
        viewed = replace(mechanism, colluders=colluders)
        drawn.append(Series(who, rounds, [spent(viewed, delta, number) for number in rounds]))
    return line_chart(
        drawn, Axis("rounds", counts=True), Axis(f"epsilon at delta {number(delta)}", log=far_apart(drawn))
    )


def _over_epsilon(mechanism: Mechanism, found: float) -> str:
    accountant = Accountant((mechanism,))
    grid = np.linspace(0.0, max(1.5 * min(found, VOID_EPSILON), 0.1), 4 * POINTS)
    curve = [max(accountant.delta(float(at)), 1e-12) for at in grid]
    return line_chart([Series("", grid.tolist(), curve)], Axis("epsilon"), Axis("delta, over the whole run", log=True))

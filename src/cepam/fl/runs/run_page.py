"""The page of a run: a verdict in words, then accuracy, epsilon by observer, bytes, clients and settings.

Everything on the page of a run with differential privacy follows from the settings, the published models and test
records, so that epsilon covers it. Figures that look at raw data or draws (training loss, signal over noise, lengths of
messages, replies, times) stay in `metrics.jsonl` and `summary.json`. A simulation protects nobody and shows what it
measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cepam._internal import page as writer
from cepam._internal.chart import Axis, Series, byte_unit, far_apart, in_bytes, line_chart
from cepam.fl.aggregation.accounting import SIMULATED, message_bytes, shown_epsilon
from cepam.fl.aggregation.trusted_server import Line
from cepam.fl.config.presets import PRESETS, preset
from cepam.fl.config.settings import OVERRIDES, Settings, described
from cepam.fl.models.interface import AUC
from cepam.fl.runs.summary import interval, series
from cepam.fl.simulation import Simulation
from cepam.privacy.reports.page import impact_paragraph

MOST_CLIENTS = 40
OPEN_CLIENTS = 10
"""Longer tables of clients are folded."""
ROUNDS = Axis("rounds", counts=True)
BY_NORM = "as if all updates had the clipping norm: true lengths reveal norms"
UNITS = {"record": "one record", "client": "all data of one client"}


@dataclass(frozen=True)
class Traffic:
    """Bytes of all clients so far, up and down, mean of the seeds, and what float32 takes in one direction.

    `measured` is False where lengths of messages would tell of raw data: `up` is then about the most that the clipping
    norm allows. `down` is None where it would tell who took part.
    """

    up: float
    down: float | None
    float32: float
    measured: bool

    @property
    def both(self) -> float:
        """Bytes both ways, as far as they are known."""
        return self.up + (self.down or 0.0)

    @property
    def fewer(self) -> str:
        """How many times fewer bytes than float32, in words."""
        plain = self.float32 if self.down is None else 2.0 * self.float32
        way = "up " if self.down is None else ""
        return f"{'' if self.measured else 'at least '}{times_fewer(plain, self.both, way)} than float32"


def times_fewer(before: float, now: float, way: str = "") -> str:
    """A ratio of bytes in words: 182 times fewer bytes."""
    if now <= 0.0 or before <= 0.0:
        return f"no bytes {way}".rstrip()
    ratio = max(before, now) / min(before, now)
    if ratio < 1.05:
        return f"as many bytes {way}".rstrip()
    many = f"{ratio:,.0f}" if ratio >= 10.0 else f"{ratio:.1f}"
    return f"{many} times {'fewer' if now < before else 'more'} bytes {way}".rstrip()


def traffic(simulation: Simulation, lines: Sequence[Line], rounds: int) -> Traffic:
    """The bytes of so many rounds, as far as the page may show them."""
    chosen = simulation.settings
    mine = [line for line in lines if line["round"] <= rounds]
    plain = 4.0 * simulation.size * chosen.clients_per_round * rounds
    if _may_measure(simulation):
        seeds = max(1, len(chosen.run_seeds))
        up, down = (sum(line[key] for line in mine) / 8.0 / seeds for key in ("bits", "downlink_bits"))
        return Traffic(up, down, plain, True)
    everyone = chosen.clients.sampling_rate == 1.0 and not chosen.clients.dropout_rate
    sound = everyone and not any(line.get("dropped") for line in mine)
    if chosen.privacy.trust == "secure-aggregation" and sound:  # vectors of a sum have one length
        up, down = (sum(line[key] for line in mine) / 8.0 for key in ("bits", "downlink_bits"))
        return Traffic(up, down, plain, True)
    up = message_bytes(simulation.aggregators[0].plans, simulation.size) * chosen.clients_per_round * rounds
    if chosen.compression.downlink == "float32":
        return Traffic(up, plain, plain, False)
    return Traffic(up, sum(line["downlink_bits"] for line in mine) / 8.0 if sound else None, plain, False)


def _may_measure(simulation: Simulation) -> bool:
    """Whether lengths and times that were measured may be shown: nothing is protected that they would tell of."""
    return simulation.settings.run.simulate or simulation.aggregators[0].mechanism is None


def _shows_scores(simulation: Simulation) -> bool:
    """Whether scores follow from published models: layers that stay on clients are learned from raw data."""
    return not simulation.settings.model.personal_layers or _may_measure(simulation)


def marked(words: str, simulated: bool) -> str:
    """Words about a figure, with the one that a simulation needs."""
    return f"{words} ({SIMULATED})" if simulated else words


def against(who: str) -> str:
    """An observer after "against"."""
    return "outsiders" if who == "outsider" else who


def privacy_in_words(epsilon: dict[str, float | None], simulated: bool, unit: str) -> str:
    """The guarantee against the first observer, in a few words."""
    if not epsilon:
        return "no differential privacy"
    who, value = next(iter(epsilon.items()))
    if value is None:
        return f"no finite epsilon against {against(who)}"
    return f"epsilon {shown_epsilon(value, simulated, '.3g')} for {UNITS[unit]} against {against(who)}"


def percent(value: float, half: float | None = None) -> str:
    """A share in percent with the half-width of its interval."""
    return f"{100 * value:.2f} %" if half is None else f"{100 * value:.2f} ± {100 * half:.2f} %"


def run_page(name: str, simulation: Simulation, lines: Sequence[Line]) -> str:
    """The page of a run that is over or under way.

    Args:
        name: What the run is called.
        simulation: Where it stands.
        lines: Its metrics so far.
    """
    chosen, simulated = simulation.settings, simulation.settings.run.simulate
    rounds = int(lines[-1]["round"]) if lines else 0
    spent, sent = simulation.views(rough=not simulation.done), traffic(simulation, lines, rounds)
    scores = _scores(simulation, lines) if _shows_scores(simulation) else []
    title = f"{chosen.compression.scheme} on {chosen.data.name}"
    title = title if name == chosen.compression.scheme else f"{name}: {title}"
    warnings = [_unfinished(rounds, chosen.training.rounds)] if rounds < chosen.training.rounds else []
    if simulated:
        warnings.append(f"{SIMULATED}: keys and draws come from the seed, so this run protects nobody.")
    verdict = f"{chosen.compression.scheme}: {_verdict(scores, sent, spent, chosen)}"
    return writer.page(f"cepam: {title}", [
        writer.heading(title, 1), writer.paragraph(marked(verdict, simulated and SIMULATED not in verdict), "verdict"),
        *(writer.paragraph(each, "warning") for each in warnings),
        writer.tiles(_tiles(scores, sent, spent, rounds, chosen)),
        writer.side_by_side(_charts(simulation, lines, rounds, spent, sent)),
        writer.heading("Privacy by observer"), *_observers(chosen, spent),
        writer.heading("Bytes"), *_bytes(simulation, sent, rounds),
        *_clients(simulation.budgets(), simulated),
        writer.heading("Warnings"), writer.bullets(simulation.privacy_warnings or ["none"]),
        *_assessment(simulation, spent, rounds),
        writer.heading("Settings"), *settings_table(chosen),
        *_coverage(simulation, scores, spent),
    ])  # fmt: skip


def _unfinished(rounds: int, planned: int) -> str:
    return (
        f"Unfinished: round {rounds:,} of {planned:,}. Go on with `cepam train --resume`, or `resume=True` in Python."
    )


@dataclass(frozen=True)
class _Score:
    name: str
    round: int
    mean: float
    half: float | None

    @property
    def title(self) -> str:
        return _title(self.name)

    @property
    def words(self) -> str:
        if self.name == "accuracy":
            return percent(self.mean, self.half)
        return f"{self.mean:.4g}" if self.half is None else f"{self.mean:.4g} ± {self.half:.2g}"


def _title(name: str) -> str:
    """What a score is called on the page."""
    return "AUC" if name == AUC else name


def _judged_by(simulation: Simulation, lines: Sequence[Line]) -> list[str]:
    """The scores that the page shows: accuracy first, or the loss where nothing else was measured."""
    objective = simulation.vector.objective
    names = dict.fromkeys((*(("accuracy", AUC) if objective.classifies else ()), *objective.metrics))
    return [name for name in names if any(line.get(name) is not None for line in lines)] or ["loss"]


def _scores(simulation: Simulation, lines: Sequence[Line]) -> list[_Score]:
    """The test scores of the last round that was evaluated for every seed."""
    found = []
    for name in _judged_by(simulation, lines):
        rounds, *_ = series(list(lines), name)
        if len(rounds):
            last = int(rounds[-1])
            each = [float(line[name]) for line in lines if line["round"] == last]
            found.append(_Score(name, last, *interval(each)))
    return found


def _verdict(scores: Sequence[_Score], sent: Traffic, spent: dict[str, float | None], chosen: Settings) -> str:
    parts = [f"{score.words} test {score.title}" for score in scores]
    if scores:
        parts[-1] += f" after {scores[-1].round:,} rounds"
    return ", ".join([*parts, sent.fewer, privacy_in_words(spent, chosen.run.simulate, chosen.privacy.unit)])


def _tiles(
    scores: Sequence[_Score], sent: Traffic, spent: dict[str, float | None], rounds: int, chosen: Settings
) -> list[tuple[str, str, str]]:
    simulated = chosen.run.simulate
    word = f"({SIMULATED})" if simulated else ""
    made = [(f"test {score.title}", score.words, word) for score in scores]
    for who, value in list(spent.items())[:1]:
        said = "no finite bound" if value is None else f"{value:.3g}"
        made.append((f"epsilon against {against(who)}", said, f"delta {writer.number(chosen.privacy.delta)} {word}"))
    most, why = ("", word) if sent.measured else ("at most about ", BY_NORM)
    made.append(("bytes up", most + in_bytes(sent.up), why))
    if sent.down is not None:
        made.append(("bytes down", in_bytes(sent.down), word))
    return [*made, ("rounds", f"{rounds:,} of {chosen.training.rounds:,}", word)]


def _charts(
    simulation: Simulation, lines: Sequence[Line], rounds: int, spent: dict[str, float | None], sent: Traffic
) -> list[str]:
    chosen, simulated = simulation.settings, simulation.settings.run.simulate
    made = []
    many = "mean of the seeds, band from the lowest to the highest" if chosen.run.seeds > 1 else ""
    for name in _judged_by(simulation, lines) if _shows_scores(simulation) else ():
        at, mean, low, high = series(list(lines), name)
        band = (low.tolist(), high.tolist()) if chosen.run.seeds > 1 else ((), ())
        axis = Axis(marked(f"test {_title(name)}", simulated), percent=name == "accuracy")
        made.append(line_chart([Series("", at.tolist(), mean.tolist(), *band)], ROUNDS, axis, many))
        so_far, where = _bytes_at(simulation, lines, at.tolist(), sent)
        made.append(line_chart([Series("", so_far, mean.tolist(), *band)], Axis(where), axis, many))
    if any(value is not None for value in spent.values()):
        made.append(_epsilon_chart(lines, rounds, spent, simulated))
    if sent.measured and rounds:
        made.append(_bytes_chart(lines, chosen))
    return made


def _bytes_at(
    simulation: Simulation, lines: Sequence[Line], rounds: Sequence[int], sent: Traffic
) -> tuple[list[float], str]:
    """The bytes at these rounds in a unit that suits them, and what the axis says."""
    last = int(lines[-1]["round"]) if lines else 1
    totals = dict.fromkeys(rounds, 0.0)
    for key, total in (("bits", sent.up), ("downlink_bits", sent.down)):
        steady = not sent.measured and (key == "bits" or simulation.settings.compression.downlink == "float32")
        if total is None:
            continue
        so_far = {} if steady else _so_far(lines, key)
        for number in rounds:
            totals[number] += total * number / last if steady else so_far[number]
    size, unit = byte_unit(max(totals.values(), default=1.0))
    way = "both ways" if sent.down is not None else "up"
    return [
        totals[number] / size for number in rounds
    ], f"{unit} {way}{'' if sent.measured else ' at most'}, all clients"


def _so_far(lines: Sequence[Line], key: str) -> dict[int, float]:
    """The bytes up to each round, mean of the seeds."""
    at, mean, _, _ = series(list(lines), key)
    return dict(zip(at.tolist(), (mean.cumsum() / 8.0).tolist()))


def _epsilon_chart(lines: Sequence[Line], rounds: int, spent: dict[str, float | None], simulated: bool) -> str:
    """epsilon of every observer at the rounds at which it was computed, and now."""
    seen = {int(line["round"]): line["epsilon_against"] for line in lines if "epsilon_against" in line}
    seen[rounds] = spent
    at = sorted(seen)
    drawn = [Series(who, at, [seen[number].get(who) for number in at]) for who in spent]
    return line_chart(drawn, ROUNDS, Axis(marked("epsilon so far, by observer", simulated), log=far_apart(drawn)))


def _bytes_chart(lines: Sequence[Line], chosen: Settings) -> str:
    drawn = {way: _so_far(lines, key) for way, key in (("up", "bits"), ("down", "downlink_bits"))}
    size, unit = byte_unit(max(max(each.values()) for each in drawn.values()))
    made = [Series(way, list(each), [count / size for count in each.values()]) for way, each in drawn.items()]
    return line_chart(made, ROUNDS, Axis(marked(f"{unit} so far, all clients", chosen.run.simulate)))


def _observers(chosen: Settings, spent: dict[str, float | None]) -> list[str]:
    if not spent:
        return [writer.paragraph("None: this scheme adds no noise that an accountant knows, or clips nothing.")]
    rows = [[who, shown_epsilon(value, chosen.run.simulate)] for who, value in spent.items()]
    if chosen.privacy.trust == "server" and not any("server" in who for who in spent):
        rows.append(["server", "trusted: no guarantee against it"])
    caption = (
        f"For {UNITS[chosen.privacy.unit]}, over all rounds so far, at delta {writer.number(chosen.privacy.delta)}, "
        f"{chosen.privacy.adjacency} adjacency."
    )
    return [writer.table(("observer", "epsilon"), rows, caption)]


def _bytes(simulation: Simulation, sent: Traffic, rounds: int) -> list[str]:
    chosen = simulation.settings
    carried = simulation.size * chosen.clients_per_round * max(rounds, 1)
    rows = []
    for way, count in (("up", sent.up), ("down", sent.down)):
        if count is not None:
            least = "" if sent.measured or way == "down" else "at most about "
            rows.append([
                marked(way, chosen.run.simulate), least + in_bytes(count), f"{8 * count / carried:.3g}",
                in_bytes(sent.float32),
            ])  # fmt: skip
    per = f" per seed, {chosen.run.seeds} seeds" if chosen.run.seeds > 1 else ""
    said = f"All clients, {rounds:,} rounds{per}; {simulation.size:,} coordinates."
    found = [writer.table(("direction", "bytes", "bits per coordinate", "float32"), rows, said)]
    if not sent.measured:
        found.append(writer.paragraph(
            "Lengths of messages grow with the norms of updates, which epsilon does not cover. This page shows the "
            "length at the clipping norm; `summary.json` has what was measured.", "faint",
        ))  # fmt: skip
    return found


def _clients(rows: Sequence[dict[str, Any]], simulated: bool) -> list[str]:
    """The clients, where they have names or targets of their own."""
    if not rows:
        return []
    numbers = {"noise_scale": "noise scale", "noise_multiplier": "noise multiplier", "target_epsilon": "target epsilon"}
    numbers = {key: words for key, words in numbers.items() if any(row[key] is not None for row in rows)}
    cells = [
        [
            row["name"], *("–" if row[key] is None else f"{row[key]:.4g}" for key in numbers),
            shown_epsilon(row["epsilon"], simulated), writer.number(row["delta"]),
        ]
        for row in rows
    ]  # fmt: skip
    joined = writer.joined(cells)
    left_out = sum(many for _, many in joined[MOST_CLIENTS:])
    found = [writer.table(("client", *numbers.values(), "epsilon", "delta"), [row for row, _ in joined[:MOST_CLIENTS]])]
    if left_out:
        found.append(writer.paragraph(f"And {left_out:,} more clients: `summary.json` has them all."))
    if len(joined) > OPEN_CLIENTS:
        found = [writer.folded(f"{len(rows):,} clients, {_spread(rows, simulated)}", found)]
    return [writer.heading("Clients"), *found]


def _spread(rows: Sequence[dict[str, Any]], simulated: bool) -> str:
    """From the least epsilon of the clients to the largest, in words."""
    if any(row["epsilon"] is None for row in rows):
        return "some without a finite epsilon"
    least, most = min(row["epsilon"] for row in rows), max(row["epsilon"] for row in rows)
    if f"{least:.3g}" == f"{most:.3g}":
        return f"epsilon {shown_epsilon(most, simulated, '.3g')}"
    return f"epsilon {least:.3g} to {shown_epsilon(most, simulated, '.3g')}"


def _assessment(simulation: Simulation, spent: dict[str, float | None], rounds: int) -> list[str]:
    """The paragraph for an impact assessment, where somebody is protected."""
    chosen, value = simulation.settings, next(iter(spent.values()), None)
    if value is None or chosen.run.simulate or not simulation.done:
        return []
    trust = "nobody" if chosen.training.update == "dp-sgd" else chosen.privacy.trust
    said = impact_paragraph(
        chosen.privacy.unit, value, chosen.privacy.delta, rounds, chosen.privacy.adjacency, trust,  # type: ignore[arg-type]
        observers=spent,
    )  # fmt: skip
    return [writer.heading("For a data-protection impact assessment"), writer.paragraph(said)]


def nearest_preset(settings: Settings) -> tuple[str, dict[str, tuple[Any, Any]]]:
    """The preset, or the defaults, that differs least, and each setting that differs: its value here and there."""
    mine, defaults = settings.values(), {name: each.default for name, _, each in described()}
    found = []
    for name in ("", *PRESETS):
        there = preset(name).values() if name else defaults
        found.append((name, {key: (value, there[key]) for key, value in mine.items() if there[key] != value}))
    return min(found, key=lambda each: len(each[1]))


def settings_table(settings: Settings) -> list[str]:
    """The settings that differ from the nearest preset, folded."""
    name, differing = nearest_preset(settings)
    base = f"preset `{name}`" if name else "the defaults"
    rows = [[f"`{key}`", _value(key, here), _value(key, there)] for key, (here, there) in differing.items()]
    if not rows:
        return [writer.paragraph(f"As {base}; `config.toml` has them all.")]
    count = f"{len(rows)} setting{'s' if len(rows) > 1 else ''}"
    table = writer.table(("setting", "here", name or "default"), rows)
    return [
        writer.folded(f"{count} other than {base}", [table]),
        writer.paragraph("`config.toml` has all of them.", "faint"),
    ]


def _value(key: str, value: Any) -> str:
    if key == OVERRIDES:
        return f"{len(value)} table{'' if len(value) == 1 else 's'}" if value else "none"
    if isinstance(value, bool) or value in (None, "", ()):
        return {True: "on", False: "off"}.get(value, "none")
    return (
        ", ".join(map(str, value))
        if isinstance(value, tuple)
        else f"{value:.6g}"
        if isinstance(value, float)
        else str(value)
    )


def _coverage(simulation: Simulation, scores: Sequence[_Score], spent: dict[str, float | None]) -> list[str]:
    """What the epsilon of the page says about the page itself."""
    if simulation.aggregators[0].mechanism is None or simulation.settings.run.simulate:
        return []
    if all(value is None for value in spent.values()):
        said = "No: no finite bound covers the models, nor what this page shows of them."
        return [writer.heading("May this page be shown?"), writer.paragraph(said)]
    said = (
        "Yes, as far as epsilon goes: everything here follows from the settings, the accountant, the published models "
        "and test records. Test records themselves have no guarantee. `metrics.jsonl`, `summary.json`, `curve.png` and "
        "`timing.jsonl` look at raw data: do not publish them."
    )
    if not scores and simulation.settings.model.personal_layers:
        said += " Scores are left out: layers that stay on clients are learned from raw data."
    return [writer.heading("May this page be shown?"), writer.paragraph(said)]

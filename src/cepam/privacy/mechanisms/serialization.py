"""Mechanisms as plain values and back, for an accountant that outlives its process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from typing import Any

from cepam.clip import CLIPS, Clip
from cepam.distributions.laws import PRIVATE_LAWS
from cepam.lattices.lattice import NAMED, Lattice
from cepam.privacy.cohorts.cohort import Cohort, CohortMechanism
from cepam.privacy.matrix.correlated_noise import CorrelatedNoise
from cepam.privacy.matrix.mechanism import MatrixMechanism
from cepam.privacy.matrix.participation import Arrival, Cyclic, ObservedParticipation, Separated
from cepam.privacy.mechanisms.local import LocalMechanism
from cepam.privacy.mechanisms.mechanism import Client, Mechanism, Sampling

VERSION = 3


def fingerprint(*configuration: object) -> str:
    """A short name of what a run was set up with: equal for equal settings, by their values or their `repr`.

    Args:
        configuration: Mechanisms, settings, or plain values.

    Returns:
        A hexadecimal name.
    """
    return hashlib.sha256(json.dumps(configuration, sort_keys=True, default=repr).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class _Row:
    """A plain value and its JSON text."""

    plain: Any
    text: str

    @classmethod
    def of(cls, plain: Any) -> _Row:
        """The row of this value."""
        return cls(plain, json.dumps(plain))


@dataclass(frozen=True)
class WrittenMechanisms:
    """Releases as plain values and as JSON; a client, and a set of clients, that several share is written once.

    `with_at` takes up one more release, or another in the place of one, without the work for all others.
    """

    kinds: Mapping[Client, int] = field(default_factory=dict)
    groups: Mapping[tuple[Client, ...], int] = field(default_factory=dict)
    clients: tuple[_Row, ...] = ()
    numbered: tuple[_Row, ...] = ()
    releases: tuple[_Row, ...] = ()

    def with_at(self, place: int, mechanism: Mechanism) -> WrittenMechanisms:
        """With this release at `place`, at most one behind the last."""
        kinds, groups, clients, numbered = self.kinds, self.groups, self.clients, self.numbered
        group = groups.get(mechanism.clients)
        if group is None:
            group, kinds, groups = len(groups), dict(kinds), dict(groups)
            groups[mechanism.clients] = group
            numbered = *numbered, _Row.of([kinds.setdefault(client, len(kinds)) for client in mechanism.clients])
            clients += tuple(_Row.of(_written_client(client)) for client in list(kinds)[len(clients) :])
        written = _Row.of(_written_mechanism(mechanism, group))
        releases = (*self.releases[:place], written, *self.releases[place + 1 :])
        return WrittenMechanisms(kinds, groups, clients, numbered, releases)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "version": VERSION,
            "clients": [dict(row.plain) for row in self.clients],
            "groups": [list(row.plain) for row in self.numbered],
            "releases": [dict(row.plain) for row in self.releases],
        }

    def text(self) -> str:
        """`json.dumps` of `plain` without its braces, from the rows' own texts."""
        parts = {"clients": self.clients, "groups": self.numbered, "releases": self.releases}
        lists = (f'"{name}": [{", ".join(row.text for row in rows)}]' for name, rows in parts.items())
        return ", ".join([f'"version": {VERSION}', *lists])


def written_mechanisms(mechanisms: Sequence[Mechanism]) -> WrittenMechanisms:
    """All releases of an accountant."""
    found = WrittenMechanisms()
    for place, mechanism in enumerate(mechanisms):
        found = found.with_at(place, mechanism)
    return found


def read_mechanisms(state: Mapping[str, Any]) -> tuple[Mechanism, ...]:
    """The releases of `written_mechanisms`, or a ValueError that says what is damaged."""
    if state.get("version") != VERSION:
        raise ValueError(f"the saved accountant has version {state.get('version')!r}, this program reads {VERSION}")
    try:
        kinds = [_read_client(client) for client in state["clients"]]
        groups = [tuple(kinds[_place(number)] for number in group) for group in state["groups"]]
        return tuple(_read_mechanism(mechanism, groups) for mechanism in state["releases"])
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"the saved accountant is damaged: {type(error).__name__} {error}") from error


def _place(number: int) -> int:
    """A place in a list; negative ones, which Python would count from the end, are damage."""
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise IndexError(f"no client {number!r}")
    return number


def _written_clip(clip: Clip | None) -> list[Any] | None:
    return None if clip is None else [clip.norm, float(clip.bound)]


def _read_clip(plain: list[Any] | None) -> Clip | None:
    return None if plain is None else CLIPS[plain[0]](plain[1])


def _written_client(client: Client) -> dict[str, Any]:
    return {
        "law": [client.law.name, float(client.law.scale)],
        "records": client.records,
        "weight": float(client.weight),
        "draws": client.draws,
        "clip": _written_clip(client.clip),
        "lattice": None if client.lattice is None else [client.lattice.name, client.lattice.basis.tolist()],
        "searched": client.searched,
    }


def _read_client(plain: Mapping[str, Any]) -> Client:
    law, scale = plain["law"]
    return Client(
        PRIVATE_LAWS[law](scale), plain["records"], plain["weight"], plain["draws"], _read_clip(plain["clip"]),
        _read_lattice(plain["lattice"]), bool(plain.get("searched", True)),
    )  # fmt: skip


def _read_lattice(plain: list[Any] | None) -> Lattice | None:
    if plain is None:
        return None
    name, basis = plain
    return NAMED.get(name) or Lattice.from_basis(basis)


def _written_mechanism(mechanism: Mechanism, group: int) -> dict[str, Any]:
    if type(mechanism) not in (Mechanism, CohortMechanism, MatrixMechanism, LocalMechanism):
        raise ValueError(f"a {type(mechanism).__name__} cannot be saved: keep what it was made from")
    return {
        "clients": group,
        "clip": _written_clip(mechanism.clip),
        "sampling": [mechanism.sampling.kind, mechanism.sampling.draws],
        "rounds": mechanism.rounds,
        "colluders": mechanism.colluders,
        "adjacency": mechanism.adjacency,
        "clipped": mechanism.clipped,
        "coordinates": mechanism.coordinates,
        "absent": sorted(mechanism.absent),
        "nodes": None if mechanism.nodes is None else list(mechanism.nodes),
        "unit": mechanism.unit,
        "node_rounds": None if mechanism.node_rounds is None else [list(row) for row in mechanism.node_rounds],
        "cohort": [*astuple(mechanism.cohort), mechanism.bit] if isinstance(mechanism, CohortMechanism) else None,
        "stateful": isinstance(mechanism, CohortMechanism) and mechanism.stateful,
        "steps": list(mechanism.steps) if isinstance(mechanism, LocalMechanism) else None,
        "correlated": _written_streams(mechanism) if isinstance(mechanism, MatrixMechanism) else None,
    }


def _read_mechanism(plain: Mapping[str, Any], groups: Sequence[tuple[Client, ...]]) -> Mechanism:
    clip = _read_clip(plain["clip"])
    if clip is None:
        raise ValueError("the saved accountant is damaged: a release without a clip")
    made = Mechanism(
        groups[_place(plain["clients"])],
        clip,
        Sampling(*plain["sampling"]),
        plain["rounds"],
        plain["colluders"] if plain.get("cohort") is None else 0,
        plain["adjacency"],
        plain["clipped"],
        plain["coordinates"],
        frozenset(plain["absent"]),
        None if plain["nodes"] is None else tuple(plain["nodes"]),
        plain.get("unit", "record"),
        node_rounds=None if plain["node_rounds"] is None else tuple(_read_row(row) for row in plain["node_rounds"]),
    )
    known = {each.name: getattr(made, each.name) for each in fields(made)}
    if plain.get("correlated") is not None:
        return MatrixMechanism(**known, **_read_streams(plain["correlated"]))
    if plain.get("steps") is not None:
        return LocalMechanism(**known, steps=tuple(plain["steps"]))
    if plain.get("cohort") is None:
        return made
    *cohort, bit = plain["cohort"]
    known |= {"colluders": plain["colluders"], "stateful": plain.get("stateful", False)}
    return CohortMechanism(**known, cohort=Cohort(*cohort), bit=bit)


def _read_row(row: Sequence[int]) -> tuple[int, int, int]:
    node, place, rounds = row
    return node, place, rounds


def _written_streams(mechanism: MatrixMechanism) -> dict[str, Any]:
    """What a correlated release has besides; an arrival is its round, its position and its stream."""
    link, pattern, came = mechanism.link, mechanism.participation, mechanism.observed_participation
    return {
        "link": [link.decay, link.slices, link.coefficients, link.rows],
        "participation": None if pattern is None else list(astuple(pattern)),
        "observed_participation": None
        if came is None
        else [[[a.round, a.position, a.stream] for a in theirs] for theirs in came.arrivals],
        "rounds": mechanism.rounds,
        "run": mechanism.run,
    }


def _read_streams(plain: Mapping[str, Any]) -> dict[str, Any]:
    decay, slices, coefficients, rows = plain["link"]
    pattern, came = plain["participation"], plain["observed_participation"]
    arrivals = None if came is None else tuple(tuple(Arrival(*one) for one in theirs) for theirs in came)
    return {
        "link": CorrelatedNoise(
            decay, slices, None if coefficients is None else tuple(coefficients), rows and tuple(map(tuple, rows))
        ),
        "participation": None if pattern is None else (Cyclic if len(pattern) == 1 else Separated)(*pattern),
        "observed_participation": None if arrivals is None else ObservedParticipation(plain["rounds"], arrivals),
        "run": plain["run"],
    }

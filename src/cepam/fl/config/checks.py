"""Checks of the settings, one function per subject: each raises a ValueError that names setting, value and range.

A new subject is a function and a line here; the order is that in which refusals are made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cepam.fl.config.settings import Settings

COUNTS = (
    "clients", "rounds", "tau", "batch", "epochs", "labels_each", "slices", "seeds", "evaluate_every",
    "checkpoint_every",
)  # fmt: skip
POSITIVE = ("rate", "clip", "delta", "step", "alpha", "expected_batch")
POSITIVE_OR_NONE = ("noise", "epsilon", "local_rate", "step_noise")
FRACTIONS = ("momentum", "local_momentum", "average", "dropout")


def check_values(settings: Settings) -> None:
    """Nothing, or a refusal of a value that no run could have."""
    for each in fields(settings):
        if each.metadata["choices"] and not settings.own(each.name):
            one_of(each.name, getattr(settings, each.name), each.metadata["choices"])
    for name in COUNTS:
        at_least_one(name, getattr(settings, name))
    for name in POSITIVE:
        positive(name, getattr(settings, name))
    for name in POSITIVE_OR_NONE:
        positive(name, getattr(settings, name), optional=True)
    for name in FRACTIONS:
        if not 0.0 <= getattr(settings, name) < 1.0:
            raise ValueError(f"{name} must lie in [0, 1), got {getattr(settings, name)!r}")
    if not 0.0 < settings.share <= 1.0:
        raise ValueError(f"share must lie in (0, 1], got {settings.share!r}")
    if not settings.delta < 1.0:
        raise ValueError(f"delta must lie in (0, 1), got {settings.delta!r}")
    if settings.seed < 0 or settings.validation < 0:
        raise ValueError("seed and validation must not be negative")


def check_seeds(settings: Settings) -> None:
    """Refuse several seeds in a run that is no simulation.

    Every seed publishes a model of the same records, and epsilon is that of one: it would cover one of them.
    """
    if settings.seeds > 1 and not settings.simulate:
        raise ValueError(
            f"seeds must be 1 without simulate, got {settings.seeds}: each seed publishes a model of the same records "
            "and epsilon covers one; set simulate (--simulate) to study seeds, or train one run per seed and divide "
            "the budget among them"
        )


def one_of(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Nothing, or a refusal of a value that is no choice."""
    if value not in choices:
        known = ", ".join(str(choice) for choice in choices if choice is not None)
        raise ValueError(f"{name} must be one of {known}; got {value!r}")


def at_least_one(name: str, value: Any) -> None:
    """Nothing, or a refusal of what is no count."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")


def positive(name: str, value: Any, optional: bool = False) -> None:
    """Nothing, or a refusal of what is no positive number; None passes where it is optional."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 < value < math.inf:
        raise ValueError(f"{name} must be a positive number, got {value!r}")


def check_noise(settings: Settings) -> None:
    """Nothing, or a refusal of noise and target that do not go together."""
    if settings.update == "dp-sgd":
        _check_steps(settings)
        return
    if settings.step_noise is not None:
        raise ValueError(f"step_noise is of local steps: it goes with update dp-sgd, got {settings.update}")
    if settings.noise is not None and settings.epsilon is not None:
        raise ValueError("give either noise or a target epsilon, not both")
    if settings.noisy and settings.noise is None and settings.epsilon is None:
        raise ValueError(f"scheme {settings.scheme} needs noise (--noise) or a target (--epsilon)")
    if settings.epsilon is not None and not settings.noisy:
        raise ValueError(
            f"scheme {settings.scheme} adds no noise, so a target epsilon of {settings.epsilon} is impossible"
        )
    if settings.epsilon is not None and settings.clip_norm == "none":
        raise ValueError("a target epsilon needs clipping: clip_norm must not be none")


def _check_steps(settings: Settings) -> None:
    """Nothing, or a refusal of noise that local DP-SGD cannot do with: target and step_noise are of the local steps."""
    if (settings.step_noise is None) == (settings.epsilon is None):
        raise ValueError("update dp-sgd needs a local step's noise (--step-noise) or a target (--epsilon), not both")
    if settings.noisy != (settings.noise is not None):
        raise ValueError(
            f"scheme {settings.scheme} of update dp-sgd {'needs' if settings.noisy else 'takes no'} noise (--noise) on "
            "the way up, which comes on top; scheme fl+sdq compresses without more noise, fl not at all"
        )
    if any(each.noise is not None and not settings.noisy for each in settings.client):
        raise ValueError(f"client.noise is of the way up, where scheme {settings.scheme} adds none")


def check_work(settings: Settings) -> None:
    """Nothing, or a refusal of an update, a sampling, a clip or a schedule that do not go together."""
    by_example = settings.update in ("examples", "dp-sgd")
    if by_example != (settings.sampling == "poisson") and settings.sampling != "cyclic":
        raise ValueError(
            f"update examples or dp-sgd and sampling poisson go together (examples also with cyclic), got "
            f"{settings.update} and {settings.sampling}"
        )
    if settings.sampling == "all" and settings.batch != 1:
        raise ValueError(f"sampling all uses every record in every step: leave batch at 1, got {settings.batch}")
    if by_example and settings.clip_norm != "l2":
        raise ValueError(f"update {settings.update} clips each example in l2, got clip_norm {settings.clip_norm}")
    if settings.update == "dp-sgd" and settings.clip_scope != "vector":
        raise ValueError(f"update dp-sgd clips each example as a whole, got clip_scope {settings.clip_scope}")
    if settings.schedule == "theorem" and not 0 < settings.convexity <= settings.smoothness:
        raise ValueError("schedule theorem needs 0 < convexity <= smoothness")


def check_downlink(settings: Settings) -> None:
    """Nothing, or a refusal of a grid that has no step."""
    if settings.downlink == "grid" and not settings.noisy:
        raise ValueError(
            f"downlink grid takes its step from the noise, and scheme {settings.scheme} adds none: use downlink float32"
        )
    if settings.downlink == "grid" and settings.average:
        raise ValueError(
            f"downlink grid reports the weights that clients hold, and they hold no running average: average must "
            f"be 0, got {settings.average!r}"
        )


def check_clients(settings: Settings) -> None:
    """Nothing, or a refusal of a client number that nobody has."""
    beyond = [k for each in settings.client for k in each.clients if isinstance(k, int) and k >= settings.clients]
    if beyond or any(not 0 <= k < settings.clients for k in settings.byzantine):
        raise ValueError(f"client numbers must lie in [0, {settings.clients}), got {beyond or settings.byzantine}")


def check_streams(settings: Settings) -> None:
    """Nothing, or a refusal of what would break a stream's order or its account."""
    s = settings
    if s.noise_shape == "matrix" and s.sampling not in ("cyclic", "poisson"):
        raise ValueError(f"noise_shape matrix needs sampling cyclic (or poisson), got {s.sampling}")
    for name, value in (("carry", s.carry), ("matrix", s.matrix)):
        if value is not None and s.noise_shape != "matrix":
            raise ValueError(f"{name} goes with noise_shape matrix, got {s.noise_shape}")
    if s.carry is not None and s.matrix is not None:
        raise ValueError("give either carry or matrix, not both")
    if s.carry is not None and not 0.0 <= s.carry < 1.0:
        raise ValueError(f"carry must lie in [0, 1), got {s.carry!r}")
    if not s.streams:
        return
    kind = "sampling cyclic" if s.sampling == "cyclic" else "noise_shape matrix"
    for refused, why in _stream_refusals(s):
        if refused:
            raise ValueError(f"{kind} {why}")


def _stream_refusals(s: Settings) -> Iterator[tuple[bool, str]]:
    """What does not go with streams, and why, with what to do instead."""
    yield s.trust != "server", f"needs a server that undoes each stream: trust must be server, got {s.trust}"
    yield s.update == "dp-sgd", "is of what clients send: update dp-sgd adds its noise to local steps"
    schemes = [s.scheme, *(each.scheme for each in s.client if each.scheme is not None)]
    yield (
        any("laplace" in scheme for scheme in schemes),
        "is accounted for with Gaussian noise: choose a gaussian scheme",
    )
    yield s.share < 1.0, f"asks every client in every round: share must be 1, got {s.share!r}"
    yield bool(s.byzantine), "goes without byzantine clients: nothing cancels the noise that garbage hides"
    yield s.clip_norm != "l2", f"needs clip_norm l2, got {s.clip_norm}"
    yield (
        s.sampling == "poisson" and s.dropout > 0.0 and s.on_silence != "wait",
        "with sampling poisson is accounted for where every message comes: choose --policy wait, or sampling cyclic, "
        f"whose absences can be charged; got dropout {s.dropout:g}",
    )


def check_unit(settings: Settings) -> None:
    """Nothing, or a refusal of a unit, a cohort or a policy that the run cannot keep."""
    s = settings
    if s.participations is not None:
        at_least_one("participations", s.participations)
    if s.cohort_cap < 0 or isinstance(s.cohort_cap, bool):
        raise ValueError(f"cohort_cap must be a whole number of at least 0, got {s.cohort_cap!r}")
    gaussian = "gaussian" in s.scheme and all(each.scheme is None or "gaussian" in each.scheme for each in s.client)
    if s.policy == "top-up" and not gaussian:
        raise ValueError(
            f"policy top-up needs Gaussian noise of every client, got scheme {s.scheme}: use charge or wait"
        )
    if s.policy == "top-up" and (s.streams or s.update == "dp-sgd"):
        raise ValueError("policy top-up brings noise of single rounds, not of streams or local steps: use charge")
    if s.policy == "top-up" and s.trust != "server":
        raise ValueError(f"policy top-up needs a trusted server, got trust {s.trust}: use policy charge")
    if s.clip_quantile is not None and not (0.0 < s.clip_quantile < 1.0 and s.downlink == "float32"):
        raise ValueError(
            f"clip_quantile must lie in (0, 1), with downlink float32 (a grid's step is of one clip), got "
            f"{s.clip_quantile!r} and downlink {s.downlink}"
        )
    if s.unit == "client":
        for refused, why in _unit_refusals(s):
            if refused:
                raise ValueError(f"unit client {why}")
    elif s.cohort != "fixed" or s.cohort_cap or s.participations is not None or s.clip_quantile is not None:
        raise ValueError(
            "cohort poisson, cohort_cap, participations and clip_quantile are of whole clients: set unit client"
        )


def _unit_refusals(s: Settings) -> Iterator[tuple[bool, str]]:
    yield s.trust != "server", f"is accounted for where the server is trusted, got trust {s.trust}"
    yield "gaussian" not in s.scheme, f"needs Gaussian noise, got scheme {s.scheme}: use cepam-gaussian"
    yield (
        s.on_silence != "top-up",
        f"has noise that does not depend on who replied: policy must be top-up, got {s.policy}",
    )
    yield s.streams, "goes without streams: sampling must not be cyclic, noise_shape not matrix"
    yield (
        s.update in ("examples", "dp-sgd"),
        f"clips a whole update: update must be gradient or difference, got {s.update}",
    )
    yield (
        s.clip_norm != "l2" or s.clip_scope != "vector",
        f"clips the whole vector in l2, got clip_norm {s.clip_norm} and clip_scope {s.clip_scope}",
    )
    yield bool(s.client), "has clients of one law, one clip and one weight: leave client out"
    yield (
        s.cohort_cap > 0 and s.cohort != "poisson",
        f"has a cap where cohorts are poisson: cohort_cap must be 0 with cohort {s.cohort}, got {s.cohort_cap}",
    )


def check_personal(settings: Settings) -> None:
    """Nothing, or a refusal of layers that stay beside what counts on clients who keep nothing."""
    if settings.personal is None:
        return
    for refused, why in _personal_refusals(settings):
        if refused:
            raise ValueError(f"personal {why}")


def _personal_refusals(s: Settings) -> Iterator[tuple[bool, str]]:
    private = s.noisy or any("gaussian" in (each.scheme or "") or "laplace" in (each.scheme or "") for each in s.client)
    yield (
        s.update in ("examples", "dp-sgd"),
        f"layers remember every record they saw, so one record moves all later gradients of its client, and no clip of "
        f"single examples bounds that: update must be difference, clipped as a whole, got {s.update}",
    )
    yield s.update != "difference", f"layers move by local steps: update must be difference, got {s.update}"
    yield (
        private and s.unit == "record" and s.sampling != "all",
        f"layers remember every record they saw, so a record matters in rounds that do not draw it: with unit record "
        f"sampling must be all (no draw is claimed), or protect whole clients with unit client; got {s.sampling}",
    )
    yield (
        s.unit == "client" and s.cohort == "fixed" and s.share < 1.0,
        "layers tell who took part, and of a fixed cohort the others' tell whether one client did: cohort must be "
        "poisson, or share 1",
    )
    yield s.trust != "server", f"layers go with trust server, got trust {s.trust}"
    yield s.average != 0.0, f"layers belong to the weights that clients hold: average must be 0, got {s.average!r}"


def _secure_refusals(settings: Settings) -> Iterator[tuple[bool, str]]:
    """What does not go with sums, and why, with what to do instead."""
    s = settings
    yield s.scheme != "cepam-gaussian", f"needs scheme cepam-gaussian: sums of other noise have no account; {s.scheme}"
    yield s.update == "dp-sgd", "adds its noise to the update, dp-sgd to local steps: there a server may see updates"
    yield s.clip_norm != "l2", f"needs clip_norm l2, the norm that a node bounds; got {s.clip_norm}"
    yield s.clip_scope != "vector", "needs clip_scope vector: a node bounds the whole update"
    yield s.lattice != "Z1", f"draws its noise in one dimension: lattice must be Z1, got {s.lattice}"
    yield s.coder != "adaptive", f"sends vectors of constant length, no entropy code: leave coder as it is; {s.coder}"
    yield s.bucket is not None, "sends vectors of constant length: bucket hides nothing more"
    yield (
        s.on_silence != "charge",
        (
            f"goes on with whoever is left and charges that: policy must be charge, got {s.policy}"
            " (topping up needs a server that may see noise, waiting one that may ask twice)"
        ),
    )
    yield bool(s.byzantine), "cannot look at one client's vector: byzantine clients would ruin every sum unseen"
    yield bool(s.client), "has clients of one law, one clip and one weight: leave client out"
    yield s.keep_messages, "keeps no messages: masked parts are of no use to anybody"
    from cepam.fl.config.secure_graph import COMPLETE

    asked = s.clients_per_round
    yield asked < 3, f"needs three clients in every round at least, got {asked}"
    yield (
        asked > COMPLETE and s.share < 1.0,
        (f"asks everybody where a round has more than {COMPLETE} clients: a sparse graph belongs to its roster"),
    )


def check_trust(settings: Settings) -> None:
    """Nothing; raises a ValueError that says what does not go with `trust sum`, and why."""
    s = settings
    if s.trust != "sum":
        given = {"bits": s.bits, "reach": s.reach, "sketch": s.sketch, "colluders": s.colluders or None}
        if names := [name for name, value in given.items() if value is not None]:
            raise ValueError(f"{', '.join(names)}: only trust sum takes this, and trust is {s.trust}")
        return
    for refused, why in _secure_refusals(s):
        if refused:
            raise ValueError(f"trust sum {why}")
    if not 0.0 < s.quorum <= 1.0:
        raise ValueError(f"quorum must lie in (0, 1], a share of the clients asked, got {s.quorum!r}")
    if s.bits is not None and not 1 <= s.bits <= 32:
        raise ValueError(f"bits must be an integer from 1 to 32, got {s.bits!r}")
    from cepam.fl.config.secure_graph import SecAggGraph

    graph = SecAggGraph.of(s)
    if graph.honest < 1 or s.colluders < 0:
        raise ValueError(
            f"quorum {graph.quorum} of {graph.asked} with {s.colluders} colluders hides nobody if the server lies: "
            "twice the quorum must exceed clients and colluders together"
        )


CHECKS: tuple[Callable[[Settings], None], ...] = (
    check_values,
    check_seeds,
    check_noise,
    check_work,
    check_streams,
    check_downlink,
    check_clients,
    check_unit,
    check_personal,
    check_trust,
)

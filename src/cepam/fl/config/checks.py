"""Checks of the settings, one function per subject: each raises a ValueError that names setting, value and range.

A new subject is a function and a line here; the order is that in which refusals are made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from cepam._internal.quorum import check_quorum

if TYPE_CHECKING:
    from cepam.fl.config.settings import Settings

COUNTS = (
    "clients.count", "training.rounds", "training.local_steps", "training.batch_size", "training.local_epochs",
    "training.slices", "data.shards_per_client", "run.seeds", "run.evaluate_every", "run.checkpoint_every",
)  # fmt: skip
COUNTS_OR_ZERO = ("run.seed", "data.validation_records", "clients.max_cohort", "privacy.colluders")
POSITIVE = (
    "training.server_learning_rate", "training.expected_batch_size", "privacy.clipping_norm", "privacy.delta",
    "compression.sdq_step", "compression.downlink_step_factor", "data.concentration",
)  # fmt: skip
POSITIVE_OR_NONE = (
    "privacy.noise_scale", "privacy.epsilon", "privacy.step_noise_multiplier", "training.local_learning_rate",
)  # fmt: skip
FRACTIONS = (
    "training.server_momentum", "training.local_momentum", "training.weight_averaging", "clients.dropout_rate",
)  # fmt: skip


def check_values(settings: Settings) -> None:
    """Refuse a value that no run could have."""
    values = settings.values()
    for table in fields(settings):
        for each in fields(getattr(settings, table.name)):
            name, own = f"{table.name}.{each.name}", each.name == "name" and settings.own(table.name)
            if each.metadata["choices"] and not own:
                one_of(name, values[name], each.metadata["choices"])
    for name in COUNTS:
        at_least_one(name, values[name])
    for name in COUNTS_OR_ZERO:
        if isinstance(values[name], bool) or not isinstance(values[name], int) or values[name] < 0:
            raise ValueError(f"{name} must be a whole number of at least 0, got {values[name]!r}")
    for name in POSITIVE:
        positive(name, values[name])
    for name in POSITIVE_OR_NONE:
        positive(name, values[name], optional=True)
    for name in FRACTIONS:
        if not 0.0 <= values[name] < 1.0:
            raise ValueError(f"{name} must lie in [0, 1), got {values[name]!r}")
    if not 0.0 < settings.clients.sampling_rate <= 1.0:
        raise ValueError(f"clients.sampling_rate must lie in (0, 1], got {settings.clients.sampling_rate!r}")
    if not settings.privacy.delta < 1.0:
        raise ValueError(f"privacy.delta must lie in (0, 1), got {settings.privacy.delta!r}")


def check_seeds(settings: Settings) -> None:
    """Refuse several seeds in a run that is no simulation.

    Every seed publishes a model of the same records, and epsilon is that of one: it would cover one of them.
    """
    if settings.run.seeds > 1 and not settings.run.simulate:
        raise ValueError(
            f"run.seeds must be 1 without run.simulate, got {settings.run.seeds}: each seed publishes a model of the "
            "same records and epsilon covers one; set run.simulate (--simulate) to study seeds, or train one run per "
            "seed and divide the budget among them"
        )


def one_of(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Refuse a value that is no choice."""
    if value not in choices:
        known = ", ".join(str(choice) for choice in choices if choice is not None)
        raise ValueError(f"{name} must be one of {known}; got {value!r}")


def at_least_one(name: str, value: Any) -> None:
    """Refuse what is no count."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")


def positive(name: str, value: Any, optional: bool = False) -> None:
    """Refuse what is no positive number; None passes where it is optional."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 < value < math.inf:
        raise ValueError(f"{name} must be a positive number, got {value!r}")


def check_noise(settings: Settings) -> None:
    """Refuse a noise scale and a target that do not go together."""
    training, privacy, scheme = settings.training, settings.privacy, settings.compression.scheme
    if training.update == "dp-sgd":
        _check_steps(settings)
        return
    if privacy.step_noise_multiplier is not None:
        raise ValueError(
            f"privacy.step_noise_multiplier needs training.update dp-sgd, whose local steps add noise; got "
            f"{training.update}"
        )
    if privacy.noise_scale is not None and privacy.epsilon is not None:
        raise ValueError("give either privacy.noise_scale or a target privacy.epsilon, not both")
    if settings.noisy and privacy.noise_scale is None and privacy.epsilon is None:
        raise ValueError(
            f"compression.scheme {scheme} needs privacy.noise_scale (--noise-scale) or a target privacy.epsilon "
            "(--epsilon)"
        )
    if privacy.epsilon is not None and not settings.noisy:
        raise ValueError(
            f"compression.scheme {scheme} adds no noise, so a target privacy.epsilon of {privacy.epsilon} is impossible"
        )
    if privacy.epsilon is not None and privacy.norm_type == "none":
        raise ValueError("a target privacy.epsilon needs clipping: privacy.norm_type must not be none")


def _check_steps(settings: Settings) -> None:
    """Refuse noise that local DP-SGD cannot use: its target and its multiplier are those of the local steps."""
    privacy, scheme = settings.privacy, settings.compression.scheme
    if (privacy.step_noise_multiplier is None) == (privacy.epsilon is None):
        raise ValueError(
            "training.update dp-sgd needs privacy.step_noise_multiplier or a target privacy.epsilon (--epsilon), "
            "not both"
        )
    if settings.noisy != (privacy.noise_scale is not None):
        raise ValueError(
            f"compression.scheme {scheme} with training.update dp-sgd {'needs' if settings.noisy else 'takes no'} "
            "privacy.noise_scale (--noise-scale), the noise of the uplink on top of that of local steps; scheme fl+sdq "
            "compresses without more noise, fl not at all"
        )
    if any(each.noise_scale is not None and not settings.noisy for each in settings.clients.overrides):
        raise ValueError(f"clients.overrides: noise_scale is that of the uplink, where scheme {scheme} adds no noise")


def check_work(settings: Settings) -> None:
    """Refuse an update, a record sampling, a clip or a schedule that do not go together."""
    training, privacy = settings.training, settings.privacy
    by_example = training.update in ("examples", "dp-sgd")
    if by_example != (training.record_sampling == "poisson") and training.record_sampling != "cyclic":
        raise ValueError(
            f"training.update examples or dp-sgd and training.record_sampling poisson go together (examples also with "
            f"cyclic), got {training.update} and {training.record_sampling}"
        )
    if training.record_sampling == "all" and training.batch_size != 1:
        raise ValueError(
            f"training.record_sampling all uses every record in every step: leave training.batch_size at 1, got "
            f"{training.batch_size}"
        )
    if by_example and privacy.norm_type != "l2":
        raise ValueError(
            f"training.update {training.update} clips each example in l2, got privacy.norm_type {privacy.norm_type}"
        )
    if training.update == "dp-sgd" and privacy.clip_scope != "vector":
        raise ValueError(
            f"training.update dp-sgd clips each example as a whole, got privacy.clip_scope {privacy.clip_scope}"
        )
    if training.schedule == "theorem" and not 0 < training.convexity <= training.smoothness:
        raise ValueError("training.schedule theorem needs 0 < training.convexity <= training.smoothness")


def check_downlink(settings: Settings) -> None:
    """Refuse a quantized downlink without noise to take its step from."""
    exponent = settings.compression.downlink_step_exponent
    if not 0.0 <= exponent <= 1.0:
        raise ValueError(f"compression.downlink_step_exponent must lie in [0, 1], got {exponent!r}")
    zone = settings.compression.downlink_hysteresis
    if not 0.5 <= zone <= 2.0:
        raise ValueError(f"compression.downlink_hysteresis must lie in [0.5, 2], got {zone!r}")
    if settings.compression.downlink != "quantized":
        return
    if not settings.noisy:
        raise ValueError(
            f"compression.downlink quantized takes its step from the noise, and scheme {settings.compression.scheme} "
            "adds none: use float32"
        )
    if settings.training.weight_averaging:
        raise ValueError(
            f"compression.downlink quantized reports the weights that clients hold, and they hold no running average: "
            f"training.weight_averaging must be 0, got {settings.training.weight_averaging!r}"
        )


def check_clients(settings: Settings) -> None:
    """Refuse a client number that nobody has."""
    clients = settings.clients
    beyond = [k for each in clients.overrides for k in each.clients if isinstance(k, int) and k >= clients.count]
    if beyond or any(not 0 <= k < clients.count for k in clients.byzantine):
        raise ValueError(f"client numbers must lie in [0, {clients.count}), got {beyond or clients.byzantine}")


def check_slices(settings: Settings) -> None:
    """Refuse what would break the order of slices, the correlation of noise, or their accounting."""
    training, privacy = settings.training, settings.privacy
    if privacy.noise_correlation == "matrix" and training.record_sampling not in ("cyclic", "poisson"):
        raise ValueError(
            f"privacy.noise_correlation matrix needs training.record_sampling cyclic (or poisson), got "
            f"{training.record_sampling}"
        )
    for name, value in (("privacy.decay", privacy.decay), ("privacy.matrix", privacy.matrix)):
        if value is not None and privacy.noise_correlation != "matrix":
            raise ValueError(f"{name} needs privacy.noise_correlation matrix, got {privacy.noise_correlation}")
    if privacy.decay is not None and privacy.matrix is not None:
        raise ValueError("give either privacy.decay or privacy.matrix, not both")
    if privacy.decay is not None and not 0.0 <= privacy.decay < 1.0:
        raise ValueError(f"privacy.decay must lie in [0, 1), got {privacy.decay!r}")
    if not settings.sliced:
        return
    kind = (
        "training.record_sampling cyclic"
        if training.record_sampling == "cyclic"
        else "privacy.noise_correlation matrix"
    )
    for refused, why in _slice_refusals(settings):
        if refused:
            raise ValueError(f"{kind} {why}")


def _slice_refusals(s: Settings) -> Iterator[tuple[bool, str]]:
    """What does not go with slices and correlated noise, and why, with what to do instead."""
    yield (
        s.privacy.trust != "server",
        f"needs a server that sees each client's updates: privacy.trust must be server, got {s.privacy.trust}",
    )
    yield (
        s.training.update == "dp-sgd",
        "concerns what clients send: training.update dp-sgd adds its noise to local steps",
    )
    schemes = [s.compression.scheme, *(each.scheme for each in s.clients.overrides if each.scheme is not None)]
    yield (
        any("laplace" in scheme for scheme in schemes),
        "is accounted for with Gaussian noise: choose a gaussian compression.scheme",
    )
    yield (
        s.clients.sampling_rate < 1.0,
        f"samples every client in every round: clients.sampling_rate must be 1, got {s.clients.sampling_rate!r}",
    )
    yield (
        bool(s.clients.byzantine),
        f"goes without clients.byzantine, whose noise nothing cancels; got {s.clients.byzantine}",
    )
    yield s.privacy.norm_type != "l2", f"needs privacy.norm_type l2, got {s.privacy.norm_type}"
    yield (
        s.training.record_sampling == "poisson" and s.clients.dropout_rate > 0.0 and s.dropout_handling != "wait",
        "with training.record_sampling poisson is accounted for where every message arrives: choose "
        "clients.dropout_handling wait, or record_sampling cyclic, whose absences can be charged; got "
        f"clients.dropout_rate {s.clients.dropout_rate:g}",
    )


def check_unit(settings: Settings) -> None:
    """Refuse a unit, a client sampling or a dropout handling that the run cannot keep."""
    s, clients, privacy = settings, settings.clients, settings.privacy
    if clients.max_participations is not None:
        at_least_one("clients.max_participations", clients.max_participations)
    _check_compensation(s)
    if privacy.clip_quantile is not None and not (
        0.0 < privacy.clip_quantile < 1.0 and s.compression.downlink == "float32"
    ):
        raise ValueError(
            f"privacy.clip_quantile must lie in (0, 1), with compression.downlink float32 (the step of a quantized one "
            f"is of one clipping norm), got {privacy.clip_quantile!r} and {s.compression.downlink}"
        )
    if privacy.unit == "client":
        for refused, why in _unit_refusals(s):
            if refused:
                raise ValueError(f"privacy.unit client {why}")
    elif (
        clients.sampling != "fixed"
        or clients.max_cohort
        or clients.max_participations is not None
        or privacy.clip_quantile is not None
    ):
        raise ValueError(
            "clients.sampling poisson, clients.max_cohort, clients.max_participations and privacy.clip_quantile need "
            f"privacy.unit client, got {privacy.unit}"
        )


def _check_compensation(s: Settings) -> None:
    """Refuse a server that would compensate for noise that it cannot draw."""
    if s.clients.dropout_handling != "compensate":
        return
    name, scheme = "clients.dropout_handling compensate", s.compression.scheme
    schemes = [scheme, *(each.scheme or scheme for each in s.clients.overrides)]
    if not all("gaussian" in each for each in schemes):
        raise ValueError(
            f"{name} needs Gaussian noise of every client, got compression.scheme {scheme}: use charge or wait"
        )
    if s.sliced or s.training.update == "dp-sgd":
        raise ValueError(
            f"{name} replaces the noise of single rounds, not correlated noise or that of local steps: use charge"
        )
    if s.privacy.trust != "server":
        raise ValueError(f"{name} needs a trusted server, got privacy.trust {s.privacy.trust}: use charge")


def _unit_refusals(s: Settings) -> Iterator[tuple[bool, str]]:
    yield (
        s.privacy.trust != "server",
        f"is accounted for where the server is trusted, got privacy.trust {s.privacy.trust}",
    )
    yield (
        "gaussian" not in s.compression.scheme,
        f"needs Gaussian noise, got compression.scheme {s.compression.scheme}: use cepam-gaussian",
    )
    yield (
        s.dropout_handling != "compensate",
        f"has noise that does not depend on who replied: clients.dropout_handling must be compensate, got "
        f"{s.clients.dropout_handling}",
    )
    yield (
        s.sliced,
        "goes without slices: training.record_sampling must not be cyclic, privacy.noise_correlation not matrix",
    )
    yield (
        s.training.update in ("examples", "dp-sgd"),
        f"clips a whole update: training.update must be gradient or difference, got {s.training.update}",
    )
    yield (
        s.privacy.norm_type != "l2" or s.privacy.clip_scope != "vector",
        f"clips the whole vector in l2, got privacy.norm_type {s.privacy.norm_type} and privacy.clip_scope "
        f"{s.privacy.clip_scope}",
    )
    yield (
        bool(s.clients.overrides),
        "needs clients with one noise, one clipping norm and one weight: leave clients.overrides out",
    )
    yield (
        s.clients.max_cohort > 0 and s.clients.sampling != "poisson",
        f"has a largest cohort with Poisson sampling: clients.max_cohort must be 0 with clients.sampling "
        f"{s.clients.sampling}, got {s.clients.max_cohort}",
    )


def check_personal(settings: Settings) -> None:
    """Refuse personal layers beside what assumes that clients keep no state."""
    if settings.model.personal_layers is None:
        return
    for refused, why in _personal_refusals(settings):
        if refused:
            raise ValueError(f"model.personal_layers {why}")


def _personal_refusals(s: Settings) -> Iterator[tuple[bool, str]]:
    training, own = s.training, [each.scheme or "" for each in s.clients.overrides]
    private = s.noisy or any("gaussian" in scheme or "laplace" in scheme for scheme in own)
    yield (
        training.update in ("examples", "dp-sgd"),
        f"remember every record they saw, so one record moves all later gradients of its client, and no clip of "
        f"single examples bounds that: training.update must be difference, clipped as a whole, got {training.update}",
    )
    yield (
        training.update != "difference",
        f"move by local steps: training.update must be difference, got {training.update}",
    )
    yield (
        private and s.privacy.unit == "record" and training.record_sampling != "all",
        f"remember every record they saw, so a record matters in rounds that do not draw it: with privacy.unit record "
        f"training.record_sampling must be all (no draw is claimed), or protect whole clients with privacy.unit "
        f"client; got {training.record_sampling}",
    )
    yield (
        s.privacy.unit == "client" and s.clients.sampling == "fixed" and s.clients.sampling_rate < 1.0,
        "show who took part, and those of the others in a fixed cohort show whether one client did: clients.sampling "
        "must be poisson, or clients.sampling_rate 1",
    )
    yield s.privacy.trust != "server", f"need privacy.trust server, got {s.privacy.trust}"
    yield (
        training.weight_averaging != 0.0,
        f"belong to the weights that clients hold: training.weight_averaging must be 0, got "
        f"{training.weight_averaging!r}",
    )


def _secure_refusals(settings: Settings) -> Iterator[tuple[bool, str]]:
    """What does not go with secure aggregation, and why, with what to do instead."""
    s, compression, privacy = settings, settings.compression, settings.privacy
    yield (
        compression.scheme != "cepam-gaussian",
        f"needs compression.scheme cepam-gaussian: sums of other noise are not accounted for; got {compression.scheme}",
    )
    yield (
        s.training.update == "dp-sgd",
        "adds its noise to the update, training.update dp-sgd to local steps: there a server may see updates",
    )
    yield (
        privacy.norm_type != "l2",
        f"needs privacy.norm_type l2, the norm that a node bounds; got {privacy.norm_type}",
    )
    yield (
        privacy.clip_scope != "vector",
        f"needs privacy.clip_scope vector: a node bounds the whole update; got {privacy.clip_scope}",
    )
    yield (
        compression.lattice != "Z1",
        f"draws its noise in one dimension: compression.lattice must be Z1, got {compression.lattice}",
    )
    yield (
        compression.coder != "auto",
        f"sends vectors of constant length, no entropy code: compression.coder must be auto, got {compression.coder}",
    )
    yield (
        compression.padding is not None,
        f"sends vectors of constant length: compression.padding hides nothing more, got {compression.padding}",
    )
    yield (
        s.dropout_handling != "charge",
        f"continues with the clients that are left and charges that: clients.dropout_handling must be charge, got "
        f"{s.clients.dropout_handling} (compensating needs a server that may see noise, waiting one that may ask "
        "twice)",
    )
    yield (
        bool(s.clients.byzantine),
        f"cannot inspect one client's vector, and clients.byzantine would spoil every sum unseen; got "
        f"{s.clients.byzantine}",
    )
    yield (
        bool(s.clients.overrides),
        "needs clients with one noise, one clipping norm and one weight: leave clients.overrides out",
    )
    yield s.run.keep_messages, "keeps no messages: masked vectors are of no use; leave run.keep_messages out"
    from cepam.fl.config.settings import COMPLETE

    sampled = s.clients_per_round
    yield sampled < 3, f"needs three clients in every round at least, got {sampled}"
    yield (
        sampled > COMPLETE and s.clients.sampling_rate < 1.0,
        f"samples every client where a round has more than {COMPLETE}: a sparse graph belongs to its roster; "
        f"clients.sampling_rate must be 1, got {s.clients.sampling_rate!r}",
    )


def check_trust(settings: Settings) -> None:
    """Refuse what does not go with secure aggregation, and its settings without it."""
    s, compression = settings, settings.compression
    if s.privacy.trust != "secure-aggregation":
        given = {
            "compression.masked_bits": compression.masked_bits,
            "compression.quantization_range": compression.quantization_range,
            "compression.sketch": compression.sketch,
            "privacy.colluders": s.privacy.colluders or None,
        }
        if names := [name for name, value in given.items() if value is not None]:
            raise ValueError(f"{', '.join(names)}: needs privacy.trust secure-aggregation, got {s.privacy.trust}")
        return
    for refused, why in _secure_refusals(s):
        if refused:
            raise ValueError(f"privacy.trust secure-aggregation {why}")
    check_quorum(s.privacy.quorum, "privacy.quorum")
    if compression.masked_bits is not None and not 1 <= compression.masked_bits <= 32:
        raise ValueError(
            f"compression.masked_bits must be a whole number from 1 to 32, got {compression.masked_bits!r}"
        )
    from cepam.fl.config.settings import SecAggGraph

    graph = SecAggGraph.of(s)
    if graph.honest < 1:
        raise ValueError(
            f"privacy.quorum: {graph.quorum} of {graph.clients} clients with {s.privacy.colluders} privacy.colluders "
            "hides nobody if the server lies: twice the quorum must exceed clients and colluders together"
        )


CHECKS: tuple[Callable[[Settings], None], ...] = (
    check_values,
    check_seeds,
    check_noise,
    check_work,
    check_slices,
    check_downlink,
    check_clients,
    check_unit,
    check_personal,
    check_trust,
)

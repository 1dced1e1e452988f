"""The clients: what each adds, clips, weighs and sends, lowered once from the settings.

Paper: "privacy adaptability"; each client may have its own law, scale, clip, weight and lattice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.clip import L1, L2, Clip
from cepam.codec.codec import Codec, DitheredCodec
from cepam.codec.protocol import UpdateCodec
from cepam.fl.engine import baselines, sampling
from cepam.fl.engine.settings import ClientSettings, Settings
from cepam.noise.lattices import A2, D4, E8, Integer, Lattice
from cepam.noise.laws import Gaussian, Laplace, Law
from cepam.privacy import Client as Charged
from cepam.privacy import Release, Sampling, calibrate

LATTICES: dict[str, Lattice] = {
    "Z1": Integer(1), "Z2": Integer(2), "Z3": Integer(3), "A2": A2, "D4": D4, "E8": E8,
}  # fmt: skip


@dataclass(frozen=True)
class ClientPlan:
    """What one client does; `law` is None where no noise is added, `clip` where nothing is clipped."""

    records: int
    weight: float
    batch: float
    clip: Clip | None
    law: Law | None
    codec: UpdateCodec


@dataclass(frozen=True)
class _Draft:
    """A plan before its noise is known."""

    records: int
    weight: float
    batch: float
    clip: Clip | None
    family: type[Gaussian] | type[Laplace] | None
    scheme: str
    lattice: str
    noise: float | None
    epsilon: float | None
    delta: float


def _bound_of(settings: Settings, bound: float, tensors: int) -> Clip | None:
    if settings.clip_norm == "none":
        return None
    clip = L2(bound) if settings.clip_norm == "l2" else L1(bound)
    return clip.whole(tensors) if settings.clip_scope == "tensor" else clip


def _draft(settings: Settings, own: ClientSettings, records: int, share: float, tensors: int) -> _Draft:
    scheme = own.scheme or settings.scheme
    family = Gaussian if "gaussian" in scheme else Laplace if "laplace" in scheme else None
    noise, epsilon = own.noise, own.epsilon
    if noise is None and epsilon is None:
        noise, epsilon = settings.noise, settings.epsilon
    if family is not None and noise is None and epsilon is None:
        raise ValueError(f"scheme {scheme} of clients {own.clients} needs noise or a target epsilon")
    return _Draft(
        records=records,
        weight=own.weight if own.weight is not None else share,
        batch=settings.expected_batch * share,
        clip=_bound_of(settings, own.clip or settings.clip, tensors),
        family=family,
        scheme=scheme,
        lattice=own.lattice or settings.lattice,
        noise=noise if family else None,
        epsilon=epsilon if family else None,
        delta=own.delta or settings.delta,
    )


def plan_clients(settings: Settings, held: npt.NDArray[np.int64], size: int, tensors: int) -> tuple[ClientPlan, ...]:
    """The clients of a run, with weights that sum to one and noise that meets every stated target.

    Weights are public constants in proportion to the records held, unless the settings give others.
    """
    own = {k: each for each in settings.client for k in each.clients}
    nothing = ClientSettings((0,))
    drafts = [_draft(settings, own.get(k, nothing), int(n), float(n / held.sum()), tensors) for k, n in enumerate(held)]
    total = sum(draft.weight for draft in drafts)
    drafts = [replace(draft, weight=draft.weight / total) for draft in drafts]
    scales = _calibrated(settings, drafts, size)
    return tuple(_planned(settings, draft, scale) for draft, scale in zip(drafts, scales))


def _calibrated(settings: Settings, drafts: list[_Draft], size: int) -> list[float | None]:
    """The noise scale of each client.

    Clients with a target share the noise that the strictest of them needs in the weighted sum, each in proportion to
    what it asks for; noise that others state for themselves comes on top. So every target is met against an outsider.
    Where a round asks only a share of the clients, or some send garbage, the noise of those that surely reply suffices;
    no amplification is claimed for who is asked.
    """
    asking = [k for k, draft in enumerate(drafts) if draft.epsilon is not None]
    if not asking:
        return [draft.noise for draft in drafts]
    if len({drafts[k].family for k in asking}) > 1:
        raise ValueError("clients with a target epsilon must all use one law, Gaussian or Laplace")
    needed = {k: _noise_needed(settings, drafts[k], size) for k in asking}
    if drafts[asking[0]].family is Laplace:
        return [needed.get(k, draft.noise) for k, draft in enumerate(drafts)]
    sound = sorted(need * drafts[k].weight for k, need in needed.items() if k not in settings.byzantine)
    others = len(drafts) - len(sound)
    surely = max(1, sampling.asked(settings.clients, settings.share) - others)
    # The cohort with the least noise beside the strictest client: that client and the quietest of the rest.
    strictest = max(need * drafts[k].weight for k, need in needed.items())
    factor = strictest / math.hypot(strictest, *sound[: surely - 1])
    return [needed[k] * factor if k in needed else draft.noise for k, draft in enumerate(drafts)]


def _noise_needed(settings: Settings, draft: _Draft, size: int) -> float:
    """The noise scale with which this client alone would meet its target over the whole run."""
    assert draft.family is not None
    assert draft.clip is not None
    assert draft.epsilon is not None
    alone = Charged(draft.family(draft.clip.bound), draft.records, 1.0, draws_of(settings, draft.batch))
    release = Release(
        (alone,), draft.clip, sampling_of(settings, draft.batch), settings.rounds, 0, settings.adjacency,  # type: ignore[arg-type]
        "example" if settings.update == "examples" else "update", size,
    )  # fmt: skip
    return float(calibrate(release, draft.epsilon, draft.delta).clients[0].law.scale)


def draws_of(settings: Settings, batch: float) -> float:
    """How many records a client of this expected batch draws in a round."""
    return batch if settings.update == "examples" else float(settings.tau * settings.batch)


def sampling_of(settings: Settings, batch: float) -> Sampling:
    """How records are drawn, for the accountant.

    Departs: the paper's theorem counts tau - 1 draws a round; the gradient that is sent is a draw too.
    """
    return Sampling(settings.sampling, draws_of(settings, batch))  # type: ignore[arg-type]


def _planned(settings: Settings, draft: _Draft, scale: float | None) -> ClientPlan:
    law = draft.family(scale) if draft.family is not None and scale is not None else None
    return ClientPlan(draft.records, draft.weight, draft.batch, draft.clip, law, _codec(settings, draft, law))


def _codec(settings: Settings, draft: _Draft, law: Law | None) -> UpdateCodec:
    if draft.scheme.startswith("cepam"):
        assert law is not None
        lattice = draft.lattice if draft.lattice == "auto" else LATTICES[draft.lattice]
        return Codec(law, lattice, **_options(settings, draft))  # type: ignore[arg-type]
    if draft.scheme == "fl+sdq":
        return DitheredCodec(settings.step, **_options(settings, draft))
    if draft.scheme.endswith("+sdq"):
        assert law is not None
        return baselines.NoisyDithered(law, settings.step)
    return baselines.PlainFloats(law)


def _options(settings: Settings, draft: _Draft) -> dict[str, Any]:
    return {"coder": settings.coder, "bound": _coder_bound(settings, draft), "bucket": settings.bucket}


def _coder_bound(settings: Settings, draft: _Draft) -> float | None:
    """The bound on an update's norm that the paper's coder needs; an `examples` update sums a whole batch."""
    if settings.coder == "adaptive":
        return None
    if draft.clip is None:
        raise ValueError("coder paper needs clipping: clip_norm must not be none")
    return draft.clip.bound * (draft.records / draft.batch if settings.update == "examples" else 1.0)

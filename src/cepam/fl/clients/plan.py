"""What each client adds, clips, weighs and sends, compiled once from the settings.

Paper: "privacy adaptability"; each client may have its own law, scale, clip, weight and lattice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cepam.clip import CLIPS, Clip
from cepam.codec.codec import Codec, DitheredCodec
from cepam.codec.vectors import UpdateCodec
from cepam.distributions.laws import Gaussian, Laplace, Law
from cepam.fl.clients import baselines
from cepam.fl.clients.local_dp_sgd import StepPlan
from cepam.fl.clients.slices import divisor, link_of, most_examples
from cepam.fl.config.settings import ClientOverride, Settings
from cepam.privacy import Sampling


@dataclass(frozen=True)
class ClientPlan:
    """What one client does; `law` is None where no noise is added, `clip` where nothing is clipped.

    `steps` is what it does in a local step, where that is noised by itself.
    """

    records: int
    weight: float
    batch: float
    clip: Clip | None
    law: Law | None
    codec: UpdateCodec
    steps: StepPlan | None = None


@dataclass(frozen=True)
class ClientDraft:
    """A plan before its noise is known; `epsilon` is its target, where it has one."""

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
    if settings.privacy.norm_type == "none":
        return None
    clip = CLIPS[settings.privacy.norm_type](bound)
    return clip.whole(tensors) if settings.privacy.clip_scope == "tensor" else clip


def draft_of(settings: Settings, own: ClientOverride, records: int, share: float, tensors: int) -> ClientDraft:
    """What a client that holds this share of the records does, by the settings and by what it does differently."""
    scheme = own.scheme or settings.compression.scheme
    family = Gaussian if "gaussian" in scheme else Laplace if "laplace" in scheme else None
    noise, epsilon = own.noise_scale, own.epsilon
    if noise is None and epsilon is None:
        noise, epsilon = settings.privacy.noise_scale, settings.privacy.epsilon
    if family is not None and noise is None and epsilon is None:
        raise ValueError(f"scheme {scheme} of clients {own.clients} needs noise_scale or a target epsilon")
    return ClientDraft(
        records=records,
        weight=own.weight if own.weight is not None else share,
        batch=divisor(settings, records, share),
        clip=_bound_of(settings, own.clipping_norm or settings.privacy.clipping_norm, tensors),
        family=family,
        scheme=scheme,
        lattice=own.lattice or settings.compression.lattice,
        noise=noise if family else None,
        epsilon=epsilon if family else None,
        delta=own.delta or settings.privacy.delta,
    )


def draws_of(settings: Settings, batch: float) -> float:
    """How many records a client of this expected batch draws in a round."""
    return (
        batch
        if settings.training.update == "examples"
        else float(settings.training.local_steps * settings.training.batch_size)
    )


def sampling_of(settings: Settings, batch: float) -> Sampling:
    """How records are drawn, for the accountant.

    Departs: the paper's theorem counts tau - 1 draws a round; the gradient that is sent is a draw too.
    """
    return Sampling(settings.training.record_sampling, draws_of(settings, batch))  # type: ignore[arg-type]


def plan_of(settings: Settings, draft: ClientDraft, scale: float | None, size: int) -> ClientPlan:
    """The plan of a draft with noise of this scale, for updates of so many coordinates."""
    law = draft.family(scale) if draft.family is not None and scale is not None else None
    return ClientPlan(draft.records, draft.weight, draft.batch, draft.clip, law, _codec(settings, draft, law, size))


def usual_codec(settings: Settings, size: int) -> UpdateCodec:
    """The codec of a client without wishes of its own, but for the scale of its noise, which is 1."""
    draft = draft_of(settings, ClientOverride((0,), noise_scale=1.0), 1, 1.0, 1)
    return plan_of(settings, draft, 1.0, size).codec


def _codec(settings: Settings, draft: ClientDraft, law: Law | None, size: int) -> UpdateCodec:
    if draft.scheme.startswith("cepam"):
        assert law is not None
        return _known(Codec(law, draft.lattice, size=size, **_options(settings, draft)))
    if draft.scheme == "fl+sdq":
        return DitheredCodec(settings.compression.sdq_step, size=size, **_options(settings, draft))
    if draft.scheme.endswith("+sdq"):
        assert law is not None
        return baselines.NoisyDithered(law, settings.compression.sdq_step)
    return baselines.PlainFloats(law)


@lru_cache(maxsize=64)
def _known(codec: Codec) -> Codec:
    """The codec, or the equal one that was asked about before: clients that share one are found sooner."""
    return codec


def _options(settings: Settings, draft: ClientDraft) -> dict[str, Any]:
    masked = settings.privacy.trust == "secure-aggregation"  # masked sums have no coder
    return {
        "coder": "layered" if masked else settings.compression.coder,
        "bound": _coder_bound(settings, draft),
        "padding": settings.compression.padding,
    }


def _coder_bound(settings: Settings, draft: ClientDraft) -> float | None:
    """The bound on an update's norm that the paper's coder needs; an `examples` update sums a whole batch."""
    if settings.compression.coder != "paper":
        return None
    if draft.clip is None:
        raise ValueError("compression.coder paper needs clipping: privacy.norm_type must not be none")
    link = link_of(settings)
    if link is not None:  # a stream adds up what it carries, and a draw may take a whole slice
        return draft.clip.bound * link.gain * most_examples(settings, draft.records, draft.batch)
    return draft.clip.bound * (draft.records / draft.batch if settings.training.update == "examples" else 1.0)

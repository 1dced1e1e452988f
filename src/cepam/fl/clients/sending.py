"""What each client sends and how: its scheme and noise, clipped updates to messages at their addresses; dropouts and
Byzantine clients.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from cepam.clip import CLIPS, Clip
from cepam.codec import wire
from cepam.codec.codec import Codec, DitheredCodec, UpdateCodec
from cepam.distributions.laws import Gaussian, Laplace, Law
from cepam.errors import MalformedMessage
from cepam.fl.arrays import ArrayBackend
from cepam.fl.clients import sampling
from cepam.fl.clients.local_dp_sgd import StepPlan
from cepam.fl.clients.sampling import Randomness, divisor, link_of, most_examples
from cepam.fl.config.settings import ClientOverride, Settings
from cepam.kernels.dispatch import picked
from cepam.keys import Address, Key
from cepam.privacy import Sampling

# The paper's baselines behind the codec's two methods, with real bytes.
#
# Their noise is drawn in floating point from NumPy, addressed by the same key, round and client: good for comparing
# accuracy and size, not for protecting anybody (`cepam.Codec` is).


Vector = npt.NDArray[np.float32]


def draw_noise(law: Law, size: int, at: Address) -> Vector:
    """A draw of the law for this address, in floating point."""
    words = np.frombuffer(hashlib.sha256(b"cepam baseline" + at.derive().noise).digest(), dtype=np.uint64)
    draw = np.random.Generator(np.random.Philox(key=words[:2]))
    if isinstance(law, Gaussian):
        return (law.scale * draw.standard_normal(size, dtype=np.float32)).astype(np.float32)
    if isinstance(law, Laplace):
        return draw.laplace(0.0, law.scale, size).astype(np.float32)
    raise ValueError(f"the baselines draw Gaussian or Laplace noise, got {law!r}")


def _check(update: Vector) -> Vector:
    values = np.ascontiguousarray(update, dtype="<f4")
    if values.ndim != 1 or not np.isfinite(values).all():
        raise ValueError(f"an update must be one finite row of numbers, got shape {values.shape}")
    return values


@dataclass(frozen=True)
class PlainFloats:
    """32 bits per coordinate: the update itself, or with noise of the law.

    Paper: FL, FL+Gaussian and FL+Laplace (Section V-A). No entropy coder: the low bits of such floats are noise.
    """

    law: Law | None = None

    @cached_property
    def _fingerprint(self) -> bytes:
        return hashlib.sha256(f"cepam plain floats v1 {self.law!r}".encode()).digest()

    def encode(self, update: Vector, at: Address) -> bytes:
        """The sealed message: the floats as they are."""
        values = _check(update)
        if self.law is not None:
            values = values + draw_noise(self.law, len(values), at)
        step = wire.rows_per_block(1)
        blocks = [values[i : i + step].tobytes() for i in range(0, len(values), step)]
        return wire.seal(wire.Contents(len(values), False, False, blocks), at.derive(), self._fingerprint, None)

    def decode(self, message: bytes, at: Address) -> Vector:
        """The floats; raises `MalformedMessage` or `WrongAddress` like a codec."""
        contents = wire.open_sealed(message, at.derive(), self._fingerprint, 1)
        raw = b"".join(contents.blocks)
        if len(raw) != 4 * contents.size:
            raise MalformedMessage(f"{len(raw)} bytes do not hold {contents.size} floats")
        return np.frombuffer(raw, dtype="<f4").astype(np.float32)


@dataclass(frozen=True)
class NoisyDithered:
    """Noise of the law first, dithered quantization second: FL+Gaussian+SDQ and FL+Laplace+SDQ.

    Paper: Section V-A. The quantizer comes after the noise, so it costs bits for the noise too.
    """

    law: Law
    step: float

    @cached_property
    def _codec(self) -> DitheredCodec:
        return DitheredCodec(self.step)

    def encode(self, update: Vector, at: Address) -> bytes:
        """The sealed message of the noisy update."""
        values = _check(update)
        return self._codec.encode(values + draw_noise(self.law, len(values), at), at)

    def decode(self, message: bytes, at: Address) -> Vector:
        """The noisy update, less than a cell away."""
        return np.asarray(self._codec.decode(message, at), dtype=np.float32)


# What each client adds, clips, weighs and sends, compiled once from the settings.
#
# Paper: "privacy adaptability"; each client may have its own law, scale, clip, weight and lattice.


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
        return NoisyDithered(law, settings.compression.sdq_step)
    return PlainFloats(law)


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


@dataclass(frozen=True)
class ClientMessage:
    """A message on its way: who sent it, where its randomness lives, and the bytes (None: none came)."""

    client: int
    at: Address
    message: bytes | None
    excuse: str = "no reply"


Posted = tuple[ClientMessage, Any]
MOST_ATTEMPTS = 100


@dataclass(frozen=True, eq=False)
class Senders:
    """The clients of one seed's row as senders; `cuts` are the tensors' ends where each is clipped by itself."""

    settings: Settings
    draws: Randomness
    run_id: bytes
    plans: Sequence[ClientPlan]
    arrays: ArrayBackend
    cuts: list[int] | None

    @cached_property
    def _key_of(self) -> Callable[[int], Key]:
        """The key of a client, derived once."""
        return cache(self.draws.key)

    def address(self, round: int, client: int, attempt: int = 0) -> Address:
        """Where the randomness of this client's message lives."""
        return Address(self._key_of(client), round=round, client=client, run=self.run_id, attempt=attempt)

    def send(self, round: int, clients: list[int], raw: Any) -> tuple[list[Posted], int]:
        """Every sampled client's envelope with the clipped update it holds, and how often the server had to wait.

        Policy `wait`: whoever is silent is sampled again until the reply comes; else the round goes on without.
        """
        chosen, attempt, pending = self.settings, 0, list(range(len(clients)))
        sent: list[Posted] = []
        while True:
            late = self._late(round, attempt, clients, pending)
            ready = sorted(set(pending).difference(late))
            if ready:
                sent += self._posted(round, attempt, [clients[i] for i in ready], picked(raw, ready))
            if late and chosen.dropout_handling == "wait" and attempt == MOST_ATTEMPTS:
                raise ValueError(
                    f"{len(late)} clients did not reply in {attempt + 1} attempts "
                    f"(clients.dropout_rate {chosen.clients.dropout_rate})"
                )
            if not late or chosen.dropout_handling != "wait":
                missing = [clients[i] for i in late]
                lost = [(ClientMessage(k, self.address(round, k, attempt), None), None) for k in missing]
                return sorted([*sent, *lost], key=lambda pair: pair[0].client), attempt
            attempt, pending = attempt + 1, late

    def _late(self, round: int, attempt: int, clients: list[int], pending: list[int]) -> list[int]:
        if not self.settings.clients.dropout_rate:
            return []
        silent = sampling.silent(
            self.draws, round, attempt, self.settings.clients.count, self.settings.clients.dropout_rate
        )
        return [i for i in pending if silent[clients[i]]]

    def _posted(self, round: int, attempt: int, clients: list[int], raw: Any) -> list[Posted]:
        """The envelopes of these clients with the clipped updates in them; byzantine clients send garbage as long."""
        clips = [self.plans[k].clip if self.settings.training.update != "examples" else None for k in clients]
        return self._encoded(round, attempt, clients, raw, clips)

    def _encoded(
        self, round: int, attempt: int, clients: list[int], raw: Any, clips: Sequence[Clip | None]
    ) -> list[Posted]:
        ats = [self.address(round, k, attempt) for k in clients]
        made = self.arrays.encode(raw, clips, self.cuts, [self.plans[k].codec for k in clients], ats)
        posted: list[Posted] = []
        for k, at, (update, message) in zip(clients, ats, made):
            if isinstance(message, str):
                posted.append((ClientMessage(k, at, None, message), None))
                continue
            if k in self.settings.clients.byzantine:
                message = self.draws.random_bytes(round, sampling.NOISE, k, len(message))
            posted.append((ClientMessage(k, at, message), update))
        return posted

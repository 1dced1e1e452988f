"""NVIDIA FLARE: a filter for the server and one for the clients make training results private and small.

Put `ServerFilter` in the server's task-data and task-result filters and `ClientFilter` in the clients', for the
training task. Each looks at FLARE's filter direction: the server's offers settings and a fresh public key on the way
out and opens the sealed update on the way in; the client's takes the offer off on the way in and seals on the way out.

The exchange is that of `cepam.flower` (docs/flower.md): X25519, HKDF, a key chain, one position for each message. FLARE
itself authenticates sites by certificate. The account is yours to keep, with `cepam.privacy`: filters cannot see which
results the aggregator used.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from cepam.clip import L1, L2
from cepam.errors import WrongAddress
from cepam.flower.agreement import Chain, Place, agree, new_attempt, new_pair
from cepam.flower.settings import Settings
from cepam.keys import UsedAddresses
from cepam.noise.lattices import A2, D4, E8, Integer
from cepam.noise.laws import Gaussian, Laplace

HEADER = "cepam"
PAYLOAD = "cepam.v1"
Weights = dict[str, npt.NDArray[Any]]
_LATTICES = {"auto": "auto", "A2": A2, "D4": D4, "E8": E8, "Z1": Integer(1)}


@dataclass
class _Desk:
    """What one end of one job keeps between filter calls; FLARE makes a filter object for every chain."""

    chains: dict[str, Chain] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    letters: dict[tuple[str, int], tuple[Settings, Weights, X25519PrivateKey]] = field(default_factory=dict)
    used: UsedAddresses = field(default_factory=UsedAddresses)
    received: tuple[dict[str, Any], Weights] | None = None
    lock: Lock = field(default_factory=Lock)


_desks: dict[tuple[str, str], _Desk] = {}
_desks_lock = Lock()


def _desk(fl_ctx: FLContext, who: str) -> _Desk:
    with _desks_lock:
        return _desks.setdefault((str(fl_ctx.get_job_id()), who), _Desk())


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


class ServerFilter(Filter):  # type: ignore[misc]
    """The server's half: offers on the way out, opens on the way in. A result that does not open raises, and FLARE
    hands the workflow an error in its place."""

    def __init__(
        self,
        scale: float,
        bound: float,
        law: str = "gaussian",
        norm: str = "l2",
        lattice: str = "auto",
        weight: float = 1.0,
    ) -> None:
        super().__init__()
        # FLARE writes a job's configuration from attributes that are named like the arguments.
        self.scale, self.bound, self.law, self.norm = scale, bound, law, norm
        self.lattice, self.weight = lattice, weight
        noise = {"gaussian": Gaussian, "laplace": Laplace}[law](scale)
        clip = {"l1": L1, "l2": L2}[norm](bound)
        self.settings = Settings(noise, clip, _LATTICES[lattice], weight=weight)  # type: ignore[arg-type]

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """The task with an offer, or the result with dense arrays."""
        client = fl_ctx.get_peer_context().get_identity_name()
        desk = _desk(fl_ctx, "server")
        with desk.lock:
            if fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) == FilterKey.OUT:
                return self._offer(shareable, fl_ctx, desk, client)
            return self._open(shareable, fl_ctx, desk, client)

    def _offer(self, shareable: Shareable, fl_ctx: FLContext, desk: _Desk, client: str) -> Shareable:
        reference = _weights(from_shareable(shareable))
        position = desk.positions.get(client, 0)
        desk.positions[client] = position + 1
        private, public = new_pair()
        desk.letters = {key: letter for key, letter in desk.letters.items() if key[0] != client}
        desk.letters[client, position] = (self.settings, reference, private)
        chain = desk.chains.get(client)
        offer = {
            "settings": self.settings.to_json(),
            "position": position,
            "chain": chain.name if chain else b"",
            "public": public,
        }
        shareable.set_header(HEADER, offer)
        return shareable

    def _open(self, shareable: Shareable, fl_ctx: FLContext, desk: _Desk, client: str) -> Shareable:
        if shareable.get_return_code() != ReturnCode.OK:
            return shareable
        answer = shareable.get_header(HEADER)
        dxo = from_shareable(shareable)
        letter = desk.letters.pop((client, answer["position"]), None) if isinstance(answer, dict) else None
        if letter is None or list(dxo.data) != [PAYLOAD]:
            raise WrongAddress(f"the result of {client} does not answer an open offer with a sealed update")
        settings, reference, private = letter
        place = Place(_number(str(fl_ctx.get_job_id())), _number(client))
        chain, position = desk.chains.get(client), int(answer["position"])
        if answer["public"]:
            offered = private.public_key().public_bytes_raw()
            root = agree(private, answer["public"], place.transcript(offered, answer["public"]))
            chain = Chain.start(root, position)
        if chain is None:
            raise WrongAddress(f"{client} has no key and did not agree on one")
        at = chain.take(position, place.node, place.run_bytes(position), int(answer["attempt"]))
        vector = settings.codec.decode(bytes(dxo.data[PAYLOAD]), at, used=desk.used)
        desk.chains[client] = chain
        if len(vector) != sum(value.size for value in reference.values()) or not np.isfinite(vector).all():
            raise WrongAddress(f"the update of {client} has another size, or is not finite")
        dxo.data = _restored(vector, reference, whole=dxo.data_kind == DataKind.WEIGHTS)
        dxo.set_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND, settings.weight)
        return dxo.update_shareable(shareable)


class ClientFilter(Filter):  # type: ignore[misc]
    """The client's half: takes the offer off on the way in, clips, adds the noise and seals on the way out."""

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """The task without its offer, or the result sealed."""
        client = fl_ctx.get_identity_name()
        desk = _desk(fl_ctx, client)
        if fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) == FilterKey.IN:
            offer = shareable.get_header(HEADER)
            desk.received = (offer, _weights(from_shareable(shareable))) if offer else None
            return shareable
        if desk.received is None or shareable.get_return_code() != ReturnCode.OK:
            return shareable
        offer, reference = desk.received
        desk.received = None
        return self._sealed(shareable, offer, reference, _number(str(fl_ctx.get_job_id())), client, desk)

    def _sealed(
        self, shareable: Shareable, offer: dict[str, Any], reference: Weights, run: int, client: str, desk: _Desk
    ) -> Shareable:
        settings = Settings.from_json(offer["settings"])
        dxo = from_shareable(shareable)
        update = _vector(dxo, reference)
        place, position, public = Place(run, _number(client)), int(offer["position"]), b""
        chain = desk.chains.get(client)
        if chain is None or chain.name != offer["chain"]:
            private, public = new_pair()
            chain = Chain.start(agree(private, offer["public"], place.transcript(offer["public"], public)), position)
            desk.chains[client] = chain
        attempt = new_attempt()
        at = chain.take(position, place.node, place.run_bytes(position), attempt)
        message = settings.codec.encode(settings.clip.apply(update), at)
        dxo.data = {PAYLOAD: np.frombuffer(message, dtype=np.uint8)}
        sealed: Shareable = dxo.update_shareable(shareable)
        sealed.set_header(HEADER, {"position": position, "attempt": attempt, "public": public})
        return sealed


def _weights(dxo: DXO) -> Weights:
    if dxo.data_kind != DataKind.WEIGHTS:
        raise ValueError(f"a training task must carry {DataKind.WEIGHTS}, got {dxo.data_kind}")
    return {name: np.array(value) for name, value in dxo.data.items()}


def _vector(dxo: DXO, reference: Weights) -> npt.NDArray[np.float32]:
    """The result as one vector; for whole weights, the difference against the broadcast ones."""
    if dxo.data_kind not in (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF):
        raise ValueError(f"a training result must be weights or their difference, got {dxo.data_kind}")
    if set(dxo.data) != set(reference):
        raise ValueError("the result's arrays are not the server's")
    parts = []
    for name, start in reference.items():
        value = np.asarray(dxo.data[name], dtype=np.float64)
        if value.shape != start.shape:
            raise ValueError(f"array {name!r} has shape {value.shape}, the server's {start.shape}")
        parts.append((value - start if dxo.data_kind == DataKind.WEIGHTS else value).astype(np.float32).ravel())
    return np.concatenate(parts)


def _restored(vector: npt.NDArray[Any], reference: Weights, whole: bool) -> Weights:
    made, at = {}, 0
    for name, start in reference.items():
        piece = vector[at : at + start.size].reshape(start.shape)
        at += start.size
        made[name] = np.asarray(start + piece if whole else piece, dtype=start.dtype)
    return made

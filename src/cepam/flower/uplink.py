"""The client's half: a Flower mod that clips, adds the noise, compresses and seals what the ClientApp replies."""

from __future__ import annotations

from collections.abc import Callable
from logging import INFO, WARNING, getLogger
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, RecordDict

from cepam.errors import CepamError
from cepam.flower.agreement import Chain, Place, agree, new_attempt, new_pair, sign
from cepam.flower.arrays import carry, to_vector
from cepam.flower.offer import RECORD, Answer, Offer
from cepam.keys import Address, Key, KeyChain

log = getLogger("flwr").log  # Flower's own log, which `flwr run --stream` shows

IDENTITY_FILE = "cepam-identity"
SERVER_FILE = "cepam-server"
FAILED = 6  # Flower's code for a mod whose preconditions do not hold

CallNext = Callable[[Message, Context], Message]


class Uplink:
    """A mod for `ClientApp(mods=[Uplink()])`: replies to a `Private` server leave private and small.

    Everything it needs comes from the server with each training message. Messages of a server that does not use
    `Private` pass untouched, with a warning; `required=True` refuses them, so that no plain update can leave.
    An update that cannot be sent (NaN, other shapes, a failed agreement) becomes an error reply: it costs this
    client's reply and nothing else.

    Where the SuperNode's configuration has `cepam-identity`, a path to its authentication key, the key agreement is
    signed with it, and the server knows that the key belongs to the authenticated node. Where it has `cepam-server`, a
    path to the server's public key, offers that this key did not sign are refused: nobody can pose as the server.
    """

    def __init__(self, required: bool = False) -> None:
        self.required = required

    def __call__(self, message: Message, context: Context, call_next: CallNext) -> Message:
        record = message.content.get(RECORD) if message.has_content() else None
        if record is None:
            return self._without_offer(message, context, call_next)
        del message.content[RECORD]
        try:
            if not isinstance(record, ConfigRecord):
                raise ValueError("the server's offer is not a configuration record")
            offer = Offer.from_record(record)
            if offer.run != context.run_id or offer.node != context.node_id:
                raise ValueError("the server's offer is for another run or node")
            server = context.node_config.get(SERVER_FILE)
            if server and not offer.is_signed_by(_read(server)):
                raise ValueError("the server's offer is not signed by the key that this node knows")
            reference = dict(_only_arrays(message.content))
        except (ValueError, OSError, CepamError) as refused:
            return _failure(message, refused)
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        try:
            return self._sealed(reply, reference, offer, context)
        except (ValueError, OSError, CepamError) as refused:
            return _failure(message, refused)

    def _without_offer(self, message: Message, context: Context, call_next: CallNext) -> Message:
        if message.metadata.message_type.split(".")[0] != MessageType.TRAIN:
            return call_next(message, context)
        if self.required:
            return _failure(
                message, ValueError("the server does not use cepam.flower.Private and this node requires it")
            )
        log(WARNING, "cepam: the server does not use cepam.flower.Private; this update leaves as plain arrays")
        return call_next(message, context)

    def _sealed(self, reply: Message, reference: dict[str, object], offer: Offer, context: Context) -> Message:
        settings = offer.settings
        if len(reply.content.array_records) != 1:
            raise ValueError("a training reply needs exactly one ArrayRecord")
        name, arrays = next(iter(reply.content.array_records.items()))
        update = to_vector(arrays, reference, difference=settings.update == "parameters")
        clipped = settings.clip.apply(update)
        at, answer = _address(offer, context)
        encoded = settings.codec.encode(clipped, at)
        log(INFO, "cepam: %d coordinates leave in %d bytes", len(clipped), len(encoded))
        reply.content[name] = carry(encoded)
        reply.content[RECORD] = answer.to_record()
        return reply


def _only_arrays(content: RecordDict) -> ArrayRecord:
    if len(content.array_records) != 1:
        raise ValueError(f"a training message needs exactly one ArrayRecord, got {len(content.array_records)}")
    return next(iter(content.array_records.values()))


def _address(offer: Offer, context: Context) -> tuple[Address, Answer]:
    """Where the message stands, and what the server must be told; the chain in `context.state` moves beyond it."""
    place = Place(offer.run, offer.node, offer.identity)
    attempt = new_attempt()
    public = signature = b""
    chain = _stored(context, offer)
    if chain is None:
        private, public = new_pair()
        transcript = place.transcript(offer.public, public)
        chain = Chain.start(agree(private, offer.public, transcript), offer.position)
        signature = _signature(context, transcript)
    at = chain.take(offer.position, offer.node, place.run_bytes(offer.server_round), attempt)
    context.state[RECORD] = ConfigRecord(
        {"run": str(offer.run), "name": chain.name, "key": chain.secret, "position": chain.position}
    )
    return at, Answer(offer.position, attempt, public, signature)


def _stored(context: Context, offer: Offer) -> Chain | None:
    """The chain kept from earlier rounds, if it is the one that the server means and of this run."""
    kept = context.state.get(RECORD)
    if not isinstance(kept, ConfigRecord) or kept.get("run") != str(offer.run) or kept.get("name") != offer.chain:
        return None
    key, position = kept.get("key"), kept.get("position")
    if not isinstance(key, bytes) or not isinstance(position, int):
        return None
    return Chain(offer.chain, KeyChain(Key(key), position))


def _signature(context: Context, transcript: bytes) -> bytes:
    path = context.node_config.get(IDENTITY_FILE)
    return sign(_read(path), transcript) if path else b""


def _read(path: object) -> bytes:
    return Path(str(path)).expanduser().read_bytes()


def _failure(message: Message, reason: Exception) -> Message:
    log(WARNING, "cepam: no update leaves this node: %s", reason)
    return Message(Error(FAILED, f"cepam: {reason}"), reply_to=message)

"""The server's correspondence: an offer goes out with each training message, a sealed update comes back."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from logging import INFO, WARNING, getLogger
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from cepam.codec.codec import Codec
from cepam.codec.wire import open_sealed
from cepam.errors import CepamError
from cepam.flower.agreement import AgreementRefused, Chain, Place, agree, new_pair, verify
from cepam.flower.arrays import carried, count, from_vector
from cepam.flower.offer import RECORD, Answer, Offer
from cepam.flower.settings import Settings
from cepam.keys import Address, UsedAddresses
from cepam.noise.laws import Gaussian

log = getLogger("flwr").log  # Flower's own log, which `flwr run --stream` shows

Authentication = Literal["warn", "require"]
LONGEST_REASON = 300
MetricsKind = frozenset[tuple[str, int]]
Kind = Literal["error", "missing", "unasked", "malformed", "seal", "agreement", "size", "values", "metrics"]


class Refused(CepamError):
    """One reply is of no use: `kind` is counted, the text is logged."""

    def __init__(self, kind: Kind, node: int | None, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.node = node


@dataclass
class Letter:
    """One training message on its way: what was asked, of whom, and the keys that open the answer."""

    offer: Offer
    arrays_name: str
    reference: dict[str, Any]
    metadata: Any
    private: X25519PrivateKey = field(repr=False)
    chain: Chain | None = field(repr=False)


@dataclass(frozen=True)
class Opened:
    """A good reply: dense arrays for the wrapped strategy, and what it took on the wire."""

    node: int
    settings: Settings
    message: Message
    message_bytes: int
    reference: dict[str, Any]
    metrics_kind: MetricsKind


class Letters:
    """Writes the offers of a round and opens its replies, each by itself.

    Guarantee: a reply is accepted once, from the node that was asked, sealed for this run, round and message
    (tests/flower/test_faults.py).
    """

    def __init__(
        self, authentication: Authentication, learning_rate: float | None, server_key: bytes | None = None
    ) -> None:
        if authentication not in ("warn", "require"):
            raise ValueError(f"authentication must be 'warn' or 'require', got {authentication!r}")
        self._authentication = authentication
        self._learning_rate = learning_rate
        self._server_key = server_key
        self._chains: dict[int, Chain] = {}
        self._positions: dict[int, int] = {}
        self._used = UsedAddresses()
        self._letters: list[Letter] = []
        self._warned: set[int] = set()
        self._signed: set[int] = set()
        self.sent = 0

    def write(self, message: Message, settings: Settings, server_round: int, identity: bytes) -> None:
        """Nothing; the message now carries an offer for its node, in a record dictionary of its own."""
        arrays = message.content.array_records
        if len(arrays) != 1:
            raise ValueError(f"a training message must hold exactly one ArrayRecord, got {len(arrays)}")
        name, reference = next(iter(arrays.items()))
        node, run = message.metadata.dst_node_id, message.metadata.run_id
        position = self._positions.get(node, 0)
        self._positions[node] = position + 1
        chain = self._chains.get(node)
        private, public = new_pair()
        offer = Offer(settings, run, node, server_round, position, chain.name if chain else b"", public, identity)
        if self._server_key is not None:
            offer = offer.signed(self._server_key)
        message.content = RecordDict({**dict(message.content.items()), RECORD: offer.to_record()})
        self._letters.append(Letter(offer, name, dict(reference), message.metadata, private, chain))
        self.sent += 1

    def open(self, reply: Message, weight_key: str) -> Opened:
        """The reply with dense arrays in place of the sealed update; `Refused` says why it is of no use."""
        letter = self._answered(reply)
        if reply.has_error():
            # Errors that the SuperLink makes carry its own id: the letter says whom they are about.
            node = letter.offer.node if letter else reply.metadata.src_node_id
            reason = str(reply.error.reason)[:LONGEST_REASON]
            raise Refused("error", node, f"{reason} (code {reply.error.code})")
        node = reply.metadata.src_node_id
        if letter is None or letter.offer.node != node:
            raise Refused("unasked", node, "it does not answer a message of this round, or answers it again")
        try:
            answer = Answer.from_record(_record(reply))
            message = _sealed_message(reply)
            if answer.position != letter.offer.position:
                raise ValueError("it stands at another position of the key chain than was asked for")
        except ValueError as unreadable:
            raise Refused("malformed", node, str(unreadable)) from unreadable
        vector = self._decode(letter, answer, message)
        name, metrics = _metrics(reply, node, weight_key, letter.offer.settings.weight)
        if name == letter.arrays_name:
            raise Refused("malformed", node, f"its metrics are named {name!r}, as the arrays are")
        kept = {
            name: record
            for name, record in reply.content.items()
            if name != RECORD and not isinstance(record, ArrayRecord | MetricRecord)
        }
        arrays = from_vector(vector, letter.reference, self._step(letter.offer.settings))
        reply.content = RecordDict({**kept, name: metrics, letter.arrays_name: arrays})
        return Opened(node, letter.offer.settings, reply, len(message), letter.reference, _kind_of(name, metrics))

    def _step(self, settings: Settings) -> float | None:
        """How far the model goes along the decoded vector; None: the vector itself is handed on."""
        if settings.update == "parameters":
            return 1.0
        return None if self._learning_rate is None else -self._learning_rate

    def silent(self) -> Iterable[int]:
        """The nodes that were asked and sent neither an update nor an error."""
        return [letter.offer.node for letter in self._letters]

    def close_round(self) -> None:
        """Nothing; the keys of this round are forgotten, those of letters that were not answered too."""
        for letter in self._letters:
            chain = self._chains.get(letter.offer.node)
            while chain is not None and chain.position <= letter.offer.position:
                chain.keys.advance()
        self._letters.clear()
        self.sent = 0

    def _answered(self, reply: Message) -> Letter | None:
        """The letter that this reply answers, taken out so that it is answered once."""
        for place, letter in enumerate(self._letters):
            if letter.metadata.message_id == reply.metadata.reply_to_message_id != "":
                return self._letters.pop(place)
        return None

    def _decode(self, letter: Letter, answer: Answer, message: bytes) -> npt.NDArray[np.floating]:
        offer, node = letter.offer, letter.offer.node
        try:
            chain = self._agreed(letter, answer) if answer.public else letter.chain
            if chain is None:
                raise AgreementRefused("the client has no key and did not agree on one")
            run = Place(offer.run, node).run_bytes(offer.server_round)
            at = _peek(chain, offer.position, node, run, answer.attempt)
            _check_size(offer.settings.codec, message, at, letter)
            vector = offer.settings.codec.decode(message, at, used=self._used)
        except Refused:
            raise
        except AgreementRefused as refused:
            raise Refused("agreement", node, str(refused)) from refused
        except Exception as broken:  # whatever a client sends must not end the run
            raise Refused("seal", node, f"{type(broken).__name__}: {broken}") from broken
        if node in self._chains and answer.public:
            log(INFO, "cepam: node %d agreed on a new key (it was restarted)", node)
        while chain.position <= offer.position:
            chain.keys.advance()
        self._chains[node] = chain
        if answer.signature:
            self._signed.add(node)
        _check_values(vector, letter)
        return vector

    def _agreed(self, letter: Letter, answer: Answer) -> Chain:
        offer = letter.offer
        transcript = Place(offer.run, offer.node, offer.identity).transcript(offer.public, answer.public)
        signed = bool(answer.signature)
        if signed and not verify(offer.identity, transcript, answer.signature):
            raise AgreementRefused("the key agreement is not signed by the key that the node is registered with")
        if not signed and (self._authentication == "require" or offer.node in self._signed):
            raise AgreementRefused("the key agreement is not signed with the node's authentication key")
        if not signed and offer.node not in self._warned:
            self._warned.add(offer.node)
            log(
                WARNING,
                "cepam: the key agreement with node %d is not authenticated: whoever controls the connection or the "
                "SuperLink could have agreed in its place (docs/flower.md, node authentication)",
                offer.node,
            )
        return Chain.start(agree(letter.private, answer.public, transcript), offer.position)


def _peek(chain: Chain, position: int, node: int, run: bytes, attempt: int) -> Address:
    """The address at a position, the chain left where it stands until the seal has opened."""
    copy = Chain(chain.name, type(chain.keys)(chain.secret, chain.position))
    return copy.take(position, node, run, attempt)


def _record(reply: Message) -> ConfigRecord:
    record = reply.content.get(RECORD)
    if not isinstance(record, ConfigRecord):
        raise ValueError("the reply has no answer to the offer: does the ClientApp use cepam.flower.Uplink?")
    return record


def _sealed_message(reply: Message) -> bytes:
    records = list(reply.content.array_records.values())
    if len(records) != 1:
        raise ValueError(f"a training reply needs exactly one ArrayRecord, got {len(records)}")
    return carried(records[0])


def _check_size(codec: Codec, message: bytes, at: Address, letter: Letter) -> None:
    """Nothing, or `Refused` for a sealed update of another size: a few bytes can claim millions of coordinates."""
    dimensions = [lattice.dimension for lattice in codec.lattices]
    claimed = open_sealed(message, at.derive(), codec.fingerprint, dimensions).size
    size = count(letter.reference)
    if claimed != size:
        raise Refused("size", letter.offer.node, f"{claimed} coordinates came, {size} were asked for")


def _check_values(vector: npt.NDArray[np.floating], letter: Letter) -> None:
    """Nothing, or `Refused` for a vector that no honest client's clipped update and noise can give."""
    node, settings, size = letter.offer.node, letter.offer.settings, len(vector)
    norm = float(np.linalg.norm(vector.astype(np.float64)))
    if not math.isfinite(norm):
        raise Refused("values", node, "the decoded update is not finite")
    # A Gaussian vector is longer than sigma(sqrt(m) + 8) with chance below e^-32; Laplace tails get more room.
    spread = math.sqrt(size) + 8.0 if isinstance(settings.law, Gaussian) else 2.0 * math.sqrt(2.0 * size) + 80.0
    if norm > settings.clip.bound + settings.law.scale * spread:
        raise Refused("values", node, f"a norm of {norm:.3g} is beyond the clip and the noise together")


def _metrics(reply: Message, node: int, weight_key: str, weight: float) -> tuple[str, MetricRecord]:
    """The reply's metrics with the public weight in place of the claimed one."""
    records = list(reply.content.metric_records.items())
    if len(records) > 1:
        raise Refused("metrics", node, f"at most one MetricRecord may come, got {len(records)}")
    name, record = records[0] if records else ("metrics", MetricRecord())
    values = dict(record)
    if weight_key in values:
        values.pop(weight_key)
    for key, value in values.items():
        if not all(math.isfinite(number) for number in (value if isinstance(value, list) else [value])):
            raise Refused("metrics", node, f"the metric {key!r} is not finite")
    return name, MetricRecord({**values, weight_key: float(weight)})


def _kind_of(name: str, metrics: MetricRecord) -> MetricsKind:
    shapes = ((key, len(value) if isinstance(value, list) else -1) for key, value in metrics.items())
    return frozenset([(name, -2), *shapes])

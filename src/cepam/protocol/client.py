"""The client's end of the protocol: an update is clipped, gets its noise, and is sealed as the offer asks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from cepam.errors import CepamError, one_line
from cepam.protocol.agreement import AgreementRefused, Chain, Peer, agree, new_attempt, new_pair, sign
from cepam.protocol.correlated_noise import ClientCorrelatedNoise
from cepam.protocol.messages import Answer, Offer
from cepam.protocol.vectors import Vector

Code = Literal[
    "no-offer", "offer", "elsewhere", "unsigned", "agreement", "arrays", "version", "training", "key-file", "policy",
    "order", "secure-aggregation-only", "legacy-app",
]  # fmt: skip


class Declined(CepamError):
    """No update leaves this client. `code` may be told to the server, the text stays here.

    The codes are fixed: a text could depend on data, and then tell about it. The text may quote what a server sent, so
    it is one line of printable characters, of bounded length.
    """

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(one_line(reason))
        self.code = code


@dataclass(frozen=True)
class Sealed:
    """What leaves: the sealed message and the answer beside it; `chain` is kept for the next one.

    `replaced` says that the update was not finite and left as zero with its noise.
    """

    message: bytes
    answer: Answer
    chain: Chain = field(repr=False)
    replaced: bool = False


def check_offer(offer: Offer, run: int, node: int, server: bytes | None) -> None:
    """Raise `Declined` for an offer to another client, or one that the known server did not sign."""
    if offer.run != run or offer.node != node:
        raise Declined("elsewhere", "the server's offer is for another run or node")
    if server is not None and not offer.is_signed_by(server):
        raise Declined("unsigned", "the server's offer is not signed by the key that this node knows")


def seal_update(
    update: Vector,
    offer: Offer,
    kept: Chain | None,
    key_file: bytes | None = None,
    stream: ClientCorrelatedNoise | None = None,
) -> Sealed:
    """The update clipped, with its noise, sealed; a new key is agreed on where the kept chain is not the server's.

    Where the offer asks for a stream, what `stream` makes of the clipped update is sent, and it moves on by one.

    An update that is not finite leaves as zero with its noise: a client that falls silent would tell that it was.
    Guarantee: nothing about it can be seen (tests/protocol/test_ends.py); an address is used once.
    """
    sent: Any = offer.settings.clipped(update)
    peer, attempt = Peer(offer.run, offer.node, offer.identity), new_attempt()
    public = signature = b""
    try:
        chain = kept if kept is not None and kept.name == offer.chain else None
        if chain is None:
            private, public = new_pair()
            transcript = peer.transcript(offer.public, public)
            chain = Chain.start(agree(private, offer.public, transcript), offer.position)
            signature = _signature(key_file, transcript) if key_file is not None else b""
        at = chain.take(offer.position, offer.node, peer.run_bytes(offer.server_round), attempt)
    except AgreementRefused as refused:
        raise Declined("agreement", str(refused)) from refused
    answer = Answer(offer.position, attempt, public, signature)
    if offer.settings.correlated_noise is not None:
        if stream is None:
            raise Declined("policy", "the offer asks for a stream, and this end keeps none")
        answer = replace(answer, stream=stream.name, place=stream.sender.position)
        sent = stream.sender.next(sent)
    message = offer.settings.codec.sized(len(sent)).encode(sent, at)
    return Sealed(message, answer, chain, replaced=not np.isfinite(update).all())


def _signature(key_file: bytes, transcript: bytes) -> bytes:
    try:
        return sign(key_file, transcript)
    except ValueError as unfit:
        raise Declined("key-file", str(unfit)) from unfit

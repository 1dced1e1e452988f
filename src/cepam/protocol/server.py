"""The server's end of the protocol: its clients, the offers that it makes, the updates that it opens, the noise that it
adds for dropouts.
"""

from __future__ import annotations

import math
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from logging import INFO, WARNING, getLogger
from typing import Literal

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from cepam.distributions.laws import Gaussian
from cepam.errors import CepamError, one_line
from cepam.keys import Address, UsedAddresses
from cepam.privacy.cohorts.dropouts import UPWARD, NoiseShare, stand_in
from cepam.protocol.agreement import AgreementRefused, Answer, Chain, Offer, Peer, agree, new_pair, verify
from cepam.protocol.correlated_noise import ServerCorrelatedNoise
from cepam.protocol.settings import UplinkSettings

# Dropout compensation over the protocol: the sum of what came, and the noise of what did not.
#
# The noise itself is `cepam.privacy.cohorts.dropouts.stand_in`. `flower/replies.py` and `flare/job.py` use this
# module; the engine compensates in `fl/aggregation/trusted_server.py` and, for whole clients, in
# `fl/aggregation/cohorts.py`.


Came = Sequence[tuple[UplinkSettings, npt.NDArray[np.floating]]]


@dataclass(frozen=True)
class Shares:
    """The public constants of a round: which shares of noise make its total, and what the weighted sum is divided by.

    `noises` says of each share how many there are. What no reply brings the server brings, from secret randomness of
    its own.
    Guarantee: what is published has the same noise whoever replied, and is never divided by the replies
    (docs/proofs/cohorts-and-dropouts.md, "Dropouts"; tests/protocol/test_dropouts.py).
    """

    noises: tuple[tuple[NoiseShare, int], ...]
    divisor: float

    @classmethod
    def of(cls, offered: Iterable[UplinkSettings]) -> Shares:
        """The shares of these clients, and the sum of their weights; ValueError for noise that is not Gaussian."""
        settings = list(offered)
        noises = Counter(share_of(one) for one in settings)
        return cls(tuple(noises.items()), math.fsum(one.weight for one in settings))

    @property
    def noise(self) -> float:
        """The standard deviation per coordinate of the noise in what is published."""
        return math.sqrt(math.fsum(many * share.noise**2 for share, many in self.noises)) / self.divisor

    def absent(self, came: Iterable[UplinkSettings]) -> dict[NoiseShare, int]:
        """How many shares of each kind these do not bring; ValueError if they are not all of the offered."""
        counts = Counter(share_of(one) for one in came)
        left = {kind: many - counts.pop(kind, 0) for kind, many in self.noises}
        if counts:
            raise ValueError(f"replies with weight, noise and lattice {list(counts)} were not requested")
        if min(left.values(), default=0) < 0:
            raise ValueError(f"replies must be at most the cap of each kind, got {left} left")
        return left

    def missing(self, came: Iterable[UplinkSettings]) -> float:
        """The noise that the server adds to the weighted sum of these; ValueError if they are not all of the
        offered."""
        return math.hypot(*(share.noise * math.sqrt(many) for share, many in self.absent(came).items())) * UPWARD

    def mean(self, came: Came, coordinates: int) -> npt.NDArray[np.float64]:
        """What is published: the weighted sum of the decoded vectors and the missing noise, over the divisor."""
        summed = np.zeros(coordinates)
        for settings, vector in came:
            summed += settings.weight * vector.astype(np.float64)
        for weight, noise in stand_in(self.absent(settings for settings, _ in came), coordinates):
            summed += weight * noise
        return summed / self.divisor


def share_of(settings: UplinkSettings) -> NoiseShare:
    """What a client that gets this offer brings; ValueError for noise that is not Gaussian."""
    if not isinstance(settings.law, Gaussian):
        raise ValueError(
            "dropout compensation needs Gaussian noise (other noise does not add up to its own kind), "
            f"got {settings.law!r}"
        )
    return NoiseShare(settings.weight, settings.law.scale, settings.lattice)


def noise_of_average(settings: Iterable[UplinkSettings]) -> float:
    """The standard deviation per coordinate of the noise in the weighted average of such replies."""
    used = list(settings)
    spread = [s.weight * math.sqrt(s.law.variance()) for s in used]
    return math.sqrt(sum(noise**2 for noise in spread)) / sum(s.weight for s in used)


Kind = Literal[
    "error", "missing", "unsolicited", "malformed", "seal", "agreement", "values", "metrics", "version",
    "refused", "internal",
]  # fmt: skip
Log = Callable[..., None]
OWN_LOG = getLogger("cepam").log


class Refused(CepamError):
    """One reply is of no use: `kind` is counted, the text is logged.

    The text may quote what a node sent, so it is one line of printable characters, of bounded length.
    """

    def __init__(self, kind: Kind, node: int | None, reason: str) -> None:
        super().__init__(one_line(reason))
        self.kind = kind
        self.node = node


@contextmanager
def refusing(node: int) -> Iterator[None]:
    """Handle something that a node sent: whatever is raised inside becomes `Refused`, and costs that node only.

    Every reply of a node is handled inside this block. Documented errors are `malformed`. All others are `internal`:
    they are counted apart and name their type and place, since they may be mistakes of this package.

    Args:
        node: the node that is dropped.

    Raises:
        Refused: in place of any other `Exception`.
    """
    try:
        yield
    except Refused:
        raise
    except (CepamError, ValueError) as unfit:
        raise Refused("malformed", node, str(unfit)) from unfit
    except Exception as unexpected:
        frame = traceback.extract_tb(unexpected.__traceback__)[-1]
        place = f"{frame.filename.replace(chr(92), '/').rsplit('/', 1)[-1]}:{frame.lineno}"
        raise Refused("internal", node, f"{type(unexpected).__name__} at {place}: {unexpected}") from unexpected


@dataclass
class Pending:
    """An offer that waits for its answer: what was asked, how many coordinates, and the keys that open the answer."""

    offer: Offer
    size: int
    private: X25519PrivateKey = field(repr=False)
    chain: Chain | None = field(repr=False)


class ServerEnd:
    """Makes offers and opens their answers, each by itself; `required` drops answers that no node key signed.

    Guarantee: an answer opens once, from the node that it was offered to, sealed for this run, round and message
    (tests/protocol/test_ends.py, tests/flower/test_faults.py).
    """

    def __init__(
        self,
        required: bool = False,
        server_key: bytes | None = None,
        log: Log = OWN_LOG,
    ) -> None:
        self._required = required
        self._server_key = server_key
        self._log = log
        self._chains: dict[int, Chain] = {}
        self._positions: dict[int, int] = {}
        self._used = UsedAddresses()
        self._warned = False
        self._signed: set[int] = set()

    @cached_property
    def correlated_noise(self) -> ServerCorrelatedNoise:
        """The noise of earlier rounds, where later ones cancel it."""
        return ServerCorrelatedNoise()

    def offer(self, settings: UplinkSettings, peer: Peer, size: int, server_round: int | None = None) -> Pending:
        """A new offer to this peer, at a position of its own; its round is the position where none is given."""
        position = self._positions.get(peer.node, 0)
        self._positions[peer.node] = position + 1
        chain = self._chains.get(peer.node)
        private, public = new_pair()
        noise_id, place = (
            self.correlated_noise.offered(peer.node) if settings.correlated_noise is not None else (b"", 0)
        )
        offer = Offer(
            settings=settings,
            run=peer.run,
            node=peer.node,
            server_round=position if server_round is None else server_round,
            position=position,
            chain=chain.name if chain else b"",
            public=public,
            identity=peer.identity,
            noise_id=noise_id,
            place=place,
        )
        if self._server_key is not None:
            offer = offer.signed(self._server_key)
        return Pending(offer, size, private, chain)

    def open(self, pending: Pending, answer: Answer, message: bytes) -> npt.NDArray[np.floating]:
        """The decoded update; `Refused` says why it is of no use."""
        offer, node = pending.offer, pending.offer.node
        if answer.position != offer.position:
            raise Refused("malformed", node, "it stands at another position of the key chain than was asked for")
        try:
            chain = self._agreed(pending, answer) if answer.public else pending.chain
            if chain is None:
                raise AgreementRefused("the client has no key and did not agree on one")
            run = Peer(offer.run, node).run_bytes(offer.server_round)
            at = _peek(chain, offer.position, node, run, answer.attempt)
            # The size does not travel: a message of another size is another codec's, and takes no memory.
            vector = offer.settings.codec.sized(pending.size).decode(message, at, used=self._used)
        except AgreementRefused as refused:
            raise Refused("agreement", node, str(refused)) from refused
        except Exception as broken:  # whatever a client sends must not end the run
            raise Refused("seal", node, f"{type(broken).__name__}: {broken}") from broken
        if node in self._chains and answer.public:
            self._log(INFO, "cepam: node %d agreed on a new key (it was restarted)", node)
        _move_beyond(chain, offer.position)
        self._chains[node] = chain
        if answer.signature:
            self._signed.add(node)
        _check_values(vector, pending)
        config = offer.settings.correlated_noise
        if config is None:
            return vector
        try:
            return self.correlated_noise.take(node, config, answer, vector)
        except ValueError as odd:
            raise Refused("malformed", node, str(odd)) from odd

    def expire(self, pending: Pending) -> None:
        """Forget the key of an offer that was not answered, so that it can no longer be."""
        chain = self._chains.get(pending.offer.node)
        if chain is not None:
            _move_beyond(chain, pending.offer.position)

    def _agreed(self, pending: Pending, answer: Answer) -> Chain:
        offer = pending.offer
        transcript = Peer(offer.run, offer.node, offer.identity).transcript(offer.public, answer.public)
        signed = bool(answer.signature)
        if signed and not verify(offer.identity, transcript, answer.signature):
            raise AgreementRefused("the key agreement is not signed by the key that the node is registered with")
        if not signed and (self._required or offer.node in self._signed):
            raise AgreementRefused("the key agreement is not signed with the node's authentication key")
        if not signed and not self._warned:
            self._warned = True
            self._log(
                WARNING,
                "cepam: the key agreement with node %d is not authenticated: whoever controls the connection or the "
                "SuperLink could have agreed in its place (docs/production.md, section Keys). This is said once, "
                "for all nodes",
                offer.node,
            )
        return Chain.start(agree(pending.private, answer.public, transcript), offer.position)


def _peek(chain: Chain, position: int, node: int, run: bytes, attempt: int) -> Address:
    """The address at a position, the chain left where it stands until the seal has opened."""
    copy = Chain(chain.name, type(chain.keys)(chain.secret, chain.position))
    return copy.take(position, node, run, attempt)


def _move_beyond(chain: Chain, position: int) -> None:
    while chain.position <= position:
        chain.keys.advance()


def _check_values(vector: npt.NDArray[np.floating], pending: Pending) -> None:
    """Raise `Refused` for a vector that no honest client's clipped update and noise can give."""
    node, settings, size = pending.offer.node, pending.offer.settings, len(vector)
    norm = float(np.linalg.norm(vector.astype(np.float64)))
    if not math.isfinite(norm):
        raise Refused("values", node, "the decoded update is not finite")
    # A Gaussian vector is longer than sigma(sqrt(m) + 8) with probability below e^-32; Laplace tails get more room.
    spread = math.sqrt(size) + 8.0 if isinstance(settings.law, Gaussian) else 2.0 * math.sqrt(2.0 * size) + 80.0
    if norm > settings.largest + settings.law.scale * spread:
        raise Refused("values", node, f"a norm of {norm:.3g} is beyond the clip and the noise together")

"""From clipped updates to messages at their addresses; dropouts and Byzantine clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from cepam.clip import Clip
from cepam.fl.arrays import ArrayBackend
from cepam.fl.clients import sampling
from cepam.fl.clients.plan import ClientPlan
from cepam.fl.clients.randomness import Randomness
from cepam.fl.config.settings import Settings
from cepam.kernels.dispatch import picked
from cepam.keys import Address, Key


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

"""The server of secure aggregation: one round from the first request to the opened sum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import combinations
from math import comb
from typing import Any

from cepam.errors import MalformedMessage
from cepam.secure_aggregation.channel import combine, commit, self_mask
from cepam.secure_aggregation.messages import (
    NO_SHARE,
    RepairReply,
    RepairRequest,
    TrainReply,
    TrainRequest,
    UnmaskReply,
    UnmaskRequest,
)
from cepam.secure_aggregation.roster import Roster, SecAggRefused
from cepam.secure_aggregation.settings import SecAggSettings, round_salt
from cepam.secure_aggregation.share_decoding import decode

MOST_TRIALS = 500


class SecAggRound:
    """The server's end of one round: it collects masked vectors, repairs what dropouts left behind, and opens the sum.

    Call `request` and `take` for each reply. Then, as long as `repairs()` gives requests, `take_repair`. Then
    `unmasks`, `take_unmask` and `open`. Every `repairs()` closes the round trip before it: who did not answer counts
    as missing.

    Args:
        settings: What all parties agree on.
        roster: The nodes of the epoch.
        cohort: Ids of the nodes of this round.
        model: Check value of the model at which they train.

    Raises:
        SecAggRefused: The numbers do not make a sum that hides its parts, or the cohort is not from the roster.
    """

    def __init__(self, settings: SecAggSettings, roster: Roster, cohort: Iterable[int], model: bytes) -> None:
        self.settings, self.roster, self.cohort = settings, roster, tuple(sorted(set(cohort)))
        settings.check(len(self.cohort))
        if not set(self.cohort) <= set(roster.names):
            raise SecAggRefused("cohort", "the cohort must come from the roster")
        self.salt = round_salt(settings, roster.digest, self.cohort, model)
        self.missing: frozenset[int] = frozenset()
        self.charged = False
        self._closed = False
        self._replies: dict[int, TrainReply] = {}
        self._requested: dict[int, tuple[int, ...]] = {}
        self._keys: dict[int, dict[int, bytes]] = {}
        self._shares: dict[int, dict[int, bytes]] = {}
        self._disputes: set[tuple[int, int]] = set()
        self._seeds: dict[int, bytes] = {}
        self._wrong: Counter[int] = Counter()
        self._failed: set[int] = set()
        inside = set(self.cohort)
        self._neighbourhoods = {
            node: tuple(name for name in roster.neighbourhood(node, settings.degree) if name in inside)
            for node in self.cohort
        }

    def neighbourhood(self, node: int) -> tuple[int, ...]:
        """Who shares masks with this node, and itself, by rising id.

        Args:
            node: Its id.

        Returns:
            Ids of the cohort.
        """
        return self._neighbourhoods[node]

    def request(self, with_roster: bool = True) -> bytes:
        """The training request; with the roster for nodes that have not yet answered in this epoch.

        Args:
            with_roster: Whether the roster goes with it.

        Returns:
            A `TrainRequest` as bytes.
        """
        roster = self.roster if with_roster else None
        return TrainRequest(self.settings, self.cohort, self.roster.digest, roster).encode()

    @property
    def survivors(self) -> tuple[int, ...]:
        """The nodes whose vectors are in the sum, as things stand."""
        return tuple(name for name in self.cohort if name in self._replies and name not in self.missing)

    def take(self, node: int, reply: bytes) -> None:
        """Take a node's masked vector.

        Args:
            node: Who replied.
            reply: A `TrainReply` as bytes.

        Raises:
            SecAggRefused: The reply is late, repeated, or of another round.
        """
        found = TrainReply.decode(reply)
        if self._closed or node not in self.cohort or node in self._replies:
            raise SecAggRefused("position", f"a vector of node {node} is late or repeated")
        if found.salt != self.salt:
            raise SecAggRefused(
                "position", f"node {node} saw another round, model, run configuration or other settings"
            )
        self.settings.codec.check_message(found.vector)
        if len(found.shares) != len(self.neighbourhood(node)) - 1:
            raise MalformedMessage(f"node {node} did not seal one share for each of its peers")
        self._replies[node] = found

    def repairs(self) -> dict[int, bytes]:
        """The requests of one round trip, by node; empty once nothing is left to repair.

        Returns:
            A `RepairRequest` per node, as bytes.

        Raises:
            SecAggRefused: Fewer than a quorum are left, or shares were requested already.
        """
        if self.charged:
            raise SecAggRefused("position", "nothing can be repaired once shares were requested")
        silent = {node for node, names in self._requested.items() if set(names) - set(self._keys.get(node, {}))}
        self._closed = True
        self.missing = frozenset(set(self.cohort) - set(self._replies) | silent) | self.missing
        if len(self.survivors) < self.settings.quorum:
            raise SecAggRefused("quorum", f"{len(self.survivors)} survive, {self.settings.quorum} are needed")
        asks: dict[int, bytes] = {}
        for node in self.survivors:
            names = tuple(name for name in self.neighbourhood(node) if name in self.missing)
            if set(names) - set(self._keys.get(node, {})):
                self._requested[node] = names
                asks[node] = RepairRequest(self.salt, names).encode()
        return asks

    def take_repair(self, node: int, reply: bytes) -> None:
        """Take a node's mask keys with the missing.

        Args:
            node: Who replied.
            reply: A `RepairReply` as bytes.

        Raises:
            SecAggRefused: Nothing was requested of this node.
        """
        found = RepairReply.decode(reply)
        names = self._requested.get(node, ())
        if found.salt != self.salt or node not in self.survivors or len(found.keys) != len(names):
            raise SecAggRefused("position", f"a repair of node {node} was not requested")
        self._keys[node] = dict(zip(names, found.keys))

    def unmasks(self) -> dict[int, bytes]:
        """The requests for shares, by node. From here on the round counts as released, opened or not.

        Returns:
            An `UnmaskRequest` per survivor, as bytes.

        Raises:
            SecAggRefused: Something is left to repair.
        """
        if not self._closed or self.repairs():
            raise SecAggRefused("position", "repair comes before unmask")
        self.charged = True
        asks: dict[int, bytes] = {}
        for node in self.survivors:
            left = tuple(name for name in self.neighbourhood(node) if name not in self.missing)
            sealed = tuple(self._sealed(sender, node) for sender in left if sender != node)
            asks[node] = UnmaskRequest(self.salt, left, sealed).encode()
        return asks

    def _sealed(self, sender: int, receiver: int) -> bytes:
        place = self.neighbourhood(sender).index(receiver)
        return self._replies[sender].shares[place - (receiver > sender)]

    def take_unmask(self, node: int, reply: bytes) -> None:
        """Take a node's shares.

        Args:
            node: Who replied.
            reply: An `UnmaskReply` as bytes.

        Raises:
            SecAggRefused: No shares were requested of this node.
        """
        found = UnmaskReply.decode(reply)
        left = [name for name in self.neighbourhood(node) if name not in self.missing]
        if not self.charged or found.salt != self.salt or node not in self.survivors or len(found.shares) != len(left):
            raise SecAggRefused("position", f"shares of node {node} were not requested")
        received = dict(zip(left, found.shares))
        self._failed.clear()
        self._shares[node] = {name: share for name, share in received.items() if share != NO_SHARE}
        self._disputes |= {(name, node) for name, share in received.items() if share == NO_SHARE and name != node}

    @property
    def disputes(self) -> frozenset[tuple[int, int]]:
        """Pairs of a sender and a receiver who says that the sender's sealed share does not open: one of them lies."""
        return frozenset(self._disputes)

    @property
    def silent(self) -> frozenset[int]:
        """The survivors whose shares were requested and did not come."""
        return frozenset(set(self.survivors) - set(self._shares)) if self.charged else frozenset()

    def unopened(self) -> frozenset[int]:
        """The survivors whose seeds do not follow from the shares that came; while there are any the sum is closed.

        Returns:
            Ids of nodes.
        """
        return frozenset(node for node in self.survivors if not self._is_known(node))

    @property
    def most_wrong(self) -> int:
        """How many nodes may lie about shares so that every honest sender's seed is found, where all nodes answer.

        Half of the shares that can be spared; all of them where there are few ways to choose `threshold` shares.
        """
        holders, threshold = min(map(len, self._neighbourhoods.values())), self.settings.threshold
        spare = max(0, holders - threshold)
        return spare if comb(holders, threshold) <= MOST_TRIALS else spare // 2

    def _is_known(self, node: int) -> bool:
        with suppress(SecAggRefused):
            self._seed(node)
            return True
        return False

    def open(self, *, device: str | None = None) -> Any:
        """The sum of the survivors' noisy updates; with `device="cuda"` a tensor on that GPU, computed there.

        Args:
            device: `"cuda"` computes there.

        Returns:
            A float64 array or tensor.
        """
        masks = [(self_mask(self._seed(node), self.salt), 1) for node in self.survivors]
        for node in self.survivors:
            masks += [(key, 1 if node < peer else -1) for peer, key in self._keys.get(node, {}).items()]
        vectors = [self._replies[node].vector for node in self.survivors]
        return self.settings.codec.open(vectors, masks, device=device)

    def _seed(self, node: int) -> bytes:
        """The seed of a survivor's self-mask, which its commitment confirms.

        With w wrong shares among n it is found where 2 w <= n - threshold, and where there are few ways to choose
        `threshold` of the n, for any w <= n - threshold. Finding wrong shares takes work: no seed is tried twice with
        the same shares, and shares of holders that were wrong before are used last.
        """
        if node in self._seeds:
            return self._seeds[node]
        threshold, shares = self.settings.threshold, self._shares
        held = {
            place: (holder, shares[holder][node])
            for place, holder in enumerate(self.neighbourhood(node))
            if node in shares.get(holder, {})
        }
        if len(held) < threshold:
            raise SecAggRefused("quorum", f"{len(held)} shares of node {node}, {threshold} are needed")
        seed = self._seed_of(node, held) if node not in self._failed else None
        if seed is not None:
            self._seeds[node] = seed
            return seed
        self._failed.add(node)
        raise SecAggRefused("commitment", f"the shares of node {node} do not give the seed it committed to")

    def _seed_of(self, node: int, held: dict[int, tuple[int, bytes]]) -> bytes | None:
        """The committed seed that follows from shares, by their places; None where it does not."""
        threshold = self.settings.threshold
        trusted = sorted(held, key=lambda place: (self._wrong[held[place][0]], place))[:threshold]
        seed = self._confirmed(node, sorted(trusted), held)
        if seed is None and len(held) >= threshold + 2:
            with suppress(ValueError):
                found, wrong = decode(list(held), [share for _, share in held.values()], threshold)
                if commit(found, self.salt) == self._replies[node].commitment:
                    self._wrong.update(held[place][0] for place in wrong)
                    return found
        if seed is None and comb(len(held), threshold) <= MOST_TRIALS:
            tries = (self._confirmed(node, chosen, held) for chosen in combinations(held, threshold))
            seed = next((found for found in tries if found is not None), None)
        return seed

    def _confirmed(self, node: int, places: Sequence[int], held: dict[int, tuple[int, bytes]]) -> bytes | None:
        """The seed that the shares of these places give, if it is the committed one."""
        with suppress(ValueError):
            seed = combine(places, [held[place][1] for place in places])
            return seed if commit(seed, self.salt) == self._replies[node].commitment else None
        return None

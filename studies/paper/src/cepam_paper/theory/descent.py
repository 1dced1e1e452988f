"""Algorithm 1 run on small problems, many repetitions side by side, through real messages."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cepam.codec.codec import Codec
from cepam.downlink.broadcast import Broadcast, Receiver
from cepam.keys import Address, Key
from cepam_paper.theory.convergence import Schedule
from cepam_paper.theory.geman_mcclure import GemanMcClure
from cepam_paper.theory.problem import Problem

Floats = npt.NDArray[np.float64]
Channel = Callable[[Floats, int], Floats]
"""Updates (rows, m) and the round in, decoded vectors of the same shape out."""
Downlink = Callable[[Floats, int], Floats]
"""The server's weights (rows, m) and the round in, the weights that clients receive out."""


@dataclass(frozen=True)
class Descent:
    """What the repetitions of one training did, at the rounds that were asked for.

    `gaps` is F(W) - F(w*) and `squares` ||W - w*||^2, both (rounds asked for, repetitions). `drifts` and `energies` are
    the means over repetitions of sum p_k ||W - W^k||^2 and sum p_k^2 ||X^k||^2 in every round, `deviations` that of
    sum p_k ||W' - W^k||^2 with W' the clients' own mean (Paper: Lemma 13).
    """

    rounds: tuple[int, ...]
    gaps: Floats
    squares: Floats
    drifts: Floats
    energies: Floats
    deviations: Floats
    clipped: int
    projected: int
    farthest: float
    largest_gradient: float

    def band(self) -> tuple[Floats, Floats, Floats]:
        """The mean gap over repetitions and the ends of its 95 % interval (normal approximation)."""
        mean = self.gaps.mean(axis=1)
        half = 1.96 * self.gaps.std(axis=1, ddof=1) / np.sqrt(self.gaps.shape[1])
        return mean, mean - half, mean + half


def seeded_key(seed: int, client: int = 0) -> Key:
    """A key computed from a seed: for experiments that must come out the same twice, protecting nobody."""
    return Key(hashlib.sha256(f"cepam theory {seed} {client}".encode()).digest())


def stacked(codec: Codec, seed: int) -> Channel:
    """All updates of a round in one message; each begins at a sub-vector of its own, so noises are independent."""
    key, n = seeded_key(seed), codec.on.dimension

    def send(updates: Floats, round: int) -> Floats:
        rows, size = updates.shape
        padded = np.zeros((rows, -(-size // n) * n))
        padded[:, :size] = updates
        at = Address(key, round=round, client=0)
        return codec.decode(codec.encode(padded.reshape(-1), at), at).reshape(padded.shape)[:, :size]

    return send


def separate(codec: Codec, seed: int) -> Channel:
    """Every update in a message of its own, under a key of its own: Algorithm 1 to the letter, and slower."""

    def send(updates: Floats, round: int) -> Floats:
        decoded = np.empty_like(updates)
        for client, update in enumerate(updates):
            at = Address(seeded_key(seed, client), round=round, client=client)
            decoded[client] = codec.decode(codec.encode(update, at), at)
        return decoded

    return send


def quantized_downlink(steps: Callable[[int], float], run: str, start: Floats) -> Downlink:
    """The real downlink: every round one message of `Broadcast` on a grid of this round's step, read by a `Receiver`.

    Args:
        steps: the grid's step by round; it is rounded down to a power of two.
        run: names the grid.
        start: the weights (rows, m) that both ends begin with.
    """
    server, client = Broadcast(run, start.ravel()), Receiver(run, start.ravel())

    def send(weights: Floats, round: int) -> Floats:
        client.apply(server.publish(weights.ravel(), steps(round)))
        return np.asarray(client.weights, dtype=np.float64).reshape(weights.shape)

    return send


def clip_rows(updates: Floats, clip: float) -> tuple[Floats, int]:
    """The updates scaled to norm at most `clip`, and how many had to be."""
    norms = np.linalg.norm(updates, axis=-1, keepdims=True)
    return updates / np.maximum(1.0, norms / clip), int((norms > clip).sum())


def descend(
    problem: Problem,
    schedule: Schedule,
    channel: Channel,
    start: Floats,
    rounds: Sequence[int],
    clip: float,
    repetitions: int,
    seed: int,
    batch: int = 1,
    downlink: Downlink | None = None,
) -> Descent:
    """Training from `start` up to the last of `rounds` (rising), `repetitions` times with samples of their own.

    Gradients are means over `batch` records drawn with replacement; without a `downlink` clients receive the server's
    weights as they are.

    Paper: Algorithm 1. Departs: the server's weights are projected onto the problem's domain; `projected` counts how
    often that changed anything (never, in the experiments of the report).
    """
    if not float(schedule.rate(0)) <= problem.largest_local_rate * (1 + 1e-12):
        raise ValueError(f"learning rates must be at most {problem.largest_local_rate:.3g} to stay in the domain")
    if not rounds or list(rounds) != sorted(set(rounds)) or rounds[0] < 0:
        raise ValueError(f"rounds must rise from 0 or more, got {rounds!r}")
    if np.linalg.norm(start) > problem.radius:
        raise ValueError(f"start must lie in the domain of radius {problem.radius:.3g}")
    watch = _Watch(problem, float(np.linalg.norm(start)))
    draw, p, tau = np.random.default_rng(seed), np.asarray(problem.weights), schedule.steps
    server = np.repeat(start[None, :], repetitions, axis=0)
    seen = [server.copy()] if rounds[0] == 0 else []
    for r in range(rounds[-1]):
        rates = schedule.rate(r * tau + np.arange(tau))
        public = server if downlink is None else downlink(server, r)
        local = np.repeat(public[:, None, :], len(p), axis=1)
        for rate in rates[:-1]:
            local = local - rate * _sampled(problem, local, draw, batch)
        updates = _sampled(problem, local, draw, batch)
        watch.look(server, local, updates)
        updates, hit = clip_rows(updates, clip)
        decoded = channel(updates.reshape(-1, problem.size), r).reshape(updates.shape)
        server, out = clip_rows(server - rates[-1] * np.einsum("k,skm->sm", p, decoded), problem.radius)
        watch.clipped += hit
        watch.projected += out
        if r + 1 in rounds:
            seen.append(server.copy())
    return watch.report(tuple(rounds), np.stack(seen))


class _Watch:
    """What is noted down while a training runs."""

    def __init__(self, problem: Problem, farthest: float) -> None:
        self.problem, self.farthest, self.largest = problem, farthest, 0.0
        self.clipped = self.projected = 0
        self.drifts: list[float] = []
        self.energies: list[float] = []
        self.deviations: list[float] = []

    def look(self, server: Floats, local: Floats, updates: Floats) -> None:
        p, sizes = np.asarray(self.problem.weights), np.square(updates).sum(axis=2)
        self.drifts.append(float((np.square(local - server[:, None, :]).sum(axis=2) @ p).mean()))
        self.energies.append(float((sizes @ np.square(p)).mean()))
        apart = local - np.einsum("k,skm->sm", p, local)[:, None, :]
        self.deviations.append(float((np.square(apart).sum(axis=2) @ p).mean()))
        self.farthest = max(self.farthest, float(np.linalg.norm(local, axis=2).max()))
        self.largest = max(self.largest, float(np.sqrt(sizes.max())))

    def report(self, rounds: tuple[int, ...], points: Floats) -> Descent:
        best, value = self.problem.minimum
        return Descent(
            rounds=rounds,
            gaps=self.problem.objective(points) - value,
            squares=np.square(points - best).sum(axis=-1),
            drifts=np.array(self.drifts),
            energies=np.array(self.energies),
            deviations=np.array(self.deviations),
            clipped=self.clipped,
            projected=self.projected,
            farthest=self.farthest,
            largest_gradient=self.largest,
        )


def _sampled(problem: Problem, local: Floats, draw: np.random.Generator, batch: int = 1) -> Floats:
    """The mean gradient of `batch` records for every repetition and client, at its own weights."""
    repetitions, clients = local.shape[:2]
    each, total = np.arange(clients)[None, :], np.zeros_like(local)
    for _ in range(batch):
        chosen = draw.integers(problem.features.shape[1], size=(repetitions, clients))
        total += problem.gradient(local, problem.features[each, chosen], problem.targets[each, chosen])
    return total / batch


def within_round(
    problem: Problem, schedule: Schedule, channel: Channel, start: Floats, repetitions: int, seed: int
) -> Floats:
    """F - F(w*) along one round from `start`, (tau + 1, repetitions): at W_0, at the clients' mean after each local
    step, and at the server's next weights.

    Paper: Section IV-D, after the theorem. The server steps from W_0 and leaves the local steps behind, so the last
    value need not lie below the one before it.
    """
    draw, p, tau = np.random.default_rng(seed), np.asarray(problem.weights), schedule.steps
    server = np.repeat(start[None, :], repetitions, axis=0)
    local, rates = np.repeat(server[:, None, :], len(p), axis=1), schedule.rate(np.arange(tau))
    points = [server]
    for rate in rates[:-1]:
        local = local - rate * _sampled(problem, local, draw)
        points.append(np.einsum("k,skm->sm", p, local))
    updates = _sampled(problem, local, draw)
    decoded = channel(updates.reshape(-1, problem.size), 0).reshape(updates.shape)
    points.append(server - rates[-1] * np.einsum("k,skm->sm", p, decoded))
    return np.asarray(problem.objective(np.stack(points)) - problem.minimum[1])


@dataclass(frozen=True)
class GradientPath:
    """||grad F||^2 at the server's weights and at the broadcast ones, (rounds, repetitions), and what was met.

    `clipped` is the share of updates that clipping changed, `downlink_error` the largest l2 distance of the broadcast
    weights to the server's.
    """

    squares: Floats
    public_squares: Floats
    clipped: float
    downlink_error: float

    def averages(self) -> tuple[Floats, Floats]:
        """The mean over rounds so far and repetitions, and its upper 95 % end (normal, repetitions independent)."""
        means = np.cumsum(self.squares, axis=0) / np.arange(1, len(self.squares) + 1)[:, None]
        half = 1.96 * means.std(axis=1, ddof=1) / np.sqrt(means.shape[1])
        return means.mean(axis=1), means.mean(axis=1) + half


def follow_gradients(
    problem: GemanMcClure,
    channel: Channel,
    start: Floats,
    rounds: int,
    steps: int,
    rate: float,
    local_rate: float,
    clip: float,
    batch: int,
    repetitions: int,
    seed: int,
    downlink: Downlink | None = None,
) -> GradientPath:
    """Algorithm 1 at constant learning rates on a problem that need not be convex, over all of R^m."""
    draw, p = np.random.default_rng(seed), np.asarray(problem.weights)
    server = np.repeat(start[None, :], repetitions, axis=0)
    each, count = np.arange(len(p))[None, :], problem.records.shape[1]

    def sampled(local: Floats) -> Floats:
        total = np.zeros_like(local)
        for _ in range(batch):
            chosen = draw.integers(count, size=(repetitions, len(p)))
            total += problem.gradient(local, problem.records[each, chosen], problem.heights[each, chosen])
        return total / batch

    squares, public_squares, hits, farthest = [], [], 0, 0.0
    for r in range(rounds):
        public = server if downlink is None else downlink(server, r)
        farthest = max(farthest, float(np.linalg.norm(public - server, axis=1).max()))
        squares.append(np.square(problem.full_gradient(server)).sum(axis=1))
        public_squares.append(np.square(problem.full_gradient(public)).sum(axis=1))
        local = np.repeat(public[:, None, :], len(p), axis=1)
        for _ in range(steps - 1):
            local = local - local_rate * sampled(local)
        updates, hit = clip_rows(sampled(local), clip)
        hits += hit
        decoded = channel(updates.reshape(-1, problem.size), r).reshape(updates.shape)
        server = server - rate * np.einsum("k,skm->sm", p, decoded)
    share = hits / (rounds * repetitions * len(p))
    return GradientPath(np.stack(squares), np.stack(public_squares), share, farthest)
